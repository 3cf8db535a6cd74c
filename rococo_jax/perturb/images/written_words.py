"""A word written on each image, which is not what the image shows: a typographic attack on any captioned images [ours].

As in SCAM (arXiv 2504.04893) an image shows an object and bears another word; SCAM's are photographs of notes, and the
synthetic ones among them have other letters and places than these.

    object   the singular noun that most of an image's captions name
    word     the object of another image, or one of a list; none of the image's captions has it, a synonym or a special
             case of it
    note     black letters of Pillow's own font on a white box at a uniform place. The box covers the share `1 - ratio`
             of the image, less where the word would not fit

Images keep their names, size and form (JPEG of quality 95, otherwise PNG), so that captions, annotations and items of
the originals are those of the written ones too. Every draw is a hash of the seed and the image's name.
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
from rococo_jax.data.pictures import as_rgb, image_size, open_image
from rococo_jax.errors import InputError
from rococo_jax.perturb.images.image_folders import ResumableFolder, encode_image, versions
from rococo_jax.perturb.text import hash_key
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.word_exchange import alters, is_new, named_objects, words_of
from rococo_jax.progress import progress

FORMAT, FORMAT_VERSION = "rococo_jax.written_words", 1
_FORMS = {".jpg": {"kind": "JPEG", "quality": 95}, ".png": {"kind": "PNG", "compress_level": 1}}
# Space beside a word, in sizes of its font, and half of it above and below; and the size at which words are measured.
_MARGIN, _MEASURED = 0.3, 100
Box = tuple[int, int, int, int]


def choose_words(
    items: Sequence[CaptionedImage], lexicon: Lexicon, seed: int, words: Sequence[str] = ()
) -> list[tuple[str | None, str]]:
    """Each image's object, None where no caption names one, and the word to write on it.

    Raises InputError: no word is left for an image, or the font lacks letters of one.
    """
    if strange := [word for word in words if not word.isascii()]:
        raise InputError("mixing", "words", ascii(strange[0]), "letters of ASCII, which the font has alone")
    named = [named_objects(item.captions, lexicon).most_common(1) for item in items]
    objects = [each[0][0] if each else None for each in named]
    pool, chosen = sorted(set(words or filter(None, objects))), []
    for item, shown in zip(items, objects, strict=True):
        present = words_of(item.captions)
        random = np.random.default_rng(hash_key([seed, "word", item.image]))
        for place in random.permutation(len(pool)):
            if is_new(pool[place], present, lexicon) and (shown is None or alters(shown, pool[place], lexicon)):
                chosen.append((shown, pool[place]))
                break
        else:
            wanted = f"one that no caption of {item.image!r} has: other images, or a list"
            raise InputError("mixing", "words", f"{len(pool)} of them", wanted)
    return chosen


def place_note(size: tuple[int, int], word: str, ratio: float, random: np.random.Generator) -> Box:
    """Left, top, right and bottom of a note for a word on an image of that width and height."""
    letters = _letters(word)
    scale = min(math.sqrt((1 - ratio) * math.prod(size) / math.prod(letters)), *np.divide(size, letters))
    width, height = (max(1, int(scale * side)) for side in letters)
    left, top = (int(random.integers(0, room + 1)) for room in (size[0] - width, size[1] - height))
    return left, top, left + width, top + height


@functools.cache
def _letters(word: str) -> tuple[float, float]:
    """Width and height of a note, in sizes of its font."""
    font = ImageFont.load_default(_MEASURED)
    return font.getlength(word) / _MEASURED + _MARGIN, sum(font.getmetrics()) / _MEASURED + _MARGIN / 2


def draw_note(image: Image.Image, word: str, box: Box) -> Image.Image:
    """The image in RGB with the word on a note in the box."""
    image, (left, top, right, bottom) = as_rgb(image).copy(), box
    size = min((right - left) / _letters(word)[0], (bottom - top) / _letters(word)[1])
    draw, middle = ImageDraw.Draw(image), ((left + right) / 2, (top + bottom) / 2)
    draw.rectangle((left, top, right - 1, bottom - 1), "white")
    draw.text(middle, word, "black", ImageFont.load_default(max(1.0, size)), anchor="mm")
    return image


def plan_words(
    data: Mapping[CaptionedImage, ImageFile], lexicon: Lexicon, seed: int, ratio: float, words: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The manifest's `images`. Raises InputError: a ratio outside [0, 1), no word for an image, a file that is none."""
    if not 0 <= ratio < 1:
        raise InputError("mixing", "ratio", ratio, "a share of own content from 0 to less than 1")
    plan = []
    for (item, file), (shown, word) in zip(data.items(), choose_words([*data], lexicon, seed, words), strict=True):
        size, path = image_size(file), PurePosixPath(item.image)
        box = place_note(size, word, ratio, np.random.default_rng(hash_key([seed, "note", item.image])))
        own = 1 - (box[2] - box[0]) * (box[3] - box[1]) / math.prod(size)
        name = item.image if _form_of(item.image) else f"{path}.png"
        plan.append(
            {"file": name, "image": item.image, "object": shown, "word": word, "box": [*box], "true_ratio": own}
        )
    return plan


def _form_of(name: str) -> dict[str, Any] | None:
    return _FORMS.get(PurePosixPath(name).suffix.lower().replace("jpeg", "jpg"))


def write_words(
    plan: Sequence[Mapping[str, Any]],
    files: Mapping[str, ImageFile],
    out: str | os.PathLike,
    control: bool,
    **about: Any,
) -> ResumableFolder:
    """Write the missing images of a plan, without their words as a `control`; the caller finishes the folder."""
    head = {"format": FORMAT, "version": FORMAT_VERSION, "control": control, **about, "versions": versions()}
    folder = ResumableFolder(out, {**head, "images": [*plan]}, files)
    absent = folder.missing(each["file"] for each in plan)
    with progress("writing words", len(plan), "images") as advance:
        for each in plan:
            if each["file"] in absent:
                image = open_image(files[each["image"]])
                image = as_rgb(image) if control else draw_note(image, each["word"], tuple(each["box"]))
                folder.write(each["file"], encode_image(np.asarray(image), **_form_of(each["file"])))
            advance(1)
    return folder
