"""Differences between each model and the reference, paired by image, which overlapping intervals cannot show.

The counts of `per_query.parquet` are summed by image and compared by `metrics.paired`. Every metric that is a function
of such sums and has a better end is compared, and so is `blind`, by its distance from 50; variants that are pooled over
parts are compared like any other. Only models of one group are compared, and only if both tables have the same queries
and agree with the results.

The primary differences (`task_tests.primary_metrics`) of a task, or of all tasks, are corrected together. All others
are shown with their uncorrected p and no verdict.

`left_out_lines` lists what a comparison leaves out, and why: models without a table, and tasks and variants that only
one has.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Literal

from rococo_jax.errors import InputError, require_one_of, unknown_name
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.paired import FLIPS, least_margin
from rococo_jax.report.blocks import Cell, Head, Note, Part, Table
from rococo_jax.report.collection import Group, Run, label_of, tasks_of
from rococo_jax.report.difference import Difference, difference_cells
from rococo_jax.report.tables import folded_if_long, heads_of
from rococo_jax.report.task_tests import TaskTests, differences_of, has_best_value
from rococo_jax.report.vocabulary import task_label, variant_label

Family = Literal["task", "all"]
# More variants than this are counted instead of listed.
_MOST_NAMES = 6


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Comparison of all models of a group with the reference on one task.

    Attributes:
        task: its name.
        runs: the models that measured the task, in the order of the leaderboard.
        reference: the model that all others are compared with.
        rows: in the order of the command line, variant by variant.
        family: the differences that are corrected together, in words.
    """

    task: str
    runs: tuple[Run, ...]
    reference: Run
    rows: tuple[Difference, ...]
    family: str

    @functools.cached_property
    def primary(self) -> dict[tuple[str, str, str], Difference]:
        """The primary differences, by model, variant and metric."""
        return {(row.model, row.variant, row.metric): row for row in self.rows if row.is_primary}


# By place of the group, and task.
Comparisons = dict[tuple[int, str], Comparison]


def compare_groups(
    groups: Sequence[Group],
    reference: str | None = None,
    metrics: Sequence[str] = (),
    *,
    margin: float | None = None,
    family: Family = "task",
) -> Comparisons:
    """Compare every model with the reference in every task.

    Args:
        groups: comparable results.
        reference: label of the model to compare with; by default the first model that was named. It is the same for all
            tasks, and never chosen by the results, which would favour it. A group without it uses its own first model,
            and a task that it lacks, or of which it has no table of counts, the first model that has both.
        metrics: names of the metrics that are primary, in all variants, instead of the usual ones.
        margin: largest difference, in points, that is equivalent to none; None to decide on significance alone.
        family: whether primary differences are corrected within each task, or over all tasks.

    Raises InputError: no model has that label or that metric, no task has enough images to show that margin, or a
        per_query.parquet is damaged.
    """
    labels = [run.label for group in groups for run in group.runs]
    if reference is not None:
        require_one_of("`reference`", "model", reference, labels)
    _check_metrics(groups, metrics)
    comparisons: Comparisons = {}
    for place, group in enumerate(groups):
        if len(group.runs) == 1:
            continue
        base = next((run for run in group.runs if run.label == (reference or labels[0])), group.runs[0])
        tests = [TaskTests(group, task, base, metrics) for task in tasks_of(group.runs)]
        for together in [tests] if family == "all" else [[each] for each in tests]:
            phrase = _family_phrase(metrics, len(together) if family == "all" else 1)
            for each, rows in zip(together, differences_of(together, margin), strict=True):
                if rows:
                    comparisons[place, each.task] = Comparison(each.task, each.runs, each.reference, rows, phrase)
    images = [row.images for comparison in comparisons.values() for row in comparison.primary.values()]
    if margin is not None and images and margin < (least := least_margin(max(images))):
        wanted = f"at least {least:.2g}: {max(images)} images cannot show less (3 / {max(images)})"
        raise InputError("`margin`", "points", f"{margin:g}", wanted)
    return comparisons


def _check_metrics(groups: Sequence[Group], metrics: Sequence[str]) -> None:
    """Raise InputError: no model has a metric of that name, or models cannot be compared by it."""
    runs = [run for group in groups for run in group.runs]
    variants = [values for run in runs for variants in run.tasks.values() for values in variants.values()]
    measured = sorted({name for values in variants for name in values})
    for name in metrics:
        if name not in measured:
            raise unknown_name("`metrics`", "name", name, measured, "results.json")
        if not has_best_value(name, is_altered=True):
            compared = ", ".join(each for each in measured if has_best_value(each, is_altered=True))
            raise InputError("`metrics`", "name", f"{name}, of which no end is better", f"one of {compared}")


