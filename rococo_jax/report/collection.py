"""Read results files into groups of comparable results, with access to their numbers.

Whether results are comparable is decided for each variant of each benchmark (`evaluation.conditions`), whatever else
their files contain. Results of a variant under other conditions are never put into one table: they go to a further
group, which becomes a section of the page that lists its differences from the first. The order of the files decides
which group comes first, and not who shares one. The same data under two names of a benchmark is the same data.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.benchmarks.pooling import Headline, coverage_phrase
from rococo_jax.benchmarks.variants import ALL_KINDS, Variant
from rococo_jax.errors import InputError, is_number, is_whole, object_of
from rococo_jax.evaluation.conditions import benchmark_of
from rococo_jax.evaluation.examples import Example
from rococo_jax.evaluation.results import MIXED, RESULTS, described_variants, kind_of, read_results
from rococo_jax.evaluation.sections import merge
from rococo_jax.evaluation.stored_counts import CountsByVariant
from rococo_jax.metrics import digits_of
from rococo_jax.perturb.images.corruptions import CORRUPTIONS
from rococo_jax.report.comparable import differences, only_variants, sections_of, with_common_names
from rococo_jax.report.results_file import ResultsFile
from rococo_jax.report.vocabulary import (
    SPREAD,
    TASKS,
    Place,
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
        results: the checked content of results.json, with the tasks and variants of the group.
        files: the files that the results are from, each with its tasks.
    """

    label: str
    path: Path
    results: dict[str, Any]
    files: tuple[ResultsFile, ...] = ()

    def file_of(self, task: str) -> ResultsFile:
        """Return the file with a task."""
        return next(file for file in self.files if task in file.tasks)

    @functools.cached_property
    def counts(self) -> CountsByVariant:
        """Counts of the variants that are compared and ranked: all but single corruptions; see `read_counts`."""
        variants = {task: [*self.variants(task), *self.mean_corruptions(task)] for task in self.tasks}
        of_files = (
            file.counts({task: variants[task] for task in file.tasks if task in variants}) for file in self.files
        )
        return {key: counts for of_file in of_files for key, counts in of_file.items()}

    def examples(self) -> list[Example]:
        """Return the examples beside the results."""
        return [example for file in self.files for example in file.examples()]

    @property
    def tasks(self) -> dict[str, dict[str, dict[str, float | int | None]]]:
        """Task -> variant -> metric -> number."""
        return self.results["tasks"]

    @property
    def data(self) -> dict[str, dict[str, Any]]:
        """Data of each benchmark; empty if the results do not name them."""
        return {name: about for name, about in object_of(self.results.get("data")).items() if isinstance(about, dict)}

    def kinds(self, task: str) -> dict[str, list[str]]:
        """Return the variants of a task by their kind."""
        kinds: dict[str, list[str]] = {}
        for variant in self.tasks.get(task, ()):
            kinds.setdefault(kind_of(self.results, task, variant), []).append(variant)
        return kinds

    def kind_of(self, task: str, variant: str) -> str:
        """Return the kind of a variant."""
        return kind_of(self.results, task, variant)

    def benchmark_of(self, task: str) -> str:
        """Return the benchmark of a task; empty if the results do not name it."""
        return benchmark_of(self.results, task)

    def kind(self, task: str) -> str:
        """Return the kind of a task: that of its variants, or `mixed` if these are of several kinds."""
        kinds = [*self.kinds(task)]
        return kinds[0] if len(kinds) == 1 else MIXED if kinds else ""

    def of_kind(self, task: str, kind: str) -> "Run":
        """Return the run with only the variants of a kind in a task."""
        variants = {name: list(each) for name, each in self.tasks.items()} | {task: self.kinds(task).get(kind, [])}
        return dataclasses.replace(self, results=only_variants(self.results, variants))

    @functools.cached_property
    def described(self) -> dict[str, dict[str, Variant]]:
        """The fields of variants, by task and name."""
        return {task: described_variants(self.results, task) for task in self.tasks}

    def variants(self, task: str) -> list[str]:
        """Return the variants of a task in reading order, without the many on corrupted images."""
        described = {name: each for name, each in self.described.get(task, {}).items() if not each.corruption}
        return order_variants(described, described)

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

    def size(self, task: str, variant: str) -> int | None:
        """Return the number of queries, items or images of a variant; None if the results do not contain it."""
        sizes = self.sizes(task).get(variant, {})
        return next(
            (sizes[each] for each in ("queries", "items", "inside", "images") if is_whole(sizes.get(each))), None
        )


