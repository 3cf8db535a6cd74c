"""Read captions from JSON files.

    [{"image": "val2014/x.jpg", "caption": ["A man ...", ...]}, ...]         Karpathy's form (`captions`)
    [{"image": "val2014/x.jpg", "caption": "A man ..."}, ...]                one caption per item, as BLIP trains on
    [{"file_name": "x.jpg", "text": ["A man ...", ...]}, ...]                rows with other keys (`caption_tables`)
    {"images": [{"filename", "filepath", "split", "sentences": [{"raw"}]}]}   Karpathy's own dataset_coco.json
    {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}     COCO's own
    {"x.jpg": ["A man ...", ...], ...}                                       captions by image name

Karpathy's own files contain all splits of a data set, so the user has to choose one. Whether a file is one value or has
a value in each line is decided by its contents, not by its suffix.
"""

import contextlib
import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rococo_jax.data.caption_rows import json_rows
from rococo_jax.data.caption_tables import USUAL, CaptionsFile, check_split_choice, collect_rows
from rococo_jax.data.captions import captions_from_json, json_type, read_texts
from rococo_jax.data.read_options import Columns, ReadOptions
from rococo_jax.errors import InputError, is_list_of, object_of
from rococo_jax.storage import read_json
from rococo_jax.texts import JSON_LINES, file_suffix, iterate_lines

_EXPECTED = "a captions file"
_FORMS = "a list of images with captions, captions by the names of images, or COCO's or Karpathy's own form"
_FILE_NAME = re.compile(r"[^\n]*\.[A-Za-z]\w{1,4}")


def open_json(source: str, options: ReadOptions) -> CaptionsFile:
    """Read the captions of a JSON file.

    Raises InputError: names the item and the field, or the splits of a file if none is requested.
    """
    if _has_lines(source):
        return collect_rows(source, json_rows(source), options)
    value, must_choose = read_json(source, _EXPECTED), False
    columns = options.requested_columns
    rows: Sequence[dict[str, Any]]
    if isinstance(value, dict):
        if {"images", "annotations"} <= value.keys():
            return _open_coco(value, source, options)
        images = value.get("images")
        must_choose = isinstance(images, list) and any("sentences" in object_of(each) for each in images)
        rows = _rows_of_karpathy(value, source) if must_choose else _rows_of_object(value, columns, source)
    elif value and is_list_of(dict, value) and (columns or _is_rows(value)):
        rows = value
    else:
        check_split_choice(source, options.row_split, {})
        return CaptionsFile(source, tuple(captions_from_json(value, source)))
    numbered = ((f"item {number}", row) for number, row in enumerate(rows))
    return collect_rows(source, numbered, options, must_choose)


def is_one_value(source: str) -> bool:
    """Return whether a file named as JSON lines is one JSON value that spans its lines."""
    if file_suffix(source) not in JSON_LINES:
        return False
    first = next(filter(None, map(str.strip, iterate_lines(source, _EXPECTED))), "")
    value = _value_of(first)
    return first == "{" or (first.startswith("[") and (value is None or (value != [] and is_list_of(dict, value))))


def _has_lines(source: str) -> bool:
    """Return whether a file has an object in each line."""
    lines = [*itertools.islice(filter(None, map(str.strip, iterate_lines(source, _EXPECTED))), 2)]
    return len(lines) == 2 and isinstance(_value_of(lines[0]), dict)


def _value_of(line: str) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(line)
    return None


def _is_rows(items: Sequence[dict[str, Any]]) -> bool:
    """Return whether items are rows of a table: they have other keys than Karpathy's form, one caption, or a split."""
    return not {"image", "caption"} & items[0].keys() or any(
        isinstance(item.get("caption"), str) or "split" in item for item in items
    )


