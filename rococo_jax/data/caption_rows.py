"""Read captions from text files: each form yields rows, of which `caption_tables` collects the captions.

    image,caption                                                            a table with a header
    {"image": "x.jpg", "caption": "A man ..."}                               JSON lines, also a single one
    x.jpg#0    A man ...                                                     Flickr's lines without a header
    [{"image": "val2014/x.jpg", "caption": ["A man ...", ...]}, ...]         Karpathy's form (`captions`)
    [{"image": "val2014/x.jpg", "caption": "A man ..."}, ...]                one caption per item, as BLIP trains on
    [{"file_name": "x.jpg", "text": ["A man ...", ...]}, ...]                rows with other keys
    {"images": [{"filename", "filepath", "split", "sentences": [{"raw"}]}]}   Karpathy's own dataset_coco.json
    {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}     COCO's own
    {"x.jpg": ["A man ...", ...], ...}                                       captions by image name

Karpathy's own files contain all splits of a data set, so the user has to choose one. Whether a JSON file is one value
or has a value in each line is decided by its contents, not by its suffix.
"""

import contextlib
import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rococo_jax.data.caption_tables import (
    USUAL,
    CaptionsFile,
    Rows,
    caption_columns,
    check_split_choice,
    choose_column,
    collect_rows,
)
from rococo_jax.data.captions import Columns, ReadOptions, captions_from_json, json_type
from rococo_jax.errors import InputError, is_list_of
from rococo_jax.storage import read_json
from rococo_jax.texts import JSON_LINES, file_suffix, is_well_formed, iterate_lines, open_table, read_jsonl

_EXPECTED = "a captions file"
_FORMS = "a list of images with captions, captions by the names of images, or COCO's or Karpathy's own form"
_FILE_NAME = re.compile(r"[^\n]*\.[A-Za-z]\w{1,4}")


def open_json(source: str, options: ReadOptions) -> CaptionsFile:
    """Read the captions of a JSON file.

    Raises InputError: names the item and the field, or the splits of a file if none is requested.
    """
    if _has_lines(source):
        return collect_rows(source, _json_rows(source), options)
    value = read_json(source, _EXPECTED)
    if isinstance(value, list) and not (is_list_of(dict, value) and _is_rows(value, options.requested_columns)):
        check_split_choice(source, options.split, {})
        return CaptionsFile(source, tuple(captions_from_json(value, source)))
    if isinstance(value, list):
        return collect_rows(source, ((f"item {number}", row) for number, row in enumerate(value)), options)
    if not isinstance(value, dict):
        raise InputError(source, "captions", json_type(value), _FORMS)
    if {"images", "annotations"} <= value.keys():
        return _open_coco(value, source, options)
    if is_list_of(dict, value.get("images")) and any("sentences" in image for image in value["images"]):
        return collect_rows(source, _rows_of_karpathy(value, source), options, must_choose=True)
    return collect_rows(source, _rows_of_object(value, options.requested_columns, source), options)


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


def _is_rows(items: Sequence[dict[str, Any]], columns: Columns) -> bool:
    """Return whether items are rows of a table: they have other keys than Karpathy's form, one caption, or a split."""
    has_other_keys = bool(items) and (bool(columns) or not {"image", "caption"} & items[0].keys())
    return has_other_keys or any(isinstance(item.get("caption"), str) or "split" in item for item in items)


def _rows_of_object(value: dict, columns: Columns, source: str) -> Rows:
    """Return the rows of an object that is itself a row, or has captions by image name.

    Raises InputError: it is another object.
    """
    keys = {key.strip().lower() for key in value}
    images = [each for key, each in value.items() if key in columns.values() or key.strip().lower() in USUAL["image"]]
    captions = keys & {*USUAL["caption"]} or {*columns.values()} & value.keys()
    if images and captions:
        if isinstance(images[0], str):
            return [("item 0", value)]
        expected = "a row for each image: DataFrame.to_json(FILE, orient='records', lines=True) in pandas"
        raise InputError(source, "captions", "an object of columns", expected)
    if _is_by_name(value):
        rows = ({"image": name, "caption": texts} for name, texts in value.items())
        return ((f"item {number}", row) for number, row in enumerate(rows))
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


