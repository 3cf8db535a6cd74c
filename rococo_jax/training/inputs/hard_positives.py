"""Hard positives and hard negatives of captions (arXiv 2409.17958): read from files, added to samples on the host.

A hard positive says the same as its caption in other words; a hard negative says something else in nearly the same
words: "walking elephant", "strolling elephant", "jumping elephant". Two file formats are read:

- JSON lines or a JSON list of `{"caption", "hard_positive", "hard_negative"}`, either partner null or absent;
- an annotation of `rococo alter-captions`: its altered captions as hard negatives, and `positives` where it has these.

A caption that occurs several times has several partners, from which training draws. Captions must match exactly.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grain.python as grain
import numpy as np
from ml_collections import ConfigDict

from rococo_jax.data.captions import json_type
from rococo_jax.encoders.embedding import embed_texts
from rococo_jax.errors import InputError
from rococo_jax.losses.contrastive import NEGATIVES
from rococo_jax.losses.hard_positives import POSITIVES
from rococo_jax.storage import hash_file, read_json
from rococo_jax.texts import JSON_LINES, file_suffix, read_jsonl
from rococo_jax.training.inputs.field_maker import (
    FieldContext,
    FieldMaker,
    Pool,
    PoolSources,
    check_count,
    differ_in_tokens,
)

_CONTENT = "captions with hard positives and hard negatives"


@dataclasses.dataclass(frozen=True)
class Partners:
    """A caption's hard positives and hard negatives, each once, in file order."""

    positives: tuple[str, ...]
    negatives: tuple[str, ...]


def read_hard_positives(path: str | os.PathLike) -> dict[str, Partners]:
    """Read the partners of each caption.

    Raises InputError: the file is missing, or a line or item of it is unusable.
    """
    # Dictionaries without values, as sets that keep the order of the file.
    positives: dict[str, dict[str, None]] = {}
    negatives: dict[str, dict[str, None]] = {}
    for caption, positive, negative in _read_triples(path):
        for texts_by_caption, text in ((positives, positive), (negatives, negative)):
            texts = texts_by_caption.setdefault(caption, {})
            if text is not None:
                texts[text] = None
    if not positives:
        raise InputError(path, "captions", "none", _CONTENT)
    return {caption: Partners(tuple(positives[caption]), tuple(negatives[caption])) for caption in positives}


def _read_triples(path: str | os.PathLike) -> Iterator[tuple[str, str | None, str | None]]:
    for location, entry in _read_entries(path):
        caption = _text(entry, "caption", location, path)
        partners = [
            None if entry.get(key) is None else _text(entry, key, location, path)
            for key in ("hard_positive", "hard_negative")
        ]
        yield caption, *partners


