"""Differences between each model and the reference, paired by image, which overlapping intervals cannot show.

The counts of `per_query.parquet` are summed by image and compared by `metrics.paired`. Every metric that is a function
of such sums and has a better end is compared, and so is `blind`; variants that are pooled over parts are compared like
any other. Only models of one group are compared, and only if both tables have the same queries and agree with the
results.

The primary tests of a task are corrected together: the metric that orders the leaderboard, FR@1 and grounding. All
others are shown with their uncorrected p.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rococo_jax.benchmarks.variants import ALL, CONTROL, MEAN
from rococo_jax.errors import InputError, unknown_name
from rococo_jax.evaluation.stored_counts import CountsByVariant
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.image_counts import ImageCounts
from rococo_jax.metrics.paired import ALPHA, FLIPS, PairedCounts, PairedDifference, paired_differences
from rococo_jax.report.blocks import Cell, Head, Note, Part, Table
from rococo_jax.report.collection import Group, Run, by_kind, label_of, tasks_of
from rococo_jax.report.sections import ordered, section_of, section_of_kind
from rococo_jax.report.sections.generic import pooled_variants
from rococo_jax.report.tables import folded_if_long, heads_of
from rococo_jax.report.vocabulary import order_metrics, percent, signed

# Compared although neither a higher nor a lower value is better.
_WITHOUT_BETTER_END = ("blind",)
# Primary in every altered variant, beside the metric that orders the leaderboard.
PRIMARY = ("fr1", "grounding")
_ROUNDING = 1e-6  # points, between the same count of hits divided in another order


@dataclasses.dataclass(frozen=True)
class Difference:
    """Difference between one model and the reference in one metric of one variant."""

    run: Run
    variant: str
    metric: str
    paired: PairedDifference

    @property
    def corrected(self) -> float:
        """The p-value corrected over all primary tests of the task; NaN for any other test."""
        return np.nan if self.paired.corrected is None else self.paired.corrected

    @property
    def is_significant(self) -> bool:
        """Whether it is a primary test with a corrected p below 5 %."""
        return self.corrected < ALPHA


@dataclasses.dataclass(frozen=True)
class FirstTwo:
    """The first two models of a leaderboard and the difference between them in the metric that orders it."""

    first: Run
    second: Run
    task: str
    variant: str
    metric: str
    paired: PairedDifference


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Comparison of all models of a group with the reference on one task.

    Attributes:
        reference: the model that all others are compared with.
        rows: in the order of the leaderboard, variant by variant.
        left_out: labels of models whose queries could not be compared.
        first_two: the first two models of the leaderboard; None if they have no common queries.
    """

    reference: Run
    rows: tuple[Difference, ...]
    left_out: tuple[str, ...]
    first_two: FirstTwo | None


# By place of the group, and task.
Comparisons = dict[tuple[int, str], Comparison]


def compare_groups(groups: Sequence[Group], reference: str | None = None, metrics: Sequence[str] = ()) -> Comparisons:
    """Compare every model with the reference in every task.

    Args:
        groups: comparable results.
        reference: label of the model to compare with; by default the first model that was named. It is never chosen by
            the results, which would favour it. A group without it uses its own first model, and a task that it lacks,
            or of which it has no table of counts, the first model that has both.
        metrics: names of the metrics that are primary, in all variants, instead of the usual ones.

    Raises InputError: no model has that label or that metric, or a per_query.parquet is damaged.
    """
    labels = [run.label for group in groups for run in group.runs]
    if reference is not None and reference not in labels:
        raise InputError("reference", "model", repr(reference), f"one of {', '.join(labels)}")
    measured = {
        name
        for group in groups
        for run in group.runs
        for variants in run.tasks.values()
        for values in variants.values()
        for name in values
    }
    for name in metrics:
        if name not in measured:
            raise unknown_name("metrics", "name", name, sorted(measured), "results.json")
    comparisons: Comparisons = {}
    for place, group in enumerate(groups):
        base = next((run for run in group.runs if run.label == (reference or labels[0])), group.runs[0])
        if len(group.runs) == 1:
            continue
        tables = {run.label: _counts_of(run) for run in group.runs}
        for task in tasks_of(group.runs):
            with_counts = [run for run in group.runs if any(of_task == task for of_task, _ in tables[run.label])]
            base_of_task = base if base in with_counts or not with_counts else with_counts[0]
            if task not in base_of_task.tasks:
                continue
            if comparison := _compare(ordered(group.runs, task), task, tables, base_of_task, metrics):
                comparisons[place, task] = comparison
    return comparisons


