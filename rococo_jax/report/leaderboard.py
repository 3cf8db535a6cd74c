"""The leaderboard: a row for each model and a column for each task, with the number that its benchmark declares.

A column has the declared headline of a task, or the usual metric of its kind; where altered items join a gallery, also
FR@1 of the first altered variant in reading order; and where images were corrupted, the mean over all kinds at the
highest severity. So no column is chosen by its results, and there is no mean over benchmarks.

With three models or more, each value has an interval of its rank, and the letters of the groups of models that cannot
be told apart (`metrics.ranks`), from the counts of `per_query.parquet`. Results under different conditions are in
different tables.
"""

import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.variants import ALL_KINDS
from rococo_jax.errors import import_library
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.paired import FLIPS
from rococo_jax.metrics.ranks import Rank, pseudo_values, ranks, significant_differences
from rococo_jax.report.blocks import Cell, Head, Note, Part, Table, estimate_cell
from rococo_jax.report.collection import Estimate, Group, Run, by_kind, label_of, tasks_of, variants_of
from rococo_jax.report.exports import groups_of
from rococo_jax.report.markdown import markdown_lines, print_aligned, records_of
from rococo_jax.report.model_facts import ModelFacts, read_facts
from rococo_jax.report.sections import lead_of, section_of
from rococo_jax.report.tables import Column, Measured, human_cell, humans_of, pivot
from rococo_jax.report.task_tests import agrees
from rococo_jax.report.vocabulary import Place, count, in_reading_order, task_label

_GROUPS = ("Retrieval under attack", "Compositional", "Classification", "Others", "Corruption")
# With fewer models, the comparison of two says everything.
_LEAST_MODELS = 3
# Of more groups of a model, only the first and the last are shown.
_MOST_LETTERS = 5
# Conditions that a note names.
_MOST_FIELDS = 4

_COLUMNS = "Each column is the headline that its benchmark declares{}. Below each value: its 95 % interval{}. "
_FOOLED = "; where altered items join a gallery, also FR@1 of the first altered variant"
_CORRUPTED = "; for corrupted images, the mean over all kinds at the highest severity"
_RANKS = (
    ", the model's rank (simultaneous 95 % interval), and letters: models that share one cannot be told apart (all "
    f"pairs of models, paired by image, max-T over {FLIPS:,} swaps)"
)
_NO_MEAN = "There is no mean over benchmarks."


def leaderboard(results: Any, *, facts: str | Path | None = None) -> Any:
    """Return the leaderboard as a `pandas.DataFrame`: a row for each model, best first in the first column.

    Columns: `section` (models of one section are comparable), `model`, the columns of `facts`; and for each task
    `TASK/VARIANT/METRIC`, the headline that its benchmark declares, with `..._low` and `..._high` (95 % interval),
    `..._sd` (over seeds), `..._n` (queries, items or images), `..._rank_low` and `..._rank_high` (simultaneous 95 %
    interval of the rank among three models or more) and `..._groups` (letters; models that share one do not differ
    significantly). There is no mean over tasks.

    >>> frame = leaderboard("demo-out/250-scenes-seed-1/paper").set_index("model")        # doctest: +SKIP
    >>> headline = "image_to_text/clean/r1"                                               # doctest: +SKIP
    >>> shown = frame.filter(regex=f"^{headline}").drop(columns=f"{headline}_n")          # doctest: +SKIP
    >>> shown.rename(columns=lambda name: name.removeprefix(headline)).round(1)           # doctest: +SKIP
                    _low  _high  _rank_low  _rank_high _groups
    model
    plain     68.8  62.8   74.2          1           2       a
    sc-vc     63.6  57.5   69.3          1           2       a
    grounded  52.8  46.6   58.9          3           3       b

    Args:
        results: results file or folder, or several; or what `evaluate` returns, as `{name: results}`.
        facts: CSV or JSON file of facts about the models, with a column `model`.

    Raises:
        InputError: as `read_results`, or as `report.model_facts.read_facts`.
    """
    pd = import_library("leaderboard", "pandas", "pandas")
    is_one = isinstance(results, str | Path | Mapping)
    tables = leaderboard_tables(groups_of("leaderboard", [results] if is_one else list(results)), facts)
    return pd.DataFrame(records_of(tables))


