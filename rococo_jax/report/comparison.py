"""Models against one of them, query by query: the paired differences that overlapping intervals cannot show.

From per_query.parquet, hits of each image are summed over its queries and seeds; `metrics.paired` does the rest. Only
models of one group are compared, and only where both tables ask the same queries and agree with the results.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from rococo_jax.benchmarks.variants import CLEAN, CONTROL
from rococo_jax.errors import InputError
from rococo_jax.evaluation.results import PAIRS, PER_QUERY
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.correlation import holm
from rococo_jax.metrics.paired import FLIPS, PairedDifference, paired_differences
from rococo_jax.report.across_seeds import ImageHits, counted_columns, read_image_hits, read_pair_hits
from rococo_jax.report.blocks import Cell, Head, Note, Part, Table
from rococo_jax.report.collection import Group, Run, tasks_of
from rococo_jax.report.sections import ordered, section_of
from rococo_jax.report.tables import folded_if_long, heads_of
from rococo_jax.report.vocabulary import percent, signed, variant_label

# Compared besides, where there are pairs of originals and altered copies.
OF_PAIRS = ("blind", "grounding")
_SAME = 1e-6  # points; the same count of hits, divided in another order


@dataclasses.dataclass(frozen=True)
class Difference:
    """One model minus the reference on one variant, for each metric; for R@1 alone on the clean gallery.

    `corrected` has Holm's p of each, over all tests of the task.
    """

    run: Run
    variant: str
    metrics: dict[str, PairedDifference]
    corrected: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All models of a group against the `reference` on one task, in the order of the leaderboard, variant by variant.

    `left_out` are labels of models whose queries could not be compared.
    """

    reference: Run
    compared: tuple[str, ...]
    rows: tuple[Difference, ...]
    left_out: tuple[str, ...]

    def find(self, run: Run, variant: str) -> Difference | None:
        """The row of a model and variant."""
        return next((row for row in self.rows if row.run is run and row.variant == variant), None)


# By place of the group, and task.
Comparisons = dict[tuple[int, str], Comparison]


def compare_groups(groups: Sequence[Group], reference: str | None = None) -> Comparisons:
    """Paired differences wherever there is something to compare, with `reference` or else the best of each task.

    Raises InputError where no model has that label, or a per_query.parquet is not whole.
    """
    labels = [run.label for group in groups for run in group.runs]
    if reference is not None and reference not in labels:
        raise InputError("reference", "model", repr(reference), f"one of {', '.join(labels)}")
    found: Comparisons = {}
    for place, group in enumerate(groups):
        if len(group.runs) == 1:
            counted_columns(group.runs[0].path.parent / PER_QUERY)
            continue
        tables = {run.label: read_image_hits(run.path.parent / PER_QUERY) for run in group.runs}
        pairs = {run.label: read_pair_hits(run.path.parent / PAIRS) for run in group.runs}
        for task in tasks_of(group.runs):
            runs, compared = ordered(group.runs, task), section_of(group.runs, task).compared
            comparison = _compare(runs, task, compared, tables, reference)
            if comparison is not None:
                found[place, task] = _corrected(_joined(comparison, _compare(runs, task, OF_PAIRS, pairs, reference)))
    return found


def _joined(comparison: Comparison, of_pairs: Comparison | None) -> Comparison:
    """The comparison with the differences of pairs in the rows of the same model and variant."""
    if of_pairs is None:
        return comparison
    added = {(row.run.label, row.variant): row.metrics for row in of_pairs.rows}
    rows = tuple(
        dataclasses.replace(row, metrics={**row.metrics, **added.get((row.run.label, row.variant), {})})
        for row in comparison.rows
    )
    return dataclasses.replace(comparison, compared=(*comparison.compared, *of_pairs.compared), rows=rows)


def _corrected(comparison: Comparison) -> Comparison:
    """The comparison with Holm's p of every test."""
    corrected = iter(holm(np.array([each.p for row in comparison.rows for each in row.metrics.values()])).tolist())
    rows = tuple(
        dataclasses.replace(row, corrected={name: next(corrected) for name in row.metrics}) for row in comparison.rows
    )
    return dataclasses.replace(comparison, rows=rows)


