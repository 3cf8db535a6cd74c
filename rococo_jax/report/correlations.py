"""Metric correlations over models, as charts and tables of a section and as files.

They are Spearman's, alone and controlling for clean R@1, of the metrics that each kind of task names; see
`metrics.correlation`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.benchmarks.variants import ALL_KINDS, CLEAN, Variant
from rococo_jax.errors import InputError, unknown_name
from rococo_jax.metrics.correlation import Correlations, correlate, holm
from rococo_jax.report.blocks import Block, Cell, Charts, Head, Note, Notes, Part, Table
from rococo_jax.report.charts import correlation_map
from rococo_jax.report.collection import Run, measured_places, pooled_severities, tasks_of, variants_of
from rococo_jax.report.difference import p_value
from rococo_jax.report.sections import section_of
from rococo_jax.report.vocabulary import Place

MIN_MODELS = 5
# On the report's page, whose reader did not request them; fewer models have very wide intervals.
MIN_MODELS_ON_PAGE = 10
_CORRUPTED = ("drop", "ras")
_ROWS = 60
_R2 = "Share of the variance of one metric that a straight line on the other explains (least squares)"


@dataclasses.dataclass(frozen=True)
class Pair:
    """Correlations of two metrics over models.

    Attributes:
        plain, partial: rank correlation, `(rho, low, high, p, p corrected)`; None where undefined.
        r2: R², the share of the variance of one metric that its least-squares line on the other explains; the square of
            Pearson's r, so the same in both directions.
    """

    x: Place
    y: Place
    plain: tuple[float, ...]
    partial: tuple[float, ...] | None
    r2: float


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """Correlations over models.

    Attributes:
        places: the metrics, in the order of the map.
        control: metric that the partial correlations control for; None if there are none.
        left_out: the metrics that are not among `places`, each with the reason.
        values: value of each metric for each model.
    """

    models: tuple[str, ...]
    places: tuple[Place, ...]
    control: Place | None
    pairs: tuple[Pair, ...]
    left_out: tuple[str, ...]
    values: Float[np.ndarray, "metrics models"]


def correlate_runs(runs: Sequence[Run], names: Sequence[str] | None = None, given: str | None = None) -> Study:
    """Compute correlations of metrics over the models of one group.

    Args:
        names: `TASK/VARIANT/METRIC` of each metric; by default those that the kinds of tasks name.
        given: metric to control for; by default image-to-text R@1 on the clean gallery if it was measured.

    Raises:
        InputError: fewer than five models, a metric that no model has, or fewer than two metrics.
    """
    if len(runs) < MIN_MODELS:
        raise InputError("RESULTS", "models", len(runs), f"results of {MIN_MODELS} models or more")
    measured = measured_places(runs)
    requested = _default_places(runs) if names is None else [_place(name, measured, "metrics") for name in names]
    clean_recall = measured.get(f"image_to_text/{CLEAN}/r1")
    control = clean_recall if given is None else _place(given, measured, "given")
    places = list(dict.fromkeys([*([control] if control else []), *requested]))
    rows, left_out = comparable({place: [run.estimate(*place).value for run in runs] for place in places})
    if len(rows) < 2:
        raise InputError("RESULTS", "metrics", f"{len(rows)} that every model has and that differ", "at least 2")
    control = control if control in rows else None
    return study_of_values([run.label for run in runs], list(rows), np.array(list(rows.values())), control, left_out)


def comparable(
    columns: Mapping[Place, Sequence[float | None]],
) -> tuple[dict[Place, Float[np.ndarray, " models"]], list[str]]:
    """Return the metrics that every model has and that differ between models, and the reason for each other metric."""
    rows, left_out = {}, []
    for place, values in columns.items():
        numbers = np.array(values, np.float64)  # None becomes NaN
        missing = int((~np.isfinite(numbers)).sum())
        if missing or (numbers == numbers[0]).all():
            reason = f"{missing} of {len(numbers)} models lack it" if missing else "equal for every model"
            left_out.append(f"{place.label}: {reason}")
        else:
            rows[place] = numbers
    return rows, left_out


def study_of_values(
    models: Sequence[str],
    places: Sequence[Place],
    values: Float[np.ndarray, "metrics models"],
    control: Place | None,
    left_out: Sequence[str] = (),
) -> Study:
    """Compute correlations of values, alone and controlling for one metric."""
    plain = correlate(values)
    partial = correlate(values, places.index(control)) if control and len(models) > MIN_MODELS else None
    pairs = _pairs(places, plain, partial, np.corrcoef(values) ** 2)
    return Study(tuple(models), tuple(places), control, pairs, tuple(left_out), values)


def _place(name: str, measured: dict[str, Place], option: str) -> Place:
    if name not in measured:
        raise unknown_name(option, "metric", name, sorted(measured))
    return measured[name]


def _default_places(runs: Sequence[Run]) -> list[Place]:
    places: list[tuple[str, str, str]] = []
    for task in tasks_of(runs):
        section = section_of(runs, task)
        lead, names = section.lead[0], section.correlated
        variants = variants_of(runs, task)
        if section.alters:
            places += [(task, lead, name) for name in names[:1] if lead in variants]
            places += [(task, *section.ranked_by)]
            altered = variants_of(runs, task, condition=lambda each: each.is_attack)
            places += [(task, variant, name) for name in names[1:] for variant in altered]
        else:
            places += [(task, variant, name) for variant in variants if lead in ("", variant) for name in names]
        severest = [Variant(corruption=ALL_KINDS, severity=each).name for each in pooled_severities(runs, task)[-1:]]
        places += [(task, variant, name) for variant in severest for name in _CORRUPTED]
    return [place for place in map(Place._make, places) if any(run.estimate(*place).value is not None for run in runs)]


def _pairs(
    places: Sequence[Place],
    plain: Correlations,
    partial: Correlations | None,
    r2: Float[np.ndarray, "metrics metrics"],
) -> tuple[Pair, ...]:
    upper = np.triu_indices(len(places), 1)

    def sides(correlations: Correlations) -> list[tuple[float, ...] | None]:
        rho, low, high, p = (
            matrix[upper] for matrix in (correlations.rho, correlations.low, correlations.high, correlations.p)
        )
        numbers = np.stack([rho, low, high, p, holm(p)], axis=1)
        return [None if np.isnan(each[0]) else tuple(map(float, each)) for each in numbers]

    partial_sides = sides(partial) if partial is not None else [None] * len(upper[0])
    return tuple(
        Pair(places[one], places[other], plain_side, partial_side, float(r2[one, other]))
        for one, other, plain_side, partial_side in zip(*upper, sides(plain), partial_sides, strict=True)
    )


def correlations_blocks(study: Study) -> list[Block | None]:
    """Return the map and the table, with their notes."""
    partial = f" Partial: {study.control.label} held constant." if study.control else ""
    note = (
        f"Spearman's rank correlation of each two metrics over {len(study.models)} models, times 100, with the 95 % "
        f"bootstrap interval over models. p is Holm's, corrected for all {len(study.pairs)} pairs (the partial "
        "ones for theirs); below it the raw one. A coloured cell has a corrected p below 0.05. R² is the share of the "
        f"variance of one metric that its least-squares line on the other explains.{partial} Models that "
        "share data or towers are not independent draws: the intervals are then too narrow."
    )
    chart = correlation_map("Correlations over models", *map_of(study))
    ordered = sorted(study.pairs, key=lambda pair: -abs(pair.plain[0]))
    more = len(ordered) - _ROWS
    last = Note(f"The {more} weaker pairs are in the CSV of `rococo correlate`.") if more > 0 else None
    left_out = Notes([f"Left out: {each}." for each in study.left_out]) if study.left_out else None
    return [Note(note), Charts([("", chart)], style="wide"), left_out, _table(ordered[:_ROWS]), last]


def map_of(study: Study, partial: bool = False) -> tuple[list[str], dict[tuple[int, int], tuple[float, float]]]:
    """Return arguments of `charts.correlation_map`: labels, and rho with its corrected p by place.

    With `partial`, they are of the partial correlations, without the metric that these control for.
    """
    places = [place for place in study.places if not (partial and place == study.control)]
    at = {place: row for row, place in enumerate(places)}
    sides = [(pair, pair.partial if partial else pair.plain) for pair in study.pairs]
    cells = {(at[pair.x], at[pair.y]): (side[0], side[4]) for pair, side in sides if side is not None}
    return [place.label for place in places], cells


def correlations_part(runs: Sequence[Run], anchor: str) -> Part | None:
    """Return the part of the report's page; None with too few models or metrics."""
    if len(runs) < MIN_MODELS_ON_PAGE:
        return None
    try:
        study = correlate_runs(runs)
    except InputError:  # fewer than two metrics
        return None
    return Part("Correlations over models", correlations_blocks(study), "task", anchor)


