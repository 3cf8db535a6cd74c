"""RoCOCO's annotations: the original captions of each image and, aligned with them, altered captions.

Two forms can be read.

The *published* form of RoCOCO (arXiv 2304.10727) is `[{"image": name, "caption": [texts]}]`, where each list contains
the originals followed by five altered captions: 5 + 5 = 10 or 6 + 5 = 11 texts. Altered caption k belongs to original
k; a sixth original has no altered caption. Since only the length of a list tells where the originals end, a list of any
other length is an error. A folder contains one such file per variant, and `coco_karpathy_test.json` with the originals.

*Our own* form is explicit:

    {"format": "rococo_jax.annotation", "version": 1, "variant": str, "made_by": {...},
     "items": [{"image": name, "originals": [...], "altered": [text or null, aligned with originals],
                "changes": [{"word_index", "old", "new", "concept", "influence"} or null, ...]}]}

A bare list of `{"image", "originals", "altered"}` is accepted, too. In every form the file name is the name of the
variant, so that a folder may contain `danger.json` and `danger_seed2.json`; "variant" in the file is informative.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.data.captions import (
    CaptionedImage,
    captions_from_json,
    check_no_image_twice,
    json_type,
    read_image_name,
    read_texts,
)
from rococo_jax.errors import InputError, require_folder
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.storage import read_json, write_json

CLEAN_FILE = "coco_karpathy_test.json"
FORMAT, VERSION = "rococo_jax.annotation", 1
ALTERED_PER_IMAGE = 5
# Number of texts in a published list -> how many of them are originals.
ORIGINALS_IN = {10: 5, 11: 6}
_HOW_TO_MAKE = "; `rococo evaluate MODEL --images DIR --captions FILE` makes one of captions in any form"


@dataclasses.dataclass(frozen=True)
class AlteredCaptions:
    """Captions of an image. `altered` is aligned with `originals`; None if an original has no altered caption."""

    image: str
    originals: tuple[str, ...]
    altered: tuple[str | None, ...]


@dataclasses.dataclass(frozen=True)
class Annotation:
    """A variant of a benchmark, such as `same_concept`, in file order. `form` is `published` or `own`."""

    variant: str
    items: tuple[AlteredCaptions, ...]
    source: Path
    form: str


@dataclasses.dataclass(frozen=True)
class AnnotationSet:
    """A folder of annotations over the same images and originals.

    Attributes:
        clean: the original captions.
        variants: variants by name; published ones first, in the order of the paper's tables, then others by name.
        ignored: JSON files of the folder that are neither.
        clean_source: the file that `clean` was read from; None if it was derived from the variants.
    """

    clean: tuple[CaptionedImage, ...]
    variants: Mapping[str, Annotation]
    ignored: tuple[Path, ...]
    clean_source: Path | None


def read_annotation(path: str | os.PathLike) -> Annotation:
    """Read a variant in the published or our own form; it is named after its file.

    Raises InputError, which names the file, the item and the wrong field.
    """
    path = Path(path)
    return annotation_from_json(read_json(path, "an annotation file"), path)


def annotation_from_json(value: Any, path: Path) -> Annotation:
    """Return the variant of a JSON value that was read from `path`; see `read_annotation`."""
    form, read = "own", _read_own_items
    if isinstance(value, Mapping):
        for field, wanted in (("format", FORMAT), ("version", VERSION)):
            if value.get(field) != wanted:
                raise InputError(path, field, repr(value.get(field)), repr(wanted))
        value = value.get("items")
        if not isinstance(value, list):
            raise InputError(path, "items", json_type(value), "a list")
    elif not _is_bare_own_form(value):
        form, read = "published", _read_published_items
    return Annotation(path.stem, read(value, path), path, form)


def _is_bare_own_form(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) and "originals" in item for item in value)


def _read_own_items(items: Sequence[Any], path: Path) -> tuple[AlteredCaptions, ...]:
    if not items:
        raise InputError(path, "items", "an empty list", "at least one image")
    read = []
    for number, item in enumerate(items):
        image = read_image_name(item, number, path)
        label = f"item {number} ({image!r})"
        originals = read_texts(item, "originals", label, path)
        altered = read_texts(item, "altered", label, path, may_be_null=True)
        if not originals:
            raise InputError(path, f"originals of {label}", "an empty list", "at least one caption")
        if len(altered) != len(originals):
            wanted = f"{len(originals)}, one for each original, null where there is none"
            raise InputError(path, f"altered of {label}", f"{len(altered)} entries", wanted)
        read.append(AlteredCaptions(image, originals, altered))
    check_no_image_twice([item.image for item in read], path)
    return tuple(read)


def _read_published_items(value: Any, path: Path) -> tuple[AlteredCaptions, ...]:
    read = []
    for number, (image, captions) in enumerate((item.image, item.captions) for item in captions_from_json(value, path)):
        count = ORIGINALS_IN.get(len(captions))
        if count is None:
            label, wanted = f"item {number} ({image!r})", "10 (5 originals and 5 altered) or 11 (6 and 5)"
            raise InputError(path, f"caption list of {label}", f"{len(captions)} captions", wanted)
        altered = captions[count:] + (None,) * (count - ALTERED_PER_IMAGE)
        read.append(AlteredCaptions(image, captions[:count], altered))
    return tuple(read)


def annotation_json(
    variant: str,
    items: Sequence[AlteredCaptions],
    made_by: Mapping[str, Any],
    changes: Sequence[Sequence[Mapping[str, Any] | None]] | None = None,
) -> dict[str, Any]:
    """Return a variant in our own form.

    Args:
        made_by: how it was made (model, seed, settings); any JSON.
        changes: for each item one entry per original, `{"word_index", "old", "new", "concept", "influence"}` or None.
    """
    entries = []
    for number, item in enumerate(items):
        entry: dict[str, Any] = {"image": item.image, "originals": item.originals, "altered": item.altered}
        if changes is not None:
            entry["changes"] = list(changes[number])
        entries.append(entry)
    head = {"format": FORMAT, "version": VERSION, "variant": variant, "made_by": dict(made_by)}
    return {**head, "items": entries}


def write_annotation(path: str | os.PathLike, variant: str, items: Sequence[AlteredCaptions], **about: Any) -> None:
    """Write our own form atomically; `about` as for `annotation_json`."""
    write_json(path, annotation_json(variant, items, **about))


def read_annotation_folder(folder: str | os.PathLike) -> AnnotationSet:
    """Read every variant of a folder and check that all have the same images and originals.

    The clean captions are read from `coco_karpathy_test.json`, else from a captions file with the variants' images,
    else from the variants. A file is a variant if it is in our own form, has the name of a published variant, or
    contains the clean captions followed by others. All other files are `ignored` unless they name one of the images.

    Raises InputError: a file cannot be read or disagrees with the clean captions, or there is no file.
    """
    folder = Path(folder)
    require_folder(folder, "annotation folder", f"a folder of annotation files{_HOW_TO_MAKE}")
    values = {path: read_json(path, "an annotation file") for path in sorted(folder.glob("*.json"))}
    certain = {path: annotation_from_json(value, path) for path, value in values.items() if _is_variant(path, value)}
    uncertain = {path: value for path, value in values.items() if path not in certain}
    clean_source, clean = _find_clean(folder, uncertain, list(certain.values()))
    extending_paths = _files_that_extend(uncertain, clean, clean_source)
    extending = {path: annotation_from_json(uncertain[path], path) for path in extending_paths}
    published_order = {name: number for number, name in enumerate(VARIANTS)}

    def place(annotation: Annotation) -> tuple[int, str]:
        return published_order.get(annotation.variant, len(published_order)), annotation.variant

    annotations = sorted([*certain.values(), *extending.values()], key=place)
    for annotation in annotations:
        _check_against_clean(annotation, clean, clean_source)
    ignored = tuple(path for path in uncertain if path not in extending and path != clean_source)
    for path in ignored:
        _refuse_other_captions(uncertain[path], path, clean, clean_source)
    return AnnotationSet(clean, {each.variant: each for each in annotations}, ignored, clean_source)


def _is_variant(path: Path, value: Any) -> bool:
    """Return whether a file is a variant by its format or name, so that any fault in it is an error."""
    if path.stem in VARIANTS:
        return True
    if isinstance(value, Mapping):
        return "items" in value or value.get("format") == FORMAT
    return _is_bare_own_form(value)


def _find_clean(
    folder: Path, values: Mapping[Path, Any], certain: Sequence[Annotation]
) -> tuple[Path | None, tuple[CaptionedImage, ...]]:
    """Return the file of the clean captions, if there is one, and the captions."""
    clean_file = folder / CLEAN_FILE
    if clean_file in values:
        return clean_file, tuple(captions_from_json(values[clean_file], clean_file))
    captioned: dict[Path, tuple[CaptionedImage, ...]] = {}
    for path, value in values.items():
        try:
            captioned[path] = tuple(captions_from_json(value, path))
        except InputError:
            continue
    published = [path for path, items in captioned.items() if has_published_lengths(items)]
    variants = [*certain, *(annotation_from_json(values[path], path) for path in published if not certain)]
    if not variants:
        if len(captioned) == 1:
            return next(iter(captioned.items()))
        found = "no annotation file" if not captioned else "several captions files and no altered captions"
        wanted = f"{CLEAN_FILE} and a file for each variant{_HOW_TO_MAKE}"
        raise InputError(folder, "annotation folder", found, wanted)
    originals = tuple(CaptionedImage(item.image, item.originals) for item in variants[0].items)
    images = [item.image for item in originals]
    same_images = [
        path for path, items in captioned.items() if path not in published and [item.image for item in items] == images
    ]
    same_images.sort(key=lambda path: captioned[path] != originals)
    return (same_images[0], captioned[same_images[0]]) if same_images else (None, originals)


def has_published_lengths(items: Sequence[CaptionedImage]) -> bool:
    """Return whether most images have as many captions as in the published files, 10 or 11."""
    return 2 * sum(len(item.captions) in ORIGINALS_IN for item in items) > len(items)


def _files_that_extend(
    values: Mapping[Path, Any], clean: Sequence[CaptionedImage], clean_source: Path | None
) -> list[Path]:
    """Return the files in which the lists of more than half of the items start with the clean captions and continue.

    More than half instead of all, so that one damaged list is an error and does not make the file an ignored one.
    """
    captions = {item.image: item.captions for item in clean}

    def extends_clean_captions(item: Any) -> bool:
        if not isinstance(item, dict) or not isinstance(item.get("image"), str):
            return False
        texts, originals = item.get("caption"), captions.get(item["image"])
        if not isinstance(texts, list) or originals is None:
            return False
        return len(texts) > len(originals) and tuple(texts[: len(originals)]) == originals

    return [
        path
        for path, value in values.items()
        if path != clean_source and isinstance(value, list) and 2 * sum(map(extends_clean_captions, value)) > len(value)
    ]


def _refuse_other_captions(value: Any, path: Path, clean: Sequence[CaptionedImage], clean_source: Path | None) -> None:
    """Raise InputError for a list that names images of the set, but not all of them with their captions."""
    images = {item.image for item in clean}
    named = [item.get("image") for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    if not any(isinstance(name, str) and name in images for name in named):
        return
    if captions_from_json(value, path) != list(clean):
        reference = "the variants" if clean_source is None else clean_source.name
        found = f"images of the set with other captions, or not all {len(clean)} of them"
        raise InputError(path, "captions", found, f"those of {reference}, or no such file in the folder")


def _check_against_clean(annotation: Annotation, clean: Sequence[CaptionedImage], clean_source: Path | None) -> None:
    """Raise InputError if images, their order or originals differ from `clean`."""
    source = annotation.source
    reference = "the other variants" if clean_source is None else clean_source.name
    if len(annotation.items) != len(clean):
        raise InputError(source, "items", f"{len(annotation.items)}", f"{len(clean)}, as in {reference}")
    for number, (item, expected) in enumerate(zip(annotation.items, clean, strict=True)):
        if item.image != expected.image:
            wanted = f"{expected.image!r}, as in {reference}"
            raise InputError(source, f"image of item {number}", repr(item.image), wanted)
        if item.originals != expected.captions:
            found = f"{len(item.originals)} captions"
            for place, (text, clean_text) in enumerate(zip(item.originals, expected.captions, strict=False)):
                if text != clean_text:
                    found = f"another text at caption {place}"
                    break
            field = f"originals of item {number} ({item.image!r})"
            raise InputError(source, field, found, f"the captions of {reference}")


def normalise_caption(text: str) -> str:
    """Normalise a caption as the `strict` protocol does [ours].

    Runs of white space become one space, the text is lower-cased, and trailing full stops, exclamation and question
    marks, commas, semicolons and colons are removed together with the white space around them.
    """
    return re.sub(r"[\s.!?,;:]+$", "", " ".join(text.lower().split()))


def altered_pairs(items: Iterable[AlteredCaptions]) -> Iterator[tuple[str, str, str]]:
    """Yield (image, original, altered) for every altered caption."""
    for item in items:
        for original, altered in zip(item.originals, item.altered, strict=True):
            if altered is not None:
                yield item.image, original, altered


def is_no_op(original: str, altered: str, *, normalised: bool = False) -> bool:
    """Return whether an altered caption equals its original: word for word, or `normalised` as in `strict`."""
    form = normalise_caption if normalised else str.split
    return form(altered) == form(original)
