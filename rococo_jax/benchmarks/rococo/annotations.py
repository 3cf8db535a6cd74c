"""A folder of benchmark annotations, read as a whole, and what can be asked of them. One file: `annotation_forms`."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.rococo.annotation_forms import (
    FORMAT,
    ORIGINALS_IN,
    AlteredCaptions,
    Annotation,
    annotation_from_json,
    is_bare_own_form,
    read_annotation,
    write_annotation,
)
from rococo_jax.data.captions import CaptionedImage, captions_from_json
from rococo_jax.errors import InputError
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.storage import read_json

__all__ = [
    "CLEAN_FILE",
    "AlteredCaptions",
    "Annotation",
    "AnnotationSet",
    "no_ops",
    "normalise_caption",
    "read_annotation",
    "read_annotation_folder",
    "write_annotation",
]

CLEAN_FILE = "coco_karpathy_test.json"


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


def read_annotation_folder(folder: str | os.PathLike) -> AnnotationSet:
    """Reads every variant of a folder and checks that they speak of the same images and originals.

    The clean file is `coco_karpathy_test.json`, else a captions file with the variants' images, else the variants'
    originals. A file is a variant where it is in our own form, is one of the published four by name, or holds the
    clean captions followed by others. What is neither clean nor a variant is `ignored`.

    Raises:
        InputError: a file cannot be read, a variant disagrees with the clean captions, or there is nothing to read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing there"
        raise InputError(folder, "annotation folder", found, "a folder of annotation files")
    values = {path: read_json(path, "an annotation file") for path in sorted(folder.glob("*.json"))}
    certain = {path: annotation_from_json(value, path) for path, value in values.items() if _is_variant(path, value)}
    others = {path: value for path, value in values.items() if path not in certain}
    clean_source, clean = _find_clean(folder, others, list(certain.values()))
    found = {path: annotation_from_json(others[path], path) for path in _continuing(others, clean, clean_source)}
    annotations = _by_name([*certain.values(), *found.values()])
    for annotation in annotations.values():
        _check_against_clean(annotation, clean, clean_source)
    ignored = tuple(path for path in others if path not in found and path != clean_source)
    return AnnotationSet(clean, annotations, ignored, clean_source)


def _is_variant(path: Path, value: Any) -> bool:
    """Whether the file is a variant by its own word or its name, so that anything wrong with it is an error."""
    if isinstance(value, Mapping):
        return value.get("format") == FORMAT
    return path.stem in VARIANTS or is_bare_own_form(value)


def _find_clean(
    folder: Path, others: Mapping[Path, Any], certain: Sequence[Annotation]
) -> tuple[Path | None, tuple[CaptionedImage, ...]]:
    """The clean captions, and their file where they have one."""
    named = folder / CLEAN_FILE
    if named in others:
        return named, tuple(captions_from_json(others[named], named))
    captioned = {path: _captions_or_none(value, path) for path, value in others.items()}
    captioned = {path: items for path, items in captioned.items() if items}
    published = [path for path, items in captioned.items() if _mostly_published_lengths(items)]
    variants = [*certain, *(annotation_from_json(others[path], path) for path in published if not certain)]
    if not variants:
        if len(captioned) == 1:
            return next(iter(captioned.items()))
        found = "no annotation file" if not captioned else "several captions files and no altered captions"
        raise InputError(folder, "annotation folder", found, f"{CLEAN_FILE} and a file for each variant")
    originals = tuple(CaptionedImage(item.image, item.originals) for item in variants[0].items)
    same_images = [
        path for path in captioned if path not in published and _images(captioned[path]) == _images(originals)
    ]
    same_images.sort(key=lambda path: captioned[path] != originals)
    return (same_images[0], captioned[same_images[0]]) if same_images else (None, originals)


def _captions_or_none(value: Any, path: Path) -> tuple[CaptionedImage, ...] | None:
    try:
        return tuple(captions_from_json(value, path))
    except InputError:
        return None


def _images(items: Sequence[CaptionedImage]) -> list[str]:
    return [item.image for item in items]


def _mostly_published_lengths(items: Sequence[CaptionedImage]) -> bool:
    return 2 * sum(len(item.captions) in ORIGINALS_IN for item in items) > len(items)


def _continuing(others: Mapping[Path, Any], clean: Sequence[CaptionedImage], clean_source: Path | None) -> list[Path]:
    """Files of another name whose lists begin, in more than half of the items, with the clean captions and go on.

    More than half, and not all, so that one damaged list among them is an error and not a file that is ignored.
    """
    captions = {item.image: item.captions for item in clean}

    def goes_on(item: Any) -> bool:
        if not isinstance(item, dict) or not isinstance(item.get("image"), str):
            return False
        texts, known = item.get("caption"), captions.get(item["image"])
        if not isinstance(texts, list) or known is None:
            return False
        return len(texts) > len(known) and tuple(texts[: len(known)]) == known

    return [
        path
        for path, value in others.items()
        if path != clean_source and isinstance(value, list) and 2 * sum(map(goes_on, value)) > len(value)
    ]


def _by_name(annotations: Sequence[Annotation]) -> dict[str, Annotation]:
    known = {name: number for number, name in enumerate(VARIANTS)}
    ordered = sorted(annotations, key=lambda each: (known.get(each.variant, len(known)), each.variant))
    return {annotation.variant: annotation for annotation in ordered}


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
