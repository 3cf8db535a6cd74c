"""Tables and tiles of figures: one row a model with its intervals, every figure of one model, the few that matter.

The page's script sorts by the number of a cell, which has more digits than its text; the interval stands below it.
"""

from collections.abc import Callable, Sequence

from rococo_jax.metrics import metric_of
from rococo_jax.report.blocks import Cell, Charts, Folded, Head, Table, Text, Tile, figure_cell, rich
from rococo_jax.report.charts import Bar, common_ticks, interval_bars
from rococo_jax.report.collection import Figure, Run, best_first, label_of
from rococo_jax.report.vocabulary import order_metrics, percent, variant_label

# A row with more columns is wider than any screen: a row a model and variant reads better.
WIDEST = 21
# With more variants than this, a panel a model keeps the page short.
MOST_PANELS = 8
# Of more models the first have bars; every one is in the table.
MOST_BARS = 24

Lead = tuple[str, str]  # variant, metric


def has_any(runs: Sequence[Run], task: str, variants: Sequence[str], name: str) -> bool:
    """Whether any run measured the metric on any of the variants."""
    return any(run.figure(task, variant, name).value is not None for run in runs for variant in variants)


def heads_of(words: Sequence[str], metrics: Sequence[str] = ()) -> list[Head]:
    """Headings of columns of words, then of metrics with their definitions."""
    numbers = (Head(metric_of(name).label, metric_of(name).definition) for name in metrics)
    return [*(Head(word, words=True) for word in words), *numbers]


def folded_if_long(table: Table) -> Table | Folded:
    """The table, under a line that unfolds it where it is longer than a screen or two."""
    return table if len(table.rows) <= 24 else Folded(f"{len(table.rows)} rows", [table])


def leaderboard(
    runs: Sequence[Run], task: str, groups: Sequence[tuple[str, Sequence[str]]], lead: Lead, short: Sequence[str]
) -> Table:
    """One row a model, the best first, with a group of columns for each variant; a long table where that is too wide.

    Args:
        groups: variants with the metrics of their columns; what no run has is left out.
        lead: variant and metric that rows are ordered by.
        short: the metrics of the long table.
    """
    runs = best_first(runs, task, lead)
    groups = [(name, [each for each in names if has_any(runs, task, [name], each)]) for name, names in groups]
    if sum(len(names) for _, names in groups) > WIDEST:
        groups = [(name, [each for each in names if each != "drop"]) for name, names in groups]  # it has a chart
    groups = [(name, names) for name, names in groups if names]
    columns = [(name, each, place == 0) for name, names in groups for place, each in enumerate(names)]
    if len(columns) > WIDEST:
        return _long_table(runs, task, short)
    heads = [Head("Model", words=True)]
    heads += [
        Head(metric_of(name).label, metric_of(name).definition, edge, sorted_now=(variant, name) == lead)
        for variant, name, edge in columns
    ]
    rows = [
        [Cell(run.label), *(figure_cell(run.figure(task, variant, name), edge) for variant, name, edge in columns)]
        for run in runs
    ]
    above = [(label_of(runs, task, name), len(names), name) for name, names in groups]
    return Table(f"Models, {task}", heads, rows, above, sortable=True, filterable=True)


def model_table(run: Run, task: str, variants: Sequence[str] | None = None) -> Table:
    """Every figure of one model: one row a variant (all but corruptions by default), one column a metric."""
    variants = run.variants(task) if variants is None else variants
    names = order_metrics(name for variant in variants for name in run.tasks[task][variant])
    names = [name for name in names if has_any([run], task, variants, name)]
    heads = heads_of(["Variant"], names)
    rows = [
        [
            Cell(label_of([run], task, variant), title=variant),
            *(figure_cell(run.figure(task, variant, name)) for name in names),
        ]
        for variant in variants
    ]
    return Table(f"{run.label}, {task}", heads, rows, sortable=len(rows) > 1)