def _compare(
    runs: Sequence[Run],
    task: str,
    compared: tuple[str, ...],
    tables: dict[str, dict[tuple[str, str], ImageHits]],
    reference: str | None,
) -> Comparison | None:
    if not compared:
        return None
    first = next((run for run in runs if run.label == reference), runs[0])
    base, pairs, left_out = tables[first.label], [], []
    for run in runs:
        if run is first:
            continue
        own = tables[run.label]
        shared = [
            (run, variant, own[task, variant], base[task, variant])
            for variant in run.variants(task)
            if _agrees(run, task, variant, compared, own) and _agrees(first, task, variant, compared, base)
        ]
        shared = [pair for pair in shared
                  if pair[2].images == pair[3].images and np.array_equal(pair[2].queries, pair[3].queries)]  # fmt: skip
        pairs += shared
        if not shared:
            left_out.append(run.label)
    if not pairs:
        return None
    return Comparison(first, compared, tuple(_differences(pairs, compared)), tuple(left_out))


def _agrees(
    run: Run, task: str, variant: str, compared: Sequence[str], table: dict[tuple[str, str], ImageHits]
) -> bool:
    """Whether the table of queries has the variant, and gives the figures of the results."""
    found = table.get((task, variant))
    if found is None or not all(name in found.hits for name in compared):
        return False
    counted = [100.0 * found.hits[name].sum() / found.queries.sum() for name in compared]
    told = [run.figure(task, variant, name).value for name in compared]
    return all(value is not None and abs(value - count) < _SAME for value, count in zip(told, counted, strict=True))


def _differences(
    pairs: Sequence[tuple[Run, str, ImageHits, ImageHits]], compared: Sequence[str]
) -> Iterable[Difference]:
    """Comparisons over the same images use the same flips, and are made together."""
    by_images: dict[tuple[str, ...], list[tuple[Run, str, ImageHits, ImageHits]]] = {}
    for pair in pairs:
        by_images.setdefault(pair[2].images, []).append(pair)
    made: dict[tuple[str, str], Difference] = {}
    for members in by_images.values():
        hits = np.column_stack([own.hits[name] for _, _, own, _ in members for name in compared])
        other = np.column_stack([base.hits[name] for _, _, _, base in members for name in compared])
        queries = np.column_stack([own.queries for _, _, own, _ in members for _ in compared])
        found = iter(paired_differences(hits, other, queries))
        for run, variant, _, _ in members:
            each = {name: next(found) for name in compared}
            # Nothing altered is in the clean gallery: no first choice can be.
            made[run.label, variant] = Difference(
                run, variant, {"r1": each["r1"]} if variant == CLEAN and "r1" in each else each
            )
    return [made[run.label, variant] for run, variant, _, _ in pairs]


def comparison_note(comparison: Comparison) -> str:
    """What a reader must know before the table of differences."""
    count = sum(len(row.metrics) for row in comparison.rows)
    text = (
        f"Each model minus {comparison.reference.label}, in percentage points, paired by image: 95 % bootstrap "
        f"interval, the difference that this test would find in 80 % of such samples (seen from), and p of a two-sided "
        f"sign-flip permutation test over images ({FLIPS:,} flips, so never below {1 / (FLIPS + 1):.4f}). p is Holm's, "
        f"beside it the raw one: the family is the {count} test{'s' * (count > 1)} of this table, all models, variants "
        "and metrics of the task. Differences with a corrected p below 0.05 are bold on the page."
    )
    if any(row.variant == CONTROL for row in comparison.rows):
        text += " Of the control, see the note on variants above."
    if comparison.left_out:
        text += f" Not compared, for want of a table of the same queries: {', '.join(comparison.left_out)}."
    return text


def comparison_part(comparison: Comparison, task: str) -> Part:
    """The table of differences: one row a model and variant, with each metric's difference, interval and p."""
    heads = heads_of(["Model", "Variant"])
    for name in comparison.compared:
        heads += [Head(f"{metric_of(name).label} difference", metric_of(name).definition, edge=True), Head("p, Holm")]
    rows = []
    for row in comparison.rows:
        cells = [Cell(row.run.label), Cell(variant_label(row.variant), words=True)]
        for name in comparison.compared:
            cells += _cells(row.metrics.get(name), row.corrected.get(name))
        rows.append(cells)
    title = f"Differences from {comparison.reference.label}"
    table = Table(f"{title}, {task}", heads, rows, sortable=True, filterable=True)
    return Part(title, [Note(comparison_note(comparison)), folded_if_long(table)])


def _cells(found: PairedDifference | None, corrected: float | None) -> list[Cell]:
    if found is None or corrected is None:
        return [Cell(percent(None), edge=True), Cell(percent(None))]
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
