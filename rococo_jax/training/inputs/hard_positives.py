"""Hard positives and hard negatives of captions (arXiv 2409.17958): read from files, added to samples on the host.

A caption's hard positive says the same in other words, its hard negative something else in nearly the same words:
"walking elephant", "strolling elephant", "jumping elephant". Read are

- an annotation of `rococo alter-captions --balance`, with its rewordings as hard positives;
- one file, JSON lines or a JSON list of `{"caption", "hard_positive", "hard_negative"}`, either partner null or absent;
- NegCLIP's table of captions and hard negatives, TSV with the columns `title` and `neg_caption` (a list literal of
  Python), alone or beside hard positives as JSON lines of bare strings, one a row of the table, "None" for none;
- two line-aligned files in the form of the benchmark, of `{"true_caption", "false_caption"}`: the first has captions
  and hard negatives, the second hard positives and the same hard negatives. The published ones are for evaluation;
  training on them is possible, with a warning.

A caption that comes several times has several partners, of which training draws. Captions are matched letter by letter.
"""

import ast
import dataclasses
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grain.python as grain
import numpy as np
from ml_collections import ConfigDict

from rococo_jax.data.captions import kind_of
from rococo_jax.encoders.embedding import embed_texts
from rococo_jax.errors import InputError, is_list_of
from rococo_jax.losses.contrastive import NEGATIVES
from rococo_jax.losses.hard_positives import POSITIVES
from rococo_jax.storage import read_json
from rococo_jax.texts import JSON_LINES, TABLES, form_of, open_table, read_jsonl
from rococo_jax.training.inputs.loss_input import (
    InputContext,
    LossInput,
    Pool,
    PoolMaterial,
    check_count,
    differ_in_tokens,
    register_input,
)

_WANTED = "captions with hard positives and hard negatives"


@dataclasses.dataclass(frozen=True)
class Partners:
    """A caption's hard positives and hard negatives, each once, in file order."""

    positives: tuple[str, ...]
    negatives: tuple[str, ...]


def read_hard_positives(path: str | os.PathLike, positives: str | os.PathLike | None = None) -> dict[str, Partners]:
    """Caption -> its partners, from a file with everything, or from the two published ones, `positives` the second.

    Raises InputError, with the line or item, where a file is missing or unusable, or the two are not aligned.
    """
    if form_of(path) in TABLES:
        triples = _read_table(path, positives)
    else:
        triples = _read_triples(path) if positives is None else _read_aligned(path, positives)
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for caption, positive, negative in triples:
        entry = found.setdefault(caption, ({}, {}))
        for texts, text in zip(entry, (positive, negative), strict=True):
            if text is not None:
                texts[text] = None
    if not found:
        raise InputError(path, "captions", "none", _WANTED)
    return {caption: Partners(tuple(each[0]), tuple(each[1])) for caption, each in found.items()}


def _read_triples(path: str | os.PathLike) -> Iterator[tuple[str, str | None, str | None]]:
    for where, entry in _read_entries(path):
        caption = _text(entry, "caption", where, path)
        partners = [
            None if entry.get(key) is None else _text(entry, key, where, path)
            for key in ("hard_positive", "hard_negative")
        ]
        yield caption, *partners


def _read_table(
    path: str | os.PathLike, positives: str | os.PathLike | None
) -> Iterator[tuple[str, str | None, str | None]]:
    """Every negative of each row of NegCLIP's table, with the hard positive of its line."""
    rows = [row for _, row in open_table(path, _WANTED).rows]
    own = [None] * len(rows) if positives is None else list(_read_strings(positives))
    if len(own) != len(rows):
        raise InputError(positives, "lines", len(own), f"{len(rows)}, one for each row of {path}")
    for number, (row, positive) in enumerate(zip(rows, own, strict=True)):
        caption = _text(row, "title", f"row {number}", path)
        literal = _text(row, "neg_caption", f"row {number}", path)
        try:
            negatives = ast.literal_eval(literal)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            negatives = None
        if not is_list_of(str, negatives):
            raise InputError(path, f"neg_caption of row {number}", repr(literal)[:80], "a list of strings")
        for negative in negatives or [None]:
            yield caption, positive, negative


def _read_strings(path: str | os.PathLike) -> Iterator[str | None]:
    """JSON lines of bare strings; "None" stands for none."""
    for number, text in read_jsonl(path, "hard positives, one a line"):
        if not isinstance(text, str) or not text.strip():
            raise InputError(path, f"line {number}", repr(text)[:80], "a string")
        yield None if text == "None" else text


def _read_aligned(
    path: str | os.PathLike, positives: str | os.PathLike
) -> Iterator[tuple[str, str | None, str | None]]:
    first, second = list(_read_entries(path)), list(_read_entries(positives))
    if len(first) != len(second):
        raise InputError(positives, "entries", len(second), f"{len(first)}, one for each of {path}")
    if any("image_path" in entry for _, entry in first):
        warning = "holds the benchmark's evaluation items; figures of this model on hard_positives are no result"
        print(f"rococo: warning: {path} {warning}", file=sys.stderr)
    for (where, entry), (there, partner) in zip(first, second, strict=True):
        negative = _text(entry, "false_caption", where, path)
        same = _text(partner, "false_caption", there, positives)
        if same != negative:
            raise InputError(positives, f"false_caption of {there}", repr(same), f"{negative!r}, as in {path}")
        caption, positive = _text(entry, "true_caption", where, path), _text(partner, "true_caption", there, positives)
        # Where the published files found no other words, the hard positive repeats the caption: it teaches nothing.
        yield caption, None if positive == caption else positive, negative


