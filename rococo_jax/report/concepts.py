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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.audit import alphanumeric_runs
from rococo_jax.errors import InputError
from rococo_jax.evaluation.results import PAIRS, PER_QUERY
from rococo_jax.evaluation.table_metadata import read_rows
from rococo_jax.metrics.intervals import share_interval
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.report.collection import Run
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
    matches = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    words = {word for tag, start, end, _, _ in matches if tag == "replace" for word in old[start:end]} - _ARTICLES
    return words.pop() if len(words) == 1 else None


def concept_rows(run: Run, lexicon: Lexicon) -> Iterator[dict[str, Any]]:
    """Yield a row, with `COLUMNS`, for each task, variant, concept group or word, and metric; most pairs first.

    Raises InputError: a table is damaged or belongs to other results.
    """
    queries = _queries(run.path.with_name(PER_QUERY))
    for (task, variant), pairs in _pairs(run.path.with_name(PAIRS)).items():
        names = [_names(lexicon, replaced_word(right, wrong)) for _, right, wrong, _ in pairs]
        for level, least in (("concept", 1), ("word", LEAST_PAIRS)):
            keys = [(concept, word if level == "word" else "") for concept, word in names]
            images = sorted({image for image, *_ in pairs})
            counted = _counts(images, pairs, keys, queries.get((task, variant), {}), least)
            about = {"model": run.label, "task": task, "variant": variant, "level": level}
            for (concept, word), metric, numbers in counted:
                yield {**about, "concept": concept, "word": word, "metric": metric, **numbers}


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


def _pairs(path: Path) -> dict[tuple[str, str], list[tuple[str, str, str, float]]]:
    """Return image, original, altered caption and preference of each pair of captions, by task and variant."""
    pairs: dict[tuple[str, str], list[tuple[str, str, str, float]]] = {}
    if path.is_file():
        columns = ["task", "variant", "image", "right", "wrong", "preference"]
        table = read_rows(path, "the table of pairs that `rococo evaluate` writes", columns=columns)
        for task, variant, *pair in zip(*(table[name].to_pylist() for name in columns), strict=True):
            if pair[1] != pair[2]:  # altered images have the name of their original
                pairs.setdefault((task, variant), []).append(tuple(pair))
    return pairs


def _queries(path: Path) -> dict[tuple[str, str], dict[str, tuple[int, int]]]:
    """Return by task, variant and image the number of queries, and of those whose first result is an altered one."""
    queries: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
    table = read_rows(path, "the table of queries that `rococo evaluate` writes") if path.is_file() else None
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
