"""The figure of a sweep: a panel for each thing measured, over the first axis; a curve for each arm and other value.

A point is the mean over seeds, its whisker the standard deviation over them, the band behind a curve the 95 % interval
over images. The SVG stands alone: it brings its style along and follows the reader's light or dark setting.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from rococo_jax.report.markup import Markup, element, join
from rococo_jax.report.vocabulary import CLEAN, task_label
from rococo_jax.sweep.collect import ALTERED, Figure, Row
from rococo_jax.sweep.figure_style import CURVES, STYLE
from rococo_jax.sweep.plan import Plan, written
from rococo_jax.sweep.scale import Scale, scale_of_figures, scale_of_values
from rococo_jax.sweep.tables import MIB

_WIDTH, _HEIGHT = 250, 190  # of a panel's field, px
_LEFT, _TOP, _RIGHT, _BOTTOM = 52, 46, 18, 46
_COLUMNS, _LEGEND_ROW, _LETTER = 3, 22, 6.6


@dataclasses.dataclass(frozen=True)
class Curve:
    """One line of a panel: a figure for each value that has one."""

    colour: int
    clean: bool
    name: str
    figures: Mapping[object, Figure]


@dataclasses.dataclass(frozen=True)
class Panel:
    """One field of the figure."""

    name: str
    unit: str
    curves: tuple[Curve, ...]
    logarithmic: bool = False


def panels_of(plan: Plan, rows: Sequence[Row]) -> list[Panel]:
    """What is drawn: recall, false recall and drop of each task, then speed, memory and loss."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(curve_name(plan, row), []).append(row)
    panels = []
    for task in dict.fromkeys(task for row in rows for task in row.tasks):
        recall = (*_curves(groups, task, CLEAN, "r1"), *_curves(groups, task, ALTERED, "r1"))
        panels.append(Panel(f"{task_label(task)}: R@1", "%", recall))
        for name, shown in (("fr1", "FR@1, altered"), ("drop", "Drop of R@1, altered")):
            panels.append(Panel(f"{task_label(task)}: {shown}", "%", _curves(groups, task, ALTERED, name)))
    rate, memory, loss = (
        tuple(
            Curve(place, False, name, {row.values[0]: row.training[key] for row in of_curve if key in row.training})
            for place, (name, of_curve) in enumerate(groups.items())
        )
        for key in ("images_per_second", "memory_bytes_per_device", "loss")
    )
    panels.append(Panel("Images a second", "", rate, logarithmic=True))
    panels.append(Panel("Memory of a step on a device", "MiB", tuple(map(_in_mib, memory)), logarithmic=True))
    panels.append(Panel("Loss at the end", "", loss))
    return [panel for panel in panels if any(curve.figures for curve in panel.curves)]


def curve_name(plan: Plan, row: Row) -> str:
    """The arm, and the values of all axes but the first."""
    others = [f"{axis.short} {written(value)}" for axis, value in zip(plan.axes[1:], row.values[1:], strict=True)]
    return ", ".join([row.arm] * bool(row.arm) + others)


def _curves(groups: Mapping[str, Sequence[Row]], task: str, variant: str, name: str) -> tuple[Curve, ...]:
    return tuple(
        Curve(
            place,
            variant == CLEAN,
            curve,
            {
                row.values[0]: row.tasks[task][variant][name]
                for row in rows
                if name in row.tasks.get(task, {}).get(variant, {})
            },
        )
        for place, (curve, rows) in enumerate(groups.items())
    )


def _in_mib(curve: Curve) -> Curve:
    figures = {value: Figure(figure.value / MIB) for value, figure in curve.figures.items()}
    return dataclasses.replace(curve, figures=figures)