def _compare(
    runs: Sequence[Run], task: str, tables: Mapping[str, CountsByVariant], reference: Run, metrics: Sequence[str]
) -> Comparison | None:
    compared = [run for run in runs if run is not reference]
    variants = [(run, variant) for run in compared for variant in (*run.variants(task), *run.mean_corruptions(task))]
    shared = [_shared_counts(run, reference, task, variant, tables) for run, variant in variants]
    images = sorted({name for each in shared for one in each.counts[:1] for name in one.images})
    counts = [each.on(images) for each in shared]
    is_primary = _primary_tests(runs, task, [variant for _, variant in variants], shared, metrics)
    differences = paired_differences(counts, is_primary)
    rows = tuple(
        Difference(run, variant, metric, differences_of_variant[metric])
        for (run, variant), differences_of_variant in zip(variants, differences, strict=True)
        for metric in order_metrics(differences_of_variant)
    )
    if not rows:
        return None
    labels_with_rows = {row.run.label for row in rows}
    left_out = tuple(run.label for run in compared if run.label not in labels_with_rows)
    return Comparison(reference, rows, left_out, _first_two(runs, task, tables))


def _first_two(runs: Sequence[Run], task: str, tables: Mapping[str, CountsByVariant]) -> FirstTwo | None:
    (first, second), (variant, metric) = runs[:2], section_of(runs, task).ranked_by
    shared = _shared_counts(first, second, task, variant, tables)
    if metric not in shared.metrics:
        return None
    shared = dataclasses.replace(shared, metrics=(metric,))
    (differences,) = paired_differences([shared.on(shared.counts[0].images)])
    return FirstTwo(first, second, task, variant, metric, differences[metric]) if metric in differences else None


def leader_sentence(pair: FirstTwo) -> str:
    """Say whether the first model of a leaderboard is significantly ahead of the second, or no better than guessing."""
    name = metric_of(pair.metric).label
    label = label_of((pair.first, pair.second), pair.task, pair.variant).lower()
    variant = "" if label in (ALL, MEAN) else f"{label} "
    values = [percent(run.estimate(pair.task, pair.variant, pair.metric).value) for run in (pair.first, pair.second)]
    p = p_value(pair.paired.p)
    headline = (pair.task, pair.variant, pair.metric)
    estimate, chance = pair.first.estimate(*headline), pair.first.chance(*headline)
    if chance is not None and estimate.low is not None and estimate.low <= chance:
        return (
            f"No model can be distinguished from chance: by {variant}{name}, the 95 % interval of the first, "
            f"{pair.first.label} ({values[0]}), is {estimate.bounds}, and guessing gives {percent(chance)} on average."
        )
    if pair.paired.p >= ALPHA:
        return (
            f"There is no clear best model: by {variant}{name} the first two, {pair.first.label} ({values[0]}) and "
            f"{pair.second.label} ({values[1]}), do not differ significantly (p {p}, uncorrected)."
        )
    return (
        f"By {variant}{name}, {pair.first.label} ({values[0]}) is first, significantly ahead of {pair.second.label} "
        f"({values[1]}, p {p}, uncorrected)."
    )


def _counts_of(run: Run) -> CountsByVariant:
    """Return the counts of the variants that are compared: all but single corruptions."""
    variants = {task: [*run.variants(task), *run.mean_corruptions(task)] for task in run.tasks}
    return run.image_counts(variants)


@dataclasses.dataclass(frozen=True)
class SharedCounts:
    """Counts of two models on the same queries.

    Attributes:
        counts: counts of the model and of the reference; empty if they have no metric in common.
        metrics: the metrics that can be compared.
    """

    counts: tuple[ImageCounts, ...] = ()
    metrics: tuple[str, ...] = ()

    def on(self, images: Sequence[str]) -> PairedCounts:
        """Return the counts of these images for a paired test."""
        if not self.counts:
            return PairedCounts(np.zeros((len(images), 0)), np.zeros((len(images), 0)), {})
        model, reference = self.counts
        metrics = {name: model.metrics[name] for name in self.metrics}
        return PairedCounts(model.on(images), reference.on(images), metrics)


def _shared_counts(
    run: Run, reference: Run, task: str, variant: str, tables: Mapping[str, CountsByVariant]
) -> SharedCounts:
    one = _agreeing_counts(run, task, variant, tables[run.label])
    other = _agreeing_counts(reference, task, variant, tables[reference.label])
    if one is None or other is None:
        return SharedCounts()
    is_altered = run.described[task][variant].is_altered
    names = tuple(
        name
        for name in one.metrics
        if name in other.metrics and _is_compared(name, is_altered) and one.has_same_entries(other, name)
    )
    return SharedCounts((one, other), names) if names else SharedCounts()


