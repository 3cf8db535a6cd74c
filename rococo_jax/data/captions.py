"""A captioned image, the Karpathy form of captions files, and the checks of every form.

    [{"image": "val2014/COCO_val2014_000000391895.jpg", "caption": ["A man with a helmet ...", ...]}, ...]

`caption_tables` has the forms with a row for each caption or image, `captioned_images` opens any of them.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import PureWindowsPath
from typing import Any, Literal

from rococo_jax.errors import InputError
from rococo_jax.texts import split_lines

# The first letters of JPEG, PNG, GIF, WebP, BMP and TIFF files in base64, of either alphabet; no dot, as a name has.
_BASE64 = re.compile(r"data:[^,]*,|(?:[/_]9j[/_]|iVBOR|R0lGOD|UklGR|Qk|SUkq|TU0A)[A-Za-z0-9+/_=\s-]*$")
_SHORTEST_IMAGE = 60
_LONGEST_PART = 255  # bytes of a file's name on all usual file systems


@dataclasses.dataclass(frozen=True)
class CaptionedImage:
    """An image's name, as the file spells it, and its captions in file order."""

    image: str
    captions: tuple[str, ...]


# A text beside an image holds a caption in each line, or is one caption of several lines.
TextFiles = Literal["lines", "whole"]


def caption_lines(text: str, text_files: TextFiles = "lines") -> tuple[str, ...]:
    r"""Return the captions of a text beside an image: one a line, as it is written; blank lines are none.

    With `whole` the text is one caption, with its blank lines but for those at its ends; lines end at LF then.

    >>> caption_lines("one\r\n\r\ntwo\r\n"), caption_lines("one\r\n\r\ntwo\r\n", "whole")
    (('one', 'two'), ('one\n\ntwo',))
    """
    lines = split_lines(text)
    if text_files == "whole":
        lines = ["\n".join(lines).strip("\n")]
    return tuple(line for line in lines if line.strip())


def captions_from_json(items: Any, source: object) -> list[CaptionedImage]:
    """The captioned images of a JSON value in the Karpathy form that came from `source`.

    Raises InputError: it names the item and the field: not a list, a missing key, no captions, a caption that is no
    string, an image named twice, or a name that leaves the image folder.
    """
    if not isinstance(items, list):
        raise InputError(source, "captions", json_type(items), 'a list of {"image": name, "caption": [texts]}')
    if not items:
        raise InputError(source, "captions", "an empty list", "at least one image")
    captioned = [_read_item(item, number, source) for number, item in enumerate(items)]
    check_no_image_twice([item.image for item in captioned], source)
    return captioned


def _read_item(item: Any, number: int, source: object) -> CaptionedImage:
    image = read_image_name(item, number, source)
    captions = read_texts(item, "caption", f"item {number} ({image!r})", source)
    if not captions:
        raise InputError(source, f"captions of item {number} ({image!r})", "an empty list", "at least one caption")
    return CaptionedImage(image, captions)


def json_type(value: Any) -> str:
    """The kind of a JSON value, for an error line."""
    if value is None:
        return "null"
    return {dict: "an object", list: "a list", str: "a string", bool: "true or false"}.get(type(value), "a number")


def read_image_name(item: Any, number: int, source: object) -> str:
    """The checked `image` of item `number`: a relative path with forward slashes that stays inside its folder."""
    if not isinstance(item, dict):
        raise InputError(source, f"item {number}", json_type(item), 'an object with "image" and captions')
    if "image" not in item:
        raise InputError(source, f"item {number}", f"the keys {sorted(item)}", 'the key "image"')
    return check_image_name(item["image"], f"image of item {number}", source)


def check_image_name(image: Any, where: str, source: object) -> str:
    """A relative path with forward slashes that stays inside its folder, or InputError."""
    if not isinstance(image, str) or not image:
        raise InputError(
            source, where, "an empty string" if image == "" else json_type(image), "the name of an image file"
        )
    refuse_image_data(image, where, source)
    if not stays_inside(image):
        raise InputError(source, where, repr(image), "a path inside the image folder")
    return image


def refuse_image_data(name: str, where: str, source: object) -> None:
    """Raises InputError where a name is an image itself, as base64 text, or longer than a file's name can be."""
    if _BASE64.match(name) and (name.startswith("data:") or len(name) >= _SHORTEST_IMAGE):
        wanted = "names of image files, or a Parquet file with the images as bytes"
        raise InputError(source, where, f"an image as base64 text ({len(name):,} characters)", wanted)
    if max(len(part.encode("utf-8", "surrogatepass")) for part in name.split("/")) > _LONGEST_PART:
        raise InputError(source, where, f"{len(name):,} characters: {name[:40]!r}...", "the name of an image file")


def stays_inside(path: str) -> bool:
    """Whether a path is relative and has no way out of its folder."""
    # As a Windows path, in which both slashes separate folders, so that it is safe on every system.
    parsed = PureWindowsPath(path)
    return not (parsed.anchor or ".." in parsed.parts or "\0" in path)


def read_texts(item: dict, key: str, where: str, source: object, *, may_be_null: bool = False) -> tuple:
    """The checked list of texts under `key`; with `may_be_null` a text may be null."""
    if key not in item:
        raise InputError(source, where, f"the keys {sorted(item)}", f'the key "{key}"')
    texts = item[key]
    if not isinstance(texts, list):
        raise InputError(source, f"{key} of {where}", json_type(texts), "a list of strings")
    for number, text in enumerate(texts):
        if may_be_null and text is None:
            continue
        check_text(text, f"{key} {number} of {where}", source, "a string or null" if may_be_null else "a string")
    return tuple(texts)


def check_text(text: Any, where: str, source: object, wanted: str = "a string") -> str:
    """A string of whole Unicode characters, or InputError."""
    if not isinstance(text, str):
        raise InputError(source, where, json_type(text), wanted)
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(source, where, "half of a surrogate pair", "whole Unicode characters")
    return text


def check_no_image_twice(images: Sequence[str], source: object) -> None:
    """Raises InputError where two items name the same image."""
    first: dict[str, int] = {}
    for number, image in enumerate(images):
        if first.setdefault(image, number) != number:
            found = f"{image!r}, which is also item {first[image]}"
            raise InputError(source, f"image of item {number}", found, "every image once")
