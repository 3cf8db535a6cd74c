"""One screen of text about several models: what each finds, how often it is fooled, whether it looks, and verdicts.

The reference comes first, then the other models as they were named. A task whose gallery has altered items shows clean
R@1, FR@1 of each altered variant with their mean, and the means of blind and grounding. Every other task shows its
headline. No number is chosen by its result.
"""

import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.paired import Verdict
from rococo_jax.report.charts import short_labels
from rococo_jax.report.collection import Group, Run, tasks_of, variants_of
from rococo_jax.report.comparison import Comparison, Comparisons
from rococo_jax.report.difference import Difference
from rococo_jax.report.sections import lead_of
from rococo_jax.report.task_sizes import sizes
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


# Parts of a sentence that stay on one line.
_UNBROKEN = re.compile(r"\d+ of \d+|\(MDE [\d.]+\)|R@1 \w+")


class _Column(NamedTuple):
    """Column of a table: the words above it, and a text for each model."""

    above: str
    head: str
    cells: Sequence[str]


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
    tests, reference = _tests(comparison), comparison.reference if comparison else None
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
    reference = comparison.reference if comparison else None
    runs = in_order((run for run in group.runs if task in run.tasks), reference)
    at_chance = [run.label for run in runs if is_at_chance(run, task, attacks[0])]
    tests = _tests(comparison)
    yield from _title(group, task, reference, width)
    if at_chance:
        yield from wrapped(
            f"{', '.join(at_chance)}: clean R@1 is no better than guessing, so FR@1, grounding and verdicts are not "
            "meaningful.",
            width,
        )
    columns = [_Column("finds", "clean R@1", [_with_difference(run, task, CLEAN, "r1", tests) for run in runs])]
    heads = _short_variants(attacks)
    single = [
        _Column("", head, [_marked(run, task, variant, "fr1", tests) for run in runs])
        for variant, head in zip(attacks, heads, strict=True)
    ]
    if len(attacks) == 1:  # there is no mean
        columns.append(single.pop()._replace(above="fooled (FR@1)"))
    else:
        means = [percent(mean_over(run, task, attacks, "fr1")) for run in runs]
        columns.append(_Column("fooled (FR@1)", "mean", means))
    looks = []
    for metric, head in (("blind", "blind"), ("grounding", "ground.")):
        cells = [percent(mean_over(run, task, attacks, metric)) for run in runs]
        biased = {
            run.label for run in runs for variant in attacks if _verdict(tests, run, variant, metric) == "text bias"
        }
        cells = [cell + "!" * (run.label in biased) for run, cell in zip(runs, cells, strict=True)]
        if any(cell != "–" for cell in cells):
            looks.append(_Column("" if looks else "looks?", head, cells))
    yield from _table(runs, [*columns, *single, *looks], [*columns, *looks], width)
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


def _tests(comparison: Comparison | None) -> Mapping[tuple[str, str, str], Difference]:
    """Return the primary differences by model, variant and metric."""
    rows = comparison.primary if comparison else ()
    return {(row.model, row.variant, row.metric): row for row in rows}


def _verdict(tests: Mapping[tuple[str, str, str], Difference], run: Run, variant: str, metric: str) -> Verdict | None:
    row = tests.get((run.label, variant, metric))
    return None if row is None else row.verdict


def _marked(run: Run, task: str, variant: str, metric: str, tests: Mapping[tuple[str, str, str], Difference]) -> str:
    """Return a number, with a star if it differs significantly from the reference."""
    is_different = _verdict(tests, run, variant, metric) in ("better", "worse")
    return percent(run.estimate(task, variant, metric).value) + "*" * is_different


def _with_difference(
    run: Run, task: str, variant: str, metric: str, tests: Mapping[tuple[str, str, str], Difference]
) -> str:
    """Return a number with its difference from the reference."""
    value, row = percent(run.estimate(task, variant, metric).value), tests.get((run.label, variant, metric))
    return value if row is None else f"{value} {signed(row.points)}{'*' * (row.verdict in ('better', 'worse'))}"


def _words_of_attack(
    run: Run, task: str, attacks: Sequence[str], tests: Mapping[tuple[str, str, str], Difference]
) -> str:
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
        lead, tests = lead_of(group.runs, task), _tests(compared.get(task))
        metric = metric_of(lead[1])
        columns.append(
            _Column(task_label(task), metric.label, [_with_difference(run, task, *lead, tests) for run in runs])
        )
        for run in runs:
            row = tests.get((run.label, *lead))
            if row is not None:
                mde = f" (MDE {percent(row.mde)})" if row.verdict == "undecided" else ""
                verdicts[run.label].append(f"{task_label(task)} {row.verdict}{mde}")
            biased = [each for each in tests.values() if (each.model, each.verdict) == (run.label, "text bias")]
            if biased:
                verdicts[run.label].append(f"text bias in {len(biased)} parts of {task_label(task)}")
    yield from wrapped(f"Headlines{f'. Reference: {reference.label}.' if reference is not None else ''}", width)
    rows: list[_Column] = []
    for column in columns:
        if rows and _width_of(runs, [*rows, column], _NAME) > width:
            yield from _table(runs, rows, rows, width)
            rows = []
        rows.append(column)
    yield from _table(runs, rows, rows, width)
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


def _width_of(runs: Sequence[Run], columns: Sequence[_Column], name: int) -> int:
    """Return the width of a table."""
    names = max(map(len, short_labels([run.label for run in runs], name)), default=0)
    return names + sum(2 + width for width in _widths(columns))


def _widths(columns: Sequence[_Column]) -> list[int]:
    """Return the widths of columns. Words above a column extend over the columns to the right that have none."""
    widths = [max(len(column.head), *map(len, column.cells)) for column in columns]
    starts = [place for place, column in enumerate(columns) if column.above]
    for start, end in itertools.pairwise([*starts, len(columns)]):
        missing = len(columns[start].above) - sum(widths[start:end]) - 2 * (end - start - 1)
        widths[end - 1] += max(0, missing)
    return widths


def _table(runs: Sequence[Run], columns: Sequence[_Column], fewer: Sequence[_Column], width: int) -> Iterator[str]:
    """Yield a table; with fewer columns, and then with shorter names, if it is too wide."""
    for chosen, name in ((columns, _NAME), (columns, _SHORT_NAME), (fewer, _NAME), (fewer, _SHORT_NAME)):
        if _width_of(runs, chosen, name) <= width:
            break
    names = short_labels([run.label for run in runs], name)
    widths = [max(map(len, names)), *_widths(chosen)]
    above, start = "", widths[0]
    for column, size in zip(chosen, widths[1:], strict=True):
        if column.above:
            above = above.ljust(start + 2) + column.above
        start += 2 + size
    yield above
    yield _line(["", *(column.head for column in chosen)], widths)
    for place, label in enumerate(names):
        yield _line([label, *(column.cells[place] for column in chosen)], widths)


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(text.ljust(size) for text, size in zip(texts, widths, strict=True)).rstrip()


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines, of which those after the first are indented; no word is broken."""
    text = _UNBROKEN.sub(lambda match: match[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def print_wrapped(line: str) -> None:
    """Print a sentence; in a terminal, wrapped without breaking words."""
    width = shutil.get_terminal_size().columns
    print(*(wrapped(line, width) if sys.stdout.isatty() and line else [line]), sep="\n")
