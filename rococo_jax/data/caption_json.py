"""Captions in JSON, in the forms that people have them.

    [{"image": "val2014/x.jpg", "caption": ["A man ...", ...]}, ...]         the Karpathy form (`captions`)
    [{"image": "val2014/x.jpg", "caption": "A man ..."}, ...]                a caption an item, as BLIP trains on
    [{"file_name": "x.jpg", "text": ["A man ...", ...]}, ...]                rows with other keys (`caption_tables`)
    {"images": [{"filename", "filepath", "split", "sentences": [{"raw"}]}]}   Karpathy's own dataset_coco.json
    {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}     COCO's own
    {"x.jpg": ["A man ...", ...], ...}                                       captions by the names of the images

Karpathy's own files hold all splits of a data set, so that the user must choose. Contents decide, and not the suffix,
whether a file is one value or has a value in each line.
"""

import contextlib
import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.data.caption_tables import USUAL, CaptionsFile, Columns, check_split_choice, collect_rows, json_rows
from rococo_jax.data.captions import captions_from_json, json_type, read_texts
from rococo_jax.errors import InputError, is_list_of, object_of
from rococo_jax.storage import read_json
from rococo_jax.texts import JSON_LINES, file_suffix, iterate_lines

_WANTED = "a captions file"
_FORMS = "a list of images with captions, captions by the names of images, or COCO's or Karpathy's own form"
_FILE_NAME = re.compile(r"[^\n]*\.[A-Za-z]\w{1,4}")


def open_json(source: str, columns: Columns, roots: Iterable[Path], split: str) -> CaptionsFile:
    """The captions of a JSON file; arguments as `captioned_images.read_captions` has them.

    Raises InputError: it names the item and the field, or the splits of a file of which none is chosen.
    """
    if _has_lines(source):
        return collect_rows(source, json_rows(source), columns, roots, split)
    value, must_choose = read_json(source, _WANTED), False
    rows: Sequence[dict[str, Any]]
    if isinstance(value, dict):
        if {"images", "annotations"} <= value.keys():
            return _open_coco(value, columns, source, split)
        images = value.get("images")
        must_choose = isinstance(images, list) and any("sentences" in object_of(each) for each in images)
        rows = _rows_of_karpathy(value, source) if must_choose else _rows_of_object(value, columns, source)
    elif value and is_list_of(dict, value) and (columns or _is_rows(value)):
        rows = value
    else:
        check_split_choice(source, split, {})
        return CaptionsFile(source, tuple(captions_from_json(value, source)))
    numbered = ((f"item {number}", row) for number, row in enumerate(rows))
    return collect_rows(source, numbered, columns, roots, split, must_choose)


def is_one_value(source: str) -> bool:
    """Whether a file that is named as JSON lines holds one JSON value over all of its lines."""
    if file_suffix(source) not in JSON_LINES:
        return False
    first = next(filter(None, map(str.strip, iterate_lines(source, _WANTED))), "")
    value = _value_of(first)
    return first == "{" or (first.startswith("[") and (value is None or (value != [] and is_list_of(dict, value))))


def _has_lines(source: str) -> bool:
    """Whether a file holds an object in each line."""
    lines = [*itertools.islice(filter(None, map(str.strip, iterate_lines(source, _WANTED))), 2)]
    return len(lines) == 2 and isinstance(_value_of(lines[0]), dict)


def _value_of(line: str) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(line)
    return None


def _is_rows(items: Sequence[dict[str, Any]]) -> bool:
    """Whether items are rows with other keys than the Karpathy form's, or with a caption each, or of splits."""
    return not {"image", "caption"} & items[0].keys() or any(
        isinstance(item.get("caption"), str) or "split" in item for item in items
    )