def _table(pairs: Sequence[Pair]) -> Table:
    heads = [Head("Metric", words=True), Head("and", words=True), Head("Correlation", edge=True), Head("p, Holm")]
    heads.append(Head("R²", title=_R2))
    rows = [
        [Cell(pair.x.label), Cell(pair.y.label, words=True), *_cells(pair.plain), Cell(f"{pair.r2:.2f}", (), pair.r2)]
        for pair in pairs
    ]
    if any(pair.partial for pair in pairs):
        heads += [Head("Partial", edge=True), Head("p, Holm")]
        rows = [[*row, *_cells(pair.partial)] for row, pair in zip(rows, pairs, strict=True)]
    return Table("Correlations over models", heads, rows, sortable=True, filterable=len(rows) > 8)


def _cells(side: tuple[float, ...] | None) -> list[Cell]:
    if side is None:
        return [_rho_cell(None, True), Cell("–")]
    strong = side[4] < 0.05
    return [_rho_cell(side, True, strong), Cell(p_value(side[4]), (f"raw {p_value(side[3])}",), side[4])]


def _rho_cell(side: tuple[float, ...] | None, edge: bool = False, strong: bool = False) -> Cell:
    if side is None:
        return Cell("–", edge=edge)
    rho, low, high = (hundredths(each) for each in side[:3])
    return Cell(rho, (f"{low} to {high}",), side[0], edge=edge, strong=strong)


def hundredths(rho: float) -> str:
    """Return a correlation times 100, with its sign, as text.

    >>> hundredths(0.714), hundredths(-0.3), hundredths(-0.001)
    ('71', '−30', '0')
    """
    return f"{round(100 * rho)}".replace("-", "−")


SIDES = ("rho", "low", "high", "p", "p_holm")
COLUMNS = (
    *("x_task", "x_variant", "x_metric", "y_task", "y_variant", "y_metric", "models", *SIDES),
    *(f"partial_{end}" for end in SIDES),
    "r2",
)


def csv_row(pair: Pair, models: int) -> list[Any]:
    """Return the cells of `COLUMNS`, unrounded."""
    empty = [""] * len(SIDES)
    return [*pair.x, *pair.y, models, *(pair.plain or empty), *(pair.partial or empty), pair.r2]
