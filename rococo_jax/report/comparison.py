"""Models against one of them, query by query: the paired differences that overlapping intervals cannot show.

`per_image.parquet` has the hits of each image; `metrics.paired` does the rest. Every share of which one end is better
is compared, and `blind`. Only models of one group are, and only where both tables have the same queries and agree with
the results.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from rococo_jax.benchmarks.variants import CLEAN, CONTROL
from rococo_jax.errors import InputError
from rococo_jax.evaluation.per_image import PER_IMAGE, HitsByVariant, ImageHits, read_image_hits
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.correlation import holm
from rococo_jax.metrics.paired import FLIPS, PairedDifference, paired_differences
from rococo_jax.report.blocks import Cell, Head, Note, Part, Table
from rococo_jax.report.collection import Group, Run, tasks_of
from rococo_jax.report.sections import ordered
from rococo_jax.report.tables import folded_if_long, heads_of
from rococo_jax.report.vocabulary import order_metrics, percent, signed, variant_label

# Compared though no end of it is better.
_ALSO = ("blind",)
_SAME = 1e-6  # points; the same count of hits, divided in another order


@dataclasses.dataclass(frozen=True)
class Difference:
    """One model minus the reference in one metric of one variant; `corrected` is Holm's p over all of the task."""

    run: Run
    variant: str
    metric: str
    paired: PairedDifference
    corrected: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All models of a group against the `reference` on one task, in the order of the leaderboard, variant by variant.

    `left_out` are labels of models whose queries could not be compared.
    """

    reference: Run
    rows: tuple[Difference, ...]
    left_out: tuple[str, ...]


# By place of the group, and task.
Comparisons = dict[tuple[int, str], Comparison]


def compare_groups(groups: Sequence[Group], reference: str | None = None) -> Comparisons:
    """Paired differences wherever there is something to compare, with `reference` or else the best of each task.

    Raises InputError where no model has that label, or a per_image.parquet is not whole.
    """
    labels = [run.label for group in groups for run in group.runs]
    if reference is not None and reference not in labels:
        raise InputError("reference", "model", repr(reference), f"one of {', '.join(labels)}")
    comparisons: Comparisons = {}
    for place, group in enumerate(groups):
        tables = {run.label: read_image_hits(run.path.parent / PER_IMAGE) for run in group.runs}
        for task in tasks_of(group.runs) if len(group.runs) > 1 else ():
            if comparison := _compare(ordered(group.runs, task), task, tables, reference):
                comparisons[place, task] = comparison
    return comparisons


def _compare(
    runs: Sequence[Run], task: str, tables: Mapping[str, HitsByVariant], reference: str | None
) -> Comparison | None:
    first = next((run for run in runs if run.label == reference), runs[0])
    others = [run for run in runs if run is not first]
    paired = [(run, *each) for run in others for each in _differences(run, first, task, tables)]
    if not paired:
        return None
    corrected = holm(np.array([difference.p for *_, difference in paired])).tolist()
    rows = tuple(Difference(*each, p) for each, p in zip(paired, corrected, strict=True))
    compared = {row.run.label for row in rows}
    return Comparison(first, rows, tuple(run.label for run in others if run.label not in compared))


def _differences(
    run: Run, first: Run, task: str, tables: Mapping[str, HitsByVariant]
) -> list[tuple[str, str, PairedDifference]]:
    """Variant, metric and difference; metrics over the same images use the same flips, and are compared together."""
    by_images: dict[tuple[str, ...], list[tuple[str, str, ImageHits, ImageHits]]] = {}
    for variant in run.variants(task):
        own, base = (_hits_of(each, task, variant, tables[each.label]) for each in (run, first))
        for name in (name for name in own if name in base):
            one, other = own[name], base[name]
            is_same = one.images == other.images and np.array_equal(one.queries, other.queries)
            if is_same and _is_compared(name, variant):
                by_images.setdefault(one.images, []).append((variant, name, one, other))
    paired = []
    for members in by_images.values():
        hits, others, queries = (np.column_stack(each) for each in zip(
            *((one.hits, other.hits, one.queries) for _, _, one, other in members), strict=True))  # fmt: skip
        differences = paired_differences(hits, others, queries)
        paired += [(*each[:2], difference) for each, difference in zip(members, differences, strict=True)]
    variants, metrics = run.variants(task), order_metrics(name for _, name, _ in paired)
    return sorted(paired, key=lambda each: (variants.index(each[0]), metrics.index(each[1])))


def _is_compared(metric: str, variant: str) -> bool:
    """Whether one end of a metric is better; nothing altered is in the clean gallery, and can be the first choice."""
    return (metric_of(metric).better is not None or metric in _ALSO) and (metric, variant) != ("fr1", CLEAN)


def _hits_of(run: Run, task: str, variant: str, table: HitsByVariant) -> dict[str, ImageHits]:
    """The hits of each metric of the results; none where some give another figure, since they are another model's."""
    figures = {name: run.figure(task, variant, name).value for name in table.get((task, variant), {})}
    hits = {name: table[task, variant][name] for name, value in figures.items() if value is not None}
    agree = (abs(figures[name] - 100.0 * each.hits.sum() / each.queries.sum()) < _SAME for name, each in hits.items())
    return hits if all(agree) else {}


def comparison_note(comparison: Comparison) -> str:
    """What a reader must know before the table of differences."""
    count = len(comparison.rows)
    text = (
        f"Each model minus {comparison.reference.label}, in percentage points, paired by image: 95 % bootstrap "
        f"interval, the difference that this test would find in 80 % of such samples (seen from), and p of a two-sided "
        f"sign-flip permutation test over images ({FLIPS:,} flips, so never below {1 / (FLIPS + 1):.4f}). p is Holm's, "
        f"beside it the raw one: the family is the {count} test{'s' * (count > 1)} of this table, all models, variants "
        "and metrics of the task. Differences with a corrected p below 0.05 are bold."
    )
    if any(row.variant == CONTROL for row in comparison.rows):
        text += " Of the control, see the note on variants above."
    if comparison.left_out:
        text += f" Not compared, for want of a table of the same queries: {', '.join(comparison.left_out)}."
    return text


def comparison_part(comparison: Comparison, task: str) -> Part:
    """The table of differences: one row a model, variant and metric, with the difference, its interval and p."""
    heads = [*heads_of(["Model", "Variant", "Metric"]), Head("Difference", edge=True), Head("p, Holm")]
    rows = [
        [
            Cell(row.run.label),
            Cell(variant_label(row.variant), words=True),
            Cell(metric_of(row.metric).label, words=True),
            *_cells(row.paired, row.corrected),
        ]
        for row in comparison.rows
    ]
    title = f"Differences from {comparison.reference.label}"
    table = Table(f"{title}, {task}", heads, rows, sortable=True, filterable=True)
    return Part(title, [Note(comparison_note(comparison)), folded_if_long(table)])


def _cells(found: PairedDifference, corrected: float) -> list[Cell]:
    small = (f"{signed(found.low)}\u00a0to {signed(found.high)}", f"seen from\u00a0{percent(found.least_seen)}")
    return [
        Cell(signed(found.points), small, found.points, edge=True, strong=corrected < 0.05),
        Cell(p_value(corrected), (f"raw\u00a0{p_value(found.p)}",), corrected),
    ]


def p_value(p: float) -> str:
    """Three decimals, four where they are needed.

    >>> p_value(0.0301), p_value(0.0001), p_value(2e-9)
    ('0.030', '0.0001', '<0.0001')
    """
    if p < 0.00005:
        return "<0.0001"
    return f"{p:.3f}" if p >= 0.001 else f"{p:.4f}"
