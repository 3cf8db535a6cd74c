"""One screen of text about several models: what each finds, how often it is fooled, whether it looks, and verdicts.

The reference comes first, then the other models as they were named. A task whose gallery has altered items shows clean
R@1, FR@1 of each altered variant with their mean, and the means of blind and grounding. Every other task shows its
headline. No number is chosen by its result.
"""

import functools
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.paired import Verdict
from rococo_jax.report.blocks import Cell, Head
from rococo_jax.report.charts import short_labels
from rococo_jax.report.collection import Group, Run, tasks_of, variants_of
from rococo_jax.report.comparison import Comparison, Comparisons
from rococo_jax.report.difference import Difference
from rococo_jax.report.facts import sizes
from rococo_jax.report.markdown import compact_lines
from rococo_jax.report.sections import lead_of
from rococo_jax.report.tables import Column, Lead, pivot
from rococo_jax.report.task_tests import is_at_chance
from rococo_jax.report.vocabulary import ALTERED, QUERIES, percent, signed, task_label, variant_label

# Letters of a model's name in a table, and in a narrow one.
_NAME, _SHORT_NAME = 28, 12
# Of more models than this, one sentence counts the verdicts of all.
_MOST_SENTENCES = 8
# Conditions of further results that are named.
_MOST_FIELDS = 3
_LEGEND = (
    ("*", "significant against the reference (p < 0.05, corrected, paired by image)"),
    ("!", "text bias: recognises altered items without looking, significantly more than the reference"),
)


# Primary differences by model, variant and metric.
Tests = Mapping[tuple[str, str, str], Difference]
_FOOLED = ("fooled (FR@1)", "")
# Parts of a sentence that stay on one line.
_UNBROKEN = re.compile(r"\d+ of \d+|\(MDE [\d.]+\)|R@1 \w+")


def overview_lines(groups: Sequence[Group], comparisons: Comparisons, width: int) -> list[str]:
    """Return the text, in lines of at most `width` letters."""
    lines: list[str] = []
    for place, group in enumerate(groups):
        compared = {task: each for (of, task), each in comparisons.items() if of == place}
        if fields := [field for field, _, _ in group.differences]:
            more = ", ..." if len(fields) > _MOST_FIELDS else ""
            lines += wrapped(f"Under other conditions ({', '.join(fields[:_MOST_FIELDS])}{more}):", width)
        other: list[str] = []
        for task in tasks_of(group.runs):
            if attacks := attacks_of(group.runs, task):
                lines += [*_attacked(group, task, attacks, compared.get(task), width), ""]
            else:
                other.append(task)
        if other:
            lines += [*_headlines(group, other, compared, width), ""]
    text = "\n".join(lines)
    for mark, meaning in _LEGEND:
        if f"{mark} " in text or f"{mark}\n" in text:
            lines += wrapped(f"{mark} {meaning}", width)
    return lines


def print_overview(groups: Sequence[Group], comparisons: Comparisons) -> None:
    """Print the text, as wide as the terminal; 80 letters to a file or a pipe."""
    print(*overview_lines(groups, comparisons, shutil.get_terminal_size().columns), sep="\n")


def found_sentence(group: Group, comparisons: Comparisons) -> str:
    """Return in one sentence how often each model is fooled in the first task with altered items, and text bias."""
    task, attacks = next((task, names) for task in tasks_of(group.runs) if (names := attacks_of(group.runs, task)))
    comparison = comparisons.get((0, task))
    tests, reference = (comparison.primary, comparison.reference) if comparison else ({}, None)
    parts, biased = [], []
    for run in in_order((run for run in group.runs if task in run.tasks), reference):
        verdicts = [_verdict(tests, run, variant, "fr1") for variant in attacks]
        counted = [(word, verdicts.count(name)) for name, word in (("better", "less"), ("worse", "more"))]
        words = ", ".join(f"significantly {word} in {n} of {len(attacks)} variants" for word, n in counted if n)
        part = f"{run.label} {percent(mean_over(run, task, attacks, 'fr1'))} %"
        parts.append(f"{part} ({words})" if words else part)
        if any(_verdict(tests, run, variant, "blind") == "text bias" for variant in attacks):
            biased.append(run.label)
    item, queries = ALTERED.get(task, "an altered item"), QUERIES.get(task, "queries")
    bias = f"; text bias, which needs no image, helps {' and '.join(biased)}" if biased else ""
    return f"{item[0].upper()}{item[1:]} ranks first for so many {queries}: {', '.join(parts)}{bias}."


