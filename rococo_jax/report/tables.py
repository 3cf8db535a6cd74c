"""Result tables and tiles: a row for each model, all results of one model, and the most important numbers.

The page sorts by the number of a cell, which has more digits than its text; the interval is printed below it.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rococo_jax.benchmarks.benchmark import human_results
from rococo_jax.benchmarks.pooling import HumanResults
from rococo_jax.metrics import metric_of
from rococo_jax.report.blocks import Cell, Charts, Folded, Head, Table, Text, Tile, estimate_cell, rich
from rococo_jax.report.charts import CURVES, Bar, common_ticks, dot_rows, interval_bars
from rococo_jax.report.collection import Estimate, Run, best_first, label_of, variants_of
from rococo_jax.report.vocabulary import order_metrics, percent, variant_label

# A row with more columns is wider than any screen, so each model and variant gets its own row.
WIDEST = 21
# With more variants than this, there is one panel for each model instead of each variant.
MOST_PANELS = 8
# With more models, only the first have bars; the table has all of them.
MOST_BARS = 24

Lead = tuple[str, str]  # variant, metric


@dataclasses.dataclass(frozen=True)
class Column:
    """Column of numbers of a pivot.

    Attributes:
        key: what `cell` is called with.
        group: label and tooltip of the heading above neighbouring columns of the same group.
    """

    key: Any
    head: Head
    group: tuple[str, str] = ("", "")


# The cells of words of a row, and what `cell` is called with.
Row = tuple[Sequence[Cell], Any]


def pivot(
    caption: str,
    words: Sequence[Head],
    rows: Sequence[Row],
    columns: Sequence[Column],
    cell: Callable[[Any, Any], Cell],
    references: Sequence[Row] = (),
    reference_cell: Callable[[Any, Any], Cell] | None = None,
    *,
    filterable: bool = True,
    notes: Sequence[str] = (),
) -> Table:
    """Return a table with a row for each of `rows` and a column for each of `columns`; empty columns are left out.

    Args:
        words: headings of the first columns, whose cells are in the rows.
        cell: cell of the key of a row and the key of a column; one without a value is empty.
        references: rows of people, which stay below the table; those without any value are left out.
        reference_cell: cell of such a row.
    """
    body = [[cell(key, column.key) for column in columns] for _, key in rows]
    shown = [place for place in range(len(columns)) if any(cells[place].value is not None for cells in body)]
    groups = [(group, [*members]) for group, members in itertools.groupby(shown, lambda place: columns[place].group)]
    begins = {members[0] for (label, _), members in groups if label}

    def line(start: Sequence[Cell], cells: Sequence[Cell]) -> list[Cell]:
        return [*start, *(dataclasses.replace(cells[place], edge=place in begins) for place in shown)]

    heads = [*words, *(dataclasses.replace(columns[place].head, edge=place in begins) for place in shown)]
    below = [(start, [(reference_cell or cell)(key, column.key) for column in columns]) for start, key in references]
    below = [(start, cells) for start, cells in below if any(cells[place].value is not None for place in shown)]
    return Table(
        caption,
        heads,
        [line(start, cells) for (start, _), cells in zip(rows, body, strict=True)],
        [(label, len(members), title) for (label, title), members in groups] if begins else (),
        len(words),
        sortable=len(rows) > 1,
        filterable=filterable,
        references=[line(start, cells) for start, cells in below],
        notes=notes,
    )


def has_any(runs: Sequence[Run], task: str, variants: Sequence[str], name: str) -> bool:
    """Whether any run measured the metric on any of the variants."""
    return any(run.estimate(task, variant, name).value is not None for run in runs for variant in variants)


def heads_of(words: Sequence[str], metrics: Sequence[str] = ()) -> list[Head]:
    """Return headings of columns of words, then of metrics with their definitions."""
    numbers = (Head(metric_of(name).label, metric_of(name).definition) for name in metrics)
    return [*(Head(word, words=True) for word in words), *numbers]


def folded_if_long(table: Table) -> Table | Folded:
    """Return the table, folded if it is longer than a screen or two."""
    return table if len(table.rows) <= 24 else Folded(f"{len(table.rows)} rows", [table])


class Measured(NamedTuple):
    """Key of a row: a model on a task, and on one variant if the columns name none."""

    run: Run
    task: str
    variant: str = ""


def measured_cell(row: Measured, lead: Lead) -> Cell:
    """Return the cell of a metric: of the variant of the column, or of the row."""
    variant, metric = lead
    return estimate_cell(row.run.estimate(row.task, variant or row.variant, metric))


def human_cell(row: Measured, lead: Lead) -> Cell:
    """Return the same of the published results of people."""
    humans, (variant, metric) = humans_of([row.run], row.task), lead
    value = humans.values.get(variant or row.variant, {}).get(metric) if humans else None
    return dataclasses.replace(estimate_cell(Estimate(value)), soft=True)


def metric_columns(metrics: Sequence[str], variant: str = "", group: tuple[str, str] = ("", "")) -> list[Column]:
    """Return a column for each metric, with its definition; of a variant, or of that of each row."""
    return [Column((variant, name), head, group) for name, head in zip(metrics, heads_of([], metrics), strict=True)]


def leaderboard(
    runs: Sequence[Run], task: str, groups: Sequence[tuple[str, Sequence[str]]], lead: Lead, short: Sequence[str]
) -> Table:
    """Return a row for each model, best first, with a group of columns for each variant.

    If that is too wide, each model and variant gets its own row.

    Args:
        groups: variants with the metrics of their columns; columns without values are left out.
        lead: variant and metric by which rows are ordered.
        short: metrics of the table with a row for each model and variant.
    """
    runs = best_first(runs, task, lead)
    caption, humans = f"Models, {task}", humans_of(runs, task)
    first = Cell("Humans", (humans.items,), title=humans.source) if humans else Cell("")
    columns = [
        dataclasses.replace(each, head=dataclasses.replace(each.head, sorted_now=each.key == lead))
        for variant, names in groups
        for each in metric_columns(names, variant, (label_of(runs, task, variant), variant))
    ]
    without_drop = [each for each in columns if each.key[1] != "drop"]  # it has a chart
    of_model = [([Cell(run.label)], Measured(run, task)) for run in runs]
    of_humans = [([first], Measured(run, task)) for run in runs if humans_of([run], task)][:1]
    for fitting in (columns, without_drop):
        table = pivot(caption, heads_of(["Model"]), of_model, fitting, measured_cell, of_humans, human_cell)
        if len(table.heads) <= 1 + WIDEST:
            return table
    labels = {name: Cell(label_of(runs, task, name), words=True) for name in variants_of(runs, task)}
    each_variant = [Measured(run, task, name) for run in runs for name in run.variants(task)]
    of_variant = [([Cell(row.run.label), labels[row.variant]], row) for row in each_variant]
    of_humans = [([first, labels[name]], row._replace(variant=name)) for _, row in of_humans for name in labels]
    words, columns = heads_of(["Model", "Variant"]), metric_columns(short)
    return pivot(caption, words, of_variant, columns, measured_cell, of_humans, human_cell)


def humans_of(runs: Sequence[Run], task: str) -> HumanResults | None:
    """Return the published results of people on a task; None if there are none."""
    return next(filter(None, (human_results(run.results).get(task) for run in runs)), None)


def model_table(run: Run, task: str) -> Table:
    """Return all results of one model: a row for each variant but corruptions, a column per metric."""
    variants = run.variants(task)
    columns = metric_columns(order_metrics(name for variant in variants for name in run.tasks[task][variant]))
    labels = {name: label_of([run], task, name) for name in variants}
    rows = [([Cell(label, title=name)], Measured(run, task, name)) for name, label in labels.items()]
    humans = humans_of([run], task)
    below = [
        ([Cell(f"Humans, {label.lower()}", (humans.items,), title=humans.source)], Measured(run, task, name))
        for name, label in labels.items()
        if humans
    ]
    words, caption = heads_of(["Variant"]), f"{run.label}, {task}"
    return pivot(caption, words, rows, columns, measured_cell, below, human_cell, filterable=False)


def extreme(run: Run, task: str, variants: Sequence[str], name: str, end: Callable) -> tuple[str, Estimate] | None:
    """Return the variant with the largest (`max`) or smallest (`min`) value of a metric, with that value."""
    estimates = [(variant, run.estimate(task, variant, name)) for variant in variants]
    estimates = [(variant, estimate) for variant, estimate in estimates if estimate.value is not None]
    return end(estimates, key=lambda pair: pair[1].value) if estimates else None


def tile(
    label: str,
    runs: Sequence[Run],
    task: str,
    estimates: Sequence[tuple[str, Estimate] | None],
    plain: str = "",
    ours: bool = False,
) -> Tile | None:
    """Return one number with its variant, or the range over several models; None where no model has it.

    Args:
        estimates: for each model, the variant and its value.
        plain: the variant whose name is omitted.
        ours: whether the formula is ours, not the benchmark's.
    """
    measured = [(run, *pair) for run, pair in zip(runs, estimates, strict=True) if pair is not None]
    if not measured:
        return None
    low, high = (end(measured, key=lambda each: each[2].value) for end in (min, max))
    notes: list[Text]
    if len(measured) == 1:
        run, variant, estimate = measured[0]
        name = label_of([run], task, variant)
        number = with_unit(percent(estimate.value, estimate.digits))
        notes = [] if variant == plain and name == variant_label(variant) else [name]
        if estimate.bounds:
            notes.append(f"95 % interval {estimate.bounds}")
        if estimate.spread is not None:
            notes.append(f"standard deviation {percent(estimate.spread, estimate.digits)}")
    elif percent(low[2].value) == percent(high[2].value):
        number, notes = with_unit(percent(low[2].value)), ["all models"]
    else:
        ends = percent(low[2].value), percent(high[2].value)
        number = rich('{}<span class="unit"> to </span>{}<span class="unit"> %</span>', *ends)
        notes = [rich("lowest <bdi>{}</bdi>", low[0].label), rich("highest <bdi>{}</bdi>", high[0].label)]
    return Tile(label, number, notes, ours)


def with_unit(number: str) -> Text:
    """Return a number with its unit in small type."""
    return rich('{}<span class="unit"> %</span>', number)


def panels(runs: Sequence[Run], task: str, variants: Sequence[str]) -> list[tuple[str, list[tuple[Run, str, str]]]]:
    """Return title and `(run, variant, row label)` of each panel: one per variant, or per model if those are many."""
    if len(runs) == 1 or len(variants) > MOST_PANELS:
        rows = [(run.label, [(run, name, label_of(runs, task, name)) for name in variants]) for run in runs if variants]
        return rows[:MOST_BARS]
    return [(label_of(runs, task, name), [(run, name, run.label) for run in runs[:MOST_BARS]]) for name in variants]


def interval_panels(runs: Sequence[Run], task: str, variants: Sequence[str], name: str, colour: str) -> Charts | None:
    """Return bars with whiskers for one metric over variants; None where there are none."""
    rows_of_panels = panels(runs, task, variants)
    if not rows_of_panels:
        return None
    ticks = common_ticks([run.estimate(task, variant, name) for _, rows in rows_of_panels for run, variant, _ in rows])
    label, charts = metric_of(name).label, []
    for title, rows in rows_of_panels:
        bars = [Bar(row, run.estimate(task, variant, name)) for run, variant, row in rows]
        charts.append(
            (title if len(rows_of_panels) > 1 else "", interval_bars(f"{label}: {title}", bars, ticks, colour))
        )
    return Charts(charts, note=bars_note(runs))


def dot_plots(runs: Sequence[Run], task: str, metrics: Sequence[tuple[str, str, Sequence[str]]]) -> Charts | None:
    """Return a chart of each metric, with a row for each variant and a point for each of the first models.

    Args:
        metrics: title, name and variants of each.
    """
    shown = best_first(runs, task, (metrics[0][2][0], metrics[0][1]))[:CURVES]
    charts = []
    for title, metric, variants in metrics:
        rows = [
            (label_of(shown, task, name), [Bar(run.label, run.estimate(task, name, metric)) for run in shown])
            for name in variants
        ]
        ticks = common_ticks([bar.estimate for _, bars in rows for bar in bars])
        charts.append((f"{title} ({metric_of(metric).better} is better)", dot_rows(f"{title}, {task}", rows, ticks)))
    legend = [(f"curve-{number}", run.label) for number, run in enumerate(shown)] if len(shown) > 1 else []
    more = "" if len(runs) <= CURVES else f"The first {CURVES} of {len(runs)} models; the table above has all."
    return Charts(charts, legend, note=more)


def bars_note(runs: Sequence[Run]) -> str:
    """Return a note where not every model has a bar."""
    return "" if len(runs) <= MOST_BARS else f"The first {MOST_BARS} of {len(runs)} models; the table above has all."
