"""Evaluation during training, with the `eval` keys of a training config, as by `rococo evaluate`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.evaluation.counts import CountedRows, rows_of_outcomes, with_unseen
from rococo_jax.evaluation.models.encoder import EncoderModel
from rococo_jax.evaluation.options import DataOptions
from rococo_jax.evaluation.results import make_results
from rococo_jax.evaluation.seen_images import seen_items
from rococo_jax.options import read
from rococo_jax.processes import run_on_all_processes
from rococo_jax.runtime import cache_folder


def open_eval_benchmarks(keys: ConfigDict) -> tuple[list[Benchmark], Settings] | None:
    """Open the benchmarks of the `eval` keys; return them with their settings, or None if the keys name no data.

    Raises InputError: a name is unknown, a folder is missing, or as `open_benchmarks`.
    """
    if not (keys["data"] or keys["images"]):
        return None
    settings = read(Settings, dict(keys), _key)
    return read(DataOptions, dict(keys), _key).open(settings), settings


def _key(name: str) -> str:
    return f"config.eval.{name}"


def make_evaluation(keys: ConfigDict, keep: bool = True) -> Callable[[Encoder], Mapping[str, float]] | None:
    """Return a function that evaluates a model, or None if the keys name no data. All processes must call both.

    Its results are `TASK/VARIANT/METRIC`, as in `results.json`, and `score`, in percent: the primary metric of
    unaltered variants, averaged over those of a task and then over tasks. For a variant with items on training images,
    the score uses `VARIANT/unseen`, which excludes them.

    Args:
        keys: the `eval` keys of a training config, by name.
        keep: keep features in the embedding cache, which is useful for frozen towers.

    Raises:
        InputError: as `open_eval_benchmarks`.
    """
    benchmarks_and_settings = run_on_all_processes("benchmarks", lambda: open_eval_benchmarks(keys))
    if benchmarks_and_settings is None:
        return None
    benchmarks, settings = benchmarks_and_settings
    cache = EmbeddingCache(cache_folder() / "embeddings" if keep else None)

    def evaluate(encoder: Encoder) -> dict[str, float]:
        # A cache key needs the hash of all parameters, which no process has if they are sharded over several.
        features = EmbeddingCache(None) if encoder.mesh.is_multi_process else cache
        model = EncoderModel(encoder)
        outcomes, seen_rows = [], []
        for benchmark in map(model.adapt_benchmark, benchmarks):
            scored = model.outcomes(benchmark, settings, features)
            outcomes += scored
            seen_rows += seen_items(model, benchmark, scored).rows or [None] * len(scored)
        tasks = make_results(encoder.name, settings.protocol, {}, outcomes, seen=seen_rows)["tasks"]
        numbers = {
            f"{task}/{variant}/{metric}": float(value)
            for task, variants in tasks.items()
            for variant, values in variants.items()
            for metric, value in values.items()
            if value is not None
        }
        return {"score": score_of(rows_of_outcomes(outcomes, seen_rows)), **numbers}

    return evaluate


def score_of(rows: Sequence[CountedRows]) -> float:
    """Return the primary metric of unaltered variants, averaged over those of a task and then over tasks.

    Of variants with images that the model was trained on, only the other images count.
    """
    of_task: dict[str, list[float]] = {}
    all_rows = with_unseen(rows)
    names = {(each.name, each.variation.name) for each in all_rows}
    for each in all_rows:
        has_unseen = (each.name, dataclasses.replace(each.variation, unseen=True).name) in names
        is_unaltered = each.seed is None and each.baseline in ("", each.variation.name)
        if is_unaltered and (each.variation.unseen or not has_unseen):
            of_task.setdefault(each.name, []).append(each.counted.values()[each.counted.primary])
    return float(np.mean([np.mean(values) for values in of_task.values()]))