def attacks_of(runs: Sequence[Run], task: str) -> list[str]:
    """Return the variants of a task in which altered items join the gallery, on all images."""
    return variants_of(runs, task, "fr1", lambda each: each.is_attack and not each.unseen)


def mean_over(run: Run, task: str, variants: Sequence[str], metric: str) -> float | None:
    """Return the mean of a metric over variants; None if one lacks it."""
    values = [run.estimate(task, variant, metric).value for variant in variants]
    return None if not values or None in values else sum(values) / len(values)


def in_order(runs: Iterable[Run], reference: Run | None) -> list[Run]:
    """Return the reference, then the other runs as they were named."""
    return sorted(runs, key=lambda run: run is not reference)


def _attacked(
    group: Group, task: str, attacks: Sequence[str], comparison: Comparison | None, width: int
) -> Iterator[str]:
    """Yield the table and the verdicts of a task with altered items in its gallery."""
    tests, reference = (comparison.primary, comparison.reference) if comparison else ({}, None)
    runs = in_order((run for run in group.runs if task in run.tasks), reference)
    at_chance = [run.label for run in runs if is_at_chance(run, task, attacks[0])]
    yield from _title(group, task, reference, width)
    if at_chance:
        yield from wrapped(
            f"{', '.join(at_chance)}: clean R@1 is no better than guessing, so FR@1, grounding and verdicts are not "
            "meaningful.",
            width,
        )
    finds = Column(functools.partial(_with_difference, task, (CLEAN, "r1"), tests), Head("clean R@1"), ("finds", ""))

    def mean(metric: str, run: Run) -> Cell:
        value = mean_over(run, task, attacks, metric)
        is_biased = any(_verdict(tests, run, variant, metric) == "text bias" for variant in attacks)
        return Cell(percent(value) + "!" * is_biased, value=value)

    single = [
        Column(functools.partial(_marked, task, (variant, "fr1"), tests), Head(head), _FOOLED)
        for variant, head in zip(attacks, _short_variants(attacks), strict=True)
    ]
    fooled = [Column(functools.partial(mean, "fr1"), Head("mean"), _FOOLED), *single] if len(attacks) > 1 else single
    looks = [
        Column(functools.partial(mean, metric), Head(head), ("looks?", ""))
        for metric, head in (("blind", "blind"), ("grounding", "ground."))
    ]
    yield from _fitting_lines(runs, [finds, *fooled, *looks], [finds, *fooled[:1], *looks], width)
    sentences = []
    for run in runs:
        if reference is not None and run is not reference:
            words = _words_of_attack(run, task, attacks, tests)
            sentences.append((run.label, words))
    yield from _verdict_lines(sentences, width)


def _title(group: Group, task: str, reference: Run | None, width: int) -> Iterator[str]:
    size = sizes([run for run in group.runs if task in run.tasks], task)
    against = f" Reference: {reference.label}." if reference is not None else ""
    yield from wrapped(f"{task_label(task)}: {size.text if size else ''}{against}", width)


def _verdict(tests: Tests, run: Run, variant: str, metric: str) -> Verdict | None:
    row = tests.get((run.label, variant, metric))
    return None if row is None else row.verdict


def _marked(task: str, lead: Lead, tests: Tests, run: Run) -> Cell:
    """Return a number, with a star if it differs significantly from the reference."""
    value, is_different = run.estimate(task, *lead).value, _verdict(tests, run, *lead) in ("better", "worse")
    return Cell(percent(value) + "*" * is_different, value=value)


def _with_difference(task: str, lead: Lead, tests: Tests, run: Run) -> Cell:
    """Return a number with its difference from the reference."""
    value, row = run.estimate(task, *lead).value, tests.get((run.label, *lead))
    difference = "" if row is None else f" {signed(row.points)}{'*' * (row.verdict in ('better', 'worse'))}"
    return Cell(percent(value) + difference, value=value)


def _words_of_attack(run: Run, task: str, attacks: Sequence[str], tests: Tests) -> str:
    """Return the verdict on a model in words: how often it is fooled, what it finds, and text bias."""
    recall, total = tests.get((run.label, CLEAN, "r1")), len(attacks)
    verdicts = [_verdict(tests, run, variant, "fr1") for variant in attacks]
    counted = {name: verdicts.count(name) for name in ("better", "worse", "at chance", None)}
    if counted[None] == total and recall is None:
        return "not compared"
    parts = []
    if counted["at chance"] == total:
        parts.append("fooled: not meaningful")
    elif counted["better"] or counted["worse"]:
        words = [
            f"{word} in {counted[name]}" for name, word in (("better", "less"), ("worse", "more")) if counted[name]
        ]
        parts.append(f"fooled {', '.join(words)} of {total}")
    elif verdicts.count("identical answers") == total:
        parts.append("fooled alike")
    elif verdicts.count("equivalent") == total:
        parts.append("fooled: equivalent")
    else:
        parts.append("fooled: undecided")
    if recall is not None:
        mde = f" (MDE {percent(recall.mde)})" if recall.verdict == "undecided" else ""
        parts.append(f"clean R@1 {recall.verdict}{mde}")
    biased = [_verdict(tests, run, variant, "blind") == "text bias" for variant in attacks]
    if any(biased):
        parts.append(f"text bias in {sum(biased)} of {total}")
    return "; ".join(parts)


