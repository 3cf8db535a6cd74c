"""`results.json` and `per_query.parquet`: from tasks and their rank statistics to what is kept, and back, checked.

    {"model": name, "protocol": ..., "fingerprint": {...},
     "tasks": {TASK: {VARIANT: {METRIC: number or null}}},
     "intervals": {TASK: {VARIANT: {METRIC: [low, high] or null}}},
     "sizes": {TASK: {VARIANT: {"queries", "gallery", "images"}}}, "bootstrap": {...}, "notes": [...]}

Metrics are percentages from 0 to 100. `drop` is null where the clean R@1 is 0. Where a variant was run with several
seeds, a metric is the mean over them, `METRIC_std` beside it their sample standard deviation, and `sizes` names the
seeds; `corruptions_3` is the mean over all corruptions of severity 3 in the same way. The queries table has one row a
query and seed.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rococo_jax.benchmarks.tasks import IMAGE_TO_TEXT, RankBenchmark, RankTask
from rococo_jax.errors import InputError
from rococo_jax.metrics.intervals import LEVEL, RESAMPLES, SEED, retrieval_intervals
from rococo_jax.metrics.retrieval import METRICS, drop, ranks, retrieval_metrics, top_kinds
from rococo_jax.similarity.statistics import KINDS, OWN, RankStatistics
from rococo_jax.storage import atomic_write, hash_json, read_json
from rococo_jax.version import __version__

Outcome = tuple[RankTask, RankStatistics]


def make_fingerprint(*, model: Mapping[str, Any], data: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    """What a result depends on. Where `comparable` agrees, all but the model is the same: one table may hold both.

    Args:
        model: hashes of weights, preprocessing and tokenizer, or of the embeddings or similarities handed in.
        data: hashes of annotations, and of images where they were read.
        protocol: `paper`, `strict` or `control`.
    """
    versions = {"rococo_jax": __version__, "jax": jax.__version__, "numpy": np.__version__}
    conditions = {"data": dict(data), "protocol": protocol, "versions": versions}
    return {"model": dict(model), **conditions, "comparable": hash_json(conditions)}


def make_results(
    model: str, protocol: str, fingerprint: Mapping[str, Any], outcomes: Sequence[Outcome], notes: Iterable[str] = ()
) -> dict[str, Any]:
    """The contents of `results.json`. A variant's drop is against its baseline, `clean` for most."""
    baselines = {(task.name, task.variant): statistics for task, statistics in outcomes if task.seed is None}
    runs: dict[tuple[str, str], list[Outcome]] = {}
    for task, statistics in outcomes:
        runs.setdefault((task.name, task.variant), []).append((task, statistics))
        if task.pooled is not None:
            runs.setdefault((task.name, task.pooled), []).append((task, statistics))
    tasks, intervals, sizes = {}, {}, {}
    for (name, variant), of_variant in runs.items():
        task = of_variant[0][0]
        baseline = None if variant == task.baseline else baselines.get((name, task.baseline))
        statistics = [statistics for _, statistics in of_variant]
        metrics = mean_over_seeds([retrieval_metrics(each, protocol) for each in statistics])
        if baseline is not None:
            metrics |= drop(retrieval_metrics(baseline, protocol)["r1"], metrics["r1"])
        tasks.setdefault(name, {})[variant] = metrics
        intervals.setdefault(name, {})[variant] = retrieval_intervals(
            statistics, protocol, task.query_group, clean=baseline
        )
        size = {"queries": len(task.queries), "gallery": len(task.gallery), "images": len(np.unique(task.query_group))}
        seeds = {"seeds": [task.seed for task, _ in of_variant]} if task.seed is not None else {}
        sizes.setdefault(name, {})[variant] = size | seeds
    return {
        "model": model,
        "protocol": protocol,
        "fingerprint": dict(fingerprint),
        "tasks": tasks,
        "intervals": intervals,
        "sizes": sizes,
        "bootstrap": {"level": LEVEL, "resamples": RESAMPLES, "seed": SEED, "resampled": "images"},
        "notes": list(notes),
    }


