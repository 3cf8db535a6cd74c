"""Write sweep.svg (charts), sweep.html (charts and tables) and sweep.md (tables).

Charts show metrics over the first axis; each value of the other axes and each arm is a curve. A point is the mean over
seeds, its whisker their standard deviation, the band behind a curve the 95 % interval over seeds and images.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from matplotlib.transforms import Affine2D

from rococo_jax.errors import is_number
from rococo_jax.metrics import metric_of
from rococo_jax.report.blocks import Cell, Charts, Head, Note, Notes, Page, Part, Table, estimate_cell
from rococo_jax.report.charts import CURVES, round_ticks, short_number
from rococo_jax.report.collection import Estimate
from rococo_jax.report.markdown import write_page
from rococo_jax.report.svg import Chart, chart_of, colour_of
from rococo_jax.report.tables import Column, pivot
from rococo_jax.report.vocabulary import task_label
from rococo_jax.storage import write_text
from rococo_jax.sweep.collect import ALTERED, Row, curves_of, metrics_of, notes_of, sections_of, summary_columns
from rococo_jax.sweep.plan import Plan, value_text
from rococo_jax.sweep.tables import (
    MIB,
    SCALED_SETTINGS,
    differences_part,
    label,
    scaled_keys,
    summary,
    summary_label,
    tasks_of,
    title,
    training_texts,
)

_TRAINING_HEADS = ("Loss", "Images/s", "MiB a device")
_LOGARITHMIC_RATIO = 8.0  # of the largest value to the smallest: from here on an axis is logarithmic


@dataclasses.dataclass(frozen=True)
class Curve:
    """A curve of a panel: `(value of the axis, number)` of each point. Dashed curves are baselines, without a band."""

    colour: int
    dashed: bool
    name: str
    points: tuple[tuple[Any, Estimate], ...]


@dataclasses.dataclass(frozen=True)
class Panel:
    """A chart of one metric over the values of a setting."""

    name: str
    unit: str
    curves: tuple[Curve, ...]
    logarithmic: bool = False


def curve_panel(panel: Panel, values: Sequence[Any], axis: str) -> Markup:
    """Return the chart of one panel."""
    with chart_of(panel.name, 340, 290) as chart:
        _draw_curves(chart, chart.axes(54, 40, 270, 200), panel, values, axis)
        return chart.markup()


def curve_figure(title: str, panels: Sequence[Panel], values: Sequence[Any], axis: str) -> str:
    """Return an SVG file with all panels, three per row, and a legend."""
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
            _draw_curves(chart, chart.axes(left, up, 270, 200), panel, values, axis)
        return chart.file()


def legend_of(panels: Sequence[Panel]) -> list[tuple[str, bool, str]]:
    """Return `(colour, dashed, name)` of every named curve, and of the two line styles."""
    curves = [curve for panel in panels for curve in panel.curves]
    names = {curve.name: f"curve-{curve.colour % CURVES}" for curve in curves if curve.name}
    entries = [(colour, False, name) for name, colour in names.items()]
    if any(curve.dashed for curve in curves):
        entries += [("soft", False, "solid: altered (mean of the variants)"), ("soft", True, "dashed: clean")]
    return entries


def _draw_curves(chart: Chart, axes: Axes, panel: Panel, values: Sequence[Any], axis: str) -> None:
    """Draw a panel. The axis is logarithmic for numbers with a large ratio; words are evenly spaced."""
    are_numbers = len(values) > 1 and all(map(is_number, values))
    x_of = {value: float(value) if are_numbers else float(place) for place, value in enumerate(values)}
    first, last = min(x_of.values()), max(x_of.values())
    if are_numbers and first > 0 and last / first >= _LOGARITHMIC_RATIO:
        axes.set_xscale("log")
        margin = (last / first) ** 0.04
        axes.set_xlim(first / margin, last * margin)
    else:
        margin = 0.04 * (last - first) if are_numbers and last > first else 0.5
        axes.set_xlim(first - margin, last + margin)
    panel_title = f"{panel.name} ({panel.unit})" if panel.unit else panel.name
    axes.set_title(panel_title, loc="left", fontsize=13, weight="bold", pad=14)
    axes.set_xlabel(axis)
    estimates = [estimate for curve in panel.curves for _, estimate in curve.points]
    ends = [end for estimate in estimates for end in _ends(estimate)]
    _set_height(axes, min(ends), max(ends), panel.logarithmic)
    for place, curve in enumerate(panel.curves):
        colour = colour_of(f"curve-{curve.colour % CURVES}")
        points = sorted((x_of[value], value, estimate) for value, estimate in curve.points)
        # Shift curves by a pixel or two, so that the whiskers of equal values do not cover each other.
        offset = 1.6 * (place - (len(panel.curves) - 1) / 2)
        shifted = axes.transData + Affine2D().translate(offset, 0)
        x, y = [each[0] for each in points], [each[2].value for each in points]
        if not curve.dashed and len(points) > 1 and all(estimate.has_interval for *_, estimate in points):
            band = [*(estimate.high for *_, estimate in points), *(estimate.low for *_, estimate in reversed(points))]
            axes.fill([*x, *reversed(x)], band, color=colour, alpha=0.13, lw=0)
        width, dashes = (1.5, (0, (4, 3))) if curve.dashed else (2, "-")
        axes.plot(x, y, color=colour, lw=width, ls=dashes, transform=shifted)
        for at, value, estimate in points:
            tooltip = f"{curve.name or 'value'}{' (clean)' if curve.dashed else ''}, {value}: {_describe(estimate)}"
            if estimate.spread:
                spread = (estimate.value - estimate.spread, estimate.value + estimate.spread)
                axes.plot((at, at), spread, color=colour, lw=1.3, transform=shifted)
            face, tooltip_id = colour_of("paper") if curve.dashed else colour, chart.title(tooltip)
            axes.plot(at, estimate.value, "o", ms=6, mfc=face, mec=colour, mew=1.6, transform=shifted, gid=tooltip_id)
    ticks = sorted(x_of.values())
    # Label every n-th tick, so that labels of about 7 pixels per character fit into 270 pixels.
    every = -(-len(ticks) * 7 * max(len(str(value)) for value in values) // 270)
    texts = [short_number(value) if isinstance(value, float) else str(value) for value in x_of]
    texts = dict(sorted(zip(x_of.values(), texts, strict=True)))
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(
        FixedFormatter([text if place % every == 0 else "" for place, text in enumerate(texts.values())])
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(False, axis="x")


def _set_height(axes: Axes, low: float, high: float, logarithmic: bool) -> None:
    """Set the vertical axis: logarithmic, or from zero unless all values would lie in the upper half."""
    if logarithmic and low > 0 and high / low >= _LOGARITHMIC_RATIO:
        marks = [step * 10.0**power for power in range(-9, 16) for step in (1, 2, 5)]
        first, last = max(mark for mark in marks if mark <= low), min(mark for mark in marks if mark >= high)
        ticks = [mark for mark in marks if first <= mark <= last]
        # Use only powers of ten if there would be too many ticks.
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


def _ends(estimate: Estimate) -> list[float]:
    spread = estimate.spread or 0.0
    interval = (estimate.low, estimate.high) if estimate.has_interval else ()
    return [estimate.value - spread, estimate.value + spread, *interval]


def _describe(estimate: Estimate) -> str:
    text = f"{estimate.value:,.4g}"
    text += f" ± {estimate.spread:.2g}" if estimate.spread is not None else ""
    return text + (f" ({estimate.low:.4g} to {estimate.high:.4g})" if estimate.has_interval else "")


def write_figures(plan: Plan, rows: Sequence[Row], workdir: Path, failed: Mapping[str, str]) -> Path:
    """Write the three files, each by rename; return the page."""
    panels, axis = panels_of(plan, rows), plan.axes[0].short
    values = [value for value in plan.values(0) if any(row.values[0] == value for row in rows)]
    write_text(workdir / "sweep.svg", curve_figure(title(plan), panels, values, axis))
    charts = [("", curve_panel(panel, values, axis)) for panel in panels]
    entries = legend_of(panels)
    legend = [(colour, name) for colour, _, name in entries if colour != "soft"]
    lines = "; ".join(name for colour, _, name in entries if colour == "soft")
    notes = notes_of(rows)
    blocks = [
        Part("Notes", [Notes(notes)], "group") if notes else None,
        Part("", [Note(lines) if lines else None, Charts(charts, legend, style="scatters")], style="group"),
        Part("", [_summary(plan, rows), differences_part(plan, rows)], style="group"),
        *(Part(task_label(task), [_variants(plan, rows, task)], "group") for task in tasks_of(rows)),
        _scaled_part(plan),
        Part("Failed", [Notes([f"{name}: {error}" for name, error in failed.items()])], "group") if failed else None,
    ]
    return write_page(workdir / "sweep.html", Page(title(plan), "rococo sweep", summary(plan), blocks))


def panels_of(plan: Plan, rows: Sequence[Row]) -> list[Panel]:
    """Return the panels: the metrics of each task, then speed, memory and loss."""
    groups = curves_of(plan, rows)
    sections = sections_of(rows)
    columns, panels = summary_columns(rows), []
    for task in tasks_of(rows):
        lead = sections[task].lead[1]
        for name in dict.fromkeys(name for column_task, _, name in columns if column_task == task):
            variants = [variant for column_task, variant, metric in columns if (column_task, metric) == (task, name)]
            curves = [
                curve
                for variant in variants
                for curve in _curves(groups, (task, variant, name), dashed=len(variants) > 1 and variant != ALTERED)
            ]
            panel_name = f"{task_label(task)}: {metric_of(name).label}"
            if name == "drop" and lead and name != lead:
                panel_name += f" of {metric_of(lead).label}"
            if name != lead and ALTERED in variants:
                panel_name += ", altered"
            panels.append(Panel(panel_name, metric_of(name).unit, tuple(curves)))
    training = (
        ("images_per_second", "Images a second", "", 1, True),
        ("memory_bytes_per_device", "Memory of a step on a device", "MiB", MIB, True),
        ("loss", "Loss at the end", "", 1, False),
    )
    for key, name, unit, scale, logarithmic in training:
        panels.append(Panel(name, unit, _curves(groups, ("", "", key), scale=scale), logarithmic))
    return [panel for panel in panels if any(curve.points for curve in panel.curves)]


def _curves(
    groups: Mapping[str, Sequence[Row]], place: tuple[str, str, str], dashed: bool = False, scale: int = 1
) -> tuple[Curve, ...]:
    """Return a curve over the first axis for each group of rows.

    With a `scale`, values are divided by it and have neither spread nor interval.
    """
    curves = []
    for colour, (name, rows) in enumerate(groups.items()):
        points = [(row.values[0], estimate) for row in rows if (estimate := row.estimate(*place)) is not None]
        if scale != 1:
            points = [(value, Estimate(estimate.value / scale)) for value, estimate in points]
        curves.append(Curve(colour, dashed, name, tuple(points)))
    return tuple(curves)


def _summary(plan: Plan, rows: Sequence[Row]) -> Table:
    coverage = {name: phrase for row in rows for name, phrase in row.coverage.items()}
    columns = []
    for task, variant, name in summary_columns(rows):
        head = Head(summary_label(variant, name) + coverage.get((task, variant), ""))
        columns.append(Column((task, variant, name), head, (task_label(task), "")))
    columns += [Column(place, Head(text), ("Training", "")) for place, text in enumerate(_TRAINING_HEADS)]

    def cell(row: Row, column: Any) -> Cell:
        if column not in range(len(_TRAINING_HEADS)):
            return estimate_cell(row.estimate(*column) or Estimate(None))
        text = training_texts(row)[column]
        return Cell(text, value=None if text == "–" else float(text.replace(",", "")))

    body = [(_first_cells(plan, row), row) for row in rows]
    return pivot("Summary", _first_heads(plan), body, columns, cell, filterable=False)


def _variants(plan: Plan, rows: Sequence[Row], task: str) -> Table:
    heads = [*_first_heads(plan), Head("Variant", words=True)]
    body = [
        ([*_first_cells(plan, row), Cell(label(name) + row.coverage.get((task, name), ""), words=True)], (row, name))
        for row in rows
        for name in row.variant_names(task)
    ]
    columns = [Column(name, Head(metric_of(name).label)) for name in metrics_of(rows, task)]

    def cell(key: tuple[Row, str], name: str) -> Cell:
        row, variant = key
        return estimate_cell(row.estimate(task, variant, name) or Estimate(None))

    return pivot(f"Every variant, {task}", heads, body, columns, cell)


def _scaled_part(plan: Plan) -> Part | None:
    heads, lines = scaled_keys(plan)
    if not lines:
        return None
    body = [[Cell(text, words=True) for text in line] for line in lines]
    table = Table(SCALED_SETTINGS, [Head(name, words=True) for name in heads], body)
    return Part(SCALED_SETTINGS, [table], "group")


def _first_heads(plan: Plan) -> list[Head]:
    names = [axis.short for axis in plan.axes]
    if plan.arms[0].name:
        names.insert(0, "Arm")
    return [Head(name, words=True) for name in names]


def _first_cells(plan: Plan, row: Row) -> list[Cell]:
    texts = [value_text(value) for value in row.values]
    if plan.arms[0].name:
        texts.insert(0, row.arm)
    return [Cell(text, words=True) for text in texts]