def _long_table(runs: Sequence[Run], task: str, wanted: Sequence[str]) -> Table:
    names = [name for name in wanted if any(has_any([run], task, run.variants(task), name) for run in runs)]
    heads = heads_of(["Model", "Variant"], names)
    rows = [
        [
            Cell(run.label),
            Cell(label_of(runs, task, variant), words=True),
            *(figure_cell(run.figure(task, variant, name)) for name in names),
        ]
        for run in runs
        for variant in run.variants(task)
    ]
    return Table(f"Models, {task}", heads, rows, sortable=True, filterable=True)


def extreme(run: Run, task: str, variants: Sequence[str], name: str, end: Callable) -> tuple[str, Figure] | None:
    """The variant at one end (`max` or `min`) of a metric, with its figure."""
    figures = [(variant, run.figure(task, variant, name)) for variant in variants]
    figures = [(variant, figure) for variant, figure in figures if figure.value is not None]
    return end(figures, key=lambda pair: pair[1].value) if figures else None


def tile(
    label: str,
    runs: Sequence[Run],
    task: str,
    found: Sequence[tuple[str, Figure] | None],
    plain: str = "",
    ours: bool = False,
) -> Tile | None:
    """One number and what it is of, or the range over several models; None where no model has it.

    Args:
        found: for each model, the variant and its figure.
        plain: the variant that need not be named.
        ours: the formula is ours, not the benchmark's.
    """
    known = [(run, *pair) for run, pair in zip(runs, found, strict=True) if pair is not None]
    if not known:
        return None
    low, high = (end(known, key=lambda each: each[2].value) for end in (min, max))
    notes: list[Text]
    if len(known) == 1:
        run, variant, figure = known[0]
        name = label_of([run], task, variant)
        number = with_unit(percent(figure.value, figure.digits))
        notes = [] if variant == plain and name == variant_label(variant) else [name]
        if figure.bounds:
            notes.append(f"95 % interval {figure.bounds}")
        if figure.spread is not None:
            notes.append(f"standard deviation {percent(figure.spread, figure.digits)}")
    elif percent(low[2].value) == percent(high[2].value):
        number, notes = with_unit(percent(low[2].value)), ["all models"]
    else:
        ends = percent(low[2].value), percent(high[2].value)
        number = rich('{}<span class="unit"> to </span>{}<span class="unit"> %</span>', *ends)
        notes = [rich("lowest <bdi>{}</bdi>", low[0].label), rich("highest <bdi>{}</bdi>", high[0].label)]
    return Tile(label, number, notes, ours)


def with_unit(number: str) -> Text:
    """A number with its unit in small type."""
    return rich('{}<span class="unit"> %</span>', number)


def panels(runs: Sequence[Run], task: str, variants: Sequence[str]) -> list[tuple[str, list[tuple[Run, str, str]]]]:
    """Title and `(run, variant, row label)` of each panel: one a variant, or one a model where that reads better."""
    if len(runs) == 1 or len(variants) > MOST_PANELS:
        rows = [(run.label, [(run, name, label_of(runs, task, name)) for name in variants]) for run in runs if variants]
        return rows[:MOST_BARS]
    return [(label_of(runs, task, name), [(run, name, run.label) for run in runs[:MOST_BARS]]) for name in variants]


def interval_panels(runs: Sequence[Run], task: str, variants: Sequence[str], name: str, colour: str) -> Charts | None:
    """Bars with whiskers for one metric over variants; None where there are none."""
    found = panels(runs, task, variants)
    if not found:
        return None
    ticks = common_ticks([run.figure(task, variant, name) for _, rows in found for run, variant, _ in rows])
    label, charts = metric_of(name).label, []
    for title, rows in found:
        bars = [Bar(row, run.figure(task, variant, name)) for run, variant, row in rows]
        charts.append((title if len(found) > 1 else "", interval_bars(f"{label}: {title}", bars, ticks, colour)))
    return Charts(charts, note=bars_note(runs))


def bars_note(runs: Sequence[Run]) -> str:
    """What a reader must know where not every model has a bar."""
    return "" if len(runs) <= MOST_BARS else f"The first {MOST_BARS} of {len(runs)} models; the table above has all."