@dataclasses.dataclass(frozen=True)
class Group:
    """Comparable runs, which share tables: all that have a variant measured it under the same conditions.

    Attributes:
        differences: (field, value in the first group, value in this group) of each condition that differs.
    """

    runs: tuple[Run, ...]
    differences: tuple[tuple[str, str, str], ...]

    @property
    def data(self) -> dict[str, dict[str, Any]]:
        """Data of each benchmark of any of the runs."""
        return {name: about for run in reversed(self.runs) for name, about in run.data.items()}

    @property
    def benchmarks(self) -> list[str]:
        """Names of the benchmarks that any of the runs measured."""
        return list(dict.fromkeys(run.benchmark_of(task) for run in self.runs for task in run.tasks))


def measured_places(runs: Iterable[Run]) -> dict[str, Place]:
    """Return the place of each number that any of the runs measured, by its path."""
    places = (
        Place(task, variant, metric)
        for run in runs
        for task, variants in run.tasks.items()
        for variant, metrics in variants.items()
        for metric in metrics
    )
    return {place.path: place for place in places}


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


def by_kind(runs: Sequence[Run], task: str) -> dict[str, list[Run]]:
    """Return the runs that measured a task with the variants of each kind; they stay as they are if there is one."""
    kinds = dict.fromkeys(kind for run in runs for kind in run.kinds(task))
    if len(kinds) < 2:
        return {kind: list(runs) for kind in kinds}
    return {kind: [run.of_kind(task, kind) for run in runs if kind in run.kinds(task)] for kind in kinds}


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
    named = with_common_names([content for _, content in results])
    sections = sections_of([content for content, _ in named])
    groups = []
    for section in sections:
        members: list[_Member] = []
        for number, variants in section.members.items():
            (path, stored), (content, stored_names) = results[number], named[number]
            file = ResultsFile(path, stored, {task: stored_names.get(task, task) for task in variants})
            _add(members, _Member(only_variants(content, variants), (file,)))
        groups.append(Group(_label_runs(members), tuple(differences(sections[0], section))))
    return groups


class _Member(NamedTuple):
    """Contents of one model's results in a section, and the files that they are from."""

    content: dict[str, Any]
    files: tuple[ResultsFile, ...]


def _add(members: list[_Member], new: _Member) -> None:
    """Add a member, or join it with an earlier one of the same model that has none of its tasks."""

    def identity(member: _Member) -> Any:
        return member.content["model"], member.content["fingerprint"].get("model")

    for place, member in enumerate(members):
        is_known = bool(identity(new)[1]) and identity(member) == identity(new)
        if is_known and member.content["tasks"].keys().isdisjoint(new.content["tasks"]):
            content = merge(member.content, new.content)
            notes = (note for each in (member, new) for note in each.content.get("notes") or ())
            members[place] = _Member(content | {"notes": list(dict.fromkeys(notes))}, (*member.files, *new.files))
            return
    members.append(new)


def runs_of(results: Sequence[tuple[Path, dict[str, Any]]]) -> tuple[Run, ...]:
    """Return a run for each path and content of a results.json, with unique labels."""
    files = [ResultsFile(path, content, {task: task for task in content["tasks"]}) for path, content in results]
    return _label_runs([_Member(file.stored, (file,)) for file in files])


def _label_runs(members: Sequence[_Member]) -> tuple[Run, ...]:
    """Return runs with unique labels. A repeated name gets as much of its folder as tells it from the others."""
    names = [printable(member.content["model"]) for member in members]
    folders = [member.files[0].path.resolve().parent.parts for member in members]
    runs: list[Run] = []
    for (content, files), name, folder in zip(members, names, folders, strict=True):
        path = files[0].path
        of_name = [each for each, other in zip(folders, names, strict=True) if other == name]
        depth = next((d for d in range(1, len(folder)) if len({each[-d:] for each in of_name}) == len(of_name)), 1)
        label = name if len(of_name) == 1 else f"{name} ({'/'.join(folder[-depth:])})"
        labels = {run.label for run in runs}
        candidates = [label, *(f"{label} #{number}" for number in range(2, len(members) + 2))]
        runs.append(Run(next(each for each in candidates if each not in labels), path, content, files))
    return tuple(runs)
