"""FR@1 and preference by the word that was replaced, and by its concept group in a lexicon.

`pairs.parquet` has each original caption with its altered one, so the replaced word is the one in which they differ.
For a word or group,

    fr1          share of the queries with an own altered caption in which it was replaced, whose first result is an
                 altered caption, of whichever word
    preference   share of the pairs in which it was replaced whose original scores higher

Both [ours]. A caption that differs from its original in several words or none, or in one of no group, counts under
`(none)`.
"""

import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.audit import alphanumeric_runs
from rococo_jax.errors import InputError
from rococo_jax.evaluation.results import PAIRS
from rococo_jax.metrics.intervals import share_interval
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.report.blocks import Cell, Folded, Head, Note, Part, Table, estimate_cell
from rococo_jax.report.collection import Estimate, Run
from rococo_jax.report.results_file import ResultsFile
from rococo_jax.report.tables import Column, pivot
from rococo_jax.report.vocabulary import count, task_label, variant_label
from rococo_jax.storage import write_csv_rows

NONE = "(none)"
# Words of fewer pairs have no row of their own: their intervals would span everything.
LEAST_PAIRS = 10
COLUMNS = (
    *("model", "task", "variant", "level", "concept", "word"),
    *("metric", "value", "low", "high", "n", "images"),
)
_ARTICLES = frozenset(("a", "an"))
_FALSE = ("own_altered", "other_altered")


@functools.lru_cache(maxsize=2**18)
def replaced_word(original: str, altered: str) -> str | None:
    """Return the only word of a caption, articles aside, that is absent from its altered version, in lower case.

    >>> replaced_word("A dog on a sofa.", "an apple on a sofa"), replaced_word("a man, a dog", "a woman, a cat")
    ('dog', None)
    """
    old, new = alphanumeric_runs(original), alphanumeric_runs(altered)
    if len(old) == len(new):  # the usual case
        differing = {word for word, other in zip(old, new, strict=True) if word != other} - _ARTICLES
        if len(differing) == 1:
            return differing.pop()
    matches = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    words = {word for tag, start, end, _, _ in matches if tag == "replace" for word in old[start:end]} - _ARTICLES
    return words.pop() if len(words) == 1 else None


def concept_rows(run: Run, lexicon: Lexicon) -> Iterator[dict[str, Any]]:
    """Yield a row, with `COLUMNS`, for each task, variant, concept group or word, and metric; most pairs first.

    Raises InputError: a table is damaged or belongs to other results.
    """
    for file in run.files:
        queries = _queries(file)
        for (task, variant), pairs in _pairs(file).items():
            about = {"model": run.label, "task": task, "variant": variant}
            yield from _rows_of_variant(about, pairs, queries.get((task, variant), {}), lexicon)


def _rows_of_variant(
    about: dict[str, str],
    pairs: Sequence[tuple[str, str, str, float]],
    queries: dict[str, tuple[int, int]],
    lexicon: Lexicon,
) -> Iterator[dict[str, Any]]:
    names = [words_of_pair(lexicon, right, wrong) for _, right, wrong, _ in pairs]
    images = sorted({image for image, *_ in pairs})
    for level, least in (("concept", 1), ("word", LEAST_PAIRS)):
        keys = [(concept, word if level == "word" else "") for concept, word in names]
        for (concept, word), metric, numbers in _counts(images, pairs, keys, queries, least):
            yield {**about, "level": level, "concept": concept, "word": word, "metric": metric, **numbers}


def words_of_pair(lexicon: Lexicon, original: str, altered: str) -> tuple[str, str]:
    """Return the concept group and the noun of the word that was replaced; see `NONE`."""
    return _names(lexicon, replaced_word(original, altered))


def words_of_queries(file: ResultsFile, lexicon: Lexicon) -> dict[tuple[str, str, str], list[tuple[str, str]]]:
    """Return `words_of_pair` of each altered caption, by task, variant and image, from the `pairs.parquet`."""
    words: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for (task, variant), pairs in _pairs(file).items():
        for image, right, wrong, _ in pairs:
            words.setdefault((task, variant, image), []).append(words_of_pair(lexicon, right, wrong))
    return words


def add_replaced_words(rows: Any, file: ResultsFile, lexicon: Lexicon) -> Any:
    """Return rows of the `per_query.parquet`, a data frame, with the columns `replaced_word` and `replaced_group`.

    Both are tuples with an entry for each altered caption of the query or item; None in rows without altered captions.
    """
    of_queries = words_of_queries(file, lexicon)
    words: list[tuple[str, ...] | None] = []
    groups: list[tuple[str, ...] | None] = []
    wrongs = rows["wrong_caption"] if "wrong_caption" in rows else [None] * len(rows)
    captions = rows["caption"] if "caption" in rows else [None] * len(rows)
    images = rows["image"] if "image" in rows else [None] * len(rows)
    for task, variant, image, caption, wrong in zip(
        rows["task"], rows["variant"], images, captions, wrongs, strict=True
    ):
        if isinstance(wrong, str) and isinstance(caption, str):
            names = [words_of_pair(lexicon, caption, wrong)]
        else:
            names = of_queries.get((task, variant, image), [])
        groups.append(tuple(concept for concept, _ in names) or None)
        words.append(tuple(word for _, word in names) or None)
    return rows.assign(replaced_word=words, replaced_group=groups)


# Rows of a table of the page; report --concepts writes all.
_MOST_ROWS = 12


