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

A bare list of `{"image", "originals", "altered"}` is accepted too.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.data.captions import (
    CaptionedImage,
    captions_from_json,
    check_no_image_twice,
    kind_of,
    read_image_name,
    read_texts,
)
from rococo_jax.errors import InputError
from rococo_jax.storage import read_json, write_json

FORMAT, VERSION = "rococo_jax.annotation", 1
CLEAN_FILE = "coco_karpathy_test.json"
PUBLISHED_VARIANTS = ("same_concept", "diff_concept", "rand_voca", "danger")
ALTERED_PER_IMAGE = 5
# How many of the texts in a published list of this length are originals.
_ORIGINALS_IN = {10: 5, 11: 6}


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


@dataclasses.dataclass(frozen=True)
class AnnotationSet:
    """A folder of annotations over the same images and originals.

    Attributes:
        clean: the originals alone.
        variants: by name; the published ones first and in the order of the paper's tables, then by name.
        ignored: JSON files of the folder that are neither.
        clean_source: the file that `clean` was read from, or None where it was derived from the variants.
    """

    clean: tuple[CaptionedImage, ...]
    variants: Mapping[str, Annotation]
    ignored: tuple[Path, ...]
    clean_source: Path | None


def read_annotation(path: str | os.PathLike) -> Annotation:
    """Reads one variant, in the published or our own form. A published variant is named after its file.

    Raises:
        InputError: it names the file, the item and what is wrong with it.
    """
    path = Path(path)
    return annotation_from_json(read_json(path, "an annotation file"), path)


def annotation_from_json(value: Any, path: Path) -> Annotation:
    """The checks of `read_annotation` on a JSON value that came from `path`."""
    if isinstance(value, Mapping):
        return _read_own(value, path)
    if isinstance(value, list) and value and all(isinstance(item, dict) and "originals" in item for item in value):
        return Annotation(path.stem, _read_own_items(value, path), path, "own")
    return Annotation(path.stem, _read_published_items(value, path), path, "published")


def _read_own(value: Mapping[str, Any], path: Path) -> Annotation:
    if value.get("format") != FORMAT:
        raise InputError(path, "format", repr(value.get("format")), repr(FORMAT))
    if value.get("version") != VERSION:
        raise InputError(path, "version", repr(value.get("version")), str(VERSION))
    if not isinstance(value.get("items"), list):
        raise InputError(path, "items", kind_of(value.get("items")), "a list")
    variant = value.get("variant") or path.stem
    if not isinstance(variant, str):
        raise InputError(path, "variant", kind_of(variant), "a name")
    return Annotation(variant, _read_own_items(value["items"], path), path, "own")


def _read_own_items(items: Sequence[Any], path: Path) -> tuple[AlteredCaptions, ...]:
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
        count = _ORIGINALS_IN.get(len(item.captions))
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


