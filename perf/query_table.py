"""Measure the size of `per_query.parquet`, and the time to write and read it, for images under every corruption.

    python perf/query_table.py [--images 50000] [--corruptions 95] [--folder DIR]

The rows are those of a made-up classifier of 1,000 classes, clean and on each corruption. It prints JSON.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rococo_jax.benchmarks.tables import ORIGINALS, Rows
from rococo_jax.benchmarks.tasks.classify import ClassifyTask, ClassOutcome
from rococo_jax.benchmarks.variants import UNCORRUPTED, Variant
from rococo_jax.evaluation.counts import describe_variants, group_rows, row_table, rows_of_outcomes
from rococo_jax.evaluation.results import per_query_table, write_per_query
from rococo_jax.evaluation.stored_counts import read_counts
from rococo_jax.metrics.class_statistics import ClassStatistics, halves
from rococo_jax.perturb.images.corruptions import CORRUPTIONS, SEVERITIES

CLASSES = 1000


class Names:
    """Names of images; there are no texts."""

    def __init__(self, count: int):
        self.images = tuple(f"val/n{number % CLASSES:08}/ILSVRC2012_val_{number:08}.JPEG" for number in range(count))
        self.texts = ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--corruptions", type=int, default=95)
    parser.add_argument("--folder", type=Path, help="where to leave the file (default: it is removed)")
    options = parser.parse_args()
    names = Names(options.images)
    outcomes = list(made_outcomes(names, options.corruptions))
    with tempfile.TemporaryDirectory() as temporary:
        path = (options.folder or Path(temporary)) / "per_query.parquet"
        start = time.perf_counter()
        rows = rows_of_outcomes(outcomes)
        table = per_query_table([row_table("imagenet", each, names) for each in rows])
        made = time.perf_counter()
        write_per_query(path, table)
        written = time.perf_counter()
        of_task = describe_variants(group_rows(rows))["imagenet"]
        results = {
            "kinds": {"imagenet": "classify"},
            "variants": {"imagenet": of_task},
            "tasks": {"imagenet": {name: {"top1": 0.0} for name in of_task}},
        }
        row_count = len(table)
        del table, rows, outcomes
        begin = time.perf_counter()
        read_counts(path, results, {"imagenet": ["clean"]})
        one = time.perf_counter()
        read_counts(path, results)
        end = time.perf_counter()
        measured = {
            "rows": row_count,
            "bytes": path.stat().st_size,
            "seconds_to_make": made - start,
            "seconds_to_write": written - made,
            "seconds_to_read_one_variant": one - begin,
            "seconds_to_read_all": end - one,
        }
    print(json.dumps({name: round(value, 2) for name, value in measured.items()}, indent=2))


def made_outcomes(names: Names, corruptions: int) -> Iterator[ClassOutcome]:
    """Yield the outcomes of a random classifier: clean, uncorrupted, and each corruption."""
    count = len(names.images)
    every = np.arange(count)
    rng = np.random.default_rng(0)
    label = every % CLASSES
    prompts = np.arange(CLASSES)[:, None]
    classes = tuple(f"class {number:04}" for number in range(CLASSES))
    half = halves(names.images)
    images = Rows.of(ORIGINALS, every)
    task = ClassifyTask("imagenet", "clean", classes, prompts, images, every, names.images, label)
    yield ClassOutcome(task, made_statistics(label, half, rng))
    severities = [Variant(corruption=kind, severity=severity) for kind in CORRUPTIONS for severity in SEVERITIES]
    for variant in (Variant(corruption=UNCORRUPTED), *severities[:corruptions]):
        yield ClassOutcome(task.on_images(variant, UNCORRUPTED, None), made_statistics(label, half, rng))


def made_statistics(label: np.ndarray, half: np.ndarray, rng: np.random.Generator) -> ClassStatistics:
    """Return statistics in which three of four images are right, and every number is random."""
    right = rng.random(len(label)) < 0.75
    rank = np.where(right, 1, rng.integers(2, CLASSES, len(label)))
    columns = {name: rng.random(len(label)) for name in ClassStatistics.columns()}
    columns |= {"label": label, "half": half, "rank": rank, "tied": np.zeros(len(label), bool)}
    columns["predicted"] = np.where(right, label, rng.integers(0, CLASSES, len(label)))
    return ClassStatistics(**columns, temperatures=(1.0, 1.0), scale=100.0)


if __name__ == "__main__":
    main()