def _rows_of_karpathy(value: dict, source: str) -> Rows:
    """Yield the images of Karpathy's own files (`dataset_coco.json`) as rows with captions and split."""
    for number, image in enumerate(_objects(value, "images", source)):
        location = f"images {number}"
        names = [image.get(key) for key in ("filepath", "filename") if key in image]
        if "filename" not in image or not is_list_of(str, names):
            raise InputError(source, location, f"the keys {sorted(image)}", '"filename" and "sentences"')
        texts = [each.get("raw") for each in _objects(image, "sentences", source, f" of {location}")]
        row = {"image": "/".join(filter(None, names)), "caption": texts, "split": image.get("split", "none")}
        yield location, row


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


# Tables and lines

_TABLE = "a table of images and captions"


def open_text_table(source: str, options: ReadOptions) -> CaptionsFile:
    """Read the captions of JSON lines, of Flickr's lines, or of a table with a header.

    Raises InputError: names the file, and the line.
    """
    if file_suffix(source) in JSON_LINES:
        rows: Rows = _json_rows(source)
    elif _FLICKR.fullmatch(next(iterate_lines(source, _TABLE), "").rstrip("\r\n")):
        rows = _flickr_rows(source)
    else:
        rows = _delimited_rows(source, options.requested_columns)
    return collect_rows(source, rows, options)


def _json_rows(path: str) -> Rows:
    """Yield the objects of JSON lines as rows. Raises InputError: a line has no object."""
    for number, entry in read_jsonl(path, "image-text pairs as JSON lines"):
        if not isinstance(entry, dict):
            raise InputError(path, f"line {number}", json_type(entry), "an object with an image and captions")
        yield f"line {number}", entry


def _delimited_rows(path: str, columns: Columns) -> Rows:
    def has_roles(names: set[str]) -> bool:
        with contextlib.suppress(InputError):
            choose_column("image", header := sorted(names), columns, path)
            return bool(caption_columns(header, columns, path))
        return False

    if file_suffix(path) == ".txt" and not is_well_formed(path, _TABLE, has_roles) and _has_names_and_texts(path):
        yield from _named_lines(path)
        return
    header, rows = open_table(path, _TABLE, has_roles)
    choose_column("image", header, columns, path)
    caption_columns(header, columns, path)
    for number, cells in rows:
        yield f"row {number}", cells


# Lines of CLIP_benchmark's files (flickr30k_test_karpathy.txt): NAME.jpg, a comma, and a caption whose own commas and
# quotation marks have no meaning. Its reader (clip_benchmark/datasets/flickr.py) splits a stripped line at ".jpg,".
_NAMED = re.compile(r"(.+?\.(?:jpe?g|png)),(.*)", re.IGNORECASE)


def _has_names_and_texts(path: str) -> bool:
    lines = filter(None, map(str.strip, iterate_lines(path, _TABLE)))
    return next(lines, "").lower() == "image,caption" and all(map(_NAMED.fullmatch, lines))


def _named_lines(path: str) -> Rows:
    for number, line in enumerate(iterate_lines(path, _TABLE), 1):
        if match := _NAMED.fullmatch(line.strip()):
            yield f"line {number}", {"image": match[1], "caption": match[2]}


# Lines of Flickr8k.token.txt and results_20130124.token (NAME.jpg#0, tab, caption), and of Flickr30k's results.csv
# (NAME.jpg| 0| caption; one line lacks the second bar). Quotation marks belong to the caption.
_FLICKR = re.compile(r"([^\t|]+\.\w+)(?:#\d+\t|\| *\d+(?:\|| {2}))\s*(.*)|image_name\| *comment_number\| *comment")


def _flickr_rows(path: str) -> Rows:
    for number, line in enumerate(iterate_lines(path, _TABLE), 1):
        match = _FLICKR.fullmatch(text := line.rstrip("\r\n"))
        if match is None and text.strip():
            raise InputError(
                path, f"line {number}", repr(text)[:80], "NAME.jpg#0, a tab and a caption, or as results.csv"
            )
        if match and match[1]:
            yield f"line {number}", {"image": match[1], "caption": match[2]}
