"""Differences between each model and the reference, paired by image, which overlapping intervals cannot show.

The counts of `per_query.parquet` are summed by image and compared by `metrics.paired`. Every metric that is a function
of such sums and has a better end is compared, and so is `blind`, by its distance from 50; variants that are pooled over
parts are compared like any other. Only models of one group are compared, and only if both tables have the same queries
and agree with the results.

The primary differences of a task are corrected together: the metric that orders the leaderboard, and R@1, FR@1,
grounding and blind of each altered variant. The control is no altered variant. All others are shown with their
uncorrected p and no verdict.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from rococo_jax.benchmarks.pooling import coverage_phrase
from rococo_jax.benchmarks.variants import CLEAN, Variant
from rococo_jax.errors import InputError, object_of, unknown_name
from rococo_jax.evaluation.stored_counts import CountsByVariant
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.paired import FLIPS, Pair, PairedDifference, least_margin, paired_differences
from rococo_jax.report.blocks import Cell, Head, Note, Part, Table
from rococo_jax.report.collection import Group, Run, by_kind, label_of, tasks_of
from rococo_jax.report.difference import Difference, difference_cells
from rococo_jax.report.sections import ordered, section_of, section_of_kind
from rococo_jax.report.sections.generic import pooled_variants
from rococo_jax.report.tables import folded_if_long, heads_of
from rococo_jax.report.vocabulary import order_metrics

Family = Literal["task", "all"]

# Primary in every altered variant, beside the metric that orders the leaderboard.
PRIMARY = ("r1", "fr1", "grounding", "blind")
# Without meaning for a model that finds no more than chance without the alteration.
_NEEDS_SKILL = frozenset(("fr1", "grounding", "drop", "drop_points"))
_ROUNDING = 1e-6  # points, between the same count of hits divided in another order


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Comparison of all models of a group with the reference on one task.

    Attributes:
        task: its name.
        runs: the models that measured the task, in the order of the leaderboard.
        reference: the model that all others are compared with.
        rows: in the order of the leaderboard, variant by variant.
        left_out: labels of models whose queries could not be compared.
        family: the differences that are corrected together, in words.
    """

    task: str
    runs: tuple[Run, ...]
    reference: Run
    rows: tuple[Difference, ...]
    left_out: tuple[str, ...]
    family: str

    @property
    def primary(self) -> tuple[Difference, ...]:
        """The primary differences."""
        return tuple(row for row in self.rows if row.is_primary)


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
    if reference is not None and reference not in labels:
        raise InputError("reference", "model", repr(reference), f"one of {', '.join(labels)}")
    _check_metrics(groups, metrics)
    comparisons: Comparisons = {}
    for place, group in enumerate(groups):
        if len(group.runs) == 1:
            continue
        base = next((run for run in group.runs if run.label == (reference or labels[0])), group.runs[0])
        tables = {run.label: _counts_of(run) for run in group.runs}
        tests = [_TaskTests(group, task, tables, base, metrics) for task in tasks_of(group.runs)]
        for together in [tests] if family == "all" else [[each] for each in tests]:
            phrase = _family_phrase(metrics, len(together) if family == "all" else 1)
            for each, differences in zip(together, _compare(together), strict=True):
                if comparison := each.comparison(differences, margin, phrase):
                    comparisons[place, each.task] = comparison
    images = [row.images for comparison in comparisons.values() for row in comparison.primary]
    if margin is not None and images and margin < (least := least_margin(max(images))):
        wanted = f"at least {least:.2g}: {max(images)} images cannot show less (3 / {max(images)})"
        raise InputError("margin", "points", f"{margin:g}", wanted)
    return comparisons


def _check_metrics(groups: Sequence[Group], metrics: Sequence[str]) -> None:
    """Raise InputError: no model has a metric of that name, or models cannot be compared by it."""
    runs = [run for group in groups for run in group.runs]
    variants = [values for run in runs for variants in run.tasks.values() for values in variants.values()]
    measured = sorted({name for values in variants for name in values})
    for name in metrics:
        if name not in measured:
            raise unknown_name("metrics", "name", name, measured, "results.json")
        if not _is_compared(name, is_altered=True):
            compared = ", ".join(each for each in measured if _is_compared(each, is_altered=True))
            raise InputError("metrics", "name", f"{name}, of which no end is better", f"one of {compared}")


def _family_phrase(metrics: Sequence[str], tasks: int) -> str:
    names = " and ".join(metric_of(name).label for name in metrics)
    variants = "R@1, FR@1, Grounding and Blind of each altered variant (the control is none)"
    what = f"{names} of each variant" if metrics else f"its headline, and {variants}"
    where = f"of all {tasks} tasks together" if tasks > 1 else "of each task"
    return f"the primary differences {where}, over all models: {what}"


