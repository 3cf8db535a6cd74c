"""The figures of the page for people who read Markdown: report.md."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.metrics import metric_of
from rococo_jax.report.collection import Figure, Group, Run, tasks_of, variants_of
from rococo_jax.report.comparison import Comparison, Comparisons, comparison_note, p_value
from rococo_jax.report.page import coverage, group_name, model_facts
from rococo_jax.report.sections import ordered, section_of
from rococo_jax.report.tables import has_any
from rococo_jax.report.vocabulary import order_metrics, percent, printable, signed, task_label, variant_label
from rococo_jax.storage import write_text

_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")


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
