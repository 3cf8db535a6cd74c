"""Captioned images, Karpathy's form of captions files, and the checks that all forms share.

    [{"image": "val2014/COCO_val2014_000000391895.jpg", "caption": ["A man with a helmet ...", ...]}, ...]

`caption_tables` reads the forms with a row for each caption or image; `caption_forms` reads any form.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rococo_jax.errors import InputError
from rococo_jax.safe_paths import is_inner_file
from rococo_jax.texts import split_lines

# The columns of a table by role: `image`, `caption`, `split`, and `name` of images inside the table.
Columns = Mapping[str, str]
# A text beside an image has a caption in each line, or is one caption of several lines.
TextFiles = Literal["lines", "whole"]
# JPEG, PNG, GIF, WebP, BMP and TIFF files in base64 of either alphabet begin with these letters, and have no dot.
_BASE64 = re.compile(r"data:[^,]*,|(?:[/_]9j[/_]|iVBOR|R0lGOD|UklGR|Qk|SUkq|TU0A)[A-Za-z0-9+/_=\s-]*$")
_SHORTEST_IMAGE = 60
_LONGEST_FILE_NAME = 255  # bytes, on all usual file systems


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """The options with which captions and images are read.

    Attributes:
        columns: columns of a table by role; by default those with usual names. For tars, `caption` is a key of
            NAME.json.
        split: the splits to read, separated by `+` or commas, or `all`.
        text_files: whether NAME.txt beside NAME.jpg has a caption in each line or is one caption (`whole`).
        allow_missing: skip images without a file, and samples of tars without an image or a caption, as long as others
            remain.
        image_folders: folders of images; absolute image names in a captions file may lie below them.
    """

    columns: Columns | None = None
    split: str = ""
    text_files: TextFiles = "lines"
    allow_missing: bool = False
    image_folders: tuple[Path, ...] = ()

    @property
    def requested_columns(self) -> Columns:
        """The columns that the user names; empty by default."""
        return self.columns or {}


@dataclasses.dataclass(frozen=True)
class CaptionedImage:
    """The name of an image, as its file of captions has it, and its captions in file order."""

    image: str
    captions: tuple[str, ...]


def caption_lines(text: str, text_files: TextFiles = "lines") -> tuple[str, ...]:
    r"""Return the captions of a text file beside an image, one per line; blank lines are skipped.

    With `whole`, the text is one caption; its lines end at LF, and blank lines at its start and end are removed.

    >>> caption_lines("one\r\n\r\ntwo\r\n"), caption_lines("one\r\n\r\ntwo\r\n", "whole")
    (('one', 'two'), ('one\n\ntwo',))
    """
    lines = split_lines(text)
    if text_files == "whole":
        lines = ["\n".join(lines).strip("\n")]
    return tuple(line for line in lines if line.strip())


def captions_from_json(items: Any, source: object) -> list[CaptionedImage]:
    """Return the captioned images of a JSON value in Karpathy's form; `source` names it in errors.

    Raises InputError: the value is not a list, a key is missing, there are no captions, a caption is not a string, an
        image occurs twice, or a name leads out of the image folder; the error names the item and the field.
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
    """Return the type of a JSON value in words, for errors."""
    if value is None:
        return "null"
    return {dict: "an object", list: "a list", str: "a string", bool: "true or false"}.get(type(value), "a number")


def read_image_name(item: Any, number: int, source: object) -> str:
    """Return the `image` of item `number`, as `check_image_name` accepts it."""
    if not isinstance(item, dict):
        raise InputError(source, f"item {number}", json_type(item), 'an object with "image" and captions')
    if "image" not in item:
        raise InputError(source, f"item {number}", f"the keys {sorted(item)}", 'the key "image"')
    return check_image_name(item["image"], f"image of item {number}", source)


def check_image_name(image: Any, field: str, source: object) -> str:
    """Return a name that is a relative path inside its folder. Raises InputError: it is anything else."""
    if not isinstance(image, str) or not image:
        problem = "an empty string" if image == "" else json_type(image)
        raise InputError(source, field, problem, "the name of an image file")
    refuse_image_data(image, field, source)
    if not is_inner_file(image):
        raise InputError(source, field, repr(image), "a path inside the image folder")
    return image


def refuse_image_data(name: str, field: str, source: object) -> None:
    """Raise InputError if a name is itself an image as base64 text, or is longer than the name of a file can be."""
    if _BASE64.match(name) and (name.startswith("data:") or len(name) >= _SHORTEST_IMAGE):
        expected = "names of image files, or a Parquet file with the images as bytes"
        raise InputError(source, field, f"an image as base64 text ({len(name):,} characters)", expected)
    if max(len(part.encode("utf-8", "surrogatepass")) for part in name.split("/")) > _LONGEST_FILE_NAME:
        raise InputError(source, field, f"{len(name):,} characters: {name[:40]!r}...", "the name of an image file")


def read_texts(item: dict, key: str, location: str, source: object, *, may_be_null: bool = False) -> tuple:
    """Return the list of texts under `key`, checked; with `may_be_null`, a text may be null."""
    if key not in item:
        raise InputError(source, location, f"the keys {sorted(item)}", f'the key "{key}"')
    texts = item[key]
    if not isinstance(texts, list):
        raise InputError(source, f"{key} of {location}", json_type(texts), "a list of strings")
    for number, text in enumerate(texts):
        if may_be_null and text is None:
            continue
        check_text(text, f"{key} {number} of {location}", source, "a string or null" if may_be_null else "a string")
    return tuple(texts)


def check_text(text: Any, field: str, source: object, expected: str = "a string") -> str:
    """Return a string of complete Unicode characters. Raises InputError: it is anything else."""
    if not isinstance(text, str):
        raise InputError(source, field, json_type(text), expected)
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(source, field, "half of a Unicode surrogate pair", "complete Unicode characters")
    return text


def check_no_image_twice(images: Sequence[str], source: object) -> None:
    """Raise InputError if two items name the same image."""
    first: dict[str, int] = {}
    for number, image in enumerate(images):
        if first.setdefault(image, number) != number:
            problem = f"{image!r}, which is also item {first[image]}"
            raise InputError(source, f"image of item {number}", problem, "every image once")