def _read_entries(path: str | os.PathLike) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("line 3" or "item 2", entry) for a file of JSON lines or a JSON list."""
    if file_suffix(path) in JSON_LINES:
        entries: Iterable = ((f"line {number}", entry) for number, entry in read_jsonl(path, _CONTENT))
    else:
        value = read_json(path, _CONTENT)
        if isinstance(value, dict) and isinstance(value.get("items"), list):
            value = [row for number, item in enumerate(value["items"]) for row in _annotated(item, number, path)]
        if not isinstance(value, list):
            raise InputError(path, "captions", json_type(value), "a list")
        entries = ((f"item {number}", entry) for number, entry in enumerate(value))
    for location, entry in entries:
        if not isinstance(entry, dict):
            raise InputError(path, location, json_type(entry), "an object")
        yield location, entry


def _annotated(item: Any, number: int, path: str | os.PathLike) -> list[dict[str, Any]]:
    """Return the entries of an item of an annotation: its originals with their altered captions and hard positives."""
    item = item if isinstance(item, dict) else {}
    originals = item.get("originals")
    no_positives = [None] * len(originals) if isinstance(originals, list) else None
    columns = [originals, item.get("positives", no_positives), item.get("altered")]
    if not all(isinstance(column, list) and len(column) == len(columns[0] or ()) for column in columns):
        expected = "originals, altered and (optional) positives of the same length"
        raise InputError(path, f"item {number}", repr(item)[:60], expected)
    keys = ("caption", "hard_positive", "hard_negative")
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]


def _text(entry: Mapping[str, Any], key: str, location: str, source: object) -> str:
    if key not in entry:
        raise InputError(source, location, f"the keys {list(entry)}", f'the key "{key}"')
    if not isinstance(entry[key], str):
        raise InputError(source, f"{key} of {location}", json_type(entry[key]), "a string")
    return entry[key]


@dataclasses.dataclass(frozen=True)
class AddHardPositives(grain.RandomMapTransform):
    """Adds `hard_positive` (a text or None) and `hard_negatives` (a list of texts or None) to a sample.

    Attributes:
        partners: the partners of each caption.
        negatives: length of `hard_negatives`; they differ as far as the caption has enough.
    """

    partners: Mapping[str, Partners]
    negatives: int = 1

    def random_map(self, sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the sample with a hard positive and hard negatives drawn from the partners of its caption."""
        partners = self.partners.get(sample["caption"], Partners((), ()))
        positive = partners.positives[int(rng.integers(len(partners.positives)))] if partners.positives else None
        negatives = [partners.negatives[i] for i in rng.permutation(len(partners.negatives))[: self.negatives]]
        padded = (*negatives, *[None] * (self.negatives - len(negatives)))
        return {**sample, "hard_positive": positive, "hard_negatives": padded}


class HardPositives(FieldMaker):
    """A hard positive per pair, and `losses.hard_positives.count` hard negatives."""

    fields = (POSITIVES, NEGATIVES)
    sample_texts = (("hard_positive", POSITIVES), ("hard_negatives", NEGATIVES))
    pooled = True

    def shapes(self, config: ConfigDict) -> dict[str, tuple[int, ...]]:
        return {POSITIVES.name: (), NEGATIVES.name: (config.losses.hard_positives.count,)}

    def file_hashes(self, context: FieldContext) -> dict[str, str]:
        return {"hard positives": hash_file(context.config.losses.hard_positives.negatives)}

    def transform(self, context: FieldContext) -> AddHardPositives:
        return AddHardPositives(self.partners(context), context.config.losses.hard_positives.count)

    def make_pools(self, context: FieldContext, sources: PoolSources) -> dict[str, Pool]:
        """Encode the partners of each caption in file order, repeating them if the pool has more places."""
        size = context.config.data.feature_pool.captions
        partners_by_caption = self.partners(context)
        partners = [partners_by_caption.get(caption, Partners((), ())) for caption in sources.captions]
        texts_by_field = {
            POSITIVES: [each.positives for each in partners],
            NEGATIVES: [each.negatives for each in partners],
        }
        pools = {}
        for field, texts in texts_by_field.items():
            # The caption itself takes the places of a caption without partners, which are not valid.
            flat_texts = [
                caption_texts[place % len(caption_texts)] if caption_texts else caption
                for caption_texts, caption in zip(texts, sources.captions, strict=True)
                for place in range(size)
            ]
            features = embed_texts(context.encoder, flat_texts, sources.cache, features=True)
            valid = np.repeat([bool(caption_texts) for caption_texts in texts], size).reshape(-1, size)
            if field is NEGATIVES:
                valid &= differ_in_tokens(context.encoder, sources.captions, flat_texts)
            pools[field.name] = Pool(features.reshape(*valid.shape, -1), valid)
        return pools

    def check(self, source: object, config: ConfigDict) -> None:
        check_count(source, config, "hard_positives")

    def partners(self, context: FieldContext) -> dict[str, Partners]:
        """Return the partners of each caption, from the file that the config names.

        Raises InputError: the config names no file, or it cannot be read.
        """
        hard = context.config.losses.hard_positives
        if not hard.negatives:
            expected = "a file of captions with hard positives and hard negatives"
            raise InputError("config", "losses.hard_positives.negatives", "''", expected)
        return read_hard_positives(hard.negatives)
