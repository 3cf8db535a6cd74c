"""Read results files into groups of comparable results, with access to their numbers.

Results whose fingerprints differ in anything but the model are never put into one table: each such group becomes a
section of the page, which lists its differences from the first. Results need not have the same benchmarks, tasks or
variants. What two of them share must be measured on the same data, and a mean must be over the same seeds and kinds.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.pooling import Headline, coverage_phrase
from rococo_jax.benchmarks.variants import ALL_KINDS, Variant
from rococo_jax.errors import InputError, is_number, object_of
from rococo_jax.evaluation.results import RESULTS, described_variants, read_results
from rococo_jax.metrics import digits_of
from rococo_jax.perturb.images.corruptions import CORRUPTIONS
from rococo_jax.report.conditions import Conditions
from rococo_jax.report.vocabulary import (
    SPREAD,
    TASKS,
    in_reading_order,
    order_variants,
    percent,
    printable,
    variant_label,
)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Number with its interval and spread; None where it was not measured."""

    value: float | int | None
    low: float | int | None = None
    high: float | int | None = None
    spread: float | int | None = None
    digits: int = 1

    @property
    def has_interval(self) -> bool:
        """Whether both bounds of the interval are known."""
        return self.low is not None and self.high is not None

    @property
    def bounds(self) -> str:
        """Interval as text, such as "28.3 to 40.0"; empty if there is none."""
        return f"{percent(self.low, self.digits)} to {percent(self.high, self.digits)}" if self.has_interval else ""


@dataclasses.dataclass(frozen=True)
class Run:
    """Results of one model; per_query.parquet and examples.parquet are beside `path`.

    Attributes:
        label: the model's name, made unique within its group.
        results: the checked content of results.json.
    """

    label: str
    path: Path
    results: dict[str, Any]

    @property
    def tasks(self) -> dict[str, dict[str, dict[str, float | int | None]]]:
        """Task -> variant -> metric -> number."""
        return self.results["tasks"]

    @property
    def data(self) -> dict[str, dict[str, Any]]:
        """Data of each benchmark; empty if the results do not name them."""
        return {name: about for name, about in object_of(self.results.get("data")).items() if isinstance(about, dict)}

    def kind(self, task: str) -> str:
        """Return the kind of a task."""
        return str(object_of(self.results.get("kinds")).get(task, ""))

    @functools.cached_property
    def described(self) -> dict[str, dict[str, Variant]]:
        """The fields of variants, by task and name."""
        return {task: described_variants(self.results, task) for task in self.tasks}

    def variants(self, task: str) -> list[str]:
        """Return the variants of a task in reading order, without the many on corrupted images."""
        described = self.described.get(task, {})
        return [name for name in order_variants(described, described) if not described[name].corruption]

    def corruptions(self, task: str) -> list[Variant]:
        """Return the variants of a task on corrupted images, with their baselines and means."""
        return [variant for variant in self.described.get(task, {}).values() if variant.corruption]

    def mean_corruptions(self, task: str) -> list[str]:
        """Return the names of a task's means over kinds of corruption."""
        return [each.name for each in self.corruptions(task) if each.corruption == ALL_KINDS]

    def estimate(self, task: str, variant: str, metric: str) -> Estimate:
        """Return a number with its interval; all None if it was not measured."""
        numbers = self.tasks.get(task, {}).get(variant, {})
        interval = self.results["intervals"].get(task, {}).get(variant, {}).get(metric)
        low, high = interval or (None, None)
        return Estimate(numbers.get(metric), low, high, numbers.get(metric + SPREAD), digits_of(metric))

    def chance(self, task: str, variant: str, metric: str) -> float | None:
        """Return the expected value of a metric for guessing; None if it is unknown."""
        levels = object_of(object_of(object_of(self.results.get("chance")).get(task)).get(variant))
        return levels[metric] if is_number(levels.get(metric)) else None

    def headline(self, task: str) -> Headline | None:
        """Return the metric by which models are ranked on a task; None if the results do not contain it."""
        about = object_of(object_of(self.results.get("headlines")).get(task))
        variant, metric = str(about.get("variant")), str(about.get("metric"))
        if self.tasks.get(task, {}).get(variant, {}).get(metric) is None:
            return None
        return Headline(metric, about["pooling"], about["source"], variant)

    def pooled_variants(self, task: str) -> set[str]:
        """Return the variants of a task that consist of several parts."""
        return {name for name, size in self.sizes(task).items() if "parts" in size}

    def sizes(self, task: str) -> dict[str, dict[str, Any]]:
        """Return numbers of queries, gallery items, ... by variant; empty if the results do not contain them."""
        sizes = object_of(object_of(self.results.get("sizes")).get(task))
        return {name: each for name, each in sizes.items() if isinstance(each, dict)}


@dataclasses.dataclass(frozen=True)
class Group:
    """Comparable runs, which share a table.

    Attributes:
        differences: (field, value of the first group, value of this group) of each field of the fingerprint that
            differs.
    """

    runs: tuple[Run, ...]
    differences: tuple[tuple[str, str, str], ...]


def label_of(runs: Iterable[Run], task: str, variant: str) -> str:
    """Return the name of a variant on the page, with the number of its parts if some of the benchmark's are absent."""
    sizes = (run.sizes(task).get(variant, {}) for run in runs if variant in run.tasks.get(task, {}))
    phrases = set(map(coverage_phrase, sizes))
    return variant_label(variant) + (phrases.pop() if len(phrases) == 1 else "")