def mean_over_seeds(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric; of several runs also its sample standard deviation, as `r1_std` and so on.

    >>> mean_over_seeds([{"r1": 20.0}, {"r1": 24.0}])
    {'r1': 22.0, 'r1_std': 2.8284271247461903}
    """
    if len(runs) == 1:
        return dict(runs[0])
    values = {name: np.array([run[name] for run in runs]) for name in runs[0]}
    means = {name: float(each.mean()) for name, each in values.items()}
    return means | {f"{name}_std": float(each.std(ddof=1)) for name, each in values.items()}


def per_query_table(benchmark: RankBenchmark, outcomes: Sequence[Outcome], protocol: str):
    """One row a query (`pyarrow.Table`): its ranks, and who has the first place.

    `query` is its place in the task; `image` the image it is or belongs to; `caption` the query itself, or the best of
    its own originals where it is an image; `rank` is the protocol's; `top1_text` is a caption, or an image's name in
    text-to-image.
    """
    import pyarrow as pa

    images, captions = np.array(benchmark.images, object), np.array(benchmark.captions, object)
    tables = []
    for task, statistics in outcomes:
        count, kind = len(task.queries), top_kinds(statistics, protocol)
        top = task.gallery[statistics.best_indices[np.arange(count), kind]]
        to_text = task.name == IMAGE_TO_TEXT
        columns = {
            "task": [task.name] * count,
            "variant": [task.variant] * count,
            "seed": [task.seed] * count,
            "query": np.arange(count),
            "image": images[task.query_group],
            "caption": captions[task.gallery[statistics.best_indices[:, OWN]] if to_text else task.queries],
            "rank": ranks(statistics, protocol),
            "rank_optimistic": statistics.rank_optimistic,
            "rank_pessimistic": statistics.rank_pessimistic,
            "top1_kind": np.array(KINDS, object)[kind],
            "top1_text": captions[top] if to_text else images[top % len(images)],
            "top1_score": statistics.best_scores[np.arange(count), kind].astype(np.float64),
            "positive_score": statistics.positive_score.astype(np.float64),
        }
        tables.append(pa.table(columns, schema=_per_query_schema()))
    return pa.concat_tables(tables)


def _per_query_schema():
    import pyarrow as pa

    text, whole, number = pa.string(), pa.int64(), pa.float64()
    types = {"task": text, "variant": text, "seed": whole, "query": whole, "image": text, "caption": text}
    types |= {"rank": whole, "rank_optimistic": whole, "rank_pessimistic": whole}
    types |= {"top1_kind": text, "top1_text": text, "top1_score": number, "positive_score": number}
    return pa.schema(types.items())


def write_per_query(path: str | os.PathLike, table) -> None:
    """Writes a table as Parquet, by rename."""
    import pyarrow.parquet

    with atomic_write(path) as temporary:
        pyarrow.parquet.write_table(table, temporary)


def read_results(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a `results.json`.

    Raises:
        InputError: a part is missing, or a metric is not a number from 0 to 100.
    """
    path, wanted = Path(path), "a results file of `rococo evaluate` or `rococo score`"
    results = read_json(path, wanted)
    if not isinstance(results, dict):
        raise InputError(path, "file", f"a JSON {type(results).__name__}", wanted)
    for part, kind in (("model", str), ("protocol", str), ("fingerprint", dict), ("tasks", dict), ("intervals", dict)):
        if not isinstance(results.get(part), kind):
            found = f"a JSON {type(results[part]).__name__}" if part in results else "nothing"
            raise InputError(path, f"'{part}'", found, {str: "a string", dict: "an object"}[kind])
    for task, variants in results["tasks"].items():
        for variant, metrics in variants.items() if isinstance(variants, dict) else [(None, None)]:
            _check_metrics(path, f"tasks: {task}: {variant}", metrics)
    return results


def _check_metrics(path: Path, field: str, metrics: Any) -> None:
    if not isinstance(metrics, dict):
        raise InputError(path, field, f"a JSON {type(metrics).__name__}", "an object of metrics")
    for name in METRICS:
        value = metrics.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100.0001:
            raise InputError(path, f"{field}: {name}", value, "a percentage from 0 to 100")
