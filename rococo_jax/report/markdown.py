"""report.md: the tables of the page for a README, an issue or a paper's draft."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rococo_jax.report.collection import Section
from rococo_jax.report.comparison import METRICS, Comparison, Comparisons, told_of
from rococo_jax.report.differences import p_value, signed
from rococo_jax.report.headline import coverage, dataset_name
from rococo_jax.report.markup import printable
from rococo_jax.report.model_cards import card_facts
from rococo_jax.report.scores import Figure, Run, by_clean_recall, tasks_of, variants_of
from rococo_jax.report.vocabulary import CLEAN, metric, percent, task_label, variant_label
from rococo_jax.storage import atomic_write

_FIGURES = ("r1", "r5", "r10", "fr1", "drop")
_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")


def write_markdown(path: Path, sections: Sequence[Section], comparisons: Comparisons) -> None:
    """Writes the file by rename."""
    with atomic_write(path) as temporary:
        temporary.write_text(
            "\n".join(markdown_lines(sections, comparisons)) + "\n", encoding="utf-8", errors="replace"
        )


def markdown_lines(sections: Sequence[Section], comparisons: Comparisons) -> Iterator[str]:
    """The whole file, line by line."""
    yield "# Robustness of image-text models"
    for place, section in enumerate(sections):
        first = section.runs[0]
        yield from ("", f"## {'' if len(sections) == 1 else f'Section {place + 1}: '}{escaped(_section_name(first))}")
        if place:
            fields = ", ".join(escaped(one.field) for one in section.differences)
            yield from ("", f"Not comparable with section 1, which differs in: {fields}.")
        if found := coverage(first.data):
            yield from ("", f"Only {found[0]:,} of {found[1]:,} images were there: R@K is not comparable with "
                        "full-gallery figures.")  # fmt: skip
        for task in tasks_of(section.runs):
            yield from ("", f"### {escaped(task_label(task))}", "")
            yield from _leaderboard(by_clean_recall(section.runs, task), task)
            if (place, task) in comparisons:
                yield from _differences(comparisons[place, task])
        yield from ("", "### Models")
        for run in section.runs:
            yield from ("", f"**{escaped(run.label)}**", "")
            yield from (f"- {escaped(term)}: {escaped(text)}" for term, text in card_facts(run))


def _section_name(run: Run) -> str:
    name = dataset_name(run.data)
    return f"{f'{name}, ' if name else ''}protocol {run.results['protocol']}"


def _leaderboard(runs: Sequence[Run], task: str) -> Iterator[str]:
    """One row a model and variant: as many columns as fit a page, however many variants there are."""
    names = [name for name in _FIGURES if any(_has(run, task, name) for run in runs)]
    yield from _head(["Model", "Variant", *(metric(name).label for name in names)], len(names))
    for run in runs:
        for variant in variants_of([run], task):
            figures = [_cell(run.figure(task, variant, name), variant) for name in names]
            yield _row([escaped(run.label), escaped(variant_label(variant)), *figures])
    yield from ("", "Percentages with 95 % bootstrap intervals, resampled by image; drop is this project's definition.")


def _differences(comparison: Comparison) -> Iterator[str]:
    yield from ("", escaped(told_of(comparison)), "")
    heads = [head for name in METRICS for head in (f"{metric(name).label} difference", "p")]
    yield from _head(["Model", "Variant", *heads], len(heads))
    for row in comparison.rows:
        cells = []
        for name in METRICS:
            found = row.metrics.get(name)
            if found is None:
                cells += ["", ""]
                continue
            cells += [f"{signed(found.points)} ({signed(found.low)} to {signed(found.high)})", p_value(found.p)]
        yield _row([escaped(row.run.label), escaped(variant_label(row.variant)), *cells])


def _has(run: Run, task: str, name: str) -> bool:
    return any(run.figure(task, variant, name).value is not None for variant in run.variants(task))


def _cell(figure: Figure, variant: str) -> str:
    text = percent(figure.value)
    if variant == CLEAN and figure.value is None:
        return ""
    return f"{text} ({percent(figure.low)} to {percent(figure.high)})" if figure.has_interval else text


def _head(labels: Sequence[str], numbers: int) -> Iterator[str]:
    yield _row(labels)
    yield _row(["---"] * (len(labels) - numbers) + ["---:"] * numbers)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Text from outside on one line, none of which Markdown or HTML takes as its own.

    >>> escaped("a|b <i> x_y")
    'a\\\\|b &lt;i&gt; x\\\\_y'
    """
    one_line = " ".join(printable(text).split())
    return _SPECIAL.sub(r"\\\1", one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
