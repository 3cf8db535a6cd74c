"""Captioned images: captions files in two forms, and the image files that they name.

Karpathy form:  [{"image": "val2014/COCO_val2014_000000391895.jpg", "caption": ["A man with a helmet ...", ...]}, ...]

JSON lines:     {"image": "a/0001.jpg", "caption": "a dog on a beach"}
                {"image": "a/0002.jpg", "captions": ["two men", "two men with a boat"]}

In JSON lines an image may come back on a later line; its captions add up.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from jaxtyping import Int

from rococo_jax.errors import InputError
from rococo_jax.storage import read_json

JSON_LINES = (".jsonl", ".ndjson")


@dataclasses.dataclass(frozen=True)
class CaptionedImage:
    """An image's name, as the file spells it, and its captions in file order."""

    image: str
    captions: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class CaptionedImages:
    """Captioned images whose files are present: `items` in file order, the path of each, and the names of `missing`
    ones.
    """

    items: tuple[CaptionedImage, ...]
    paths: tuple[Path, ...]
    missing: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The images' names."""
        return tuple(item.image for item in self.items)

    @property
    def captions(self) -> tuple[str, ...]:
        """All captions, image by image."""
        return tuple(caption for item in self.items for caption in item.captions)

    @property
    def caption_image(self) -> Int[np.ndarray, " captions"]:
        """The row of the image that each caption describes."""
        return np.repeat(np.arange(len(self.items)), [len(item.captions) for item in self.items])


def read_captioned_images(images: str, captions: str, allow_missing: bool = False) -> CaptionedImages:
    """Reads captions files and finds their images.

    Captions of an image that several files name are merged, each text once.

    Args:
        images: folders, separated by commas. A file's images may be in any of them; where there are as many folders as
            files, a file's own folder is searched first.
        captions: files of either form, separated by commas. The folder of a JSON lines file is searched last.
        allow_missing: leave out images that no folder holds, as long as there is one.

    Raises:
        InputError: a file or folder is missing or unusable, no file is named, or a folder holds none of the images or,
            unless that is allowed, not all of them.
    """
    folders = [part.strip() for part in images.split(",") if part.strip()]
    files = [part.strip() for part in captions.split(",") if part.strip()]
    if not files:
        raise InputError("captions", "files", repr(captions), "at least one captions file")
    merged: dict[Path, CaptionedImage] = {}
    missing: list[str] = []
    for number, file in enumerate(files):
        items = read_captions(file)
        own = [folders[number]] if len(folders) == len(files) else []
        beside = [str(Path(file).parent)] if file.endswith(JSON_LINES) else []
        found = _find_in_folders(items, list(dict.fromkeys([*own, *folders, *beside])), file, allow_missing)
        for item in items:
            if item.image not in found:
                missing.append(item.image)
                continue
            path = found[item.image]
            texts = item.captions
            if path in merged:
                texts = tuple(dict.fromkeys(merged[path].captions + texts))
            merged[path] = CaptionedImage(item.image, texts)
    return CaptionedImages(tuple(merged.values()), tuple(merged), tuple(missing))


def _find_in_folders(
    items: Sequence[CaptionedImage], folders: Sequence[str], file: str, allow_missing: bool
) -> dict[str, Path]:
    """The items' files by name, each from the first folder that has it."""
    found: dict[str, Path] = {}
    missing = [item.image for item in items]
    for folder in folders:
        present, missing = find_images(missing, folder)
        found |= present
    where = ", ".join(folders) or "no folder"
    if not found:
        raise InputError(file, "images", f"none of its {len(items)} images in {where}", "a folder that holds them")
    if missing and not allow_missing:
        state = f"{len(missing)} of {len(items)} images in none of {where}; the first is {missing[0]!r}"
        raise InputError(file, "images", state, "all of them, or allow_missing_images")
    return found


def read_captions(path: str | os.PathLike) -> list[CaptionedImage]:
    """Reads and checks a captions file: JSON lines (`.jsonl`, `.ndjson`), or else the Karpathy form.

    Raises:
        InputError: it names the file, the item or line and the field: JSON cut short, not a list, a missing key, no
            captions, a caption that is no string, an image named twice, or a name that leaves the image folder.
    """
    if str(path).endswith(JSON_LINES):
        return _read_captions_lines(path)
    return captions_from_json(read_json(path, "a captions file"), path)


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


def _read_captions_lines(path: str | os.PathLike) -> list[CaptionedImage]:
    """JSON lines; images in the order of their first line."""
    captions: dict[str, list[str]] = {}
    for number, entry in read_jsonl(path, "image-text pairs as JSON lines"):
        image = read_image_name(entry, number, path)
        captions.setdefault(image, []).extend(_read_line_captions(entry, f"line {number} ({image!r})", path))
    if not captions:
        raise InputError(path, "lines", "none", "at least one image with a caption")
    return [CaptionedImage(image, tuple(texts)) for image, texts in captions.items()]


def _read_line_captions(entry: dict, where: str, path: object) -> tuple[str, ...]:
    keys = [key for key in ("caption", "captions") if key in entry]
    if len(keys) != 1:
        raise InputError(path, where, f"the keys {sorted(entry)}", '"image" and either "caption" or "captions"')
    value = entry[keys[0]]
    if not isinstance(value, str | list):
        raise InputError(path, f"{keys[0]} of {where}", kind_of(value), "a string or a list of strings")
    texts = read_texts({keys[0]: [value] if isinstance(value, str) else value}, keys[0], where, path)
    if not texts:
        raise InputError(path, f"{keys[0]} of {where}", "an empty list", "at least one caption")
    return texts


def read_jsonl(path: str | os.PathLike, wanted: str) -> Iterator[tuple[int, Any]]:
    """Yields (line number from 1, value) of every line that is not blank. `wanted`: what the file should hold.

    Raises InputError where the file is missing or not UTF-8, or a line is no JSON.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(path, f"line {number}", f"{error.msg} at column {error.colno}", f"{wanted}, whole") from None
    except FileNotFoundError:
        raise InputError(path, "file", "nothing there", wanted) from None
    except IsADirectoryError:
        raise InputError(path, "file", "a folder", wanted) from None
    except UnicodeDecodeError as error:
        raise InputError(path, "encoding", f"bytes that are not UTF-8 at offset {error.start}", wanted) from None


def kind_of(value: Any) -> str:
    """The kind of a JSON value, for an error line."""
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
    # As a Windows path, in which both slashes separate folders, so that it is safe on every system.
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


def refuse_missing_images(folder: object, missing: list[str], wanted: int, allow_missing: bool) -> None:
    """Raises InputError where images are missing and that is not allowed, or where all are."""
    if missing and not allow_missing:
        found = f"{len(missing)} of {wanted} missing, the first is {missing[0]!r}"
        raise InputError(folder, "images", found, "all of them, or allow_missing_images")
    if len(missing) == wanted:
        raise InputError(folder, "images", "none of the images that the file names", "at least one")


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


def coco_number(name: str) -> str | None:
    """The number of an image of COCO under any of COCO's names for it; None for other names.

    >>> coco_number("val2014/COCO_val2014_000000391895.jpg"), coco_number("dog.jpg")
    ('000000391895.jpg', None)
    """
    match = _COCO_NAME.fullmatch(PurePosixPath(name).name)
    return match[1] if match else None


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
