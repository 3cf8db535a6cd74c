"""Charts, drawn by Matplotlib: bars with intervals, stacked bars, scatters, correlations, curves over a swept setting.

Colours are names of `svg.PALETTE`. Every number in a chart is also in a table, and marks carry theirs as a title.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Affine2D

from rococo_jax.report.collection import Figure
from rococo_jax.report.svg import Chart, chart_of, colour_of
from rococo_jax.report.vocabulary import percent

_WIDTH, _ROW, _AXIS = 440, 42, 24  # px
_LONGEST_LABEL = 30
CURVES = 8
_LABEL_FITS = 30  # the narrowest part of a stacked bar, in px, that still holds its number
_WIDE = 8.0  # from this ratio on, values far apart stand on a logarithmic axis


@dataclasses.dataclass(frozen=True)
class Bar:
    """One row of a chart of single bars."""

    label: str
    figure: Figure


@dataclasses.dataclass(frozen=True)
class Stack:
    """One row of a chart of stacked bars: `(colour, name, percentage)` from left to right."""

    label: str
    parts: tuple[tuple[str, str, float | int], ...]


@dataclasses.dataclass(frozen=True)
class Dot:
    """One point of a scatter; `name` stands beside it, `told` is its title."""

    name: str
    told: str
    across: Figure
    up: Figure


@dataclasses.dataclass(frozen=True)
class Curve:
    """One line of a panel: `(value, figure)` of each point; a dashed one is a baseline and has no band."""

    colour: int
    dashed: bool
    name: str
    points: tuple[tuple[Any, Figure], ...]


@dataclasses.dataclass(frozen=True)
class Panel:
    """One field of curves over a setting."""

    name: str
    unit: str
    curves: tuple[Curve, ...]
    logarithmic: bool = False


def common_ticks(figures: Sequence[Figure], most: int = 6) -> list[float]:
    """Round marks of an axis that charts share; they span zero, every value and every bound."""
    ends = [end for each in figures for end in (each.value, each.low, each.high) if end is not None]
    return _round_ticks(min([0.0, *ends]), max([1.0, *ends]), most)


def _round_ticks(low: float, high: float, most: int) -> list[float]:
    return [float(tick) for tick in MaxNLocator(most - 1, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]


def short_labels(labels: Sequence[str], length: int = _LONGEST_LABEL) -> list[str]:
    """Labels that fit: a long one loses its owner ("openai/") if it stays unique, then its middle.

    Model names differ at both ends, so the middle is what is missed least.
    """
    ends = [label if len(label) <= length else label.rpartition("/")[2] for label in labels]
    short = [end if ends.count(end) == 1 else label for end, label in zip(ends, labels, strict=True)]
    return [label if len(label) <= length else _without_middle(label, length) for label in short]


def _without_middle(label: str, length: int) -> str:
    head = (length - 1) // 2
    return f"{label[:head]}…{label[-(length - 1 - head) :]}"


def interval_bars(name: str, bars: Sequence[Bar], ticks: Sequence[float], colour: str) -> Markup:
    """One bar a row with a whisker over its interval; its label and numbers stand above it.

    The ticks are shared by all panels of a figure; the colour is a name of `PALETTE`.
    """
    with chart_of(name, _WIDTH, _ROW * len(bars) + _AXIS) as chart:
        axes = _rows(chart, [bar.label for bar in bars], ticks)
        for row, bar in enumerate(bars):
            figure, numbers = bar.figure, percent(bar.figure.value)
            told = f"{bar.label}: {numbers} %"
            if figure.has_interval:
                bounds = f"{percent(figure.low)} to {percent(figure.high)}"
                told += f", 95 % interval {bounds} %"
                numbers += f"  ({bounds})"
            if figure.value is not None:
                axes.barh(row, figure.value, 0.26, color=colour_of(colour), gid=chart.title(told))
            if figure.has_interval:
                axes.plot([figure.low, figure.high], [row, row], color=colour_of("paper"), lw=3.6, alpha=0.75)
                low, high, end = figure.low, figure.high, 0.1
                whisker = ([low, low, low, high, high, high], [row - end, row + end, row, row, row - end, row + end])
                axes.plot(*whisker, color=colour_of("ink"), lw=1.4)
            axes.text(1, row - 0.4, numbers, transform=axes.get_yaxis_transform(), ha="right", va="center_baseline")
        return chart.markup()


def stacked_bars(name: str, rows: Sequence[Stack]) -> Markup:
    """One bar a row, its parts summing to a hundred; a part that is wide enough holds its number."""
    with chart_of(name, _WIDTH, _ROW * len(rows) + _AXIS) as chart:
        axes = _rows(chart, [row.label for row in rows], [0.0, 25.0, 50.0, 75.0, 100.0])
        for place, row in enumerate(rows):
            done = 0.0
            for colour, part, share in row.parts:
                told = chart.title(f"{row.label}: {part} {percent(share)} %")
                axes.barh(place + 0.03, share, 0.42, done, color=colour_of(colour), gid=told,
                          edgecolor=colour_of("paper"), linewidth=1)  # fmt: skip
                if share / 100 * axes.get_window_extent().width >= _LABEL_FITS:
                    style = {"color": colour_of(f"on-{colour}"), "fontsize": 11, "ha": "center"}
                    axes.text(done + share / 2, place + 0.04, percent(share), va="center_baseline", **style)
                done += share
        return chart.markup()


def _rows(chart: Chart, labels: Sequence[str], ticks: Sequence[float]) -> Axes:
    """Axes of horizontal bars at y = 0, 1, ... from the top, each below its label."""
    axes = chart.axes(4, 0, chart.width - 16, chart.height - _AXIS)
    axes.set(xlim=(min(ticks), max(ticks)), ylim=(len(labels) - 0.6, -0.6))
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([_short(tick) for tick in ticks]))
    axes.yaxis.set_major_locator(NullLocator())
    if min(ticks) < 0:
        axes.axvline(0, color=colour_of("soft"), lw=1)
    for row, label in enumerate(short_labels(labels)):
        where = axes.get_yaxis_transform()
        axes.text(0, row - 0.4, label, transform=where, va="center_baseline", weight="bold")
    return axes


def scatter(name: str, dots: Sequence[Dot], ticks: Sequence[float], label: str, up: str) -> Markup:
    """Points with a diagonal on which both values are equal, and lines over their intervals. `label` and `up` name the
    axes.
    """
    side, left, below = 260, 50, 36
    with chart_of(name, left + side + 24, side + below + 8) as chart:
        axes = chart.axes(left, 8, side, side)
        axes.set(xlim=(min(ticks), max(ticks)), ylim=(min(ticks), max(ticks)), xlabel=label, ylabel=up)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator(ticks))
            axis.set_major_formatter(FixedFormatter([_short(tick) for tick in ticks]))
        axes.plot([min(ticks), max(ticks)], [min(ticks), max(ticks)], color=colour_of("soft"), lw=1, ls=(0, (4, 4)))
        for dot in dots:
            x, y = dot.across.value, dot.up.value
            for figure, place in ((dot.across, lambda end, y=y: (end, y)), (dot.up, lambda end, x=x: (x, end))):
                if figure.has_interval:
                    ends = zip(place(figure.low), place(figure.high), strict=True)
                    axes.plot(*ends, color=colour_of("own"), lw=1.2, alpha=0.45)
            axes.plot(x, y, "o", ms=8, mfc=colour_of("own"), mec=colour_of("paper"), mew=1, gid=chart.title(dot.told))
            axes.annotate(dot.name, (x, y), (6, 6), textcoords="offset pixels", fontsize=11, weight="bold")
        return chart.markup()


def correlation_map(
    name: str, labels: Sequence[str], found: Mapping[tuple[int, int], tuple[float, float]], file: bool = False
) -> Markup | str:
    """A triangle of correlations times 100, a row a metric and numbered columns; as markup, or as an SVG file.

    `found` has rho and its p of rows and columns, the column first. Coloured where p is below 0.05, the stronger the
    farther from 0.
    """
    side, left, top = 26, 330, 22
    with chart_of(name, left + side * (len(labels) - 1) + 8, top + side * len(labels) + 4) as chart:
        axes = chart.axes(0, 0, chart.width, chart.height, behind=True)
        axes.set(xlim=(0, chart.width), ylim=(chart.height, 0))
        for row, label in enumerate(short_labels(labels, 50)):
            y = top + side * (row + 0.5)
            axes.text(left - 8, y, f"{label}  {row + 1}", ha="right", va="center_baseline", fontsize=12)
            if row + 1 < len(labels):
                axes.text(left + side * (row + 0.5), 12, str(row + 1), ha="center", va="center_baseline",
                          fontsize=11, color=colour_of("soft"))  # fmt: skip
        for (column, row), (rho, p) in found.items():
            x, y = left + side * column, top + side * row
            told = f"{labels[column]} and {labels[row]}: {round(100 * rho)}, p {p:.4f}"
            colour, alpha = colour_of("own" if rho > 0 else "own-altered"), 0.55 * abs(rho)
            axes.fill([x + 1, x + side - 1, x + side - 1, x + 1], [y + 1, y + 1, y + side - 1, y + side - 1], lw=0,
                      color=colour if p < 0.05 else colour_of("grid"), alpha=alpha if p < 0.05 else 0.5,
                      gid=chart.title(told))  # fmt: skip
            axes.text(x + side / 2, y + side / 2, f"{round(100 * rho)}".replace("-", "−"), ha="center",
                      va="center_baseline", fontsize=11, color=colour_of("ink" if p < 0.05 else "soft"))  # fmt: skip
        return chart.file() if file else chart.markup()


def curve_panel(panel: Panel, values: Sequence[Any], axis: str) -> Markup:
    """One field of curves as a chart of its own."""
    with chart_of(panel.name, 340, 290) as chart:
        _curves(chart, chart.axes(54, 40, 270, 200), panel, values, axis)
        return chart.markup()


def curve_figure(title: str, panels: Sequence[Panel], values: Sequence[Any], axis: str) -> str:
    """All fields, three a row, and a legend, as an SVG file of its own."""
    columns = min(3, len(panels))
    entries = legend_of(panels)
    top = 16 + 22 * len(entries)
    with chart_of(title, 340 * columns, top + 290 * -(-len(panels) // columns)) as chart:
        field = chart.axes(0, 0, chart.width, chart.height, behind=True)
        field.set(xlim=(0, chart.width), ylim=(chart.height, 0))
        for row, (colour, dashed, name) in enumerate(entries):
            y = 20 + 22 * row
            field.plot([14, 38], [y, y], color=colour_of(colour), lw=2, ls=(0, (4, 3)) if dashed else "-")
            field.text(46, y, name, va="center_baseline")
        for place, panel in enumerate(panels):
            left, up = 340 * (place % columns) + 54, top + 290 * (place // columns) + 40
            _curves(chart, chart.axes(left, up, 270, 200), panel, values, axis)
        return chart.file()


def legend_of(panels: Sequence[Panel]) -> list[tuple[str, bool, str]]:
    """`(colour, dashed, name)` of every curve that needs a name, and of the two kinds of lines."""
    curves = [curve for panel in panels for curve in panel.curves]
    names = {curve.name: f"curve-{curve.colour % CURVES}" for curve in curves if curve.name}
    entries = [(colour, False, name) for name, colour in names.items()]
    if any(curve.dashed for curve in curves):
        entries += [("soft", False, "solid: altered (mean of the variants)"), ("soft", True, "dashed: clean")]
    return entries


def _curves(chart: Chart, axes: Axes, panel: Panel, values: Sequence[Any], axis: str) -> None:
    """A panel over the swept values: logarithmic where they are numbers far apart, side by side where they are words.

    A point is the mean over seeds, its whisker the standard deviation over them, the band the interval over images.
    """
    numbers = len(values) > 1 and all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)
    across = {value: float(value) if numbers else float(place) for place, value in enumerate(values)}
    first, last = min(across.values()), max(across.values())
    if numbers and first > 0 and last / first >= _WIDE:
        axes.set_xscale("log")
        beside = (last / first) ** 0.04
        axes.set_xlim(first / beside, last * beside)
    else:
        beside = 0.04 * (last - first) if numbers and last > first else 0.5
        axes.set_xlim(first - beside, last + beside)
    axes.set_title(panel.name + f" ({panel.unit})" * bool(panel.unit), loc="left", fontsize=13, weight="bold", pad=14)
    axes.set_xlabel(axis)
    figures = [figure for curve in panel.curves for _, figure in curve.points]
    ends = [end for figure in figures for end in _ends(figure)]
    _set_height(axes, min(ends), max(ends), panel.logarithmic)
    for place, curve in enumerate(panel.curves):
        colour = colour_of(f"curve-{curve.colour % CURVES}")
        points = sorted((across[value], value, figure) for value, figure in curve.points)
        # Curves lie side by side by a pixel or two, so that whiskers of equal values are seen.
        aside = 1.6 * (place - (len(panel.curves) - 1) / 2)
        moved = axes.transData + Affine2D().translate(aside, 0)
        x, y = [each[0] for each in points], [each[2].value for each in points]
        if not curve.dashed and len(points) > 1 and all(figure.has_interval for *_, figure in points):
            band = [*(figure.high for *_, figure in points), *(figure.low for *_, figure in reversed(points))]
            axes.fill([*x, *reversed(x)], band, color=colour, alpha=0.13, lw=0)
        axes.plot(x, y, color=colour, lw=1.5 if curve.dashed else 2, ls=(0, (4, 3)) if curve.dashed else "-",
                  transform=moved)  # fmt: skip
        for at, value, figure in points:
            told = f"{curve.name or 'value'}{' (clean)' if curve.dashed else ''}, {value}: {_told(figure)}"
            if figure.spread:
                spread = (figure.value - figure.spread, figure.value + figure.spread)
                axes.plot((at, at), spread, color=colour, lw=1.3, transform=moved)
            face = colour_of("paper") if curve.dashed else colour
            axes.plot(at, figure.value, "o", ms=6, mfc=face, mec=colour, mew=1.6, transform=moved,
                      gid=chart.title(told))  # fmt: skip
    ticks = sorted(across.values())
    every = -(-len(ticks) * 7 * max(len(str(value)) for value in values) // 270)
    texts = [_short(value) if isinstance(value, float) else str(value) for value in across]
    texts = dict(sorted(zip(across.values(), texts, strict=True)))
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(
        FixedFormatter([text if place % every == 0 else "" for place, text in enumerate(texts.values())])
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(False, axis="x")


def _set_height(axes: Axes, low: float, high: float, logarithmic: bool) -> None:
    """The axis of what was measured: from zero, unless all would lie in the upper half; or logarithmic."""
    if logarithmic and low > 0 and high / low >= _WIDE:
        marks = [step * 10.0**power for power in range(-9, 16) for step in (1, 2, 5)]
        first, last = max(mark for mark in marks if mark <= low), min(mark for mark in marks if mark >= high)
        ticks = [mark for mark in marks if first <= mark <= last]
        # Powers of ten alone where there would be too many marks.
        ticks = ticks if len(ticks) <= 8 else [mark for mark in ticks if f"{mark:e}".startswith("1.0")]
        axes.set_yscale("log")
        axes.set_ylim(first, last)
    else:
        low = min(low, 0.0) if low < 0.5 * high else low
        ticks = _round_ticks(low, high if high > low else low + 1, 7)
        axes.set_ylim(ticks[0], ticks[-1])
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FixedFormatter([_short(tick) for tick in ticks]))
    axes.yaxis.set_minor_locator(NullLocator())


def _ends(figure: Figure) -> list[float]:
    spread = figure.spread or 0.0
    interval = (figure.low, figure.high) if figure.has_interval else ()
    return [figure.value - spread, figure.value + spread, *interval]


def _told(figure: Figure) -> str:
    text = f"{figure.value:,.4g}"
    text += f" ± {figure.spread:.2g}" if figure.spread is not None else ""
    return text + (f" ({figure.low:.4g} to {figure.high:.4g})" if figure.has_interval else "")


def _short(value: float) -> str:
    return f"{round(value, 9):,.10g}".replace("-", "−")
