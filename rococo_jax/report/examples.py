"""Examples of fooled queries, chosen from per_query.parquet by a rule and never by hand.

A query is fooled when its first choice is altered. The rule: per variant, the largest `top1_score - positive_score`
first; variants take turns; an image is shown at most once. Ties are settled by names, so the same results always give
the same examples.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError
from rococo_jax.report.vocabulary import CLEAN, order_variants

PER_QUERY_FILE = "per_query.parquet"
_COLUMNS = ("task", "variant", "query", "image", "caption", "top1_kind", "top1_text", "top1_score", "positive_score")
_SOMETIMES = ("seed",)
_FOOLED = ("own_altered", "other_altered")
# Two captions that share less than this are different sentences, and marking their words would mark nearly all.
_SAME_SENTENCE = 0.5


@dataclasses.dataclass(frozen=True)
class Fooled:
    """One fooled query.

    Args:
        variant: what was altered.
        image: the query, or the one true answer.
        caption: the query, or the best-ranked own caption; empty where the table does not say which that was.
        chosen: the altered caption, or the name of the altered image, that came first.
        kind: "own_altered" or "other_altered".
        chosen_score: its similarity.
        true_score: similarity of the best right answer.
        seed: of the mixing, where the variant was run with several.
    """

    variant: str
    image: str
    caption: str
    chosen: str
    kind: str
    chosen_score: float
    true_score: float
    seed: int | None = None


@dataclasses.dataclass(frozen=True)
class Word:
    """A word of a caption, and whether it differs from the caption it is compared with."""

    text: str
    changed: bool


def read_fooled(path: Path) -> dict[str, list[Fooled]] | None:
    """The fooled queries of every task, in no particular order; None where there is no such file (`rococo score`).

    Raises:
        InputError: the file is not whole, or lacks a column.
    """
    import pyarrow
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet

    wanted = "the per-query table that `rococo evaluate` writes beside results.json"
    try:
        table = parquet.read_table(path)
    except FileNotFoundError:
        return None
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(path, "parquet", str(error).splitlines()[0], f"{wanted}, whole") from None
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        raise InputError(path, "columns", f"no {', '.join(missing)}", wanted)
    kinds = compute.cast(table["top1_kind"], pyarrow.string())
    columns = [*_COLUMNS, *(name for name in _SOMETIMES if name in table.column_names)]
    rows = table.filter(compute.is_in(kinds, pyarrow.array(_FOOLED))).select(columns).to_pylist()
    fooled: dict[str, list[Fooled]] = {}
    for row in rows:
        fooled.setdefault(row["task"], []).append(_fooled(row))
    return fooled


def _fooled(row: dict[str, Any]) -> Fooled:
    texts = (str(row[name] or "") for name in ("variant", "image", "caption", "top1_text", "top1_kind"))
    return Fooled(*texts, float(row["top1_score"]), float(row["positive_score"]), row.get("seed"))


def read_image_order(path: Path) -> list[str]:
    """The images of a run in the order in which it had them, which decides who was mixed with whom.

    Queries are images, or captions image by image; so it is the order of first appearance. Empty without a table.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path, columns=["task", "image"], filters=[("variant", "=", CLEAN)])
    except (pyarrow.ArrowException, OSError):
        return []
    rows = zip(table["task"].to_pylist(), table["image"].to_pylist(), strict=True)
    images: dict[str, dict[str, None]] = {}
    for task, name in rows:
        images.setdefault(task, {})[name] = None
    return list(next(iter(images.values()), {}))


def choose_examples(fooled: Iterable[Fooled], count: int) -> list[Fooled]:
    """At most `count` examples by the rule at the top of this file, grouped by variant in reading order."""

    def place(one: Fooled) -> tuple[float, str, str, str, int]:
        return (one.true_score - one.chosen_score, one.image, one.caption, one.chosen, one.seed or 0)

    waiting: dict[str, list[Fooled]] = {}
    for one in sorted(fooled, key=place, reverse=True):  # the most confident last, where pop() finds it
        waiting.setdefault(one.variant, []).append(one)
    variants, shown, chosen = order_variants(waiting), set(), []
    while len(chosen) < count and any(waiting.values()):
        for variant in variants:
            while waiting[variant] and waiting[variant][-1].image in shown:
                waiting[variant].pop()
            if waiting[variant] and len(chosen) < count:
                chosen.append(waiting[variant].pop())
                shown.add(chosen[-1].image)
    return sorted(chosen, key=lambda one: variants.index(one.variant))


def compare_words(first: str, second: str) -> tuple[list[Word], list[Word]]:
    """Both captions as words, those marked that differ; nothing is marked where the two are different sentences.

    Case and punctuation do not count as a difference, since altered captions often lose both.

    >>> [word.text for word in compare_words("A red cat.", "a blue cat")[1] if word.changed]
    ['blue']
    """
    words, others = first.split(), second.split()
    keys, other_keys = [_key(word) for word in words], [_key(word) for word in others]
    matcher = difflib.SequenceMatcher(None, keys, other_keys, autojunk=False)
    if matcher.ratio() < _SAME_SENTENCE:
        return [Word(word, False) for word in words], [Word(word, False) for word in others]
    same, other_same = set(), set()
    for start, other_start, length in matcher.get_matching_blocks():
        same.update(range(start, start + length))
        other_same.update(range(other_start, other_start + length))
    return _marked(words, keys, same), _marked(others, other_keys, other_same)


def words_that_count(caption: str) -> str:
    """A caption without case and punctuation, which the `strict` protocol evens out.

    >>> words_that_count("A dog, running .")
    'a dog running'
    """
    return " ".join(key for key in map(_key, caption.split()) if key)


def _key(word: str) -> str:
    return "".join(letter for letter in word.casefold() if letter.isalnum())


def _marked(words: Sequence[str], keys: Sequence[str], same: set[int]) -> list[Word]:
    return [Word(word, bool(keys[index]) and index not in same) for index, word in enumerate(words)]