def concepts_part(runs: Sequence[Run], lexicon: Lexicon) -> Part | None:
    """Return FR@1 by the concept group of the replaced word, a table for each task and variant; None without pairs."""
    tables: dict[tuple[str, str], dict[str, dict[str, dict[str, Any]]]] = {}
    for run in runs:
        for row in concept_rows(run, lexicon):
            if (row["level"], row["metric"]) == ("concept", "fr1"):
                rows = tables.setdefault((row["task"], row["variant"]), {})
                rows.setdefault(row["concept"], {})[run.label] = row
    if not tables:
        return None
    note = (
        "FR@1 of the images with a caption in which a word of the group was replaced, whichever altered caption ranked "
        "first. The largest groups; rococo report --concepts writes all, single words and preference."
    )
    labels = [run.label for run in runs]
    folded = []
    for (task, variant), rows in tables.items():
        name = f"{task_label(task)}, {variant_label(variant).lower()}"
        folded.append(Folded(name, [_concept_table(name, rows, labels)], open=not folded))
    return Part("By replaced word", [Note(note), *folded], "task")


def _concept_table(name: str, rows: Mapping[str, Mapping[str, dict[str, Any]]], models: Sequence[str]) -> Table:
    """Return a row for each concept group, with a column for each model."""
    words, columns = [Head("Concept group", words=True), Head("Images")], [Column(name, Head(name)) for name in models]
    shown = []
    for concept, of_model in list(rows.items())[:_MOST_ROWS]:
        images = next(iter(of_model.values()))["images"]
        shown.append(([Cell(concept), Cell(count(images), value=images)], of_model))

    def cell(of_model: Mapping[str, dict[str, Any]], model: str) -> Cell:
        numbers = of_model.get(model, {"value": None, "low": None, "high": None})
        return estimate_cell(Estimate(numbers["value"], numbers["low"], numbers["high"]))

    return pivot(f"FR@1 by replaced word, {name}", words, shown, columns, cell, filterable=False)


def _names(lexicon: Lexicon, word: str | None) -> tuple[str, str]:
    """Return the concept group of a word, and the word in its singular."""
    noun = None if word is None else lexicon.find(word)
    return (NONE, word or NONE) if noun is None else (noun.concept, noun.name)


def _counts(
    images: Sequence[str],
    pairs: Sequence[tuple[str, str, str, float]],
    keys: Sequence[tuple[str, str]],
    queries: dict[str, tuple[int, int]],
    least: int,
) -> Iterator[tuple[tuple[str, str], str, dict[str, Any]]]:
    """Yield the metrics of each key: value, interval, and numbers of queries or pairs and of images."""
    places: dict[tuple[str, str], list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    row = {name: number for number, name in enumerate(images)}
    image = np.array([row[pair[0]] for pair in pairs])
    preferred = np.array([pair[3] for pair in pairs])
    query_counts = np.array([queries.get(name, (0, 0)) for name in images], np.float64)
    for key in sorted(places, key=lambda key: (-len(places[key]), key)):
        if len(places[key]) < least:
            continue
        of_key, by_pair = np.unique(image[places[key]], return_inverse=True)
        sums = np.bincount(by_pair, preferred[places[key]]), np.bincount(by_pair).astype(np.float64)
        for metric, part, whole in (("fr1", query_counts[of_key, 1], query_counts[of_key, 0]), ("preference", *sums)):
            if whole.any():
                low, high = share_interval(part[None], whole[None])
                numbers = {"value": 100.0 * float(part.sum() / whole.sum()), "low": low, "high": high}
                yield key, metric, numbers | {"n": int(whole.sum()), "images": int((whole > 0).sum())}


def _pairs(file: ResultsFile) -> dict[tuple[str, str], list[tuple[str, str, str, float]]]:
    """Return image, original, altered caption and preference of each pair of captions, by task and variant."""
    pairs: dict[tuple[str, str], list[tuple[str, str, str, float]]] = {}
    if file.path.with_name(PAIRS).is_file():
        columns = ["task", "variant", "image", "right", "wrong", "preference"]
        table = file.rows(PAIRS, columns)
        for task, variant, *pair in zip(*(table[name].to_pylist() for name in columns), strict=True):
            if pair[1] != pair[2]:  # altered images have the name of their original
                pairs.setdefault((task, variant), []).append(tuple(pair))
    return pairs


def _queries(file: ResultsFile) -> dict[tuple[str, str], dict[str, tuple[int, int]]]:
    """Return by task, variant and image the number of queries, and of those whose first result is an altered one."""
    queries: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
    table = file.rows() if file.table.is_file() else None
    if table is None or "top1_kind" not in table.column_names:
        return queries
    columns = ("task", "variant", "image", "top1_kind")
    for task, variant, image, kind in zip(*(table[name].to_pylist() for name in columns), strict=True):
        if kind is not None:
            by_image = queries.setdefault((task, variant), {})
            count, fooled = by_image.get(image, (0, 0))
            by_image[image] = count + 1, fooled + (kind in _FALSE)
    return queries


def write_concepts(path: Path, runs: Iterable[Run], lexicon: Lexicon) -> None:
    """Write the rows of all runs as CSV, by rename. Raises InputError: no result has altered captions."""
    rows = [row for run in runs for row in concept_rows(run, lexicon)]
    if not rows:
        raise InputError(PAIRS, "pairs", "no altered captions", "results with altered captions, such as RoCOCO's")
    write_csv_rows(path, [COLUMNS, *([row[name] for name in COLUMNS] for row in rows)])