def _primary_tests(
    runs: Sequence[Run], task: str, variants: Sequence[str], shared: Sequence[SharedCounts], metrics: Sequence[str]
) -> Callable[[int, str], bool]:
    """Return whether a test is primary, from the place of its variant and its metric.

    Without `metrics` the primary tests are the metric that ranks models, in its variant or, without that, in every
    part; and FR@1 and grounding in all variants that are not pooled. If the ranking metric has no counts, the usual
    ranking metric of the kind of task replaces it. Each kind of a task with several has its own ranking metric.
    """
    leading: set[tuple[str, str]] = set()
    pooled = {name for run in runs for name in run.mean_corruptions(task)}
    for kind, of_kind in by_kind(runs, task).items():
        section = section_of(of_kind, task)
        lead_variant, lead_metric = section.ranked_by
        names = {name for run in of_kind for name in run.tasks[task]}
        counted = [(name, each.metrics) for name, each in zip(variants, shared, strict=True) if name in names]
        if all(lead_metric not in each for _, each in counted):
            usual = section_of_kind(kind).lead[1]
            lead_metric = usual if any(usual in each for _, each in counted) else lead_metric
        pooled = (pooled | pooled_variants(section, of_kind, task)) - {lead_variant}
        with_lead = {name for name, each in counted if lead_metric in each}
        leading |= {
            (name, lead_metric) for name in ({lead_variant} if lead_variant in with_lead else with_lead - pooled)
        }

    def is_primary(place: int, metric: str) -> bool:
        if metrics:
            return metric in metrics
        is_ranking = (variants[place], metric) in leading
        return is_ranking or (metric in PRIMARY and variants[place] not in pooled)

    return is_primary


def _is_compared(metric: str, is_altered: bool) -> bool:
    """Whether one end of a metric is better; without altered items in the gallery, false recall is always 0."""
    has_better_end = metric_of(metric).better is not None or metric in _WITHOUT_BETTER_END
    return has_better_end and (is_altered or metric != "fr1")


def _agreeing_counts(run: Run, task: str, variant: str, table: CountsByVariant) -> ImageCounts | None:
    """Return the counts of the metrics in the results; None if some give another value, because of another model."""
    counts = table.get((task, variant))
    if counts is None:
        return None
    metrics = {}
    for name, statistic in counts.metrics.items():
        value = run.estimate(task, variant, name).value
        if value is None:
            continue
        if abs(value - counts.value(name)) >= _ROUNDING:
            return None
        metrics[name] = statistic
    return dataclasses.replace(counts, metrics=metrics)


def comparison_note(comparison: Comparison) -> str:
    """Return the note above the table of differences."""
    count = sum(row.paired.corrected is not None for row in comparison.rows)
    lowest = 1 / (FLIPS + 1)
    text = (
        f"Each model minus {comparison.reference.label}, in percentage points, paired by image: 95 % bootstrap "
        "interval, minimum detectable effect (MDE: the difference that this test would find in 80 % of such samples), "
        "and p of a two-sided permutation test that swaps the two models on random images "
        f"({FLIPS:,} swaps, so never below {lowest:.4f}). The {count} primary test{'s' * (count != 1)} of this table "
        "(the metric that orders the leaderboard, FR@1 and grounding) are corrected together by step-down max-T "
        "(Westfall and Young 1993), with the uncorrected p beside; those with a corrected p below 0.05 are bold. All "
        "other p are uncorrected, and with many of them some are small by chance."
    )
    if any(row.variant == CONTROL for row in comparison.rows):
        text += " The note on variants above explains the control."
    if comparison.left_out:
        text += f" Not compared, because they have no table of the same queries: {', '.join(comparison.left_out)}."
    return text


def comparison_part(comparison: Comparison, task: str) -> Part:
    """Return the table of differences: a row for each model, variant and metric, with its interval and p."""
    heads = [*heads_of(["Model", "Variant", "Metric"]), Head("Difference", edge=True), Head("p, corrected")]
    rows = [
        [
            Cell(row.run.label),
            Cell(label_of([row.run], task, row.variant), words=True),
            Cell(metric_of(row.metric).label, words=True),
            *_cells(row),
        ]
        for row in comparison.rows
    ]
    title = f"Differences from {comparison.reference.label}"
    table = Table(f"{title}, {task}", heads, rows, sortable=True, filterable=True)
    return Part(title, [Note(comparison_note(comparison)), folded_if_long(table)])


def _cells(row: Difference) -> list[Cell]:
    paired = row.paired
    small = (f"{signed(paired.low)}\u00a0to {signed(paired.high)}", f"MDE\u00a0{percent(paired.mde)}")
    difference = Cell(signed(paired.points), small, paired.points, edge=True, strong=row.is_significant)
    uncorrected = (f"uncorrected\u00a0{p_value(paired.p)}",)
    if paired.corrected is None:
        return [difference, Cell("", uncorrected)]
    return [difference, Cell(p_value(paired.corrected), uncorrected, paired.corrected)]


def p_value(p: float) -> str:
    """Return a p-value as text, with three decimals, or four if it is small.

    >>> p_value(0.0301), p_value(0.0001), p_value(2e-9)
    ('0.030', '0.0001', '<0.0001')
    """
    if p < 0.00005:
        return "<0.0001"
    return f"{p:.3f}" if p >= 0.001 else f"{p:.4f}"
