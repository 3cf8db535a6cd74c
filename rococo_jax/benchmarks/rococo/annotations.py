"""RoCOCO's benchmark annotations: for every image its original captions and, aligned with them, altered ones.

Two forms are read.

The *published* form of RoCOCO (arXiv 2304.10727) is `[{"image": name, "caption": [texts]}]`, where each list holds the
originals followed by five altered captions: 5 + 5 = 10 or 6 + 5 = 11 texts. Altered caption k belongs to original k,
and a sixth original has no altered partner. Only the length tells where the originals end, so a list of any other
length is an error. A folder holds one such file per variant and `coco_karpathy_test.json`, the originals alone.

*Our own* form is explicit:

    {"format": "rococo_jax.annotation", "version": 1, "variant": str, "made_by": {...},
     "items": [{"image": name, "originals": [...], "altered": [text or null, aligned with originals],
                "changes": [{"word_index", "old", "new", "concept", "influence"} or null, ...]}]}

A bare list of `{"image", "originals", "altered"}` is accepted too. In every form the variant is named after the file,
so that a folder may hold, say, `danger.json` and `danger_seed2.json`; "variant" in the file is informative.
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
from rococo_jax.errors import InputError
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.storage import read_json, write_json

CLEAN_FILE = "coco_karpathy_test.json"
FORMAT, VERSION = "rococo_jax.annotation", 1
ALTERED_PER_IMAGE = 5
# Number of texts in a published list -> how many of them are originals.
ORIGINALS_IN = {10: 5, 11: 6}
_MADE = "; `rococo make-benchmark` writes one from captions in any form, of all or some splits"


@dataclasses.dataclass(frozen=True)
class AlteredCaptions:
    """An image's captions. `altered` is aligned with `originals`; None where an original has no altered partner."""

    image: str
    originals: tuple[str, ...]
    altered: tuple[str | None, ...]


@dataclasses.dataclass(frozen=True)
class Annotation:
    """One variant of a benchmark, such as `same_concept`, in file order. `form` is `published` or `own`."""

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
    """Read one variant, in the published or our own form; it is named after its file.

    Raises InputError, which names the file, the item and the wrong field.
    """
    path = Path(path)
    return annotation_from_json(read_json(path, "an annotation file"), path)


def annotation_from_json(value: Any, path: Path) -> Annotation:
    """`read_annotation` for a JSON value that was read from `path`."""
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
    for number, (image, captions) in enumerate((item.image, item.captions) for item in captions_from_json(value, path)):
        count = ORIGINALS_IN.get(len(captions))
        if count is None:
            where, wanted = f"item {number} ({image!r})", "10 (5 originals and 5 altered) or 11 (6 and 5)"
            raise InputError(path, f"caption list of {where}", f"{len(captions)} captions", wanted)
        altered = captions[count:] + (None,) * (count - ALTERED_PER_IMAGE)
        read.append(AlteredCaptions(image, captions[:count], altered))
    return tuple(read)