def _headlines(group: Group, tasks: Sequence[str], compared: Mapping[str, Comparison], width: int) -> Iterator[str]:
    """Yield tables of the headlines of tasks, as many in one as fit, and the verdicts."""
    reference = next((each.reference for task, each in compared.items() if task in tasks), None)
    runs = in_order((run for run in group.runs if any(task in run.tasks for task in tasks)), reference)
    columns, verdicts = [], {run.label: [] for run in runs}
    for task in tasks:
        lead, tests = lead_of(group.runs, task), compared[task].primary if task in compared else {}
        text = functools.partial(_with_difference, task, lead, tests)
        columns.append(Column(text, Head(metric_of(lead[1]).label), (task_label(task), "")))
        for run in runs:
            row = tests.get((run.label, *lead))
            if row is not None:
                mde = f" (MDE {percent(row.mde)})" if row.verdict == "undecided" else ""
                verdicts[run.label].append(f"{task_label(task)} {row.verdict}{mde}")
            biased = [each for each in tests.values() if (each.model, each.verdict) == (run.label, "text bias")]
            if biased:
                verdicts[run.label].append(f"text bias in {len(biased)} parts of {task_label(task)}")
    yield from wrapped(f"Headlines{f'. Reference: {reference.label}.' if reference is not None else ''}", width)
    fitting: list[Column] = []
    for column in columns:
        if fitting and max(map(len, _lines_of(runs, [*fitting, column], _NAME))) > width:
            yield from _fitting_lines(runs, fitting, fitting, width)
            fitting = []
        fitting.append(column)
    yield from _fitting_lines(runs, fitting, fitting, width)
    yield from _verdict_lines([(name, "; ".join(words)) for name, words in verdicts.items() if words], width)


def _verdict_lines(verdicts: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield a line for each model, or one for each verdict if models are many."""
    if len(verdicts) <= _MOST_SENTENCES:
        for name, words in verdicts:
            yield from wrapped(f"{name}: {words}", width)
        return
    models: dict[str, list[str]] = {}
    for name, words in verdicts:
        for part in words.split("; "):
            models.setdefault(part.partition(" (MDE")[0], []).append(name)
    for words, names in models.items():
        yield from wrapped(f"{words}: {len(names)} of {len(verdicts)} models", width)


def _short_variants(variants: Sequence[str]) -> list[str]:
    """Return the first words of the labels of variants in lower case, or the labels if these are not unique."""
    labels = [variant_label(name).lower() for name in variants]
    first = [label.partition(" ")[0] for label in labels]
    return first if len(set(first)) == len(first) else labels


def _lines_of(runs: Sequence[Run], columns: Sequence[Column], letters: int) -> list[str]:
    """Return a table with a row for each model, whose names have at most so many letters."""
    names = short_labels([run.label for run in runs], letters)
    rows = [([Cell(name)], run) for name, run in zip(names, runs, strict=True)]
    return compact_lines(pivot("", [Head("", words=True)], rows, columns, lambda run, cell_of: cell_of(run)))


def _fitting_lines(runs: Sequence[Run], columns: Sequence[Column], fewer: Sequence[Column], width: int) -> list[str]:
    """Return the lines of a table; with fewer columns, and then with shorter names, if it is too wide."""
    for chosen, letters in ((columns, _NAME), (columns, _SHORT_NAME), (fewer, _NAME), (fewer, _SHORT_NAME)):
        lines = _lines_of(runs, chosen, letters)
        if max(map(len, lines)) <= width:
            break
    return lines


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines, of which those after the first are indented; no word is broken."""
    text = _UNBROKEN.sub(lambda match: match[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def print_wrapped(line: str) -> None:
    """Print a sentence; in a terminal, wrapped without breaking words."""
    width = shutil.get_terminal_size().columns
    print(*(wrapped(line, width) if sys.stdout.isatty() and line else [line]), sep="\n")
