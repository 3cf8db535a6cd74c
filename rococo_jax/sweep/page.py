"""sweep.svg and sweep.html: curves over the first axis, and the same curves with the tables on a self-contained page.

The other axes and the arms are curves. A point is the mean over seeds, its whisker the standard deviation over them,
the band behind a curve the 95 % interval over images.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rococo_jax.metrics import metric_of
from rococo_jax.report.blocks import Cell, Charts, Head, Note, Notes, Part, Table, figure_cell, render_page
from rococo_jax.report.collection import Figure
from rococo_jax.report.curves import Curve, Panel, curve_figure, curve_panel, legend_of
from rococo_jax.report.sections import section_of_kind
from rococo_jax.report.vocabulary import order_variants, task_label
from rococo_jax.storage import write_text
from rococo_jax.sweep.collect import ALTERED, Row, curves_of, metrics_of, summary_columns
from rococo_jax.sweep.plan import Plan, written
from rococo_jax.sweep.power_law import PowerLaw
from rococo_jax.sweep.tables import (
    MIB,
    POWER_LAW,
    POWER_LAWS,
    SCALED,
    label,
    power_law_lines,
    scaled_keys,
    summary,
    summary_label,
    tasks_of,
    title,
    training_texts,
)


def write_figures(
    plan: Plan, rows: Sequence[Row], laws: Sequence[PowerLaw], workdir: Path, failed: Mapping[str, str]
) -> Path:
    """Both files, each by rename. Returns the page."""
    panels, values, axis = panels_of(plan, rows), swept_values(plan, rows), plan.axes[0].short
    write_text(workdir / "sweep.svg", curve_figure(title(plan), panels, values, axis))
    charts = [("", curve_panel(panel, values, axis)) for panel in panels]
    entries = legend_of(panels)
    legend = [(colour, name) for colour, _, name in entries if colour != "soft"]
    lines = "; ".join(name for colour, _, name in entries if colour == "soft")
    blocks = [
        Part("", [Note(lines) if lines else None, Charts(charts, legend, style="scatters")], style="group"),
        Part("", [_summary(plan, rows)], style="group"),
        *(Part(task_label(task), [_variants(plan, rows, task)], 2, "group") for task in tasks_of(rows)),
        _power_laws(plan, laws),
        _scaled_part(plan),
        Part("Failed", [Notes([f"{name}: {error}" for name, error in failed.items()])], 2, "group") if failed else None,
    ]
    html = render_page(title(plan), "rococo sweep", summary(plan), blocks)
    return write_text(workdir / "sweep.html", html)


def swept_values(plan: Plan, rows: Sequence[Row]) -> list:
    """The values of the first axis that any row has."""
    return [value for value in plan.values(0) if any(row.values[0] == value for row in rows)]


def panels_of(plan: Plan, rows: Sequence[Row]) -> list[Panel]:
    """What is drawn: the metrics of each task, then speed, memory and loss."""
    groups = curves_of(plan, rows)
    kinds = {task: kind for row in rows for task, kind in row.kinds.items()}
    columns, panels = summary_columns(rows), []
    for task in tasks_of(rows):
        lead = section_of_kind(kinds[task]).lead[1]
        for name in dict.fromkeys(name for of, _, name in columns if of == task):
            variants = [variant for of, variant, metric in columns if (of, metric) == (task, name)]
            curves = [
                curve
                for variant in variants
                for curve in _curves(groups, dashed=len(variants) > 1 and variant != ALTERED,
                                     figure=lambda row, at=(task, variant, name): _at(row, *at))
            ]  # fmt: skip
            of = "" if name == lead else " of " + metric_of(lead).label if name == "drop" and lead else ""
            shown = "" if name == lead or ALTERED not in variants else ", altered"
            panels.append(
                Panel(f"{task_label(task)}: {metric_of(name).label}{of}{shown}", metric_of(name).unit, tuple(curves))
            )
    training = (
        ("images_per_second", "Images a second", "", 1, True),
        ("memory_bytes_per_device", "Memory of a step on a device", "MiB", MIB, True),
        ("loss", "Loss at the end", "", 1, False),
    )
    for key, name, unit, scale, logarithmic in training:
        curves = _curves(groups, False, lambda row, key=key, scale=scale: _scaled(row.training.get(key), scale))
        panels.append(Panel(name, unit, curves, logarithmic))
    return [panel for panel in panels if any(curve.points for curve in panel.curves)]


def _curves(groups: Mapping[str, Sequence[Row]], dashed: bool, figure) -> tuple[Curve, ...]:
    """A curve for each group of rows, over the first axis."""
    return tuple(
        Curve(place, dashed, name, tuple((row.values[0], found) for row in rows if (found := figure(row)) is not None))
        for place, (name, rows) in enumerate(groups.items())
    )


def _at(row: Row, task: str, variant: str, name: str) -> Figure | None:
    return row.tasks.get(task, {}).get(variant, {}).get(name)


def _scaled(figure: Figure | None, scale: int) -> Figure | None:
    """A figure in another unit; of several seeds the mean alone is drawn in it."""
    return figure if figure is None or scale == 1 else Figure(figure.value / scale)


def _summary(plan: Plan, rows: Sequence[Row]) -> Table:
    columns = summary_columns(rows)
    edges = [place == 0 or columns[place - 1][0] != task for place, (task, _, _) in enumerate(columns)]
    heads = [*_first_heads(plan)]
    heads += [Head(summary_label(*column[1:]), edge=edge) for column, edge in zip(columns, edges, strict=True)]
    heads += [Head(text, edge=text == "Loss") for text in ("Loss", "Images/s", "MiB a device")]
    body = []
    for row in rows:
        cells = [figure_cell(_at(row, *column) or Figure(None), edge)
                 for column, edge in zip(columns, edges, strict=True)]  # fmt: skip
        training = [Cell(text, value=None if text == "–" else float(text.replace(",", ""))) for text in
                    training_texts(row)]  # fmt: skip
        body.append([*_first_cells(plan, row), *cells, *training])
    groups = [(task_label(task), sum(of == task for of, _, _ in columns), "") for task in tasks_of(rows)]
    return Table("Summary", heads, body, groups, lead=len(_first_heads(plan)), sortable=True)


def _variants(plan: Plan, rows: Sequence[Row], task: str) -> Table:
    metrics = metrics_of(rows, task)
    heads = [*_first_heads(plan), Head("Variant", words=True), *(Head(metric_of(name).label) for name in metrics)]
    body = [
        [
            *_first_cells(plan, row),
            Cell(label(variant), words=True),
            *(figure_cell(_at(row, task, variant, name) or Figure(None)) for name in metrics),
        ]
        for row in rows
        for variant in order_variants(row.tasks.get(task, {}))
    ]
    return Table(f"Every variant, {task}", heads, body, sortable=True, filterable=True)


def _power_laws(plan: Plan, laws: Sequence[PowerLaw]) -> Part:
    heads, lines, left_out = power_law_lines(plan, laws)
    body = [[Cell(text, words=True) for text in line] for line in lines]
    table = Table(POWER_LAWS, [Head(name, words=True) for name in heads], body) if lines else None
    return Part(
        POWER_LAWS, [Note(POWER_LAW) if lines else None, table, Note(left_out) if left_out else None], 2, "group"
    )


def _scaled_part(plan: Plan) -> Part | None:
    heads, lines = scaled_keys(plan)
    body = [[Cell(text, words=True) for text in line] for line in lines]
    return (
        Part(SCALED, [Table(SCALED, [Head(name, words=True) for name in heads], body)], 2, "group") if lines else None
    )


def _first_heads(plan: Plan) -> list[Head]:
    names = ["Arm"] * bool(plan.arms[0].name) + [axis.short for axis in plan.axes]
    return [Head(name, words=True) for name in names]


def _first_cells(plan: Plan, row: Row) -> list[Cell]:
    cells = [row.arm] * bool(plan.arms[0].name) + [written(value) for value in row.values]
    return [Cell(text, words=True) for text in cells]
