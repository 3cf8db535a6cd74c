"""Effects of what models are made of: a table, a CSV and one chart with a panel for each metric."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from rococo_jax.errors import InputError
from rococo_jax.metrics import digits_of
from rococo_jax.metrics.correlation import holm
from rococo_jax.metrics.effects import Effects, main_effects
from rococo_jax.report.blocks import Cell, Charts, Head, Note, Part, Table
from rococo_jax.report.comparison import p_value
from rococo_jax.report.correlations import Place, Study
from rococo_jax.report.svg import chart_of, colour_of

_ROW, _LEFT, _WIDE, _TOP, _ACROSS = 17, 150, 215, 26, 3


@dataclasses.dataclass(frozen=True, eq=False)
class FactorEffects:
    """Effects of every factor on every metric; `held` with one metric held constant, on the others.

    Attributes:
        p: raw and corrected p of `[factor, metric]`, over all of them.
        held_p: the same with the metric held constant.
    """

    makes: int
    factors: tuple[str, ...]
    places: tuple[Place, ...]
    given: Place | None
    plain: Sequence[Effects]
    held: Sequence[Effects] | None
    p: tuple[np.ndarray, np.ndarray]
    held_p: tuple[np.ndarray, np.ndarray] | None


def study_effects(study: Study, factors: Sequence[str]) -> FactorEffects:
    """The effects of the factors that the makes' names tell.

    Raises InputError: a name that has not a part for each factor, or a design that `main_effects` refuses.
    """
    levels = [name.split("+") for name in study.models]
    for name, parts in zip(study.models, levels, strict=True):
        if len(parts) != len(factors):
            wanted = f"{len(factors)} joined by '+': {', '.join(factors)}"
            raise InputError("factors", f"levels of {name!r}", len(parts), wanted)
    at = study.places.index(study.given) if study.given else None
    order = ([at] if at is not None else []) + [row for row in range(len(study.places)) if row != at]
    values = study.values[order]
    plain = main_effects(levels, values)
    held = None if at is None else main_effects(levels, values[1:], values[0])
    places = tuple(study.places[row] for row in order)
    return FactorEffects(len(levels), tuple(factors), places, study.given, plain, held, _corrected(plain),
                         None if held is None else _corrected(held))  # fmt: skip


def _corrected(effects: Sequence[Effects]) -> tuple[np.ndarray, np.ndarray]:
    raw = np.stack([each.p for each in effects])
    return raw, holm(raw.ravel()).reshape(raw.shape)


def effects_rows(effects: FactorEffects) -> Iterator[list[Any]]:
    """The heading and a row a metric and level."""
    ends = ("effect", "low", "high", "p", "p_holm")
    yield ["factor", "level", "makes", "task", "variant", "metric", *ends, *(f"{end}_given" for end in ends)]
    for factor, level, metric in _all(effects):
        of = effects.plain[factor]
        row = [effects.factors[factor], of.levels[level], of.makes[level], *effects.places[metric]]
        for side in range(2):
            found = _at(effects, side, factor, level, metric)
            row += [""] * 5 if found is None else found
        yield row


def _all(effects: FactorEffects) -> Iterator[tuple[int, int, int]]:
    for metric in range(len(effects.places)):
        for factor, each in enumerate(effects.plain):
            for level in range(len(each.levels)):
                yield factor, level, metric


def _at(effects: FactorEffects, side: int, factor: int, level: int, metric: int) -> list[float] | None:
    """Effect, low, high, p and corrected p; `side` 1 with a metric held constant, which has none itself."""
    found, p = ((effects.plain, effects.p), (effects.held, effects.held_p))[side]
    metric -= side
    if found is None or p is None or metric < 0:
        return None
    of = found[factor]
    return [float(each[metric, level]) for each in (of.effect, of.low, of.high)] + [
        float(each[factor, metric]) for each in p
    ]


def effects_chart(effects: FactorEffects, file: bool = False) -> Markup | str:
    """Dots and 95 % intervals of each level, a panel a metric: hollow alone, full with the metric held constant."""
    rows = [(factor, level) for factor, each in enumerate(effects.plain) for level in range(len(each.levels))]
    places = [factor * 0.7 + row for row, (factor, _) in enumerate(rows)]
    high, lines = _ROW * (places[-1] + 1), -(-len(effects.places) // _ACROSS)
    across = min(_ACROSS, len(effects.places))
    with chart_of("Effects of factors", _LEFT + across * (_WIDE + 14), round(lines * (high + _TOP + 26)) + 4) as chart:
        for metric, place in enumerate(effects.places):
            line, column = divmod(metric, _ACROSS)
            top = line * (high + _TOP + 26) + _TOP
            axes = chart.axes(_LEFT + column * (_WIDE + 14), top, _WIDE, high)
            axes.set(ylim=(places[-1] + 0.5, -0.5), yticks=[])
            axes.set_title(place.label, fontsize=11, pad=5)
            axes.axvline(0, color=colour_of("soft"), lw=1)
            for (factor, level), y in zip(rows, places, strict=True):
                _mark(chart, axes, effects, (factor, level, metric), y)
                if column == 0:
                    axes.annotate(effects.plain[factor].levels[level], (0, y), (-8, 0), ("axes fraction", "data"),
                                  "offset points", ha="right", va="center_baseline")  # fmt: skip
        return chart.file() if file else chart.markup()


def _mark(chart, axes, effects: FactorEffects, place: tuple[int, int, int], y: float) -> None:
    sides = [_at(effects, side, *place) for side in (0, 1)]
    for side, found in enumerate(sides):
        if found is None:
            continue
        effect, low, high, _, corrected = found
        colour = colour_of("own" if corrected < 0.05 else "other")
        shift = 0.2 * (2 * side - 1) if None not in sides else 0
        name = f"{effects.factors[place[0]]} {effects.plain[place[0]].levels[place[1]]}"
        shown = [_signed(each, effects.places[place[2]]) for each in (effect, low, high)]
        told = f"{name}{', held constant' * side}: {shown[0]} ({shown[1]} to {shown[2]}), p {corrected:.3f}"
        axes.plot([low, high], [y + shift] * 2, color=colour, lw=1.6)
        axes.plot(effect, y + shift, "o", ms=5, mec=colour, mfc=colour if side else colour_of("paper"),
                  gid=chart.title(told))  # fmt: skip


def effects_part(effects: FactorEffects) -> Part:
    """The chart and the table of a page."""
    held = f" Full dots: {effects.given.label} held constant, by a line." if effects.given else ""
    note = (
        f"What each level adds to the mean over a factor's levels, by least squares over {effects.makes} makes [ours], "
        f"with 95 % intervals (Student's t over makes).{held} p is of the whole factor, by an F test, corrected "
        f"by Holm for all {effects.p[0].size} (those held constant for theirs); coloured below 0.05."
    )
    heads = [Head("Metric", words=True), Head("Factor", words=True), Head("Level", words=True), Head("Makes")]
    heads += [Head("Effect", edge=True), Head("p, Holm")] + [Head("Held constant", edge=True), Head("p, Holm")] * bool(
        effects.held
    )
    body = []
    for factor, level, metric in _all(effects):
        of = effects.plain[factor]
        cells = [Cell(effects.places[metric].label), Cell(effects.factors[factor], words=True),
                 Cell(of.levels[level], words=True), Cell(str(of.makes[level]), value=of.makes[level])]  # fmt: skip
        for side in range(1 + bool(effects.held)):
            cells += _cells(_at(effects, side, factor, level, metric), effects.places[metric])
        body.append(cells)
    chart = Charts([("", effects_chart(effects))], style="wide")
    return Part("Effects of factors", [Note(note), chart, Table("Effects of factors", heads, body, sortable=True,
                filterable=True)], 2, "group")  # fmt: skip


def _cells(found: list[float] | None, place: Place) -> list[Cell]:
    if found is None:
        return [Cell("–", edge=True), Cell("–")]
    *figures, raw, corrected = found
    effect, low, high = (_signed(each, place).replace("-", "−") for each in figures)
    return [Cell(effect, (f"{low} to {high}",), figures[0], edge=True),
            Cell(p_value(corrected), (f"raw {p_value(raw)}",), corrected)]  # fmt: skip


def _signed(value: float, place: Place) -> str:
    """A tenth of a point; a thousandth where the metric is a plain number."""
    return f"{value:+.{digits_of(place[2])}f}"
