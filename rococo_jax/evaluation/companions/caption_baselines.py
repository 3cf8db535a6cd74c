"""Baselines without images: the results of scorers that see only the texts."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rococo_jax.benchmarks.baselines import preference_with_interval, text_baselines
from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.pooling import Pool, group_by_variant
from rococo_jax.errors import InputError, object_of
from rococo_jax.evaluation.companions import Beside, Companion, Scored, TrainingCaptions, read_training_captions


@dataclasses.dataclass(frozen=True)
class CaptionBaselines(Companion):
    """Adds the part `baselines`: n-gram models of training captions, where there are any, and those that need none."""

    training: TrainingCaptions | None = None

    def is_in(self, results: Mapping[str, Any]) -> bool:
        """Whether the results have baselines for the same captions. Raises InputError: they are of other captions."""
        if "baselines" not in results or self.training is None:
            return "baselines" in results
        stored = object_of(object_of(results["baselines"]).get("captions"))
        if stored and stored.get("hash") != self.training.about["hash"]:
            found = f"results with baselines of {stored.get('source')}"
            raise InputError(
                self.training.about["source"], "baseline_captions", found, "the same captions, or another output folder"
            )
        return bool(stored)

    def continuing(self, results: Mapping[str, Any]) -> "CaptionBaselines":
        """Return the baselines of the captions that the results name, where no captions are given.

        Raises InputError: their file is no longer there, or has other captions.
        """
        stored = object_of(object_of(results.get("baselines")).get("captions"))
        if self.training is not None or not stored:
            return self
        wanted = "the file that the results in the folder name, or another output folder"
        try:
            training = read_training_captions(str(stored.get("source")))
        except InputError as error:
            raise InputError(error.source, "baseline_captions", f"{error.field}: {error.found}", wanted) from None
        if training.about["hash"] != stored.get("hash"):
            raise InputError(training.about["source"], "baseline_captions", "other captions", wanted)
        return CaptionBaselines(training)

    def beside(self, scored: Scored) -> Beside:
        """The baselines of a benchmark's tasks."""
        captions = None if self.training is None else self.training.about
        part = {"captions": captions, "tasks": baselines_of(scored.benchmark, self.training)}
        return Beside(part={"baselines": part})


make = CaptionBaselines


def baselines_of(
    benchmark: Benchmark, training: TrainingCaptions | None = None
) -> dict[str, dict[str, dict[str, Any]]]:
    """`{TASK: {VARIANT: {BASELINE: {"preference", "interval", "pairs"}}}}` of every task that compares texts."""
    scorers = text_baselines(benchmark.texts, None if training is None else training.captions)
    pairs_of_tasks = [task.compared_texts() for task in benchmark.tasks]
    baselines: dict[str, dict[str, dict[str, Any]]] = {}

    def figures(pairs: list[Any], pool: Pool | None) -> dict[str, Any]:
        groups = [group for _, _, group in pairs]
        preferences = {
            name: [prefer(right.index, wrong.index) for right, wrong, _ in pairs] for name, prefer in scorers.items()
        }
        if pool is not None and pool.pooling == "items":
            groups = [np.concatenate(groups)]
            preferences = {name: [np.concatenate(each)] for name, each in preferences.items()}
        return {name: preference_with_interval(each, groups) for name, each in preferences.items()}

    for (name, variant), members in group_by_variant(benchmark.tasks).items():
        pairs = [each for each in (pairs_of_tasks[place] for place in members.places) if each is not None]
        if pairs:
            baselines.setdefault(name, {})[variant] = figures(pairs, members.pool)
    return baselines
