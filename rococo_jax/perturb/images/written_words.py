"""Typographic attack on any captioned images: write on each image a word for something that it does not show [ours].

As in SCAM (arXiv 2504.04893), an image shows one object and carries the word for another. SCAM's images are photographs
of notes; its synthetic images have another font and other positions.

    object   the singular noun in most of an image's captions
    word     the object of another image, or one of a list; no caption of the image contains it, a synonym or a more
             special word
    note     black letters of Pillow's own font on a white box at a uniformly random position. The box covers the share
             `1 - ratio` of the image, or less if the word does not fit

Images keep their names, size and format (JPEG of quality 95, otherwise PNG), so that captions, annotations and items of
the originals apply to them. Every random choice is a hash of the seed and the image's name.
"""

import functools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.image_files import ImageFile
from rococo_jax.data.pictures import as_rgb, image_bytes, image_size, open_image
from rococo_jax.errors import InputError
from rococo_jax.perturb.images.image_folders import ResumableFolder, versions
from rococo_jax.perturb.text import hash_key
from rococo_jax.perturb.text.kinds import alters, is_new, named_objects
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.words import caption_words
from rococo_jax.progress import progress

FORMAT, FORMAT_VERSION = "rococo_jax.written_words", 1
_FORMATS = {".jpg": {"kind": "JPEG", "quality": 95}, ".png": {"kind": "PNG", "compress_level": 1}}
# Horizontal margin of a word, in font sizes, twice the vertical one; and the font size at which words are measured.
_MARGIN, _REFERENCE_SIZE = 0.3, 100
Box = tuple[int, int, int, int]


def choose_words(
    items: Sequence[CaptionedImage], lexicon: Lexicon, seed: int, words: Sequence[str] = ()
) -> list[tuple[str | None, str]]:
    """Return for each image its object, None if no caption names one, and the word to write on it.

    Raises InputError if no word fits an image, or the font lacks letters of a word.
    """
    if not_ascii := [word for word in words if not word.isascii()]:
        raise InputError("mixing", "words", ascii(not_ascii[0]), "ASCII letters, the only ones in the font")
    most_common = [named_objects(item.captions, lexicon).most_common(1) for item in items]
    objects = [counts[0][0] if counts else None for counts in most_common]
    candidates = sorted(set(words or filter(None, objects)))
    choices = []
    for item, image_object in zip(items, objects, strict=True):
        present = caption_words(item.captions)
        rng = np.random.default_rng(hash_key([seed, "word", item.image]))
        shuffled = (candidates[index] for index in rng.permutation(len(candidates)))
        fitting = (
            word
            for word in shuffled
            if is_new(word, present, lexicon) and (image_object is None or alters(image_object, word, lexicon))
        )
        if (word := next(fitting, None)) is None:
            expected = f"a word that no caption of {item.image!r} contains: add images, or a list of words"
            raise InputError("mixing", "words", f"{len(candidates)} words", expected)
        choices.append((image_object, word))
    return choices


def place_note(size: tuple[int, int], word: str, ratio: float, rng: np.random.Generator) -> Box:
    """Return left, top, right and bottom of a note for a word on an image of that width and height."""
    note = _note_size(word)
    scale_by_area = math.sqrt((1 - ratio) * math.prod(size) / math.prod(note))
    scale_by_sides = min(size[0] / note[0], size[1] / note[1])
    width, height = (max(1, int(min(scale_by_area, scale_by_sides) * side)) for side in note)
    left, top = (int(rng.integers(0, space + 1)) for space in (size[0] - width, size[1] - height))
    return left, top, left + width, top + height


@functools.cache
def _note_size(word: str) -> tuple[float, float]:
    """Return width and height of a note, in font sizes."""
    font = ImageFont.load_default(_REFERENCE_SIZE)
    return font.getlength(word) / _REFERENCE_SIZE + _MARGIN, sum(font.getmetrics()) / _REFERENCE_SIZE + _MARGIN / 2


def draw_note(image: Image.Image, word: str, box: Box) -> Image.Image:
    """Return the image in RGB with the word on a note in the box."""
    image, (left, top, right, bottom) = as_rgb(image).copy(), box
    width, height = _note_size(word)
    size = min((right - left) / width, (bottom - top) / height)
    draw, middle = ImageDraw.Draw(image), ((left + right) / 2, (top + bottom) / 2)
    draw.rectangle((left, top, right - 1, bottom - 1), "white")
    draw.text(middle, word, "black", ImageFont.load_default(max(1.0, size)), anchor="mm")
    return image


def plan_words(
    data: Mapping[CaptionedImage, ImageFile], lexicon: Lexicon, seed: int, ratio: float, words: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the manifest's `images`.

    Raises InputError for a ratio outside [0, 1), an image without a word that fits, or a file that is not an image.
    """
    if not 0 <= ratio < 1:
        raise InputError("mixing", "ratio", ratio, "a share of own content from 0 to less than 1")
    plan = []
    for (item, file), (image_object, word) in zip(
        data.items(), choose_words([*data], lexicon, seed, words), strict=True
    ):
        size, path = image_size(file), PurePosixPath(item.image)
        box = place_note(size, word, ratio, np.random.default_rng(hash_key([seed, "note", item.image])))
        true_ratio = 1 - (box[2] - box[0]) * (box[3] - box[1]) / math.prod(size)
        name = item.image if _format_of(item.image) else f"{path}.png"
        plan.append(
            {
                "file": name,
                "image": item.image,
                "object": image_object,
                "word": word,
                "box": [*box],
                "true_ratio": true_ratio,
            }
        )
    return plan


def _format_of(name: str) -> dict[str, Any] | None:
    return _FORMATS.get(PurePosixPath(name).suffix.lower().replace("jpeg", "jpg"))


def write_words(
    plan: Sequence[Mapping[str, Any]],
    files: Mapping[str, ImageFile],
    out: str | os.PathLike,
    control: bool,
    **fields: Any,
) -> ResumableFolder:
    """Write the missing images of a plan, without words if it is a `control`; the caller finishes the folder."""
    head = {"format": FORMAT, "version": FORMAT_VERSION, "control": control, **fields, "versions": versions()}
    folder = ResumableFolder(out, {**head, "images": [*plan]}, files)
    missing_files = folder.missing(entry["file"] for entry in plan)
    with progress("writing words", len(plan), "images") as advance:
        for entry in plan:
            if entry["file"] in missing_files:
                image = open_image(files[entry["image"]])
                image = as_rgb(image) if control else draw_note(image, entry["word"], tuple(entry["box"]))
                folder.write(entry["file"], image_bytes(np.asarray(image), **_format_of(entry["file"])))
            advance(1)
    return folder