def read_annotation_folder(folder: str | os.PathLike) -> AnnotationSet:
    """Reads every variant of a folder and checks that they speak of the same images and originals.

    The clean file is `coco_karpathy_test.json`, else a captions file with the variants' images and originals, else the
    variants' originals. A file is a variant where it is in our own form, is one of the published four by name, or
    holds lists of 10 or 11 texts only. What is neither clean nor a variant is `ignored`.

    Raises:
        InputError: a variant cannot be read, disagrees with the clean captions, or there is no variant and no clean
            file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing there"
        raise InputError(folder, "annotation folder", found, "a folder of annotation files")
    values = {path: read_json(path, "an annotation file") for path in sorted(folder.glob("*.json"))}
    variants = {path: annotation_from_json(value, path) for path, value in values.items() if _is_variant(path, value)}
    annotations = _by_name(variants.values())
    rest = {path: value for path, value in values.items() if path not in variants}
    clean_source, clean = _find_clean(folder, rest, annotations)
    for annotation in annotations.values():
        _check_against_clean(annotation, clean, clean_source)
    ignored = tuple(path for path in rest if path != clean_source)
    return AnnotationSet(clean, annotations, ignored, clean_source)


def _is_variant(path: Path, value: Any) -> bool:
    if path.name == CLEAN_FILE:
        return False
    if isinstance(value, Mapping):
        return value.get("format") == FORMAT
    if path.stem in PUBLISHED_VARIANTS:
        return True
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return False
    if all("originals" in item and "altered" in item for item in value):
        return True
    lists = [item.get("caption") for item in value]
    return all(isinstance(captions, list) and len(captions) in _ORIGINALS_IN for captions in lists)


def _by_name(annotations: Any) -> dict[str, Annotation]:
    known = {name: number for number, name in enumerate(PUBLISHED_VARIANTS)}
    ordered = sorted(annotations, key=lambda each: (known.get(each.variant, len(known)), each.variant))
    named: dict[str, Annotation] = {}
    for annotation in ordered:
        if annotation.variant in named:
            found = f"{annotation.variant!r}, as in {named[annotation.variant].source.name}"
            raise InputError(annotation.source, "variant", found, "a name of its own for every variant")
        named[annotation.variant] = annotation
    return named


def _find_clean(
    folder: Path, rest: Mapping[Path, Any], annotations: Mapping[str, Annotation]
) -> tuple[Path | None, tuple[CaptionedImage, ...]]:
    named = folder / CLEAN_FILE
    if named in rest:
        return named, tuple(captions_from_json(rest[named], named))
    if not annotations:
        raise InputError(folder, "annotation folder", "no annotation file", f"{CLEAN_FILE} and a file for each variant")
    first = next(iter(annotations.values()))
    originals = tuple(CaptionedImage(item.image, item.originals) for item in first.items)
    for path, value in rest.items():
        try:
            if tuple(captions_from_json(value, path)) == originals:
                return path, originals
        except InputError:
            continue
    return None, originals


def _check_against_clean(annotation: Annotation, clean: Sequence[CaptionedImage], clean_source: Path | None) -> None:
    """The same images in the same order, and the same originals."""
    reference = "the other variants" if clean_source is None else clean_source.name
    if len(annotation.items) != len(clean):
        raise InputError(annotation.source, "items", f"{len(annotation.items)}", f"{len(clean)}, as in {reference}")
    for number, (item, expected) in enumerate(zip(annotation.items, clean, strict=True)):
        if item.image != expected.image:
            raise InputError(
                annotation.source, f"image of item {number}", repr(item.image), f"{expected.image!r}, as in {reference}"
            )
        if item.originals != expected.captions:
            where = f"originals of item {number} ({item.image!r})"
            different = [
                k for k, pair in enumerate(zip(item.originals, expected.captions, strict=False)) if len({*pair}) > 1
            ]
            found = f"another text at caption {different[0]}" if different else f"{len(item.originals)} captions"
            raise InputError(annotation.source, where, found, f"the captions of {reference}")


def normalise_caption(text: str) -> str:
    """A caption as the `strict` protocol reads it.

    Runs of white space become one space, the text is lower-cased, and full stops, exclamation and question marks,
    commas, semicolons and colons at its end are removed together with the white space before and after them.
    """
    return re.sub(r"[\s.!?,;:]+$", "", " ".join(text.lower().split()))


def no_ops(annotation: Annotation, *, normalised: bool) -> list[tuple[int, int]]:
    """(item, caption) of altered captions that say the same as their original.

    Args:
        annotation: the variant.
        normalised: compare what `normalise_caption` makes of them, as the `strict` protocol does; else the words,
            split at white space.
    """
    reading = normalise_caption if normalised else str.split
    return [
        (number, place)
        for number, item in enumerate(annotation.items)
        for place, (original, altered) in enumerate(zip(item.originals, item.altered, strict=True))
        if altered is not None and reading(altered) == reading(original)
    ]