def leaderboard_tables(groups: Sequence[Group], facts: str | Path | None = None) -> list[Table]:
    """Return the leaderboard of each group of comparable results.

    Args:
        facts: file of facts about the models; see `report.model_facts`.
    """
    labels = list(dict.fromkeys(run.label for group in groups for run in group.runs))
    read = None if facts is None else read_facts(Path(facts), labels)
    tables = []
    for number, group in enumerate(groups, 1):
        table = leaderboard_table(group.runs, read, labels)
        if len(groups) > 1:
            notes = [f"Not comparable with section 1: {_listed([name for name, *_ in group.differences])} differ."]
            caption = f"{table.caption}, section {number}"
            table = dataclasses.replace(table, caption=caption, notes=[*(notes if number > 1 else ()), *table.notes])
        tables.append(table)
    return tables


def _listed(fields: Sequence[str]) -> str:
    return ", ".join(fields[:_MOST_FIELDS]) + (
        f" and {len(fields) - _MOST_FIELDS} more" if len(fields) > _MOST_FIELDS else ""
    )


def leaderboard_table(runs: Sequence[Run], facts: ModelFacts | None = None, labels: Sequence[str] = ()) -> Table:
    """Return the leaderboard of comparable results.

    Args:
        facts: facts about the models of these labels.
    """
    places = dict(places_of(runs))
    ranked, left_out = _ranks(runs, places)
    first = next(iter(places), None)
    if first is not None:
        is_lower_better = metric_of(first.metric).better == "lower"

        def order(run: Run) -> tuple[float, str]:
            value = run.estimate(*first).value
            return (np.inf if value is None else value if is_lower_better else -value, run.label)

        runs = sorted(runs, key=order)
    sizes = {
        place: {run.size(*place[:2]) for run in runs if run.estimate(*place).value is not None} for place in places
    }

    def cell(run: Run, place: Place) -> Cell:
        estimate = estimate_cell(run.estimate(*place))
        if estimate.value is None:
            return estimate
        small, numbers, title = [*estimate.small], {**estimate.numbers, "n": run.size(*place[:2])}, ""
        if len(sizes[place]) > 1:
            small.append(f"n {count(numbers['n'])}")
        if rank := ranked.get((place, run.label)):
            ends = _rank_range(rank.low, rank.high)
            small.append(f"{ends} · {short_letters(rank.letters)}")
            title = f"rank {ends} of {len(runs)}, groups {rank.letters}"
            numbers |= {"rank_low": rank.low, "rank_high": rank.high, "groups": rank.letters}
        return dataclasses.replace(estimate, small=tuple(small), numbers=numbers, title=title)

    def cell_of_people(row: Measured, place: Place) -> Cell:
        return human_cell(row, place[1:]) if place.task == row.task else estimate_cell(Estimate(None))

    columns = [
        Column(place, _head(runs, place, sizes[place], place == first), (group, "")) for place, group in places.items()
    ]
    fact_heads, fact_cells = _fact_columns(facts, labels)
    blank = [Cell("", words=head.words) for head in fact_heads]
    rows = [([Cell(run.label, words=True), *fact_cells.get(run.label, ())], run) for run in runs]
    with_people = [Measured(run, task) for task in tasks_of(runs) for run in runs if humans_of([run], task)]
    humans = {row.task: (row, humans_of([row.run], row.task)) for row in reversed(with_people)}
    people = [([Cell("Humans", (each.items,), title=each.source), *blank], row) for row, each in humans.values()]
    more = _FOOLED * any(place.metric == "fr1" for place in places) + _CORRUPTED * ("Corruption" in places.values())
    notes = [_COLUMNS.format(more, _RANKS if ranked else "") + _NO_MEAN, *left_out]
    notes += [f"Humans, {task_label(task)}: {each.items} ({each.source})." for task, (_, each) in humans.items()]
    heads = [Head("Model", words=True, name="model"), *fact_heads]
    return pivot("Leaderboard", heads, rows, columns, cell, people, cell_of_people, notes=notes)