def annotation_json(
    variant: str,
    items: Sequence[AlteredCaptions],
    made_by: Mapping[str, Any],
    changes: Sequence[Sequence[Mapping[str, Any] | None]] | None = None,
) -> dict[str, Any]:
    """A variant in our own form.

    Args:
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
    return {**head, "items": written}


def write_annotation(path: str | os.PathLike, variant: str, items: Sequence[AlteredCaptions], **about: Any) -> None:
    """Write our own form, by rename; `about` as of `annotation_json`."""
    write_json(path, annotation_json(variant, items, **about))


def read_annotation_folder(folder: str | os.PathLike) -> AnnotationSet:
    """Read every variant of a folder and check that all have the same images and originals.

    The clean file is `coco_karpathy_test.json`, else a captions file with the variants' images, else the variants'
    originals. A file is a variant if it is in our own form, has the name of a published variant, or holds the clean
    captions followed by others. Any other file is `ignored`, as long as it names none of the images.

    Raises InputError where a file cannot be read, disagrees with the clean captions, or there is none.
    """
    folder = Path(folder)
    if not folder.is_dir():
        continuing = "a file" if folder.exists() else "nothing there"
        raise InputError(folder, "annotation folder", continuing, f"a folder of annotation files{_MADE}")
    values = {path: read_json(path, "an annotation file") for path in sorted(folder.glob("*.json"))}
    certain = {path: annotation_from_json(value, path) for path, value in values.items() if _is_variant(path, value)}
    others = {path: value for path, value in values.items() if path not in certain}
    clean_source, clean = _find_clean(folder, others, list(certain.values()))
    continuing = {path: annotation_from_json(others[path], path) for path in _continuing(others, clean, clean_source)}
    known = {name: number for number, name in enumerate(VARIANTS)}
    annotations = sorted(
        [*certain.values(), *continuing.values()], key=lambda each: (known.get(each.variant, len(known)), each.variant)
    )
    for annotation in annotations:
        _check_against_clean(annotation, clean, clean_source)
    ignored = tuple(path for path in others if path not in continuing and path != clean_source)
    for path in ignored:
        _refuse_other_captions(others[path], path, clean, clean_source)
    return AnnotationSet(clean, {each.variant: each for each in annotations}, ignored, clean_source)


def _is_variant(path: Path, value: Any) -> bool:
    """Whether the file is a variant by its format or its name, so that any fault in it is an error."""
    if path.stem in VARIANTS:
        return True
    return "items" in value or value.get("format") == FORMAT if isinstance(value, Mapping) else _is_bare_own_form(value)


def _find_clean(
    folder: Path, others: Mapping[Path, Any], certain: Sequence[Annotation]
) -> tuple[Path | None, tuple[CaptionedImage, ...]]:
    """The clean captions and, if there is one, their file."""
    named = folder / CLEAN_FILE
    if named in others:
        return named, tuple(captions_from_json(others[named], named))
    captioned: dict[Path, tuple[CaptionedImage, ...]] = {}
    for path, value in others.items():
        try:
            captioned[path] = tuple(captions_from_json(value, path))
        except InputError:
            continue
    published = [path for path, items in captioned.items() if _mostly_published_lengths(items)]
    variants = [*certain, *(annotation_from_json(others[path], path) for path in published if not certain)]
    if not variants:
        if len(captioned) == 1:
            return next(iter(captioned.items()))
        found = "no annotation file" if not captioned else "several captions files and no altered captions"
        wanted = f"{CLEAN_FILE} and a file for each variant{_MADE}"
        raise InputError(folder, "annotation folder", found, wanted)
    originals = tuple(CaptionedImage(item.image, item.originals) for item in variants[0].items)
    images = [item.image for item in originals]
    same_images = [
        path for path, items in captioned.items() if path not in published and [item.image for item in items] == images
    ]
    same_images.sort(key=lambda path: captioned[path] != originals)
    return (same_images[0], captioned[same_images[0]]) if same_images else (None, originals)


def _mostly_published_lengths(items: Sequence[CaptionedImage]) -> bool:
    return 2 * sum(len(item.captions) in ORIGINALS_IN for item in items) > len(items)


def _continuing(others: Mapping[Path, Any], clean: Sequence[CaptionedImage], clean_source: Path | None) -> list[Path]:
    """Files whose lists, in more than half of the items, begin with the clean captions and continue.

    More than half rather than all: one damaged list is then an error, and does not make the file an ignored one.
    """
    captions = {item.image: item.captions for item in clean}

    def continues(item: Any) -> bool:
        if not isinstance(item, dict) or not isinstance(item.get("image"), str):
            return False
        texts, known = item.get("caption"), captions.get(item["image"])
        if not isinstance(texts, list) or known is None:
            return False
        return len(texts) > len(known) and tuple(texts[: len(known)]) == known

    return [
        path
        for path, value in others.items()
        if path != clean_source and isinstance(value, list) and 2 * sum(map(continues, value)) > len(value)
    ]


def _refuse_other_captions(value: Any, path: Path, clean: Sequence[CaptionedImage], clean_source: Path | None) -> None:
    """Refuse a list of the set's images that has not all of them, or not with their captions."""
    images = {item.image for item in clean}
    named = [item.get("image") for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    if not any(isinstance(name, str) and name in images for name in named):
        return
    if captions_from_json(value, path) != list(clean):
        reference = "the variants" if clean_source is None else clean_source.name
        found = f"images of the set with other captions, or not all {len(clean)} of them"
        raise InputError(path, "captions", found, f"those of {reference}, or no such file in the folder")


def _check_against_clean(annotation: Annotation, clean: Sequence[CaptionedImage], clean_source: Path | None) -> None:
    """Check that images, their order, and originals are those of `clean`."""
    source, reference = annotation.source, "the other variants" if clean_source is None else clean_source.name
    if len(annotation.items) != len(clean):
        raise InputError(source, "items", f"{len(annotation.items)}", f"{len(clean)}, as in {reference}")
    for number, (item, expected) in enumerate(zip(annotation.items, clean, strict=True)):
        if item.image != expected.image:
            wanted = f"{expected.image!r}, as in {reference}"
            raise InputError(source, f"image of item {number}", repr(item.image), wanted)
        if item.originals != expected.captions:
            pairs = enumerate(zip(item.originals, expected.captions, strict=False))
            different = next((f"another text at caption {k}" for k, (one, other) in pairs if one != other), None)
            found = different or f"{len(item.originals)} captions"
            raise InputError(
                source, f"originals of item {number} ({item.image!r})", found, f"the captions of {reference}"
            )


def normalise_caption(text: str) -> str:
    """Normalise a caption as the `strict` protocol does [ours].

    Runs of white space become one space, the text is lower-cased, and full stops, exclamation and question marks,
    commas, semicolons and colons at its end are removed together with the white space before and after them.
    """
    return re.sub(r"[\s.!?,;:]+$", "", " ".join(text.lower().split()))


def altered_pairs(items: Iterable[AlteredCaptions]) -> Iterator[tuple[str, str, str]]:
    """(image, original, altered) of every altered caption."""
    for item in items:
        for original, altered in zip(item.originals, item.altered, strict=True):
            if altered is not None:
                yield item.image, original, altered


def is_no_op(original: str, altered: str, *, normalised: bool = False) -> bool:
    """Whether an altered caption equals its original: word for word, or `normalised` as in `strict`."""
    reading = normalise_caption if normalised else str.split
    return reading(altered) == reading(original)