class _TaskTests:
    """The tests of one task: counts of each model and of the reference by variant, and which tests are primary."""

    def __init__(
        self, group: Group, task: str, tables: Mapping[str, CountsByVariant], base: Run, metrics: Sequence[str]
    ):
        self.task, self.runs = task, ordered(group.runs, task)
        with_task = [run for run in group.runs if task in run.tasks]
        with_counts = [run for run in with_task if any(of_task == task for of_task, _ in tables[run.label])]
        candidates = with_counts or with_task
        self.reference = base if base in candidates else candidates[0]
        self.compared = [run for run in self.runs if run is not self.reference]
        names = [(run, name) for run in self.compared for name in (*run.variants(task), *run.mean_corruptions(task))]
        pairs = [(each, _shared_counts(each[0], self.reference, task, each[1], tables)) for each in names]
        self.variants = [each for each, counts in pairs if counts is not None]
        self.counts = [counts for _, counts in pairs if counts is not None]
        self.is_primary = _primary_tests(self.runs, task, self.variants, self.counts, metrics)

    def comparison(
        self, differences: Sequence[Mapping[str, PairedDifference]], margin: float | None, family: str
    ) -> Comparison | None:
        """Return the comparison; None without any difference."""
        rows = tuple(
            self._difference(run, variant, metric, paired[metric], self.is_primary(place, metric), margin)
            for place, ((run, variant), paired) in enumerate(zip(self.variants, differences, strict=True))
            for metric in order_metrics(paired)
        )
        if not rows:
            return None
        models = {row.model for row in rows}
        left_out = tuple(run.label for run in self.compared if run.label not in models)
        return Comparison(self.task, tuple(self.runs), self.reference, rows, left_out, family)

    def _difference(
        self, run: Run, variant: str, metric: str, paired: PairedDifference, is_primary: bool, margin: float | None
    ) -> Difference:
        verdict = None
        if is_primary:
            pair = (run, self.reference)
            no_skill = metric in _NEEDS_SKILL and any(is_at_chance(each, self.task, variant) for each in pair)
            verdict = "at chance" if no_skill else paired.verdict(metric_of(metric), margin)
        value, reference_value = (each.estimate(self.task, variant, metric).value for each in (run, self.reference))
        return Difference(
            model=run.label,
            reference=self.reference.label,
            benchmark=run.benchmark_of(self.task),
            task=self.task,
            variant=variant,
            metric=metric,
            value=value,
            reference_value=reference_value,
            points=paired.points,
            low=paired.low if np.isfinite(paired.low) else None,
            high=paired.high if np.isfinite(paired.high) else None,
            p=paired.p,
            p_corrected=paired.p_corrected,
            mde=paired.mde,
            images=paired.images,
            is_primary=is_primary,
            verdict=verdict,
            coverage=coverage_phrase(run.sizes(self.task).get(variant, {})),
        )


def _compare(tasks: Sequence[_TaskTests]) -> list[list[dict[str, PairedDifference]]]:
    """Return the differences of each task, whose primary ones are one family."""
    owner = [(task, place) for task in tasks for place in range(len(task.counts))]

    def in_family(number: int, metric: str) -> bool:
        task, place = owner[number]
        return task.is_primary(place, metric)

    differences = iter(paired_differences([pair for task in tasks for pair in task.counts], in_family))
    return [[next(differences) for _ in task.counts] for task in tasks]


def is_at_chance(run: Run, task: str, variant: str) -> bool:
    """Whether a model cannot be told from chance on the unaltered variant: its interval reaches down to chance."""
    described = object_of(object_of(object_of(run.results.get("variants")).get(task)).get(variant))
    unaltered = described.get("baseline", CLEAN)
    return any(reaches_chance(run, task, unaltered, name) for name in run.tasks[task].get(unaltered, {}))


def reaches_chance(run: Run, task: str, variant: str, metric: str) -> bool:
    """Whether the interval of a metric contains what guessing has, or is below it."""
    chance, estimate = run.chance(task, variant, metric), run.estimate(task, variant, metric)
    return chance is not None and estimate.low is not None and estimate.low <= chance


def _counts_of(run: Run) -> CountsByVariant:
    """Return the counts of the variants that are compared: all but single corruptions."""
    variants = {task: [*run.variants(task), *run.mean_corruptions(task)] for task in run.tasks}
    return run.counts(variants)