def places_of(runs: Sequence[Run]) -> Iterator[tuple[Place, str]]:
    """Yield task, variant and metric of each column, with the group of columns that it belongs to."""
    groups: dict[str, list[Place]] = {}
    for task in tasks_of(runs):
        for of_kind in by_kind(runs, task).values():
            section = section_of(of_kind, task)
            of_group = groups.setdefault(section.group, [])
            of_group.append(Place(task, *lead_of(of_kind, task)))
            attacks = variants_of(of_kind, task, "fr1", lambda each: each.is_attack)
            of_group += [Place(task, name, "fr1") for name in attacks[:1]]
            corrupted = [each for run in of_kind for each in run.corruptions(task) if each.corruption == ALL_KINDS]
            means = {each.severity: each.name for each in corrupted if not (each.part or each.unseen)}
            if means:
                metric = section.ranked_by[1] or section.lead[1]
                groups.setdefault("Corruption", []).append(Place(task, means[max(means)], metric))
    for group in in_reading_order(groups, _GROUPS):
        for place in groups[group]:
            if any(run.estimate(*place).value is not None for run in runs):
                yield place, group


def short_letters(letters: str) -> str:
    """Return the letters of a model, of many only the first and the last.

    >>> short_letters("abc"), short_letters("abcdefgh"), short_letters("XYZ(1)(2)(3)(4)")
    ('abc', 'a…h', 'X…(4)')
    """
    names = re.findall(r"\(\d+\)|[A-Za-z]", letters)
    return letters if len(names) <= _MOST_LETTERS else f"{names[0]}…{names[-1]}"


def _head(runs: Sequence[Run], place: Place, sizes: set[int | None], is_first: bool) -> Head:
    metric = metric_of(place.metric)
    small = [f"{metric.label}, {label_of(runs, place.task, place.variant).lower()}"]
    if metric.better == "lower":
        small.append("lower is better")
    if len(sizes) == 1 and None not in sizes:
        small.append(f"n {count(*sizes)}")
    descending = is_first and metric.better != "lower"
    return Head(task_label(place.task), metric.definition, sorted_now=descending, small=tuple(small), name=place.path)


def _fact_columns(facts: ModelFacts | None, labels: Sequence[str]) -> tuple[list[Head], dict[str, list[Cell]]]:
    """Return the headings of facts, and the cells of each model."""
    if facts is None:
        return [], {}
    heads = [Head(name, words=name not in facts.numbers) for name in facts.cells]
    cells: dict[str, list[Cell]] = {}
    for place, label in enumerate(labels):
        for name, column in facts.cells.items():
            number = facts.numbers[name][place] if name in facts.numbers else None
            value = None if number is None or np.isnan(number) else number
            cells.setdefault(label, []).append(Cell(column[place], value=value, words=number is None))
    return heads, cells


