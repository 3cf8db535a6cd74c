"""Time caption encoding: our CLIP B/32 text tower in length buckets and `transformers` padded to 77.

    python perf/text_tower.py --captions coco_karpathy_test.json [--count 2000] [--cores 2]

Both have the same random weights. Token ids are synthetic (one per word or punctuation mark, between a start and an end
token, about as CLIP's vocabulary splits COCO captions), since time depends on their number alone. The reference runs at
its fastest: no_grad, its fused attention, whole batches, one thread per core. Both return unit vectors in NumPy, which
must agree.
"""

import re
import zlib

import measuring
import numpy as np

CONTEXT, START, END = 77, 49406, 49407


def main() -> None:
    parser = measuring.options(__doc__, cores=True)
    parser.add_argument("--captions", required=True, help="captions file in Karpathy form")
    parser.add_argument("--count", type=int, default=2000, help="captions, spread over the file")
    parser.add_argument("--reference-count", type=int, default=256, help="how many of these the reference encodes")
    parser.add_argument("--batch", type=int, default=32, help="batch size of the reference")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    measuring.use_cores(arguments.cores)
    ids = [token_ids(caption) for caption in read_captions(arguments.captions, arguments.count)]
    theirs = make_reference(arguments.cores)
    ours = measuring.converted(theirs)
    ours.tokenizer = made_up_tokenizer()
    some = ids[: arguments.reference_count]
    report = measuring.compare(
        "captions",
        ours=lambda: ours.encode_text(ids),
        theirs=lambda: encode_with_reference(theirs, some, arguments.batch),
        items=len(ids),
        items_of_reference=len(some),
        rounds=arguments.rounds,
    )
    mean = float(np.mean([len(row) for row in ids]))
    measuring.print_report({"tokens_per_caption": round(mean, 2), **report})


def read_captions(path: str, count: int) -> list[str]:
    """`count` captions, evenly spread over the file."""
    from rococo_jax.data.captioned_images import read_captions as read

    captions = [caption for image in read(path) for caption in image.captions]
    return [captions[index] for index in np.linspace(0, len(captions) - 1, count).astype(int)]


def token_ids(caption: str) -> list[int]:
    words = re.findall(r"\w+|[^\w\s]", caption.lower())[: CONTEXT - 2]
    return [START, *(zlib.crc32(word.encode()) % START for word in words), END]


def made_up_tokenizer():
    """A tokenizer that only pads; inputs are token ids."""
    import tokenizers

    from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec

    spec = TokenizerSpec(family="clip", cleaning="none", context_length=CONTEXT, pad_id=END, eos_id=END)
    return Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"": 0}, "")), spec)


def make_reference(threads: int):
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = transformers.CLIPTextConfig(
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=8,
        projection_dim=512,
        vocab_size=49408,
        max_position_embeddings=CONTEXT,
        eos_token_id=END,
    )
    return transformers.CLIPTextModelWithProjection(config).eval()


def encode_with_reference(model, ids: list[list[int]], batch: int) -> np.ndarray:
    import torch

    padded = torch.full((len(ids), CONTEXT), END, dtype=torch.long)
    for row, tokens in zip(padded, ids, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    with torch.no_grad():
        parts = [model(input_ids=rows).text_embeds for rows in padded.split(batch)]
        return torch.nn.functional.normalize(torch.cat(parts), dim=-1).numpy()


if __name__ == "__main__":
    main()