def _rows_of_object(value: dict, columns: Columns, source: str) -> list[dict[str, Any]]:
    """The rows of an object: one row with its image, or captions by the names of images.

    Raises InputError: it is another object.
    """
    keys = {key.strip().lower() for key in value}
    images = [each for key, each in value.items() if key in columns.values() or key.strip().lower() in USUAL["image"]]
    captions = keys & {*USUAL["caption"]} or {*columns.values()} & value.keys()
    if images and captions:
        if isinstance(images[0], str):
            return [value]
        wanted = "a row for each image: DataFrame.to_json(FILE, orient='records', lines=True) in pandas"
        raise InputError(source, "captions", "an object of columns", wanted)
    if _is_by_name(value):
        return [{"image": name, "caption": texts} for name, texts in value.items()]
    shown = ", ".join(repr(key[:40]) for key in list(value)[:6]) + (", ..." if len(value) > 6 else "")
    found = f"an object with the keys {shown}" if value else "an object without a key"
    if value.keys() >= {"images"}:
        found += ", and no annotations: COCO's image_info files have no captions"
    raise InputError(source, "captions", found, _FORMS)


def _is_by_name(value: dict) -> bool:
    """Whether the keys of an object are names of images, and the values texts or lists of these."""
    texts = [each for each in value.values() if isinstance(each, str)]
    lists = [each for each in value.values() if isinstance(each, list) and not is_list_of(dict, each or [{}])]
    if not value or len(texts) + len(lists) < len(value):
        return False
    named = all(_FILE_NAME.fullmatch(key) for key in value)
    return named or (not texts and all(any(letter.isdigit() for letter in key) for key in value))


def _rows_of_karpathy(value: dict, source: str) -> list[dict[str, Any]]:
    """The images of Karpathy's own files (`dataset_coco.json`), each with its captions and its split."""
    rows = []
    for number, entry in enumerate(_objects(value, "images", source)):
        where = f"images {number}"
        names = [entry.get(key) for key in ("filepath", "filename") if key in entry]
        if "filename" not in entry or not is_list_of(str, names):
            raise InputError(source, where, f"the keys {sorted(entry)}", '"filename" and "sentences"')
        texts = [read_texts({"raw": [each.get("raw")]}, "raw", f"sentences of {where}", source)[0]
                 for each in _objects(entry, "sentences", source, f" of {where}")]  # fmt: skip
        rows.append({"image": "/".join(filter(None, names)), "caption": texts, "split": entry.get("split", "none")})
    return rows


def _open_coco(value: dict, columns: Columns, source: str, split: str) -> CaptionsFile:
    """COCO's own form: captions by the ids of their images."""
    names: dict[int | str, Any] = {}
    for place, (number, image) in enumerate(_coco_entries(value, "images", "id", source)):
        if number in names:
            raise InputError(source, f"id of images {place}", f"{number}, an id of two images", "every id once")
        names[number] = image.get("file_name")
    annotations = list(_coco_entries(value, "annotations", "image_id", source))
    if annotations and not any("caption" in each for _, each in annotations):
        found = f"no captions, but {', '.join(sorted(annotations[0][1]))}"[:120]
        raise InputError(source, "annotations", found, "the captions of these images: COCO's captions_*.json")
    rows = ((f"item {place}", {"image": names.get(number), "caption": each.get("caption")})
            for place, (number, each) in enumerate(annotations))  # fmt: skip
    file = collect_rows(source, rows, columns, split=split)
    return dataclasses.replace(file, skipped=len(names.keys() - {number for number, _ in annotations}))


def _objects(value: dict, key: str, source: str, where: str = "") -> list[dict[str, Any]]:
    """A list of objects under a key."""
    if not isinstance(value.get(key), list):
        raise InputError(source, f"{key}{where}", json_type(value.get(key)), "a list of objects")
    for place, entry in enumerate(value[key]):
        if not isinstance(entry, dict):
            raise InputError(source, f"{key} {place}{where}", json_type(entry), "an object")
    return value[key]


def _coco_entries(value: dict, key: str, field: str, source: str) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """The entries of one list of COCO's form, each with the id of its image."""
    for place, entry in enumerate(_objects(value, key, source)):
        if not isinstance(entry.get(field), int | str):
            raise InputError(source, f"{field} of {key} {place}", json_type(entry.get(field)), "a number or a string")
        yield entry[field], entry