def _ranks(runs: Sequence[Run], places: Mapping[Place, str]) -> tuple[dict[tuple[Place, str], Rank], list[str]]:
    """Return the rank of each column and model, and a sentence for each column or model that has none, and why."""
    ranked: dict[tuple[Place, str], Rank] = {}
    if len(runs) < _LEAST_MODELS:
        return ranked, []
    reasons: dict[str, list[str]] = {}
    for place in places:
        column, metric = f"{task_label(place.task)} {metric_of(place.metric).label}", metric_of(place.metric)
        measured = [run for run in runs if run.estimate(*place).value is not None]
        if metric.better is None:
            reasons.setdefault("neither end is better", []).append(column)
            continue
        if len(measured) < _LEAST_MODELS:
            continue
        comparable, others = _comparable_counts(measured, place)
        if len(comparable) < _LEAST_MODELS:
            reasons.setdefault("fewer than three models have counts of the same queries or items", []).append(column)
            continue
        for label, reason in others.items():
            reasons.setdefault(reason, []).append(f"{label} in {column}")
        values = np.array([counts.value(place.metric) for counts in comparable.values()])
        of_images = np.stack([pseudo_values(each, place.metric) for each in comparable.values()], axis=1)
        if not np.isfinite(of_images).all():
            reasons.setdefault("there are too few queries or items", []).append(column)
            continue
        differs = significant_differences(values, of_images)
        of_models = ranks(values, differs, is_higher_better=metric.better == "higher")
        ranked |= {(place, label): rank for label, rank in zip(comparable, of_models, strict=True)}
    return ranked, [f"No rank interval, because {reason}: {', '.join(names)}." for reason, names in reasons.items()]


def _comparable_counts(runs: Sequence[Run], place: Place) -> tuple[dict[str, Counts], dict[str, str]]:
    """Return the counts of the models with the same queries, most models first, and why each other model has none."""
    sets: list[dict[str, Counts]] = []
    others: dict[str, str] = {}
    for run in runs:
        counts = run.counts.get(place[:2])
        if counts is None or place.metric not in counts.metrics:
            others[run.label] = "there are no counts of single queries or items"
        elif not agrees(counts, {place.metric: run.estimate(*place).value}):
            others[run.label] = "per_query.parquet belongs to other results"
        else:
            same = (each for each in sets if counts.has_same_entries(next(iter(each.values())), place.metric))
            of_queries = next(same, None)
            if of_queries is None:
                sets.append(of_queries := {})
            of_queries[run.label] = counts
    sets.sort(key=len, reverse=True)
    others |= {label: "the queries or items differ" for each in sets[1:] for label in each}
    return (sets[0] if sets else {}), others


def leaderboard_part(table: Table) -> Part | None:
    """Return the leaderboard of the page; None for one model."""
    if len(table.rows) < 2:
        return None
    notes = [Note(note) for note in table.notes]
    return Part("Leaderboard", [dataclasses.replace(table, notes=()), *notes], "leaderboard", "leaderboard")


def leaderboards_markdown(tables: Sequence[Table]) -> str:
    """Return leaderboards as Markdown; several have their captions as headings."""
    blocks = [Part(table.caption if len(tables) > 1 else "", [table]) for table in tables]
    return "\n".join(markdown_lines(blocks)[1:]) + "\n"


def print_leaderboards(tables: Sequence[Table]) -> None:
    """Print leaderboards: aligned to a terminal, as Markdown to a file or a pipe."""
    if not sys.stdout.isatty():
        print(leaderboards_markdown(tables))
        return
    for table in tables:
        if len(tables) > 1:
            print(table.caption)
        print_aligned(table)


def print_short_leaderboards(tables: Sequence[Table], command: str) -> None:
    """Print leaderboards with a line for each model: values and ranks alone.

    Args:
        command: what prints all of it.
    """
    for table in tables:
        rows = [[_short_cell(cell) for cell in row] for row in table.rows]
        heads = [dataclasses.replace(head, small=head.small[:1]) for head in table.heads]
        has_ranks = any("rank_low" in cell.numbers for row in table.rows for cell in row)
        ranks = "In brackets: ranks that are possible with 95 % confidence. " if has_ranks else ""
        notes = [f"{ranks}Intervals and groups: {command}"]
        print_aligned(dataclasses.replace(table, heads=heads, rows=rows, references=(), notes=notes))


def _short_cell(cell: Cell) -> Cell:
    numbers = cell.numbers
    ranks = f" ({_rank_range(numbers['rank_low'], numbers['rank_high'])})" if "rank_low" in numbers else ""
    return dataclasses.replace(cell, text=f"{cell.text}{ranks}", small=())


def _rank_range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}–{high}"
