"""Baselines without images: the results of scorers that see only the texts.

Results have them in the part `baselines`: those of n-gram models that are counted on training captions, if there are
any, and those that need no captions.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rococo_jax.benchmarks.baselines import preference_with_interval, text_baselines
from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.pooling import Pool, group_by_variant
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.data.tar_pairs import split_names
from rococo_jax.errors import InputError, object_of
from rococo_jax.storage import hash_json


@dataclasses.dataclass(frozen=True)
class TrainingCaptions:
    """Captions that n-gram models are counted on.

    Attributes:
        captions: the texts.
        about: their source, number and hash, for the results.
    """

    captions: tuple[str, ...]
    about: dict[str, Any]


def read_training_captions(files: str) -> TrainingCaptions:
    """Read the captions of files in any form (`data.caption_forms`), several separated by commas.

    Raises InputError: a file is missing or in another form.
    """
    captions = (text for file in split_names(files) for item in read_captions(file).items for text in item.captions)
    return training_captions(captions, files)


def training_captions(captions: Iterable[str], source: str) -> TrainingCaptions:
    """Return captions with their description for the results."""
    texts = tuple(captions)
    return TrainingCaptions(texts, {"source": source, "captions": len(texts), "hash": hash_json(list(texts))})


def has_baselines(results: Mapping[str, Any], training: TrainingCaptions | None) -> bool:
    """Return whether results have baselines for the same training captions.

    Raises InputError: they are of other captions.
    """
    if "baselines" not in results or training is None:
        return "baselines" in results
    stored = _stored_about(results)
    if stored and stored.get("hash") != training.about["hash"]:
        problem = f"results with baselines of {stored.get('source')}"
        expected = "the same captions, or another output folder"
        raise InputError(training.about["source"], "baseline_captions", problem, expected)
    return bool(stored)


def captions_of_results(results: Mapping[str, Any]) -> TrainingCaptions | None:
    """Read the training captions whose baselines are in the results; return None if there are none.

    Raises InputError: their file no longer exists, or has other captions.
    """
    stored = _stored_about(results)
    if not stored:
        return None
    expected = "the file that the results in the folder name, or another output folder"
    try:
        training = read_training_captions(str(stored.get("source")))
    except InputError as error:
        raise InputError(error.source, "baseline_captions", f"{error.field}: {error.found}", expected) from None
    if training.about["hash"] != stored.get("hash"):
        raise InputError(training.about["source"], "baseline_captions", "other captions", expected)
    return training


def _stored_about(results: Mapping[str, Any]) -> dict[str, Any]:
    return object_of(object_of(results.get("baselines")).get("captions"))


def baselines_part(benchmark: Benchmark, training: TrainingCaptions | None) -> dict[str, Any]:
    """Return the part `baselines` of the results of a benchmark."""
    captions = None if training is None else training.about
    return {"captions": captions, "tasks": baselines_of(benchmark, training)}


def baselines_of(
    benchmark: Benchmark, training: TrainingCaptions | None = None
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return `{TASK: {VARIANT: {BASELINE: {"preference", "interval", "pairs"}}}}` of every task that compares texts."""
    scorers = text_baselines(benchmark.texts, None if training is None else training.captions)
    pairs_of_tasks = [task.compared_texts() for task in benchmark.tasks]
    baselines: dict[str, dict[str, dict[str, Any]]] = {}
    for (name, variant), members in group_by_variant(benchmark.tasks).items():
        pairs = [pairs_of_tasks[place] for place in members.places if pairs_of_tasks[place] is not None]
        if pairs:
            baselines.setdefault(name, {})[variant] = _baselines_of_variant(scorers, pairs, members.pool)
    return baselines


def _baselines_of_variant(scorers: Mapping[str, Any], pairs: Sequence[Any], pool: Pool | None) -> dict[str, Any]:
    groups = [group for _, _, group in pairs]
    preferences = {
        name: [prefer(right.index, wrong.index) for right, wrong, _ in pairs] for name, prefer in scorers.items()
    }
    if pool is not None and pool.pooling == "items":
        groups = [np.concatenate(groups)]
        preferences = {name: [np.concatenate(each)] for name, each in preferences.items()}
    return {name: preference_with_interval(each, groups) for name, each in preferences.items()}