def _family_phrase(metrics: Sequence[str], tasks: int) -> str:
    names = " and ".join(metric_of(name).label for name in metrics)
    variants = "R@1, FR@1, Grounding and Blind of each altered variant (the control is none)"
    what = f"{names} of each variant" if metrics else f"its headline, and {variants}"
    where = f"of all {tasks} tasks together" if tasks > 1 else "of each task"
    return f"the primary differences {where}, over all models: {what}"


# For the page's part on how to read it.
DIFFERENCES = (
    "In percentage points, paired by image: 95 % interval, minimum detectable effect (MDE: the smallest true "
    "difference that this test detects with 80 % power), and p of a two-sided permutation test that swaps the two "
    f"models on random images ({FLIPS:,} swaps, so never below {1 / (FLIPS + 1):.4f}). The primary ones are corrected "
    "together by max-T (Westfall and Young 1993), interval and MDE included, with the uncorrected p beside; those with "
    "a corrected p below 0.05 are bold. All other differences are uncorrected, and with many of them some are "
    "significant by chance. For Blind, the difference is that of the distances from 50."
)


def comparison_note(comparison: Comparison) -> str:
    """Return the note above the table of differences."""
    return (
        f"Each model minus {comparison.reference.label}. {comparison.family[0].upper()}{comparison.family[1:]}; "
        f"{len(comparison.primary)} of them are in this table, and bold if significant. How to read this page explains "
        "the columns."
    )


def comparison_part(comparison: Comparison, task: str) -> Part:
    """Return the table of differences: a row for each model, variant and metric, with its interval and p."""
    heads = [*heads_of(["Model", "Variant", "Metric"]), Head("Difference", edge=True), Head("p, corrected")]
    rows = [
        [
            Cell(row.model),
            Cell(label_of(comparison.runs, task, row.variant), words=True),
            Cell(metric_of(row.metric).label, words=True),
            *difference_cells(row),
        ]
        for row in comparison.rows
    ]
    title = f"Differences from {comparison.reference.label}"
    table = Table(f"{title}, {task}", heads, rows, sortable=True, filterable=True)
    return Part(title, [Note(comparison_note(comparison)), folded_if_long(table)])


def left_out_lines(groups: Sequence[Group], comparisons: Comparisons) -> list[str]:
    """Return a line for everything that results of several models have and that was not compared."""
    lines = [
        line
        for place, group in enumerate(groups)
        if len(group.runs) > 1
        for line in _lines_of_group(group, {task: each for (of, task), each in comparisons.items() if of == place})
    ]
    return list(dict.fromkeys(lines))


def left_out_metrics(metrics: Sequence[str], rows: Sequence[Difference]) -> list[str]:
    """Return a line for each requested metric that no difference is shown of."""
    lines = []
    for name in dict.fromkeys(metrics):
        if all(row.metric != name for row in rows):
            reason = "it has no counts for single queries or items"
            lines.append(f"{metric_of(name).label} ({name}): not compared: {reason}")
    return lines


def _lines_of_group(group: Group, comparisons: dict[str, Comparison]) -> Iterator[str]:
    for run in group.runs:
        for file in run.files:
            if not file.table.is_file():
                yield f"{run.label}: not compared: {file.path.parent} has no {file.table.name}"
    for task in tasks_of(group.runs):
        runs = [run for run in group.runs if task in run.tasks]
        with_table = [run for run in runs if run.file_of(task).table.is_file()]
        if len(runs) == 1:
            yield f"{task_label(task)}: not compared: only {runs[0].label} has results of it"
        elif len(with_table) > 1:
            yield from _lines_of_task(task, with_table, comparisons.get(task))


def _lines_of_task(task: str, runs: Sequence[Run], comparison: Comparison | None) -> Iterator[str]:
    label = task_label(task)
    if comparison is None:
        yield f"{label}: not compared: no metric with counts of the same queries or items"
        return
    reference = comparison.reference
    absent: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if run is reference:
            continue
        compared = {row.variant for row in comparison.rows if row.model == run.label}
        for variant in (*run.variants(task), *run.mean_corruptions(task)):
            if variant in compared:
                continue
            is_absent = variant not in reference.tasks[task]
            why = f"{reference.label} has no results of it" if is_absent else "no counts of the same queries or items"
            absent.setdefault((variant, why), []).append(run.label)
    by_models: dict[tuple[str, str], list[str]] = {}
    for (variant, why), models in absent.items():
        by_models.setdefault((", ".join(models), why), []).append(variant_label(variant))
    for (names, why), variants in by_models.items():
        listed = ", ".join(variants) if len(variants) <= _MOST_NAMES else f"{len(variants)} variants"
        yield f"{names}: {label}, {listed}: not compared: {why}"
