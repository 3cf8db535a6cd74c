"""Charts: bars with intervals and stacked bars by a template, scatter plots and correlation maps by Matplotlib.

Colours are names of `svg.PALETTE`. Every number in a chart is also in a table, and each mark has it as a tooltip.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator

from rococo_jax.report.blocks import draw
from rococo_jax.report.collection import Estimate
from rococo_jax.report.svg import chart_of, colour_of
from rococo_jax.report.vocabulary import percent

_LONGEST_LABEL = 24
# Colours of curves in the palette.
CURVES = 8
# Per cent: the narrowest part of a stacked bar that still holds its number.
_LABEL_FITS = 9.0


@dataclasses.dataclass(frozen=True)
class Bar:
    """Row of a chart of single bars."""

    label: str
    estimate: Estimate


@dataclasses.dataclass(frozen=True)
class Stack:
    """Row of a chart of stacked bars: `(colour, name, percentage)` from left to right."""

    label: str
    parts: tuple[tuple[str, str, float | int], ...]


@dataclasses.dataclass(frozen=True)
class Dot:
    """Point of a scatter plot, with a `name` (a number or nothing) beside it and a tooltip."""

    name: str
    tooltip: str
    across: Estimate
    up: Estimate


def common_ticks(estimates: Sequence[Estimate]) -> list[float]:
    """Return round tick marks of an axis that charts share; they span zero, every value and every bound."""
    ends = [end for each in estimates for end in (each.value, each.low, each.high) if end is not None]
    return round_ticks(min([0.0, *ends]), max([1.0, *ends]), 6)


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Return round tick marks from below `low` to above `high`."""
    return [float(tick) for tick in MaxNLocator(most - 1, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]


def short_labels(labels: Sequence[str], length: int = _LONGEST_LABEL) -> list[str]:
    """Shorten labels to `length`: a long one loses its owner ("openai/") if it stays unique, then its middle.

    Model names differ at both ends, so the middle is the least important part.
    """
    ends = [label if len(label) <= length else label.rpartition("/")[2] for label in labels]
    short = [end if ends.count(end) == 1 else label for end, label in zip(ends, labels, strict=True)]
    return [label if len(label) <= length else _without_middle(label, length) for label in short]


def _without_middle(label: str, length: int) -> str:
    head = (length - 1) // 2
    return f"{label[:head]}…{label[-(length - 1 - head) :]}"


def interval_bars(name: str, bars: Sequence[Bar], ticks: Sequence[float], colour: str) -> Markup:
    """Draw one bar per row, with a whisker over its interval, a label and numbers.

    All panels of a picture share the ticks, which are evenly spaced. The colour is a name of `PALETTE`.
    """
    rows = []
    for bar, label in zip(bars, short_labels([bar.label for bar in bars]), strict=True):
        estimate, row = bar.estimate, {"label": label, "bar": None, **_mark(bar, ticks)}
        row["numbers"] = percent(estimate.value) + (f" ({estimate.bounds})" if estimate.has_interval else "")
        if estimate.value is not None:
            row["bar"] = _span(min(0, estimate.value), max(0, estimate.value), ticks)
        rows.append(row)
    return draw("interval_bars", name, rows, _axis(ticks), colour)


def dot_rows(name: str, rows: Sequence[tuple[str, Sequence[Bar]]], ticks: Sequence[float]) -> Markup:
    """Draw a row for each label, with a point and a whisker for each of its bars, in the colours of curves."""
    drawn = []
    for label, bars in rows:
        marks = [
            {"colour": f"curve-{number}", "at": _span(value, value, ticks)[0], **_mark(bar, ticks)}
            | {"top": f"{100 * (number + 0.5) / len(bars):.2f}"}
            for number, bar in enumerate(bars)
            if (value := bar.estimate.value) is not None
        ]
        drawn.append({"label": label, "marks": marks, "height": len(bars)})
    return draw("dot_rows", name, drawn, _axis(ticks))


def _mark(bar: Bar, ticks: Sequence[float]) -> dict[str, Any]:
    """Return the tooltip of a value, and the place of its whisker."""
    estimate, tooltip = bar.estimate, f"{bar.label}: {percent(bar.estimate.value)} %"
    if not estimate.has_interval:
        return {"tooltip": tooltip, "whisker": None}
    tooltip += f", 95 % interval {estimate.bounds} %"
    return {"tooltip": tooltip, "whisker": _span(estimate.low, estimate.high, ticks)}


def stacked_bars(name: str, rows: Sequence[Stack]) -> Markup:
    """Draw one bar per row, whose parts sum to 100; a part that is wide enough contains its number."""
    ticks, drawn = [0.0, 25.0, 50.0, 75.0, 100.0], []
    for row, label in zip(rows, short_labels([row.label for row in rows]), strict=True):
        start, parts = 0.0, []
        for colour, part, share in row.parts:
            number = percent(share)
            about = {
                "colour": colour,
                "tooltip": f"{row.label}: {part} {number} %",
                "bar": _span(start, start + share, ticks),
            }
            parts.append(about | {"number": number if share >= _LABEL_FITS else ""})
            start += share
        drawn.append({"label": label, "parts": parts})
    return draw("stacked_bars", name, drawn, _axis(ticks))


def _span(low: float | int, high: float | int, ticks: Sequence[float]) -> tuple[str, str]:
    """Return the place and the width of a span, in per cent of the axis."""
    width = max(ticks) - min(ticks)
    return f"{100 * (low - min(ticks)) / width:.2f}", f"{100 * (high - low) / width:.2f}"


def _axis(ticks: Sequence[float]) -> dict[str, Any]:
    marks = [(_span(tick, tick, ticks)[0], short_number(tick)) for tick in ticks]
    return {"marks": marks, "step": f"{100 / (len(ticks) - 1):.4f}"}


def scatter(
    name: str,
    dots: Sequence[Dot],
    across: Sequence[float],
    up: Sequence[float],
    label: str,
    up_label: str,
    width: int = 260,
) -> Markup:
    """Draw points with lines over their intervals; `across` and `up` are the tick marks of the axes.

    If both axes have the same tick marks, a diagonal shows where both values are equal.
    """
    side, left, above, below = 260, 40, 26, 38
    with chart_of(name, left + width + 24, above + side + below) as chart:
        axes = chart.axes(left, above, width, side)
        axes.set(xlim=(min(across), max(across)), ylim=(min(up), max(up)), xlabel=label)
        # The title of the vertical axis is above it: rotated beside it, it would cover the tick marks.
        chart_title = {"transform": axes.transAxes, "fontsize": 12, "color": colour_of("soft"), "va": "bottom"}
        axes.text(-left / width + 0.01, 1 + 8 / side, f"↑ {up_label}", **chart_title)
        for axis, ticks in ((axes.xaxis, across), (axes.yaxis, up)):
            axis.set_major_locator(FixedLocator(ticks))
            axis.set_major_formatter(FixedFormatter([short_number(tick) for tick in ticks]))
        if list(across) == list(up):
            axes.plot([min(up), max(up)], [min(up), max(up)], color=colour_of("soft"), lw=1, ls=(0, (4, 4)))
        for dot in dots:
            x, y = dot.across.value, dot.up.value
            line = {"color": colour_of("own"), "lw": 1.2, "alpha": 0.45}
            if dot.across.has_interval:
                axes.plot([dot.across.low, dot.across.high], [y, y], **line)
            if dot.up.has_interval:
                axes.plot([x, x], [dot.up.low, dot.up.high], **line)
            face, edge, tooltip = colour_of("own"), colour_of("paper"), chart.title(dot.tooltip)
            axes.plot(x, y, "o", ms=8, mfc=face, mec=edge, mew=1, gid=tooltip)
            axes.annotate(dot.name, (x, y), (6, 5), textcoords="offset pixels", fontsize=12, weight="bold")
        return chart.markup()


def correlation_map(
    name: str, labels: Sequence[str], correlations: Mapping[tuple[int, int], tuple[float, float]], file: bool = False
) -> Markup | str:
    """Draw a triangle of correlations times 100, one row per metric with numbered columns.

    `correlations` has rho and its p by (column, row). Cells with p below 0.05 are coloured, more strongly for a larger
    absolute rho. Returns markup, or the text of an SVG file with `file`.
    """
    side, left, top = 26, 330, 22
    centred = {"ha": "center", "va": "center_baseline", "fontsize": 12}
    with chart_of(name, left + side * (len(labels) - 1) + 8, top + side * len(labels) + 4) as chart:
        axes = chart.axes(0, 0, chart.width, chart.height, behind=True)
        axes.set(xlim=(0, chart.width), ylim=(chart.height, 0))
        for row, label in enumerate(short_labels(labels, 50)):
            y = top + side * (row + 0.5)
            axes.text(left - 8, y, f"{label}  {row + 1}", ha="right", va="center_baseline", fontsize=12)
            if row + 1 < len(labels):
                axes.text(left + side * (row + 0.5), 12, str(row + 1), color=colour_of("soft"), **centred)
        for (column, row), (rho, p) in correlations.items():
            x, y = left + side * column, top + side * row
            tooltip = f"{labels[column]} and {labels[row]}: {round(100 * rho)}, p {p:.4f}"
            is_significant = p < 0.05
            colour, alpha = colour_of("grid"), 0.5
            if is_significant:
                colour, alpha = colour_of("own" if rho > 0 else "own-altered"), 0.55 * abs(rho)
            corners_x = [x + 1, x + side - 1, x + side - 1, x + 1]
            corners_y = [y + 1, y + 1, y + side - 1, y + side - 1]
            axes.fill(corners_x, corners_y, lw=0, color=colour, alpha=alpha, gid=chart.title(tooltip))
            text, text_colour = f"{round(100 * rho)}".replace("-", "−"), colour_of("ink" if is_significant else "soft")
            axes.text(x + side / 2, y + side / 2, text, color=text_colour, **centred)
        return chart.file() if file else chart.markup()


def short_number(value: float) -> str:
    """Format a tick mark."""
    return f"{round(value, 9):,.10g}".replace("-", "−")
