"""Charts as inline SVG: bars with interval whiskers, and bars stacked to a hundred per cent.

A chart holds no colours, only classes, so the style sheet decides for light, dark and paper. Every number in a chart
is also in a table, and each bar carries its numbers as a title.
"""

import dataclasses
import math
from collections.abc import Sequence

from rococo_jax.report.markup import Markup, element, join
from rococo_jax.report.scores import Figure
from rococo_jax.report.vocabulary import percent

_ROW, _BAR, _STACK, _TOP, _AXIS = 26, 12, 18, 6, 22
_LETTER = 6.9  # width of a letter at the charts' 12.5 px, in px; a little generous
_LONGEST_LABEL = 26
_FIGURES = 112  # column of numbers at the right, in px
_LABEL_FITS = 30  # the narrowest segment, in px, that still holds its number


@dataclasses.dataclass(frozen=True)
class Bar:
    """One row of a chart of single bars."""

    label: str
    figure: Figure


@dataclasses.dataclass(frozen=True)
class Stack:
    """One row of a chart of stacked bars: `(class, name, percentage)` from left to right."""

    label: str
    parts: tuple[tuple[str, str, float | int], ...]


@dataclasses.dataclass(frozen=True)
class Scale:
    """The horizontal axis: percentages from `low` to `high` with marks at `ticks`."""

    low: float
    high: float
    ticks: tuple[float, ...]


def common_scale(figures: Sequence[Figure]) -> Scale:
    """The axis that panels of one chart share: it holds zero, every value and every bound, in round steps."""
    ends = [end for each in figures for end in (each.value, each.low, each.high) if end is not None]
    low, high = min([0.0, *ends]), max([1.0, *ends])
    step = next((step for step in (1, 2, 5, 10, 20, 25, 50, 100) if (high - low) / step <= 5), None)
    step = step or 10 ** math.ceil(math.log10((high - low) / 5))
    first, last = math.floor(low / step), math.ceil(high / step)
    return Scale(
        float(first * step), float(last * step), tuple(float(index * step) for index in range(first, last + 1))
    )


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


def interval_bars(name: str, bars: Sequence[Bar], scale: Scale, kind: str, width: int = 540) -> Markup:
    """One bar a row, a whisker over its interval, the numbers in a column at the right.

    Args:
        name: what the chart shows, for readers who hear it.
        bars: the rows, top to bottom.
        scale: the axis, shared by all panels of a chart.
        kind: class of the bars ("drop", "false-recall").
        width: px at which text has its true size; the drawing is never enlarged.
    """
    frame = _Frame([bar.label for bar in bars], scale, width, width - _FIGURES)
    return frame.drawing(name, [_interval_row(bar, frame, frame.middle(row), kind) for row, bar in enumerate(bars)])


def _interval_row(bar: Bar, frame: "_Frame", middle: float, kind: str) -> Markup:
    figure, x = bar.figure, frame.x
    told, drawn = f"{bar.label}: {percent(figure.value)} %", []
    if figure.value is not None:
        start, end = sorted((x(0.0), x(figure.value)))
        drawn.append(_box(start, end, middle, _BAR, f"bar {kind}"))
    if figure.has_interval:
        told += f", 95 % interval {percent(figure.low)} to {percent(figure.high)} %"
        low, high = x(figure.low), x(figure.high)
        path = f"M{low} {middle}H{high}M{low} {middle - 4}v8M{high} {middle - 4}v8"
        drawn += [element("path", d=path, class_="whisker-edge"), element("path", d=path, class_="whisker")]
        drawn.append(_text(f"{percent(figure.low)} to {percent(figure.high)}", frame.width, middle, "bounds"))
    drawn.append(_text(percent(figure.value), frame.width - (70 if figure.has_interval else 0), middle, "value"))
    return element("g", element("title", told), drawn)


def stacked_bars(name: str, rows: Sequence[Stack], width: int = 540) -> Markup:
    """One bar a row, its parts summing to a hundred; a part that is wide enough carries its number."""
    scale = Scale(0.0, 100.0, (0.0, 25.0, 50.0, 75.0, 100.0))
    frame = _Frame([row.label for row in rows], scale, width, width - 12)
    return frame.drawing(name, [_stacked_row(row, frame, frame.middle(index)) for index, row in enumerate(rows)])


def _stacked_row(row: Stack, frame: "_Frame", middle: float) -> Markup:
    told = f"{row.label}: " + ", ".join(f"{part} {percent(share)} %" for _, part, share in row.parts)
    drawn, done = [element("title", told)], 0.0
    for kind, _, share in row.parts:
        start, end = frame.x(done), frame.x(done + share)
        drawn.append(_box(start, end, middle, _STACK, f"part {kind}"))
        if end - start >= _LABEL_FITS:
            drawn.append(_text(percent(share), round((start + end) / 2, 1), middle, f"share on-{kind}"))
        done += share
    return element("g", drawn)


class _Frame:
    """Where things are: labels at the left, the axis from there to `right`, a row under the other (all in px)."""

    def __init__(self, labels: Sequence[str], scale: Scale, width: int, right: int):
        self.labels, self.scale, self.width, self.right = short_labels(labels), scale, width, right
        self.left = int(max(map(len, self.labels), default=0) * _LETTER) + 14
        self.height = _TOP + _ROW * len(labels)

    def x(self, value: float | int) -> float:
        """Place of a percentage on the axis."""
        share = (value - self.scale.low) / (self.scale.high - self.scale.low)
        return round(self.left + (self.right - self.left) * share, 1)

    def middle(self, row: int) -> float:
        """Height of a row's middle."""
        return _TOP + _ROW * row + _ROW / 2

    def drawing(self, name: str, rows: list[Markup]) -> Markup:
        """The whole chart: axis, labels, then the rows."""
        marks = [
            join(
                element("path", d=f"M{self.x(tick)} {_TOP}V{self.height}", class_="grid" if tick else "zero"),
                element("text", f"{tick:g}".replace("-", "−"), x=self.x(tick), y=self.height + 15, class_="tick"),
            )
            for tick in self.scale.ticks
        ]
        labels = [_text(label, 0, self.middle(row), "row-label") for row, label in enumerate(self.labels)]
        size = {
            "viewBox": f"0 0 {self.width} {self.height + _AXIS}",
            "width": self.width,
            "height": self.height + _AXIS,
        }
        return element("svg", marks, labels, rows, **size, class_="chart", role="img", aria_label=name)


def _text(text: str, x: float | int, middle: float | int, kind: str) -> Markup:
    return element("text", text, x=x, y=middle, dy="0.35em", class_=kind)


def _box(start: float, end: float, middle: float, height: int, kind: str) -> Markup:
    width = max(0.0, round(end - start, 1))
    return element("rect", x=start, y=middle - height / 2, width=width, height=height, class_=kind)