def _read_entries(path: str | os.PathLike) -> Iterator[tuple[str, dict[str, Any]]]:
    """("line 3" or "item 2", entry) of a file of JSON lines or a JSON list."""
    if form_of(path) in JSON_LINES:
        entries: Iterable = ((f"line {number}", entry) for number, entry in read_jsonl(path, _WANTED))
    else:
        value = read_json(path, _WANTED)
        if isinstance(value, dict) and isinstance(value.get("items"), list):
            value = [row for number, item in enumerate(value["items"]) for row in _annotated(item, number, path)]
        if not isinstance(value, list):
            raise InputError(path, "captions", kind_of(value), "a list")
        entries = ((f"item {number}", entry) for number, entry in enumerate(value))
    for where, entry in entries:
        if not isinstance(entry, dict):
            raise InputError(path, where, kind_of(entry), "an object")
        yield where, entry


def _annotated(item: Any, number: int, path: str | os.PathLike) -> list[dict[str, Any]]:
    """The entries of an item of a balanced annotation: originals, and beside them altered captions and rewordings."""
    columns = [item.get(key) if isinstance(item, dict) else None for key in ("originals", "positives", "altered")]
    if not all(isinstance(column, list) and len(column) == len(columns[0] or ()) for column in columns):
        wanted = "originals, positives and altered of one length, as `rococo alter-captions` balances them"
        raise InputError(path, f"item {number}", repr(item)[:60], wanted)
    keys = ("caption", "hard_positive", "hard_negative")
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]


def _text(entry: Mapping[str, Any], key: str, where: str, source: object) -> str:
    if key not in entry:
        raise InputError(source, where, f"the keys {list(entry)}", f'the key "{key}"')
    if not isinstance(entry[key], str):
        raise InputError(source, f"{key} of {where}", kind_of(entry[key]), "a string")
    return entry[key]


@dataclasses.dataclass(frozen=True)
class AddHardPositives(grain.RandomMapTransform):
    """Adds `hard_positive` (a text or None) and `hard_negatives` (texts or None, always as many) to a sample.

    `negatives` is how many hard negatives a sample has, different ones as far as there are.
    """

    partners: Mapping[str, Partners]
    negatives: int = 1

    def random_map(self, sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """The sample with a hard positive and hard negatives drawn from its caption's."""
        own = self.partners.get(sample["caption"], Partners((), ()))
        positive = own.positives[int(rng.integers(len(own.positives)))] if own.positives else None
        drawn = [own.negatives[i] for i in rng.permutation(len(own.negatives))[: self.negatives]]
        padded = (*drawn, *[None] * (self.negatives - len(drawn)))
        return {**sample, "hard_positive": positive, "hard_negatives": padded}


class HardPositives(LossInput):
    """One hard positive a pair, and `losses.hard_positives.count` hard negatives."""

    fields = (POSITIVES, NEGATIVES)
    sample_texts = (("hard_positive", POSITIVES), ("hard_negatives", NEGATIVES))

    def items(self, config: ConfigDict) -> dict[str, tuple[int, ...]]:
        return {POSITIVES.name: (), NEGATIVES.name: (config.losses.hard_positives.count,)}

    pooled = True

    def transform(self, context: InputContext) -> AddHardPositives:
        return AddHardPositives(self.partners(context), context.config.losses.hard_positives.count)

    def make_pools(self, context: InputContext, material: PoolMaterial) -> dict[str, Pool]:
        """A caption's partners in file order, again from the first where it has fewer than the pool has places."""
        size, none = context.config.data.feature_pool.captions, Partners((), ())
        partners = self.partners(context)
        own = [partners.get(caption, none) for caption in material.captions]
        pools = {}
        for field, texts in zip(
            self.fields, ([each.positives for each in own], [each.negatives for each in own]), strict=True
        ):
            flat = [
                each[place % len(each)] if each else caption
                for each, caption in zip(texts, material.captions, strict=True)
                for place in range(size)
            ]
            features = embed_texts(context.encoder, flat, material.cache, features=True)
            valid = np.repeat([bool(each) for each in texts], size).reshape(-1, size)
            if field is NEGATIVES:
                valid &= differ_in_tokens(context.encoder, material.captions, flat)
            pools[field.name] = Pool(features.reshape(*valid.shape, -1), valid)
        return pools

    def check(self, source: object, config: ConfigDict) -> None:
        check_count(source, config, "hard_positives")

    def partners(self, context: InputContext) -> dict[str, Partners]:
        """Caption -> its partners, from the files that the config names.

        Raises InputError: it names none, or they cannot be read.
        """
        hard = context.config.losses.hard_positives
        if not hard.negatives:
            wanted = "a file of captions with hard positives and hard negatives, or of the negatives beside `positives`"
            raise InputError("config", "losses.hard_positives.negatives", "''", wanted)
        return read_hard_positives(hard.negatives, hard.positives or None)


register_input(HardPositives())