def tasks_of(runs: Iterable[Run]) -> list[str]:
    """Return the tasks that any of the runs measured, in reading order."""
    return in_reading_order((task for run in runs for task in run.tasks), TASKS)


def variants_of(
    runs: Iterable[Run], task: str, metric: str | None = None, condition: Callable[[Variant], bool] | None = None
) -> list[str]:
    """Return the variants of a task that any of the runs measured, without corruptions.

    Args:
        metric: only variants with this metric.
        condition: only variants for which it is true.
    """
    variants = {
        name: run.described[task][name]
        for run in runs
        for name in run.variants(task)
        if metric is None or run.tasks[task][name].get(metric) is not None
        if condition is None or condition(run.described[task][name])
    }
    return order_variants(variants, variants)


def corrupted_by(runs: Iterable[Run]) -> tuple[list[str], list[int]]:
    """Return kinds and severities of all corruptions that any of the runs measured."""
    measured = [each for run in runs for task in run.tasks for each in run.corruptions(task)]
    single = [each for each in measured if each.corruption in CORRUPTIONS]
    return list(dict.fromkeys(each.corruption for each in single)), sorted({each.severity for each in single})


def pooled_severities(runs: Iterable[Run], task: str | None = None) -> list[int]:
    """Return the severities of which any of the runs has a mean over kinds, ascending."""
    corruptions = [each for run in runs for name in run.tasks if task in (None, name) for each in run.corruptions(name)]
    return sorted({each.severity for each in corruptions if each.corruption == ALL_KINDS})


def best_first(runs: Iterable[Run], task: str, lead: tuple[str, str]) -> list[Run]:
    """Return the runs that measured a task, the highest value of `lead` (variant, metric) first, ties by name."""

    def place(run: Run) -> tuple[float, str]:
        value = run.estimate(task, *lead).value
        return (math.inf if value is None else -value, run.label)

    return sorted((run for run in runs if task in run.tasks), key=place)


def load_results(sources: Iterable[str | Path]) -> list[tuple[Path, dict[str, Any]]]:
    """Return path and checked content of every results file.

    Args:
        sources: files, or folders of which all results files at any depth are read.

    Raises InputError: a source does not exist or has no results, or a file is damaged or something else.
    """
    paths: dict[Path, Path] = {}
    for source in map(Path, sources):
        for path in results_under(source):
            paths.setdefault(path.resolve(), path)
    return [(path, _checked(path, read_results(path))) for path in paths.values()]


def results_under(source: Path) -> list[Path]:
    """Return a results file, or all below a folder. Raises InputError: there is none."""
    if not source.is_dir():
        if not source.exists():
            raise InputError(source, "results", "nothing there", f"a {RESULTS} or a folder that contains one")
        if source.suffix != ".json":  # as with out/*, which also names the report and the journal
            expected = f"a {RESULTS} or a folder that contains some, such as {source.parent}"
            raise InputError(source, "results", f"a file {source.suffix or 'without a suffix'}", expected)
        return [source]
    below = [path for path in sorted(source.rglob(RESULTS)) if path.is_file()]
    # A folder whose name starts with a dot is still being written, and will be renamed or removed.
    complete = [path for path in below if not any(part.startswith(".") for part in path.relative_to(source).parts)]
    if not complete:
        raise InputError(source, "results", f"a folder without {RESULTS}", "results of `rococo evaluate`")
    return complete


def _checked(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return the content with only numbers as metrics, because an unknown metric may be anything."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InputError(path, "text", f"a lone surrogate, U+{ord(error.object[error.start]):04X}", "Unicode") from None
    tasks = {
        task: {
            variant: {name: value for name, value in metrics.items() if value is None or is_number(value)}
            for variant, metrics in variants.items()
        }
        for task, variants in content["tasks"].items()
    }
    return content | {"tasks": tasks}


def group_by_fingerprint(results: Sequence[tuple[Path, dict[str, Any]]]) -> list[Group]:
    """Return groups in the order in which their first result (path and content of a results.json) was named."""
    conditions = [Conditions.of(content) for _, content in results]
    groups: list[list[int]] = []
    for place, each in enumerate(conditions):
        fitting = (group for group in groups if all(each.fits(conditions[member]) for member in group))
        group = next(fitting, None)
        if group is None:
            groups.append(group := [])
        group.append(place)
    comparable_groups = []
    for group in groups:
        first, this = conditions[0].flat, conditions[group[0]].flat
        rows = [(name, first.get(name, "not recorded"), this.get(name, "not recorded")) for name in {**first, **this}]
        differences = tuple(row for row in rows if row[1] != row[2])
        comparable_groups.append(Group(label_runs([results[place] for place in group]), differences))
    return comparable_groups


def label_runs(members: Sequence[tuple[Path, dict[str, Any]]]) -> tuple[Run, ...]:
    """Return runs (path and content of a results.json) with unique labels.

    A repeated name gets its folder, and a number if that is not enough.
    """
    names = [printable(content["model"]) for _, content in members]
    runs: list[Run] = []
    for (path, content), name in zip(members, names, strict=True):
        label = name if names.count(name) == 1 else f"{name} ({path.resolve().parent.name})"
        labels = {run.label for run in runs}
        candidates = [label, *(f"{label} #{number}" for number in range(2, len(members) + 2))]
        runs.append(Run(next(each for each in candidates if each not in labels), path, content))
    return tuple(runs)
