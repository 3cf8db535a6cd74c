"""Time towers and those of another library with the same random weights alternately; print one JSON object.

    python perf/towers.py captions --captions coco_karpathy_test.json [--count 2000]     beside `transformers`
    python perf/towers.py images [--patch 32] [--count 64]                               beside `transformers`
    python perf/towers.py captions-open-clip --captions coco/captions_test.json          beside open_clip
    python perf/towers.py files --images coco/originals/val2014                          beside open_clip

Both return unit vectors in NumPy, which must agree. The other library runs in its fastest way: no_grad, fused
attention, full batches, one thread per core. For open_clip's installation see `measuring.py`.

captions            CLIP B/32's text tower in length buckets, and padded to 77 tokens. Token ids are synthetic (one per
                    word or punctuation mark, between a start and an end token, about as CLIP's vocabulary splits COCO
                    captions), since time depends on their number alone.
images              CLIP ViT-B/32 or B/16 from random normalised pixels.
captions-open-clip  The same ids. `whole` pads to the context length, as open_clip's tokenizer does by default. `short`
                    sorts the captions by length and gives the tower batches that are as long as their longest caption,
                    with as much of its mask, since open_clip 3.3 masks whole contexts alone: the fastest way it has.
files               Image files to vectors. open_clip reads files as its users do: its own transform in a DataLoader of
                    as many workers as cores. Ours is `embed_images` without a cache. Files of which both crop the same
                    pixels are taken: where an odd number of columns is left over, open_clip's crop lies one pixel from
                    that of `transformers`, which is ours. Files come from the page cache.
"""

import argparse
import re
import sys
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import measuring
import numpy as np
from PIL import Image

CONTEXT, START, END = 77, 49406, 49407
SIDE = 224


def main() -> None:
    parser = measuring.options(__doc__, cores=True, beside=True)
    parser.add_argument("measurement", choices=WAYS)
    parser.add_argument("--captions", help="captions file in Karpathy form")
    parser.add_argument("--images", type=Path, help="folder of images")
    parser.add_argument("--count", type=int, help="captions, spread over the file; images; files, some again")
    parser.add_argument("--reference-count", type=int, default=256, help="how many captions are padded whole")
    parser.add_argument("--batch", type=int, help="batch size of the other library")
    parser.add_argument("--patch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    measuring.use_cores(arguments.cores)
    way, count, batch = WAYS[arguments.measurement]
    arguments.count, arguments.batch = arguments.count or count, arguments.batch or batch
    measuring.print_report(way(arguments))


def compared(items: str, ours: Callable, theirs: Callable, counts: tuple[int, int], rounds: int) -> dict:
    return measuring.compare(items, ours, theirs, *counts, rounds)


def captions(arguments: argparse.Namespace) -> dict:
    ids = ids_of_captions(arguments)
    theirs = make_reference(arguments.cores)
    ours = measuring.converted(theirs)
    ours.tokenizer = padding_tokenizer()
    some = ids[: arguments.reference_count]
    ways = (lambda: ours.encode_text(ids)), (lambda: encode_with_reference(theirs, some, arguments.batch))
    report = compared("captions", *ways, (len(ids), len(some)), arguments.rounds)
    return {"tokens_per_caption": mean_length(ids), **report}


def images(arguments: argparse.Namespace) -> dict:
    import torch
    import transformers

    seeded(arguments.cores)
    config = transformers.CLIPVisionConfig(patch_size=arguments.patch, image_size=SIDE, projection_dim=512)
    theirs = transformers.CLIPVisionModelWithProjection(config).eval()
    ours = measuring.converted(theirs)
    pixels = np.random.default_rng(0).standard_normal((arguments.count, SIDE, SIDE, 3), np.float32)
    channels_first = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))

    def encode() -> np.ndarray:
        return unit(theirs(pixel_values=rows).image_embeds for rows in channels_first.split(arguments.batch))

    ways = (lambda: ours.encode_image(pixels)), encode
    report = compared("images", *ways, (len(pixels), len(pixels)), arguments.rounds)
    return {"patch": arguments.patch, **report}


def captions_open_clip(arguments: argparse.Namespace) -> dict:
    ids = ids_of_captions(arguments)
    theirs, _, ours = measuring.open_clip_pair(arguments)
    ours.tokenizer = padding_tokenizer()
    report = {"tokens_per_caption": mean_length(ids)}
    for name, count, way in (("whole", arguments.reference_count, whole), ("short", len(ids), short)):
        ways = (lambda: ours.encode_text(ids)), (lambda way=way, some=ids[:count]: way(theirs, some, arguments.batch))
        report[name] = compared("captions", *ways, (len(ids), count), arguments.rounds)
    return report


