"""Time the training input and a bare multi-process Pillow loop on the same cores; print one JSON object.

    python perf/loader.py --images coco/images --captions captions_train.json --tokenizer towers/minilm_l6_v2

Both read the same files, decode them at full size and resize them alike (shorter side 224, bicubic, centre crop) to
the same bytes, which is checked. The bare loop is Pillow in a `multiprocessing.Pool` that discards its pixels. The
training input also shuffles, draws a caption, alters it once by an influence table, tokenises both, and brings batches
into the main process. The table holds random numbers, whose values do not change the cost, unless `--influence` names a
real one.

Rounds take turns; in each, both process the same number of images after a warm-up that starts their processes and
drains their buffers. A `ratio` is the median over rounds of (images/s of the training input) / (images/s of the bare
loop): `ours` with worker processes, `ours_in_threads` in threads of one process.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from pathlib import Path

import numpy as np
from PIL import Image

from rococo_jax.data.images import open_image
from rococo_jax.data.pair_source import FolderPairs
from rococo_jax.data.pairs import open_pairs
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import read_huggingface_tokenizer
from rococo_jax.data.training_input import make_training_input
from rococo_jax.perturb.text.influence_table import read_influence_table
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.perturb.text.replacement import AlterCaptions, CaptionAlterer
from rococo_jax.perturb.text.words import split_words
from rococo_jax.progress import progress

SIDE = 224
PREPROCESSING = Preprocessing(shortest_edge=SIDE, crop_size=(SIDE, SIDE), resample="bicubic")


def decode(path: str) -> np.ndarray:
    """Decode and resize one file, as the bare loop does."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    scale = SIDE / min(width, height)
    image = image.resize((max(SIDE, int(width * scale)), max(SIDE, int(height * scale))), Image.Resampling.BICUBIC)
    left, upper = (image.width - SIDE) // 2, (image.height - SIDE) // 2
    return np.asarray(image.crop((left, upper, left + SIDE, upper + SIDE)))


def decode_only(path: str) -> None:
    decode(path)


def check_alike(source: FolderPairs) -> None:
    """Raise SystemExit if the two sides make different pixels."""
    for path in source.paths[:: max(1, len(source) // 100)]:
        if not np.array_equal(decode(path), PREPROCESSING.resize(open_image(path))):
            raise SystemExit(f"{path}: found different pixels in the two loops")


def time_bare(source: FolderPairs, workers: int, count: int) -> float:
    """Images per second of the bare loop."""
    order = np.random.default_rng(0).permutation(len(source))
    paths = [source.paths[order[i % len(order)]] for i in range(count)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(decode_only, paths[: 100 * workers], chunksize=10)
        start = time.perf_counter()
        for _ in pool.imap_unordered(decode_only, paths, chunksize=16):
            pass
        return count / (time.perf_counter() - start)


def time_training_input(source: FolderPairs, workers: int, count: int, batch_size: int, **choices) -> float:
    """Images per second of the training input."""
    batches = count // batch_size
    made = make_training_input(
        source, preprocessing=PREPROCESSING, batch_size=batch_size, seed=0, workers=workers, text_length=32, **choices
    )
    with made:
        for _ in range(6 * max(workers, 1)):
            next(made)
        start = time.perf_counter()
        for _ in range(batches):
            batch = next(made)
        seconds = time.perf_counter() - start
    assert batch["altered_valid"].mean() > 0.5 and batch["skipped_images"] == 0
    return batches * batch_size / seconds


def make_alterer(source: FolderPairs, table: str | None) -> AlterCaptions:
    """Transform that adds one altered caption per sample, chosen by the influence of words."""
    rng = np.random.default_rng(0)
    influence = (
        read_influence_table(table)
        if table
        else {text: rng.random(len(split_words(text)), np.float32) for texts in source.captions for text in texts}
    )
    return AlterCaptions([CaptionAlterer("same_concept", shipped_lexicon())], influence)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, metavar="DIRS")
    parser.add_argument("--captions", required=True, metavar="FILES")
    parser.add_argument("--allow-missing-images", action="store_true")
    parser.add_argument("--tokenizer", required=True, metavar="FOLDER", help="a Hugging Face folder of a text tower")
    parser.add_argument("--influence", metavar="F.jsonl")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--count", type=int, default=4096, help="images per round")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    source = open_pairs(arguments.images, arguments.captions, allow_missing=arguments.allow_missing_images)
    check_alike(source)
    config = json.loads((Path(arguments.tokenizer) / "config.json").read_text())
    choices = {
        "tokenizer": read_huggingface_tokenizer(arguments.tokenizer, config),
        "extra_text": [make_alterer(source, arguments.influence)],
    }
    rounds: dict[str, list[float]] = {"bare": [], "ours": [], "ours_in_threads": []}
    with progress("timing the loader", 3 * arguments.rounds, "runs") as advance:
        for _ in range(arguments.rounds):
            rounds["bare"].append(time_bare(source, arguments.workers, arguments.count))
            advance(1)
            for name, workers in (("ours", arguments.workers), ("ours_in_threads", 0)):
                rate = time_training_input(source, workers, arguments.count, arguments.batch_size, **choices)
                rounds[name].append(rate)
                advance(1)
    ratios = {
        name: [ours / bare for ours, bare in zip(rounds[name], rounds["bare"], strict=True)]
        for name in ("ours", "ours_in_threads")
    }
    print(
        json.dumps(
            {
                "images": len(source),
                "images_a_round": arguments.count,
                "workers": arguments.workers,
                "batch_size": arguments.batch_size,
                **{f"{name}_images_per_second": round(statistics.median(rates), 1) for name, rates in rounds.items()},
                **{f"{name}_ratio": round(statistics.median(each), 3) for name, each in ratios.items()},
                **{f"{name}_ratios": [round(ratio, 3) for ratio in each] for name, each in ratios.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
