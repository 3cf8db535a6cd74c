"""Captions files in the Karpathy form, and the image files that they name.

[{"image": "val2014/COCO_val2014_000000391895.jpg", "caption": ["A man with a red helmet ...", ...]}, ...]
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from rococo_jax.errors import InputError
from rococo_jax.storage import read_json


@dataclasses.dataclass(frozen=True)
class CaptionedImage:
    """An image's name, as the file spells it, and its captions in file order."""

    image: str
    captions: tuple[str, ...]


def read_captions(path: str | os.PathLike) -> list[CaptionedImage]:
    """Reads and checks a captions file in the Karpathy form.

    Raises:
        InputError: it names the file, the item and the field: JSON cut short, not a list, a missing key, no captions,
            a caption that is no string, an image named twice, or a name that leaves the image folder.
    """
    items = read_json(path, "a captions file")
    return captions_from_json(items, path)


def captions_from_json(items: Any, source: object) -> list[CaptionedImage]:
    """The checks of `read_captions` on a JSON value that came from `source`."""
    if not isinstance(items, list):
        raise InputError(source, "captions", kind_of(items), 'a list of {"image": name, "caption": [texts]}')
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


def kind_of(value: Any) -> str:
    """What a JSON value is, for an error line."""
    if value is None:
        return "null"
    return {dict: "an object", list: "a list", str: "a string", bool: "true or false"}.get(type(value), "a number")


def read_image_name(item: Any, number: int, source: object) -> str:
    """The checked `image` of item `number`: a relative path with forward slashes that stays inside its folder."""
    if not isinstance(item, dict):
        raise InputError(source, f"item {number}", kind_of(item), 'an object with "image" and captions')
    if "image" not in item:
        raise InputError(source, f"item {number}", f"the keys {sorted(item)}", 'the key "image"')
    image = item["image"]
    if not isinstance(image, str) or not image:
        found = "an empty string" if image == "" else kind_of(image)
        raise InputError(source, f"image of item {number}", found, "the name of an image file")
    # Read as on Windows, where both slashes part folders: what leaves the folder there leaves it everywhere.
    path = PureWindowsPath(image)
    if path.anchor or ".." in path.parts or "\0" in image:
        raise InputError(source, f"image of item {number}", repr(image), "a path inside the image folder")
    return image


def read_texts(item: dict, key: str, where: str, source: object, *, may_be_null: bool = False) -> tuple:
    """The checked list of texts under `key`; with `may_be_null` a text may be null."""
    if key not in item:
        raise InputError(source, where, f"the keys {sorted(item)}", f'the key "{key}"')
    texts = item[key]
    if not isinstance(texts, list):
        raise InputError(source, f"{key} of {where}", kind_of(texts), "a list of strings")
    for number, text in enumerate(texts):
        if may_be_null and text is None:
            continue
        if not isinstance(text, str):
            wanted = "a string or null" if may_be_null else "a string"
            raise InputError(source, f"{key} {number} of {where}", kind_of(text), wanted)
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InputError(
                source, f"{key} {number} of {where}", "half of a surrogate pair", "whole Unicode characters"
            )
    return tuple(texts)


def check_no_image_twice(images: Sequence[str], source: object) -> None:
    """Raises InputError where two items name the same image."""
    first: dict[str, int] = {}
    for number, image in enumerate(images):
        if first.setdefault(image, number) != number:
            found = f"{image!r}, which is also item {first[image]}"
            raise InputError(source, f"image of item {number}", found, "every image once")


def find_images(names: Iterable[str], folder: str | os.PathLike) -> tuple[dict[str, Path], list[str]]:
    """Looks for image files in a folder: (name -> file of those present, names of the missing ones).

    Names are relative to `folder`, or, where it holds none of them, to its parent: `val2014/a.jpg` is found under
    `images/` and under `images/val2014/`. An image of COCO that is missing under its own name is looked for under
    COCO's other names for it, in `folder` and in its direct subfolders: `000000391895.jpg` finds
    `val2014/COCO_val2014_000000391895.jpg`, and the other way round. Folders are listed once; no image is opened.

    Raises:
        InputError: `folder` is missing or is not a folder.
    """
    folder, names = Path(folder), list(names)
    if not folder.is_dir():
        raise InputError(folder, "image folder", "a file" if folder.exists() else "nothing there", "a folder of images")
    listings: dict[Path, set[str]] = {}
    present = _find_under(names, folder, listings) or _find_under(names, folder, listings, inside=folder.resolve().name)
    present |= _find_coco([name for name in names if name not in present], folder, listings)
    return present, [name for name in names if name not in present]


def _find_under(
    names: Iterable[str], folder: Path, listings: dict[Path, set[str]], inside: str | None = None
) -> dict[str, Path]:
    """Files by name; with `inside` only names that start with that folder, which is `folder` itself."""
    present = {}
    for name in names:
        parts = PurePosixPath(name).parts
        if inside is not None:
            if len(parts) < 2 or parts[0] != inside:
                continue
            parts = parts[1:]
        path = folder.joinpath(*parts)
        if path.name in _list_files(path.parent, listings):
            present[name] = path
    return present


# An image has one number in all of COCO's releases: `COCO_val2014_000000391895.jpg` is `000000391895.jpg` since 2017.
_COCO_NAME = re.compile(r"(?:COCO_[a-z]+20\d\d_)?(\d{12}\.jpg)")


def _find_coco(names: Iterable[str], folder: Path, listings: dict[Path, set[str]]) -> dict[str, Path]:
    """Files of COCO's images under any of their names, in `folder` and its direct subfolders."""
    wanted = {name: match[1] for name in names if (match := _COCO_NAME.fullmatch(PurePosixPath(name).name))}
    if not wanted:
        return {}
    files: dict[str, Path] = {}
    for place in [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]:
        for file in sorted(_list_files(place, listings)):
            if match := _COCO_NAME.fullmatch(file):
                files.setdefault(match[1], place / file)
    return {name: files[number] for name, number in wanted.items() if number in files}


def _list_files(folder: Path, listings: dict[Path, set[str]]) -> set[str]:
    """The names of the files in a folder, listed at most once."""
    if folder not in listings:
        listings[folder] = set()
        if folder.is_dir():
            with os.scandir(folder) as entries:
                listings[folder] = {entry.name for entry in entries if entry.is_file()}
    return listings[folder]