def files(arguments: argparse.Namespace) -> dict:
    import torch

    found = sorted(path for path in arguments.images.rglob("*.jpg") if is_cropped_equally(path))
    if not found:
        sys.exit(f"{arguments.images}: found no image whose crop is even; wanted .jpg files")
    paths = [found[number % len(found)] for number in range(arguments.count)]
    theirs, transform, ours = measuring.open_clip_pair(arguments)
    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.encoders.embedding import embed_images

    class Files(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int):
            return transform(Image.open(paths[index]))

    def encode() -> np.ndarray:
        workers = {"batch_size": arguments.batch, "num_workers": arguments.cores}
        return unit(theirs.encode_image(batch) for batch in torch.utils.data.DataLoader(Files(), **workers))

    ways = (lambda: embed_images(ours, paths, EmbeddingCache(None))), encode
    report = compared("images", *ways, (len(paths), len(paths)), arguments.rounds)
    return {"files": len(found), "count": len(paths), **report}


# Name of the measurement -> function, default count and batch.
WAYS = {
    "captions": (captions, 2000, 32),
    "images": (images, 64, 16),
    "captions-open-clip": (captions_open_clip, 1000, 32),
    "files": (files, 192, 64),
}


def is_cropped_equally(path: Path) -> bool:
    with Image.open(path) as image:
        short, long = sorted(image.size)
    return int(SIDE * long / short) % 2 == SIDE % 2


def read_captions(path: str, count: int) -> list[str]:
    """Return `count` captions, evenly spread over the file."""
    from rococo_jax.data.caption_forms import read_captions as read

    captions = [caption for image in read(path).items for caption in image.captions]
    return [captions[index] for index in np.linspace(0, len(captions) - 1, count).astype(int)]


def ids_of_captions(arguments: argparse.Namespace) -> list[list[int]]:
    texts = (re.findall(r"\w+|[^\w\s]", each.lower()) for each in read_captions(arguments.captions, arguments.count))
    return [[START, *(zlib.crc32(word.encode()) % START for word in text[: CONTEXT - 2]), END] for text in texts]


def mean_length(ids: list[list[int]]) -> float:
    return round(float(np.mean([len(row) for row in ids])), 2)


def padding_tokenizer():
    """Return a tokenizer that only pads; inputs are token ids."""
    import tokenizers

    from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec

    spec = TokenizerSpec(family="clip", cleaning="none", context_length=CONTEXT, pad_id=END, eos_id=END)
    return Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"": 0}, "")), spec)


def seeded(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)


def make_reference(threads: int):
    """Return CLIP B/32's text tower in `transformers` with random weights."""
    import transformers

    seeded(threads)
    config = transformers.CLIPTextConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8, projection_dim=512,
        vocab_size=49408, max_position_embeddings=CONTEXT, eos_token_id=END,
    )  # fmt: skip
    return transformers.CLIPTextModelWithProjection(config).eval()


def unit(parts: Iterable) -> np.ndarray:
    """Return unit vectors of batches, computed without gradients."""
    import torch

    with torch.no_grad():
        return torch.nn.functional.normalize(torch.cat(list(parts)), dim=-1).numpy()


def padded(ids: list[list[int]], length: int, pad: int):
    """Return padded ids as one tensor."""
    import torch

    return torch.tensor([row + [pad] * (length - len(row)) for row in ids], dtype=torch.long)


def encode_with_reference(model, ids: list[list[int]], batch: int) -> np.ndarray:
    return unit(model(input_ids=rows).text_embeds for rows in padded(ids, CONTEXT, END).split(batch))


def whole(model, ids: list[list[int]], batch: int) -> np.ndarray:
    """Encode batches padded to the context length."""
    return np.concatenate([encode_short(model, ids[at : at + batch], CONTEXT) for at in range(0, len(ids), batch)])


def short(model, ids: list[list[int]], batch: int) -> np.ndarray:
    """Encode batches of captions of about one length, padded to the longest of each batch."""
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    rows = [[ids[row] for row in order[at : at + batch]] for at in range(0, len(order), batch)]
    return np.concatenate([encode_short(model, each, max(map(len, each))) for each in rows])[np.argsort(order)]


def encode_short(model, ids: list[list[int]], length: int) -> np.ndarray:
    """Encode one batch with open_clip. Zeros are padding: it pools at the largest id, the end token."""
    masks = model.text.__dict__.setdefault("whole_mask", model.text.attn_mask)
    model.text.attn_mask = masks[:length, :length]
    return unit(model.encode_text(batch) for batch in [padded(ids, length, 0)])


if __name__ == "__main__":
    main()
