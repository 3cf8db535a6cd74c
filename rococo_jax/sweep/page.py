"""sweep.html and sweep.svg: the figure, and the figure with its table on one self-contained page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rococo_jax.report.document import document
from rococo_jax.report.markup import Markup, element, isolated, join
from rococo_jax.report.scores import Figure as Cell
from rococo_jax.report.tables import figure_cell, header_cell, scrolling_table
from rococo_jax.report.vocabulary import metric, order_variants, task_label
from rococo_jax.storage import atomic_write
from rococo_jax.sweep.collect import METRICS, Figure, Row
from rococo_jax.sweep.figure import sweep_svg
from rococo_jax.sweep.plan import Plan, written
from rococo_jax.sweep.tables import SUMMARY, label, summary_label, title, told, training_texts


def write_figures(plan: Plan, rows: Sequence[Row], workdir: Path, failed: Mapping[str, str]) -> Path:
    """Both files, each by rename. Returns the page."""
    svg = sweep_svg(plan, rows, title(plan))
    page = document(title(plan), _body(plan, rows, svg, failed), "rococo sweep")
    for name, text in (("sweep.svg", svg + "\n"), ("sweep.html", page)):
        with atomic_write(workdir / name) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="replace")
    return workdir / "sweep.html"


def _body(plan: Plan, rows: Sequence[Row], svg: Markup, failed: Mapping[str, str]) -> Markup:
    tasks = list(dict.fromkeys(task for row in rows for task in row.tasks))
    head = element(
        "header",
        element("p", "rococo sweep", class_="kicker"),
        element("h1", isolated(title(plan))),
        element("p", told(plan), class_="lede"),
    )
    sections = [
        element("section", svg, class_="group"),
        element("section", _summary(plan, rows, tasks), class_="group"),
    ]
    sections += [
        element("section", element("h2", task_label(task)), _variants(plan, rows, task), class_="group")
        for task in tasks
    ]
    if failed:
        items = [element("li", isolated(f"{name}: {error}")) for name, error in failed.items()]
        sections.append(element("section", element("h2", "Failed"), element("ul", items), class_="group"))
    return join(head, element("main", sections, id="main"))


def _summary(plan: Plan, rows: Sequence[Row], tasks: Sequence[str]) -> Markup:
    first = _first_heads(plan)
    groups = [element("th", task_label(task), colspan=len(SUMMARY), class_="group edge") for task in tasks]
    columns = [(task, variant, name, place == 0) for task in tasks for place, (variant, name) in enumerate(SUMMARY)]
    head = element(
        "thead",
        element("tr", element("td", colspan=len(first)), groups) if tasks else None,
        element(
            "tr",
            first,
            [header_cell(summary_label(variant, name), new_group=new) for _, variant, name, new in columns],
            [header_cell(text, new_group=text == "Loss") for text in ("Loss", "Images/s", "MiB a device")],
        ),
    )
    body = [
        element(
            "tr",
            _first_cells(plan, row),
            [_cell(row.tasks.get(task, {}).get(variant, {}).get(name), new) for task, variant, name, new in columns],
            [element("td", text, data_value=text.replace(",", "")) for text in training_texts(row)],
        )
        for row in rows
    ]
    return scrolling_table("Summary", head, body, sortable=True)


def _variants(plan: Plan, rows: Sequence[Row], task: str) -> Markup:
    heads = [header_cell("Variant", words=True), *(header_cell(metric(name).label) for name in METRICS)]
    body = [
        element(
            "tr",
            _first_cells(plan, row),
            element("td", label(variant), class_="words"),
            [_cell(row.tasks[task][variant].get(name)) for name in METRICS],
        )
        for row in rows
        for variant in order_variants(row.tasks.get(task, {}))
    ]
    head = element("thead", element("tr", _first_heads(plan), heads))
    return scrolling_table(f"Every variant, {task}", head, body, sortable=True, filterable=True)


def _first_heads(plan: Plan) -> list[Markup]:
    names = ["Arm"] * bool(plan.arms[0].name) + [axis.short for axis in plan.axes]
    return [header_cell(name, first=place == 0, words=place > 0) for place, name in enumerate(names)]


def _first_cells(plan: Plan, row: Row) -> list[Markup]:
    cells = [row.arm] * bool(plan.arms[0].name) + [written(value) for value in row.values]
    first, *others = cells
    return [
        element("th", element("bdi", first), scope="row"),
        *(element("td", isolated(text), class_="words") for text in others),
    ]


def _cell(figure: Figure | None, new_group: bool = False) -> Markup:
    if figure is None:
        return figure_cell(Cell(None), new_group)
    low, high = figure.interval or (None, None)
    return figure_cell(Cell(figure.value, low, high, figure.sd), new_group)
