"""Figures as tables and charts ask for them: of one model, task, variant and metric, with the interval."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rococo_jax.report.variant_families import corruption_of, is_about_corruption, pooled_severity
from rococo_jax.report.vocabulary import CLEAN, SPREAD_SUFFIXES, TASKS, in_reading_order, order_variants


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number with what is known of its uncertainty; percentages (0 to 100), `None` where nothing was measured."""

    value: float | int | None
    low: float | int | None = None
    high: float | int | None = None
    spread: float | int | None = None

    @property
    def has_interval(self) -> bool:
        """Whether both bounds of the interval are known."""
        return self.low is not None and self.high is not None


@dataclasses.dataclass(frozen=True)
class Run:
    """One model's results, as the page needs them.

    Args:
        label: the model's name, made unique within its section.
        path: the results.json it came from; per_query.parquet lies beside it.
        results: the checked content of results.json.
    """

    label: str
    path: Path
    results: dict[str, Any]

    @property
    def tasks(self) -> dict[str, dict[str, dict[str, float | int | None]]]:
        """Task, variant, metric, number."""
        return self.results["tasks"]

    @property
    def data(self) -> dict[str, Any]:
        """What was measured on; empty where the results do not say."""
        data = self.results.get("data") or self.results["fingerprint"].get("data")
        return next((each for each in data.values() if isinstance(each, dict)), {}) if isinstance(data, dict) else {}

    def variants(self, task: str) -> list[str]:
        """The variants measured for a task, `clean` first; corruptions stand apart."""
        return [variant for variant in order_variants(self.tasks.get(task, {})) if not is_about_corruption(variant)]

    def corruptions(self, task: str) -> list[str]:
        """The corrupted variants measured for a task, with their baseline and means."""
        return [variant for variant in self.tasks.get(task, {}) if is_about_corruption(variant)]

    def figure(self, task: str, variant: str, metric: str) -> Figure:
        """One number; a figure of `None`s where it was not measured."""
        numbers = self.tasks.get(task, {}).get(variant, {})
        interval = (self.results.get("intervals") or {}).get(task, {}).get(variant, {}).get(metric)
        low, high = interval if interval else (None, None)
        spread = next((numbers[metric + suffix] for suffix in SPREAD_SUFFIXES if metric + suffix in numbers), None)
        return Figure(numbers.get(metric), low, high, spread)


def tasks_of(runs: Iterable[Run]) -> list[str]:
    """Every task that any of the runs measured, in reading order."""
    return in_reading_order((task for run in runs for task in run.tasks), TASKS)


def variants_of(runs: Iterable[Run], task: str, metric: str | None = None) -> list[str]:
    """Every variant of `task` that any of the runs measured, `clean` first; with `metric`, those that have it.

    Corruptions are left out: nineteen kinds would swamp the others, and they have a place of their own.
    """
    return order_variants(
        variant
        for run in runs
        for variant in run.variants(task)
        if metric is None or run.tasks[task][variant].get(metric) is not None
    )


def altered_variants(runs: Iterable[Run], task: str, metric: str | None = None) -> list[str]:
    """`variants_of` without `clean`."""
    return [variant for variant in variants_of(runs, task, metric) if variant != CLEAN]


def corrupted_by(runs: Iterable[Run]) -> tuple[list[str], list[int]]:
    """Kinds and severities of all corruptions that any of the runs measured."""
    pairs = [corruption_of(name) for run in runs for task in run.tasks for name in run.corruptions(task)]
    kinds = dict.fromkeys(pair[0] for pair in pairs if pair is not None)
    return list(kinds), sorted({pair[1] for pair in pairs if pair is not None})


def pooled_severities(runs: Iterable[Run]) -> list[int]:
    """The severities for which any of the runs has a mean over kinds."""
    found = {pooled_severity(name) for run in runs for task in run.tasks for name in run.corruptions(task)}
    return sorted(found - {None})


def by_clean_recall(runs: Iterable[Run], task: str) -> list[Run]:
    """The runs that measured `task`, best clean R@1 first, ties and gaps by name."""

    def place(run: Run) -> tuple[float, str]:
        clean = run.figure(task, CLEAN, "r1").value
        return (float("inf") if clean is None else -clean, run.label)

    return sorted((run for run in runs if task in run.tasks), key=place)
