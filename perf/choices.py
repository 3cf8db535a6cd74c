"""Time and memory of choices: items scored, counted, resampled and written, from embeddings of any model.

    python perf/choices.py --items 1000000 --images 100000 --shape 1x2

Prints seconds a step and the peak of resident memory, as one JSON object.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import ChoiceTask
from rococo_jax.evaluation.results import make_results, per_query_table, write_per_query


class Names:
    """Images and texts of a made benchmark."""

    def __init__(self, images: int, texts: int):
        self.images = tuple(f"{number:012}.jpg" for number in range(images))
        self.texts = tuple(f"a man in a red shirt holds {number} boats beside a small tree" for number in range(texts))


def make_task(items: int, images: int, texts: int, shape: tuple[int, int], seed: int = 0) -> ChoiceTask:
    """Items of random images and texts; with one image of three texts the second is a hard positive."""
    rng, (wide, long) = np.random.default_rng(seed), shape
    match = np.zeros((items, wide, long), bool)
    diagonal = np.arange(min(shape))
    match[:, diagonal, diagonal] = True
    match[:, 0, :2] |= shape == (1, 3)
    item_images = rng.integers(0, images, (items, wide))
    return ChoiceTask(
        name="made",
        variant="part",
        ids=[str(number) for number in range(items)],
        images=Rows.of(ORIGINALS, np.arange(images)),
        image_names=np.arange(images),
        item_images=item_images,
        item_texts=rng.integers(0, texts, (items, long)),
        match=match,
        group=item_images[:, 0],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("items", 1_000_000), ("images", 100_000), ("texts", 200_000), ("width", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--shape", default="1x2", help="images x texts of an item")
    asked = parser.parse_args()
    rng, shape = np.random.default_rng(1), tuple(map(int, asked.shape.split("x")))
    tables = {ORIGINALS: asked.images, TEXTS: asked.texts}
    vectors = {name: rng.standard_normal((rows, asked.width), np.float32) for name, rows in tables.items()}
    for table in vectors.values():
        table /= np.linalg.norm(table, axis=1, keepdims=True)
    task, names = make_task(asked.items, asked.images, asked.texts, shape), Names(asked.images, asked.texts)
    seconds, started = {}, time.perf_counter()

    def lap(name: str) -> None:
        seconds[name] = round(time.perf_counter() - started - sum(seconds.values()), 2)

    outcome = task.score(Embeddings(vectors))
    lap("score")
    results = make_results("made", "paper", {}, [outcome])
    lap("metrics and intervals")
    with tempfile.TemporaryDirectory() as folder:
        write_per_query(Path(folder) / "per_query.parquet", per_query_table([outcome.rows(names)]))
    lap("rows")
    outcome.errors(names, 12)
    lap("errors")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    held = sum(table.nbytes for table in vectors.values())
    told = {"items": asked.items, "shape": asked.shape, "seconds": seconds, "total_seconds": sum(seconds.values())}
    told |= {"peak_bytes": peak, "of_these_vectors": held, "metrics": results["tasks"]["made"]["part"]}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
