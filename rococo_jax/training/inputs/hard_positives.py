"""Hard positives and hard negatives of captions (arXiv 2409.17958): read from files, added to samples on the host.

A caption's hard positive says the same in other words, its hard negative something else in nearly the same words:
"walking elephant", "strolling elephant", "jumping elephant". Read are

- one file, JSON lines or a JSON list of `{"caption", "hard_positive", "hard_negative"}`, either partner null or absent;
- two line-aligned files as published, of `{"true_caption", "false_caption"}`: the first has captions and hard
  negatives, the second hard positives and the same hard negatives.

A caption that comes several times has several partners, of which training draws. Captions are matched letter by letter.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grain.python as grain
import numpy as np
from ml_collections import ConfigDict

from rococo_jax.data.captions import kind_of, read_jsonl
from rococo_jax.errors import InputError
from rococo_jax.losses.contrastive import NEGATIVES
from rococo_jax.losses.hard_positives import POSITIVES
from rococo_jax.storage import read_json
from rococo_jax.training.inputs.loss_input import LossInput, Making, register_input

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


def _read_aligned(
    path: str | os.PathLike, positives: str | os.PathLike
) -> Iterator[tuple[str, str | None, str | None]]:
    first, second = list(_read_entries(path)), list(_read_entries(positives))
    if len(first) != len(second):
        raise InputError(positives, "entries", len(second), f"{len(first)}, one for each of {path}")
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
    if Path(path).suffix in (".jsonl", ".ndjson"):
        entries: Iterable = ((f"line {number}", entry) for number, entry in read_jsonl(path, _WANTED))
    else:
        value = read_json(path, _WANTED)
        if not isinstance(value, list):
            raise InputError(path, "captions", kind_of(value), "a list")
        entries = ((f"item {number}", entry) for number, entry in enumerate(value))
    for where, entry in entries:
        if not isinstance(entry, dict):
            raise InputError(path, where, kind_of(entry), "an object")
        yield where, entry


def _text(entry: Mapping[str, Any], key: str, where: str, source: object) -> str:
    if key not in entry:
        raise InputError(source, where, f"the keys {sorted(entry)}", f'the key "{key}"')
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

    def transform(self, making: Making) -> AddHardPositives:
        hard = making.config.losses.hard_positives
        if not hard.negatives:
            wanted = "a file of captions with hard positives and hard negatives, or of the negatives beside `positives`"
            raise InputError("config", "losses.hard_positives.negatives", "''", wanted)
        return AddHardPositives(read_hard_positives(hard.negatives, hard.positives or None), hard.count)


register_input(HardPositives())