def _rows_of_object(value: dict, columns: Columns, source: str) -> list[dict[str, Any]]:
    """Return the rows of an object that is itself a row, or has captions by image name.

    Raises InputError: it is another object.
    """
    keys = {key.strip().lower() for key in value}
    images = [each for key, each in value.items() if key in columns.values() or key.strip().lower() in USUAL["image"]]
    captions = keys & {*USUAL["caption"]} or {*columns.values()} & value.keys()
    if images and captions:
        if isinstance(images[0], str):
            return [value]
        expected = "a row for each image: DataFrame.to_json(FILE, orient='records', lines=True) in pandas"
        raise InputError(source, "captions", "an object of columns", expected)
    if _is_by_name(value):
        return [{"image": name, "caption": texts} for name, texts in value.items()]
    first_keys = ", ".join(repr(key[:40]) for key in list(value)[:6]) + (", ..." if len(value) > 6 else "")
    problem = f"an object with the keys {first_keys}" if value else "an object without a key"
    if value.keys() >= {"images"}:
        problem += ", and no annotations: COCO's image_info files have no captions"
    raise InputError(source, "captions", problem, _FORMS)


def _is_by_name(value: dict) -> bool:
    """Return whether the keys of an object are image names, and its values are texts or lists of texts."""
    texts = [each for each in value.values() if isinstance(each, str)]
    lists = [each for each in value.values() if isinstance(each, list) and not is_list_of(dict, each or [{}])]
    if not value or len(texts) + len(lists) < len(value):
        return False
    are_file_names = all(_FILE_NAME.fullmatch(key) for key in value)
    return are_file_names or (not texts and all(any(letter.isdigit() for letter in key) for key in value))


def _rows_of_karpathy(value: dict, source: str) -> list[dict[str, Any]]:
    """Return the images of Karpathy's own files (`dataset_coco.json`) as rows with captions and split."""
    rows = []
    for number, entry in enumerate(_objects(value, "images", source)):
        location = f"images {number}"
        names = [entry.get(key) for key in ("filepath", "filename") if key in entry]
        if "filename" not in entry or not is_list_of(str, names):
            raise InputError(source, location, f"the keys {sorted(entry)}", '"filename" and "sentences"')
        texts = [read_texts({"raw": [each.get("raw")]}, "raw", f"sentences of {location}", source)[0]
                 for each in _objects(entry, "sentences", source, f" of {location}")]  # fmt: skip
        rows.append({"image": "/".join(filter(None, names)), "caption": texts, "split": entry.get("split", "none")})
    return rows


def _open_coco(value: dict, source: str, options: ReadOptions) -> CaptionsFile:
    """Read COCO's own form: captions by image id."""
    names: dict[int | str, Any] = {}
    for number, (image_id, image) in enumerate(_coco_entries(value, "images", "id", source)):
        if image_id in names:
            raise InputError(source, f"id of images {number}", f"{image_id}, an id of two images", "every id once")
        names[image_id] = image.get("file_name")
    annotations = list(_coco_entries(value, "annotations", "image_id", source))
    if annotations and not any("caption" in annotation for _, annotation in annotations):
        problem = f"no captions, but {', '.join(sorted(annotations[0][1]))}"[:120]
        raise InputError(source, "annotations", problem, "the captions of these images: COCO's captions_*.json")
    for number, (image_id, _) in enumerate(annotations):
        if image_id not in names:
            problem = f"{image_id!r}, the id of no image"
            raise InputError(
                source, f"image_id of annotations {number}", problem, f"one of the {len(names):,} `images`"
            )
    rows = (
        (f"item {number}", {"image": names[image_id], "caption": annotation.get("caption")})
        for number, (image_id, annotation) in enumerate(annotations)
    )
    file = collect_rows(source, rows, options)
    return dataclasses.replace(file, skipped=len(names.keys() - {image_id for image_id, _ in annotations}))


def _objects(value: dict, key: str, source: str, location: str = "") -> list[dict[str, Any]]:
    """Return the list of objects under a key."""
    if not isinstance(value.get(key), list):
        raise InputError(source, f"{key}{location}", json_type(value.get(key)), "a list of objects")
    for number, entry in enumerate(value[key]):
        if not isinstance(entry, dict):
            raise InputError(source, f"{key} {number}{location}", json_type(entry), "an object")
    return value[key]


def _coco_entries(value: dict, key: str, field: str, source: str) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """Yield the entries of a list of COCO's form, each with the id of its image."""
    for number, entry in enumerate(_objects(value, key, source)):
        if not isinstance(entry.get(field), int | str):
            raise InputError(source, f"{field} of {key} {number}", json_type(entry.get(field)), "a number or a string")
        yield entry[field], entry
