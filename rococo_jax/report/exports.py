"""The figures of the page for other programs and for people: report.csv, report.md, report.tex, and a pandas table.

The CSV has one row a model, task and variant, with every metric and both bounds of its interval, unrounded; where
models were compared, the paired differences stand in the last columns, after the name of the reference. The Markdown
file has the tables of the page for a README, an issue or a paper's draft. `plot_results` draws bars with intervals by
matplotlib, for notebooks.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.errors import InputError
from rococo_jax.metrics import METRICS, metric_of
from rococo_jax.report.collection import Figure, Group, Run, group_by_fingerprint, load_results, tasks_of, variants_of
from rococo_jax.report.comparison import Comparison, Comparisons, comparison_note, p_value
from rococo_jax.report.page import coverage, group_name, model_facts
from rococo_jax.report.sections import ordered, section_of
from rococo_jax.report.tables import has_any
from rococo_jax.report.vocabulary import (
    in_reading_order,
    order_metrics,
    order_variants,
    percent,
    printable,
    signed,
    task_label,
    variant_label,
)
from rococo_jax.storage import hash_json, write_csv_rows, write_json, write_text

_FIRST = ("section", "model", "protocol", "task", "variant", "fingerprint", "results")
NUMBERS = ("value", "low", "high")
_DIFFERENCE = ("", "_low", "_high", "_p", "_p_holm", "_least_seen")
_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")


def write_csv(path: Path, groups: Sequence[Group], comparisons: Comparisons) -> None:
    """Writes the rows by rename. Numbers are written so that reading them gives the number of results.json again."""
    runs = [(number, run) for number, group in enumerate(groups, 1) for run in group.runs]
    measured = (name for _, run in runs for task in run.tasks.values() for metrics in task.values() for name in metrics)
    metrics = in_reading_order(measured, METRICS)
    columns = [*_FIRST, *(column for name in metrics for column in (name, f"{name}_low", f"{name}_high"))]
    compared = list(dict.fromkeys(name for each in comparisons.values() for name in each.compared))
    if comparisons:
        columns.append("compared_with")
        columns += [f"{name}_difference{end}" for name in compared for end in _DIFFERENCE]
    rows = [
        row + (_csv_difference(comparisons.get((number - 1, task)), run, variant, compared) if comparisons else [])
        for number, run in runs
        for row, task, variant in _csv_rows(number, run, metrics)
    ]
    write_csv_rows(path, [columns, *rows])


def _csv_rows(number: int, run: Run, metrics: Sequence[str]) -> Iterator[tuple[list[object], str, str]]:
    fingerprint = hash_json(run.results["fingerprint"])[:12]
    where = f"{run.path.resolve().parent.name}/{run.path.name}"
    for task, variants in run.tasks.items():
        for variant in order_variants(variants):
            figures = [run.figure(task, variant, name) for name in metrics]
            first = [number, run.label, run.results["protocol"], task, variant, fingerprint, where]
            cells = (_exact(end) for each in figures for end in (each.value, each.low, each.high))
            yield [*first, *cells], task, variant


def _csv_difference(comparison: Comparison | None, run: Run, variant: str, compared: Sequence[str]) -> list[str]:
    found = None if comparison is None else comparison.find(run, variant)
    if comparison is None or found is None:
        return [""] * (1 + len(_DIFFERENCE) * len(compared))
    cells = [comparison.reference.label]
    for name in compared:
        one = found.metrics.get(name)
        ends = one and (one.points, one.low, one.high, one.p, found.corrected[name], one.least_seen)
        cells += map(_exact, ends or [None] * len(_DIFFERENCE))
    return cells


def write_long(path: Path, groups: Sequence[Group]) -> None:
    """Writes one row a metric, as CSV for pandas and, with `.json` in place of `.csv`, as JSON; both by rename."""
    rows = [row for _, row in long_rows(groups)]
    cells = [[_exact(cell) if key in NUMBERS else cell for key, cell in row.items()] for row in rows]
    write_csv_rows(path, [list(rows[0]), *cells])
    write_json(path.with_suffix(".json"), rows)


def long_rows(groups: Sequence[Group]) -> Iterator[tuple[Run, dict[str, Any]]]:
    """A run and a row for each of its metrics, group by group."""
    for number, run in ((number, run) for number, group in enumerate(groups, 1) for run in group.runs):
        for row, task, variant in _csv_rows(number, run, ()):
            for name in in_reading_order(run.tasks[task][variant], METRICS):
                figure, about = run.figure(task, variant, name), metric_of(name)
                numbers = dict(zip(NUMBERS, (figure.value, figure.low, figure.high), strict=True))
                said = {"label": about.label, "unit": about.unit, "better": about.better}
                yield run, {**dict(zip(_FIRST, row, strict=True)), "metric": name, **numbers, **said}


def _exact(value: float | int | None) -> str:
    return "" if value is None else repr(value)


def write_markdown(path: Path, groups: Sequence[Group], comparisons: Comparisons) -> None:
    """Writes the file by rename."""
    write_text(path, "\n".join(markdown_lines(groups, comparisons)) + "\n")


def markdown_lines(groups: Sequence[Group], comparisons: Comparisons) -> Iterator[str]:
    """The whole file, line by line."""
    yield "# Robustness of image-text models"
    for place, group in enumerate(groups):
        first = group.runs[0]
        yield from ("", f"## {'' if len(groups) == 1 else f'Section {place + 1}: '}{escaped(group_name(group))}")
        if place:
            fields = ", ".join(escaped(field) for field, _, _ in group.differences)
            yield from ("", f"Not comparable with section 1, which differs in: {fields}.")
        for data in first.data.values():
            if found := coverage(data):
                yield from ("", f"Only {found[0]:,} of {found[1]:,} images {found[2]}: not comparable with "
                            "figures on all of them.")  # fmt: skip
        for task in tasks_of(group.runs):
            yield from ("", f"### {escaped(task_label(task))}", "")
            yield from _leaderboard(ordered(group.runs, task), task)
            if (place, task) in comparisons:
                yield from _differences(comparisons[place, task])
        yield from ("", "### Models")
        for run in group.runs:
            yield from ("", f"**{escaped(run.label)}**", "")
            yield from (f"- {escaped(term)}: {escaped(text)}" for term, text in model_facts(run))


def _leaderboard(runs: Sequence[Run], task: str) -> Iterator[str]:
    """One row a model and variant: as many columns as fit a page, however many variants there are."""
    wanted: Sequence[str] = section_of(runs, task).figures
    wanted = wanted or order_metrics(name for run in runs for metrics in run.tasks[task].values() for name in metrics)
    names = [name for name in wanted if has_any(runs, task, variants_of(runs, task), name)]
    yield from table_head(["Model", "Variant"], [metric_of(name).label for name in names])
    for run in runs:
        for variant in run.variants(task):
            figures = [_cell(run.figure(task, variant, name), variant) for name in names]
            yield table_row([escaped(run.label), escaped(variant_label(variant)), *figures])
    yield from ("", "Percentages with 95 % bootstrap intervals, resampled by image; drop is this project's definition.")


def _differences(comparison: Comparison) -> Iterator[str]:
    yield from ("", escaped(comparison_note(comparison)), "")
    heads = [head for name in comparison.compared 
             for head in (f"{metric_of(name).label} difference", "seen from", "p", "p, Holm")]  # fmt: skip
    yield from table_head(["Model", "Variant"], heads)
    for row in comparison.rows:
        cells = []
        for name in comparison.compared:
            found = row.metrics.get(name)
            if found is None:
                cells += [""] * 4
                continue
            cells += [f"{signed(found.points)} ({signed(found.low)} to {signed(found.high)})",
                      percent(found.least_seen), p_value(found.p), p_value(row.corrected[name])]  # fmt: skip
        yield table_row([escaped(row.run.label), escaped(variant_label(row.variant)), *cells])


def _cell(figure: Figure, variant: str) -> str:
    if variant == CLEAN and figure.value is None:
        return ""
    text = percent(figure.value, figure.digits)
    return f"{text} ({figure.bounds})" if figure.bounds else text


def table_head(words: Sequence[str], numbers: Sequence[str]) -> Iterator[str]:
    """The heading of a Markdown table: columns of words to the left, of numbers to the right."""
    yield table_row([escaped(each) for each in (*words, *numbers)])
    yield table_row(["---"] * len(words) + ["---:"] * len(numbers))


def table_row(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Text from outside on one line, none of which Markdown or HTML takes as its own.

    >>> escaped("a|b <i> x_y")
    'a\\\\|b &lt;i&gt; x\\\\_y'
    """
    one_line = " ".join(printable(text).split())
    return _SPECIAL.sub(r"\\\1", one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


_SPECIAL_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL_LATEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"}


def read_results(*sources: str | Path) -> Any:
    """Results as a long `pandas.DataFrame`: one row a model, task, variant and metric.

    Columns: `section` (rows of one section are comparable), `model`, `protocol`, `task`, `variant`, `metric`, `value`,
    `low`, `high` (bounds of the 95 % interval, NaN where there is none), `path`.

    Args:
        sources: results files, or folders that contain them.

    Raises:
        InputError: no results, or a file that is not what it should be; pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise InputError("read_results", "library", "no pandas", "pip install 'rococo-jax[pandas]'") from None
    groups = group_by_fingerprint(load_results(sources))
    rows = [row | {"path": str(run.path)} for run, row in long_rows(groups)]
    if not rows:
        raise InputError("read_results", "sources", "none", "at least one results file or folder")
    columns = ["section", "model", "protocol", "task", "variant", "metric", *NUMBERS, "path"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(NUMBERS, float))


def write_latex(path: Path, groups: Sequence[Group]) -> None:
    """Writes a `tabular` (package booktabs) for every task of every group, by rename."""
    write_text(path, "\n".join(line for group in groups for line in latex_lines(group)) + "\n")


def latex_lines(group: Group) -> Iterator[str]:
    """The tables of a group, line by line: models down, the main figures of each variant, best of a column bold."""
    for task in tasks_of(group.runs):
        runs, section = ordered(group.runs, task), section_of(group.runs, task)
        variants = variants_of(runs, task)
        names = [name for name in section.figures if has_any(runs, task, variants, name)]
        yield f"% {task_label(task)}, protocol {group.runs[0].results['protocol']}; percentages"
        yield rf"\begin{{tabular}}{{ll{'r' * len(names)}}}"
        yield r"\toprule"
        yield " & ".join(["Model", "Variant", *(_latex(metric_of(name).label) for name in names)]) + r" \\"
        yield r"\midrule"
        for variant in variants:
            column = {name: [run.figure(task, variant, name).value for run in runs] for name in names}
            for place, run in enumerate(runs):
                cells = [_latex_cell(name, column[name], place) for name in names]
                if any(cells):
                    yield " & ".join([_latex(run.label), _latex(variant_label(variant)), *cells]) + r" \\"
        yield r"\bottomrule"
        yield r"\end{tabular}"
        yield ""


def _latex_cell(name: str, column: Sequence[float | None], place: int) -> str:
    value, better = column[place], metric_of(name).better
    if value is None:
        return ""
    there = [each for each in column if each is not None]
    best = {"higher": max, "lower": min}.get(better or "")
    return rf"\textbf{{{percent(value)}}}" if best and len(there) > 1 and value == best(there) else percent(value)


def _latex(text: str) -> str:
    return "".join(_SPECIAL_LATEX.get(letter, letter) for letter in printable(text))


_WHO = "plot_results"
_OF_A_GROUP = 0.8


def plot_results(results: Any, metric: str = "fr1", *, task: str | None = None, axes: Any = None) -> Any:
    """Bars of one metric: a group for each variant, a colour for each model, lines for the 95 % intervals.

    Args:
        results: files or folders of results, or what `evaluate` returns, alone or as `{name: results}`.
        metric: its name in `results.json`, such as `r1`, `fr1`, `blind`. Variants where it is 0 for every model by its
            definition, as FR@1 of `clean`, are left out.
        task: only this one; all that have the metric by default.
        axes: matplotlib's to draw on; new ones by default.

    Returns:
        The axes; `axes.figure.savefig(...)` writes a file.

    Raises:
        InputError: the results do not compare, no variant has the metric, or matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        raise InputError(_WHO, "library", "no matplotlib", "pip install matplotlib") from None
    runs = _comparable(results).runs
    tasks = [name for name in tasks_of(runs) if task in (None, name)]
    rows = [(name, variant) for name in tasks for variant in variants_of(runs, name, metric)]
    rows = [row for row in rows if row[1] != "clean" or any(run.figure(*row, metric).value for run in runs)]
    if not rows:
        known = sorted({key for run in runs for name in tasks for each in run.tasks[name].values() for key in each})
        raise InputError(_WHO, "metric" if tasks else "task", metric if tasks else task,
                         f"one of {', '.join(known if tasks else tasks_of(runs))}")  # fmt: skip
    if axes is None:
        axes = pyplot.subplots(figsize=(max(4.0, 1.2 * len(rows) + 1), 3.6), layout="constrained")[1]
    width = _OF_A_GROUP / len(runs)
    for number, run in enumerate(runs):
        places = [place + (number - (len(runs) - 1) / 2) * width for place in range(len(rows))]
        figures = [run.figure(*row, metric) for row in rows]
        heights = [math.nan if each.value is None else each.value for each in figures]  # a gap
        axes.bar(places, heights, 0.95 * width, label=run.label)
        for place, each in zip(places, figures, strict=True):
            if each.has_interval:
                axes.plot([place, place], [each.low, each.high], color="0.3", linewidth=1)
    about = metric_of(metric)
    several = len({name for name, _ in rows}) > 1
    names = [
        f"{variant_label(variant)}\n{task_label(name)}" if several else variant_label(variant) for name, variant in rows
    ]
    axes.set_xticks(range(len(rows)), names, fontsize="small")
    axes.set_ylabel(
        about.label
        + (f", {about.unit}" if about.unit else "")
        + (f" ({about.better} is better)" if about.better else "")
    )
    axes.set_title("" if several else task_label(rows[0][0]), loc="right", fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=min(len(runs), 4), loc="lower left", bbox_to_anchor=(0, 1), fontsize="small")
    return axes


def _comparable(results: Any) -> Group:
    """The runs, if they may stand in one plot."""
    if isinstance(results, Mapping):
        named = {str(results["model"]): results} if "tasks" in results else results
        found = [(Path(str(name)), dict(content) | {"model": str(name)}) for name, content in named.items()]
    else:
        found = load_results([results] if isinstance(results, str | Path) else results)
    groups = group_by_fingerprint(found)
    if len(groups) != 1:
        differ = ", ".join(sorted({name for group in groups[1:] for name, *_ in group.differences}))
        raise InputError(_WHO, "results", f"{len(groups)} groups that differ in {differ}" if groups else "none",
                         "results of the same data and settings")  # fmt: skip
    return groups[0]
