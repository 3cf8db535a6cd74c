"""Curves over a swept setting: one panel for a page, or all in a figure of its own.

Colours are names of `svg.PALETTE`. Every number in a chart is also in a table, and marks carry theirs as a title.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from matplotlib.transforms import Affine2D

from rococo_jax.report.charts import round_ticks, short_number
from rococo_jax.report.collection import Figure
from rococo_jax.report.svg import Chart, chart_of, colour_of

CURVES = 8
_WIDE = 8.0  # from this ratio on, values far apart stand on a logarithmic axis


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
    texts = [short_number(value) if isinstance(value, float) else str(value) for value in across]
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
        ticks = round_ticks(low, high if high > low else low + 1, 7)
        axes.set_ylim(ticks[0], ticks[-1])
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FixedFormatter([short_number(tick) for tick in ticks]))
    axes.yaxis.set_minor_locator(NullLocator())


def _ends(figure: Figure) -> list[float]:
    spread = figure.spread or 0.0
    interval = (figure.low, figure.high) if figure.has_interval else ()
    return [figure.value - spread, figure.value + spread, *interval]


def _told(figure: Figure) -> str:
    text = f"{figure.value:,.4g}"
    text += f" ± {figure.spread:.2g}" if figure.spread is not None else ""
    return text + (f" ({figure.low:.4g} to {figure.high:.4g})" if figure.has_interval else "")