def _shared_counts(
    run: Run, reference: Run, task: str, variant: str, tables: Mapping[str, CountsByVariant]
) -> Pair | None:
    """Return the counts of a model, with the metrics that can be compared, and of the reference; None without any."""
    one = _agreeing_counts(run, task, variant, tables[run.label])
    other = _agreeing_counts(reference, task, variant, tables[reference.label])
    if one is None or other is None:
        return None
    is_altered = run.described[task][variant].is_altered
    metrics = [
        name
        for name in one.metrics
        if name in other.metrics and _is_compared(name, is_altered) and one.has_same_entries(other, name)
    ]
    return (one.only(metrics), other.only(metrics)) if metrics else None


def _primary_tests(
    runs: Sequence[Run],
    task: str,
    variants: Sequence[tuple[Run, str]],
    counts: Sequence[Pair],
    metrics: Sequence[str],
) -> Callable[[int, str], bool]:
    """Return whether a test is primary, from the place of its variant and its metric.

    Without `metrics` the primary tests are the metric that ranks models, in its variant or, if that has no counts, in
    every altered variant and part; and R@1, FR@1, grounding and blind in all of these. If the ranking metric has no
    counts, the usual ranking metric of the kind of task replaces it. Each kind of a task with several has its own
    ranking metric.
    """
    names = [name for _, name in variants]
    leads: list[tuple[str, str, set[str]]] = []  # variant and metric of a kind, and the variants with that metric
    pooled: set[str] = set()
    for kind, of_kind in by_kind(runs, task).items():
        section = section_of(of_kind, task)
        lead_variant, lead_metric = section.ranked_by
        names_of_kind = {name for run in of_kind for name in run.tasks[task]}
        counted = [
            (name, model.metrics) for name, (model, _) in zip(names, counts, strict=True) if name in names_of_kind
        ]
        if all(lead_metric not in metrics_of_variant for _, metrics_of_variant in counted):
            usual = section_of_kind(kind).lead[1]
            lead_metric = usual if any(usual in each for _, each in counted) else lead_metric
        leads.append((lead_variant, lead_metric, {name for name, each in counted if lead_metric in each}))
        pooled |= pooled_variants(section, of_kind, task)
    altered = {name for run, name in variants if is_altered_or_part(run.described[task][name], name in pooled)}
    leading = {
        (name, metric)
        for variant, metric, with_metric in leads
        for name in ({variant} if variant in with_metric else with_metric & altered)
    }

    def is_primary(place: int, metric: str) -> bool:
        if metrics:
            return metric in metrics
        is_ranking = (names[place], metric) in leading
        return is_ranking or (metric in PRIMARY and names[place] in altered)

    return is_primary


def is_altered_or_part(variant: Variant, is_pooled: bool) -> bool:
    """Whether a variant is an attack or a part of a benchmark, whose items choose between true and altered captions.

    The control, variants on unseen images and variants that are pooled over parts are none.
    """
    is_part = variant.is_altered and not (variant.alteration or variant.unseen or is_pooled)
    return variant.is_attack or is_part


def _is_compared(metric: str, is_altered: bool) -> bool:
    """Whether one value of a metric is best; without altered items in the gallery, false recall is always 0."""
    about = metric_of(metric)
    return (about.better is not None or about.neutral is not None) and (is_altered or metric != "fr1")


def _agreeing_counts(run: Run, task: str, variant: str, table: CountsByVariant) -> Counts | None:
    """Return the counts, or None if they belong to other results: a metric of them differs from `results.json`."""
    counts = table.get((task, variant))
    if counts is None:
        return None
    stored = {name: value for name in counts.metrics if (value := run.estimate(task, variant, name).value) is not None}
    are_equal = all(abs(value - counts.value(name)) < _ROUNDING for name, value in stored.items())
    return counts.only(stored) if are_equal else None


def comparison_note(comparison: Comparison) -> str:
    """Return the note above the table of differences."""
    lowest = 1 / (FLIPS + 1)
    text = (
        f"Each model minus {comparison.reference.label}, in percentage points, paired by image: 95 % interval, minimum "
        "detectable effect (MDE: the smallest true difference that this test detects with 80 % power), and p of a "
        f"two-sided permutation test that swaps the two models on random images ({FLIPS:,} swaps, so never below "
        f"{lowest:.4f}). {comparison.family[0].upper()}{comparison.family[1:]}; {len(comparison.primary)} of them are "
        "in this table. They are corrected together by max-T (Westfall and Young 1993), interval and MDE included, "
        "with the uncorrected p beside; those with a corrected p below 0.05 are bold. All other differences are "
        "uncorrected, and with many of them some are significant by chance. For Blind, the difference is that of the "
        "distances from 50."
    )
    if comparison.left_out:
        text += f" Not compared, because they have no table of the same queries: {', '.join(comparison.left_out)}."
    return text


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
