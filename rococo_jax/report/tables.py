"""The tables: one row a model with its intervals, and every figure of one model.

A cell carries its exact number as `data-value`, which the page's script sorts by; the interval stands below the number.
"""

from collections.abc import Sequence

from rococo_jax.report.markup import Markup, element
from rococo_jax.report.scores import Figure, Run, altered_variants, by_clean_recall
from rococo_jax.report.vocabulary import CLEAN, metric, order_metrics, percent, variant_label

_CLEAN_METRICS = ("r1", "r5", "r10")
_ALTERED_METRICS = ("r1", "fr1", "drop")
# Beyond so many altered variants a row of groups is wider than any screen: a row a model and variant reads better.
_WIDEST = 6

_Column = tuple[str, str]  # variant, metric


def leaderboard(runs: Sequence[Run], task: str) -> Markup:
    """One row a model, best clean R@1 first: clean recall, then R@1, FR@1 and drop for each altered variant."""
    runs = by_clean_recall(runs, task)
    variants = altered_variants(runs, task)
    if len(variants) > _WIDEST:
        return _long_table(runs, task, variants)
    groups = [(CLEAN, _present(runs, task, CLEAN, _CLEAN_METRICS))]
    groups += [(variant, _present(runs, task, variant, _ALTERED_METRICS)) for variant in variants]
    groups = [(variant, names) for variant, names in groups if names]
    columns = [(variant, name) for variant, names in groups for name in names]
    best = _best(runs, task, columns)
    head = element(
        "thead",
        element("tr", element("td"), [_group_header(variant, len(names)) for variant, names in groups]),
        element(
            "tr",
            header_cell("Model", first=True),
            [
                header_cell(
                    metric(name).label, metric(name).definition, new, sorted_now=(variant, name) == (CLEAN, "r1")
                )
                for variant, name, new in _with_borders(groups)
            ],
        ),
    )
    rows = [
        element(
            "tr",
            element("th", element("bdi", run.label), scope="row"),
            [
                figure_cell(run.figure(task, variant, name), new, run.label in best[variant, name])
                for variant, name, new in _with_borders(groups)
            ],
        )
        for run in runs
    ]
    return scrolling_table(f"Models, {task}", head, rows, sortable=True, filterable=True)


def model_table(run: Run, task: str, variants: Sequence[str] | None = None) -> Markup:
    """Every figure of one model: one row a variant (all but corruptions by default), one column a metric."""
    variants = run.variants(task) if variants is None else variants
    names = order_metrics(name for variant in variants for name in run.tasks[task][variant])
    names = [name for name in names if _has_any([run], task, variants, name)]
    head = element(
        "thead",
        element(
            "tr",
            header_cell("Variant", first=True),
            [header_cell(metric(name).label, metric(name).definition) for name in names],
        ),
    )
    rows = [
        element(
            "tr",
            element("th", element("bdi", variant_label(variant)), scope="row", title=variant),
            [figure_cell(run.figure(task, variant, name)) for name in names],
        )
        for variant in variants
    ]
    return scrolling_table(f"{run.label}, {task}", head, rows, sortable=len(rows) > 1)


def _long_table(runs: Sequence[Run], task: str, variants: Sequence[str]) -> Markup:
    wanted = ("r1", "r5", "r10", "fr1", "drop")
    names = [name for name in wanted if _has_any(runs, task, [CLEAN, *variants], name)]
    head = element(
        "thead",
        element(
            "tr",
            header_cell("Model", first=True),
            header_cell("Variant", words=True),
            [header_cell(metric(name).label, metric(name).definition) for name in names],
        ),
    )
    rows = [
        element(
            "tr",
            element("th", element("bdi", run.label), scope="row"),
            element("td", variant_label(variant), class_="words"),
            [figure_cell(run.figure(task, variant, name)) for name in names],
        )
        for run in runs
        for variant in run.variants(task)
    ]
    return scrolling_table(f"Models, {task}", head, rows, sortable=True, filterable=True)


def _has_any(runs: Sequence[Run], task: str, variants: Sequence[str], name: str) -> bool:
    return any(run.figure(task, variant, name).value is not None for run in runs for variant in variants)


def _present(runs: Sequence[Run], task: str, variant: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if _has_any(runs, task, [variant], name)]


def _with_borders(groups: Sequence[tuple[str, list[str]]]) -> list[tuple[str, str, bool]]:
    return [(variant, name, index == 0) for variant, names in groups for index, name in enumerate(names)]


def _best(runs: Sequence[Run], task: str, columns: Sequence[_Column]) -> dict[_Column, set[str]]:
    """The models that lead each column, as printed; nobody leads alone or in a column without a better end."""
    leaders: dict[_Column, set[str]] = {}
    for variant, name in columns:
        end = {"higher": max, "lower": min}.get(metric(name).better or "")
        printed = {run.label: run.figure(task, variant, name).value for run in runs}
        printed = {label: round(value, 1) for label, value in printed.items() if value is not None}
        top = end(printed.values()) if end and len(printed) > 1 else None
        leaders[variant, name] = {label for label, value in printed.items() if value == top}
    return leaders


def _group_header(variant: str, columns: int) -> Markup:
    return element("th", variant_label(variant), colspan=columns, scope="colgroup", class_="group edge", title=variant)


def header_cell(
    label: str,
    title: str | None = None,
    new_group: bool = False,
    first: bool = False,
    sorted_now: bool = False,
    words: bool = False,
) -> Markup:
    """The heading of a column; a button, so that a sortable table can be sorted by keyboard too."""
    classes = " ".join(name for name, on in (("edge", new_group), ("words", first or words)) if on) or None
    order = "descending" if sorted_now else None
    button = element("button", label, type="button", title=title)
    return element("th", button, scope="col", class_=classes, aria_sort=order)


def figure_cell(figure: Figure, new_group: bool = False, leads: bool = False) -> Markup:
    """A number with its interval and its spread over seeds or kinds below."""
    number = percent(figure.value)
    content = [element("strong", number) if leads else number]
    if figure.has_interval:
        # Beside a minus sign a bare dash would read as another one.
        dash = "\u2009–\u2009" if figure.low < 0 else "–"
        content.append(element("small", f"{percent(figure.low)}{dash}{percent(figure.high)}"))
    if figure.spread is not None:
        content.append(element("small", f"sd {percent(figure.spread)}"))
    return element("td", content, data_value=figure.value, class_="edge" if new_group else None)


def scrolling_table(caption: str, head: Markup, rows: list[Markup], sortable: bool, filterable: bool = False) -> Markup:
    """A table of figures that scrolls sideways where it is wider than the screen.

    The page's script puts a field above a `filterable` one, which takes rows away by their words.
    """
    classes = " ".join(name for name, on in (("sortable", sortable), ("filterable", filterable)) if on)
    table = element(
        "table",
        element("caption", caption, class_="heard"),
        head,
        element("tbody", rows),
        class_=f"figures {classes}".strip(),
    )
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=f"Table: {caption}")
