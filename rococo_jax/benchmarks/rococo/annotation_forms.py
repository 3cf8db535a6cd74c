"""Benchmark annotations: for every image its original captions and, aligned with them, altered ones.

Two forms are read.

The *published* form of RoCOCO (arXiv 2304.10727) is `[{"image": name, "caption": [texts]}]`, where each list holds the
originals followed by five altered captions: 5 + 5 = 10 or 6 + 5 = 11 texts. Altered caption k belongs to original k,
and a sixth original has no altered partner. Only the length says where the originals end, so a list of any other
length is an error. A folder holds one such file per variant and `coco_karpathy_test.json`, the originals alone.

*Our own* form says what it means:

    {"format": "rococo_jax.annotation", "version": 1, "variant": str, "made_by": {...},
     "items": [{"image": name, "originals": [...], "altered": [text or null, aligned with originals],
                "changes": [{"word_index", "old", "new", "concept", "influence"} or null, ...]}]}

A bare list of `{"image", "originals", "altered"}` is accepted too. In every form the variant is named after the file,
so that a folder may hold, say, `danger.json` and `danger_seed2.json`; the name inside our own form is for a reader.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.data.captions import captions_from_json, check_no_image_twice, kind_of, read_image_name, read_texts
from rococo_jax.errors import InputError
from rococo_jax.storage import read_json, write_json

FORMAT, VERSION = "rococo_jax.annotation", 1
ALTERED_PER_IMAGE = 5
# How many of the texts in a published list of this length are originals.
ORIGINALS_IN = {10: 5, 11: 6}


@dataclasses.dataclass(frozen=True)
class AlteredCaptions:
    """An image's captions. `altered` is aligned with `originals`; None where an original has no altered partner."""

    image: str
    originals: tuple[str, ...]
    altered: tuple[str | None, ...]


@dataclasses.dataclass(frozen=True)
class Annotation:
    """One variant of a benchmark.

    Attributes:
        variant: its name, such as `same_concept`.
        items: one entry per image, in file order.
        source: the file it was read from.
        form: `published` or `own`.
    """

    variant: str
    items: tuple[AlteredCaptions, ...]
    source: Path
    form: str


def read_annotation(path: str | os.PathLike) -> Annotation:
    """Reads one variant, in the published or our own form; it is named after its file.

    Raises:
        InputError: it names the file, the item and what is wrong with it.
    """
    path = Path(path)
    return annotation_from_json(read_json(path, "an annotation file"), path)


def annotation_from_json(value: Any, path: Path) -> Annotation:
    """The checks of `read_annotation` on a JSON value that came from `path`."""
    if isinstance(value, Mapping):
        return _read_own(value, path)
    if is_bare_own_form(value):
        return Annotation(path.stem, _read_own_items(value, path), path, "own")
    return Annotation(path.stem, _read_published_items(value, path), path, "published")


def _read_own(value: Mapping[str, Any], path: Path) -> Annotation:
    if value.get("format") != FORMAT:
        raise InputError(path, "format", repr(value.get("format")), repr(FORMAT))
    if value.get("version") != VERSION:
        raise InputError(path, "version", repr(value.get("version")), str(VERSION))
    if not isinstance(value.get("items"), list):
        raise InputError(path, "items", kind_of(value.get("items")), "a list")
    return Annotation(path.stem, _read_own_items(value["items"], path), path, "own")


def _read_own_items(items: Sequence[Any], path: Path) -> tuple[AlteredCaptions, ...]:
    if not items:
        raise InputError(path, "items", "an empty list", "at least one image")
    read = []
    for number, item in enumerate(items):
        image = read_image_name(item, number, path)
        where = f"item {number} ({image!r})"
        originals = read_texts(item, "originals", where, path)
        altered = read_texts(item, "altered", where, path, may_be_null=True)
        if not originals:
            raise InputError(path, f"originals of {where}", "an empty list", "at least one caption")
        if len(altered) != len(originals):
            wanted = f"{len(originals)}, one for each original, null where there is none"
            raise InputError(path, f"altered of {where}", f"{len(altered)} entries", wanted)
        read.append(AlteredCaptions(image, originals, altered))
    check_no_image_twice([item.image for item in read], path)
    return tuple(read)


def _read_published_items(value: Any, path: Path) -> tuple[AlteredCaptions, ...]:
    read = []
    for number, item in enumerate(captions_from_json(value, path)):
        count = ORIGINALS_IN.get(len(item.captions))
        if count is None:
            wanted = "10 (5 originals and 5 altered) or 11 (6 and 5)"
            raise InputError(
                path, f"caption list of item {number} ({item.image!r})", f"{len(item.captions)} captions", wanted
            )
        altered = item.captions[count:] + (None,) * (count - ALTERED_PER_IMAGE)
        read.append(AlteredCaptions(item.image, item.captions[:count], altered))
    return tuple(read)


def write_annotation(
    path: str | os.PathLike,
    variant: str,
    items: Sequence[AlteredCaptions],
    *,
    made_by: Mapping[str, Any],
    changes: Sequence[Sequence[Mapping[str, Any] | None]] | None = None,
) -> None:
    """Writes our own form, by rename.

    Args:
        path: the file.
        variant: the variant's name.
        items: the captions.
        made_by: what made it (model, seed, settings); any JSON.
        changes: for each item one entry per original, `{"word_index", "old", "new", "concept", "influence"}` or None.
    """
    written = []
    for number, item in enumerate(items):
        entry: dict[str, Any] = {"image": item.image, "originals": item.originals, "altered": item.altered}
        if changes is not None:
            entry["changes"] = list(changes[number])
        written.append(entry)
    head = {"format": FORMAT, "version": VERSION, "variant": variant, "made_by": dict(made_by)}
    write_json(path, {**head, "items": written})


def is_bare_own_form(value: Any) -> bool:
    """Whether a JSON value means to be the bare list of our own form."""
    return isinstance(value, list) and any(isinstance(item, dict) and "originals" in item for item in value)
