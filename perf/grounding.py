"""Time what preference, blind and grounding add to an evaluation whose embeddings are cached; print one JSON object.

    python perf/grounding.py [--images 5000] [--width 512] [--repeats 2] [--one-task]

Random unit embeddings in RoCOCO's shape: five originals an image, ten images with a sixth, four variants with an
altered copy of the first five; clean and altered image-to-text (5,000 x 50,010), clean text-to-image. Both evaluations
rank, compute metrics with intervals, and write their tables; one also counts the pairs. Each runs in a process of its
own, twice, since the first one compiles; the fastest of the repeats counts. Other work disturbs CPU time less than
elapsed time. `--one-task`: one altered image-to-text task alone (`cpu_seconds_of_scores` is its ranking).
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import measuring
import numpy as np
from measuring import unit_vectors

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import RankTask
from rococo_jax.evaluation.results import make_results, pair_table, per_query_table, write_per_query

VARIANTS = ("same_concept", "diff_concept", "rand_voca", "danger")
EACH, WITH_SIXTH = 5, 10


@dataclasses.dataclass(frozen=True)
class Names:
    """Names behind rows, for the tables that are written."""

    images: tuple[str, ...]
    texts: tuple[str, ...]


def make_tasks(images: int, with_pairs: bool) -> list[RankTask]:
    """The tasks of the published annotations; without pairs, altered captions do not name their originals."""
    image = np.arange(images)
    counts = EACH + (image < WITH_SIXTH)
    owner = np.repeat(image, counts)
    first = np.cumsum(counts) - counts
    copied = np.concatenate([first[:, None] + np.arange(EACH)]).reshape(-1)
    queries, originals = Rows.of(ORIGINALS, image), Rows.of(TEXTS, np.arange(len(owner)))
    clean = RankTask("image_to_text", "clean", queries, originals, image, owner, np.zeros(len(owner), bool))
    tasks = [clean]
    for place, variant in enumerate(VARIANTS):
        texts = len(owner) + place * len(copied) + np.arange(len(copied))
        origin = np.concatenate([np.full(len(owner), -1), copied]) if with_pairs else None
        tasks.append(
            dataclasses.replace(
                clean,
                variant=variant,
                gallery=Rows.of(TEXTS, np.concatenate([np.arange(len(owner)), texts])),
                gallery_group=np.concatenate([owner, owner[copied]]),
                gallery_altered=np.arange(len(owner) + len(copied)) >= len(owner),
                gallery_origin=origin,
            )
        )
    back = RankTask("text_to_image", "clean", originals, queries, owner, image, np.zeros(images, bool))
    return [*tasks, back]


def evaluate(images: int, width: int, with_pairs: bool, one_task: bool) -> dict[str, float]:
    """Seconds of the second of two evaluations in this process, and the process's peak."""
    for count in (images, images):
        tasks = make_tasks(count, with_pairs)[-2:-1] if one_task else make_tasks(count, with_pairs)
        texts = EACH * count + min(count, WITH_SIXTH) + len(VARIANTS) * EACH * count
        embeddings = Embeddings({ORIGINALS: unit_vectors(count, width, 0), TEXTS: unit_vectors(texts, width, 1)})
        names = Names(tuple(f"{n}.jpg" for n in range(count)), tuple(f"text {n}" for n in range(texts)))
        started, cpu = time.perf_counter(), time.process_time()
        outcomes = [task.score(embeddings) for task in tasks]
        ranked = time.process_time() - cpu
        results = make_results("random", "paper", {}, outcomes)
        with tempfile.TemporaryDirectory() as folder:
            write_per_query(Path(folder) / "q.parquet", per_query_table(each.rows(names) for each in outcomes))
            write_per_query(Path(folder) / "p.parquet", pair_table(outcomes, names))
        taken = time.perf_counter() - started, time.process_time() - cpu
        del embeddings, outcomes
    assert ("blind" in results["tasks"]["image_to_text"]["danger"]) == with_pairs
    peak = measuring.peak_memory() / 1e6
    return {"seconds": taken[0], "cpu_seconds": taken[1], "cpu_seconds_of_scores": ranked, "peak_memory_MB": peak}


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--one-task", action="store_true")
    parser.add_argument("--only", choices=("with", "without"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(evaluate(arguments.images, arguments.width, arguments.only == "with", arguments.one_task)))
        return
    runs: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    for _ in range(arguments.repeats):
        for mode, found in runs.items():
            found.append(measuring.fresh(*sys.argv[1:], "--only", mode))
    best = {mode: {name: min(run[name] for run in found) for name in found[0]} for mode, found in runs.items()}
    report = {mode: measuring.rounded(each) for mode, each in best.items()}
    added = {name: 100 * (best["with"][name] / best["without"][name] - 1) for name in best["with"]}
    report |= {"added_percent": measuring.rounded(added, 1), "cores": os.cpu_count()}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