def sweep_svg(plan: Plan, rows: Sequence[Row], title: str) -> Markup:
    """The whole figure as one `svg` element."""
    panels = panels_of(plan, rows)
    across = scale_of_values([value for value in plan.values(0) if any(row.values[0] == value for row in rows)])
    names = [name for name in dict.fromkeys(curve_name(plan, row) for row in rows) if name]
    columns = min(_COLUMNS, len(panels))
    cell_width, cell_height = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM
    width = columns * cell_width
    key, top = _legend(names, any(curve.clean for panel in panels for curve in panel.curves), width)
    height = top + -(-len(panels) // columns) * cell_height
    places = [
        (place % columns * cell_width + _LEFT, top + place // columns * cell_height + _TOP)
        for place in range(len(panels))
    ]
    fields = [
        element("g", _panel(panel, across, plan.axes[0].short), transform=f"translate({x} {y})")
        for panel, (x, y) in zip(panels, places, strict=True)
    ]
    return element(
        "svg",
        element("style", Markup(STYLE)),
        element("title", title),
        element("rect", width=width, height=height, class_="paper"),
        key,
        fields,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        class_="sweep",
        role="img",
        aria_label=title,
    )


def _legend(names: Sequence[str], clean: bool, width: int) -> tuple[Markup, int]:
    """Names of the curves, row by row, and their height."""
    entries = [(f"c{place % CURVES}", name) for place, name in enumerate(names)]
    entries += [("", "solid: altered (mean of the variants)"), ("", "dashed: clean")] if clean else []
    drawn, x, y = [], 14.0, 14
    for colour, name in entries:
        wide = len(name) * _LETTER + (46 if colour else 22)
        if x > 14 and x + wide > width:
            x, y = 14.0, y + _LEGEND_ROW
        if colour:
            drawn.append(element("path", d=f"M{x:g} {y}h22", class_=f"curve {colour}"))
        drawn.append(element("text", name, x=round(x + (28 if colour else 0), 1), y=y, dy="0.35em"))
        x += wide
    return join(drawn), y + 10 if entries else 0


def _panel(panel: Panel, across: Scale, axis: str) -> Markup:
    figures = [figure for curve in panel.curves for figure in curve.figures.values()]
    up = scale_of_figures([end for figure in figures for end in _ends(figure)], panel.logarithmic)
    # Curves lie side by side by a pixel or two, so that whiskers of equal values are seen.
    middle = (len(panel.curves) - 1) / 2
    every = -(-len(across.ticks) * 7 * max(len(text) for _, text in across.ticks) // _WIDTH)
    return join(
        element("text", panel.name, x=0, y=-16, class_="name"),
        element("text", panel.unit, x=-8, y=-16, class_="small end"),
        [
            join(
                element("path", d=f"M0 {_y(place)}H{_WIDTH}", class_="rule"),
                element("text", text, x=-7, y=_y(place), dy="0.35em", class_="small end"),
            )
            for place, text in up.ticks
        ],
        [
            join(
                element("path", d=f"M{_x(place)} {_HEIGHT}v4", class_="rule"),
                element("text", text, x=_x(place), y=_HEIGHT + 17, class_="small middle") if i % every == 0 else None,
            )
            for i, (place, text) in enumerate(across.ticks)
        ],
        element("text", axis, x=_WIDTH / 2, y=_HEIGHT + 34, class_="small middle"),
        [_curve(curve, across, up, 1.6 * (place - middle)) for place, curve in enumerate(panel.curves)],
    )


def _ends(figure: Figure) -> list[float]:
    sd = figure.sd or 0.0
    return [figure.value - sd, figure.value + sd, *(figure.interval or ())]


def _x(place: float) -> float:
    return round(8 + place * (_WIDTH - 16), 1)


def _y(place: float) -> float:
    return round(_HEIGHT * (1 - place), 1)


def _curve(curve: Curve, across: Scale, up: Scale, aside: float) -> Markup:
    colour = curve.colour % CURVES
    points = sorted((_x(across.place(value)), value, figure) for value, figure in curve.figures.items())
    places = [(round(x + aside, 1), _y(up.place(figure.value))) for x, _, figure in points]
    line = "M" + "L".join(f"{x:g} {y:g}" for x, y in places) if places else ""
    band = None
    # Clean and altered have nearly the same one, and two over each other are hard to read.
    if not curve.clean and len(points) > 1 and all(figure.interval for _, _, figure in points):
        low = [f"{x:g} {_y(up.place(figure.interval[0])):g}" for x, _, figure in points]
        high = [f"{x:g} {_y(up.place(figure.interval[1])):g}" for x, _, figure in points]
        band = element("path", d=f"M{'L'.join([*high, *reversed(low)])}Z", class_=f"band f{colour}")
    whiskers = "".join(
        f"M{x:g} {_y(up.place(figure.value - figure.sd)):g}V{_y(up.place(figure.value + figure.sd)):g}"
        for (x, _), (_, _, figure) in zip(places, points, strict=True)
        if figure.sd
    )
    name = ", ".join([curve.name] * bool(curve.name) + ["clean"] * curve.clean)
    name = name and f"{name}, "
    marks = [
        element(
            "circle",
            element(
                "title",
                f"{curve.name or 'value'}{' (clean)' if curve.clean else ''}, {written(value)}: {_told(figure)}",
            ),
            cx=x,
            cy=y,
            r=3,
            class_=f"mark c{colour} {'hollow' if curve.clean else f'f{colour}'}",
        )
        for (x, y), (_, value, figure) in zip(places, points, strict=True)
    ]
    return join(
        band,
        element("path", d=whiskers, class_=f"whisker c{colour}") if whiskers else None,
        element("path", d=line, class_=f"curve c{colour}{' clean' if curve.clean else ''}"),
        marks,
    )


def _told(figure: Figure) -> str:
    text = f"{figure.value:,.4g}"
    text += f" ± {figure.sd:.2g}" if figure.sd is not None else ""
    return text + (f" ({figure.interval[0]:.4g} to {figure.interval[1]:.4g})" if figure.interval else "")
