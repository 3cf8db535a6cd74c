"""Captions in JSON, in the forms that people have them.

    [{"image": "val2014/x.jpg", "caption": ["A man ...", ...]}, ...]         the Karpathy form (`captions`)
    [{"image": "val2014/x.jpg", "caption": "A man ..."}, ...]                a caption an item, as BLIP trains on
    [{"file_name": "x.jpg", "text": ["A man ...", ...]}, ...]                rows with other keys (`caption_tables`)
    {"images": [{"filename", "filepath", "split", "sentences": [{"raw"}]}]}   Karpathy's own dataset_coco.json
    {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}     COCO's own

Karpathy's own files hold all splits of a data set, so that the user must choose.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.data.caption_tables import CaptionsFile, Columns, collect_rows, said_of_splits
from rococo_jax.data.captions import captions_from_json, kind_of, read_texts
from rococo_jax.errors import InputError, is_list_of, object_of
from rococo_jax.storage import read_json


def open_json(source: str, columns: Columns, roots: Iterable[Path], split: str) -> CaptionsFile:
    """The captions of a JSON file; arguments as `captioned_images.read_captions` has them.

    Raises InputError: it names the item and the field, or the splits of a file of which none is chosen.
    """
    value = read_json(source, "a captions file")
    if isinstance(value, dict) and {"images", "annotations"} <= value.keys():
        return _open_coco(value, columns, source, split)
    if isinstance(value, dict) and any("sentences" in object_of(each) for each in (value.get("images") or ())):
        rows, must_choose = _rows_of_karpathy(value, source), True
    elif value and is_list_of(dict, value) and (columns or _is_rows(value)):
        rows, must_choose = value, False
    else:
        said_of_splits(source, split, {})
        return CaptionsFile(source, tuple(captions_from_json(value, source)))
    numbered = ((f"item {number}", row) for number, row in enumerate(rows))
    return collect_rows(source, numbered, columns, roots, split, must_choose)


def _is_rows(items: Sequence[dict[str, Any]]) -> bool:
    """Whether items are rows with other keys than the Karpathy form's, or with a caption each, or of splits."""
    return not {"image", "caption"} & items[0].keys() or any(
        isinstance(item.get("caption"), str) or "split" in item for item in items
    )


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
    rows = ((f"item {place}", {"image": names.get(number), "caption": each.get("caption")})
            for place, (number, each) in enumerate(annotations))  # fmt: skip
    file = collect_rows(source, rows, columns, split=split)
    return dataclasses.replace(file, skipped=len(names.keys() - {number for number, _ in annotations}))


def _objects(value: dict, key: str, source: str, where: str = "") -> list[dict[str, Any]]:
    """A list of objects under a key."""
    if not isinstance(value.get(key), list):
        raise InputError(source, f"{key}{where}", kind_of(value.get(key)), "a list of objects")
    for place, entry in enumerate(value[key]):
        if not isinstance(entry, dict):
            raise InputError(source, f"{key} {place}{where}", kind_of(entry), "an object")
    return value[key]


def _coco_entries(value: dict, key: str, field: str, source: str) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """The entries of one list of COCO's form, each with the id of its image."""
    for place, entry in enumerate(_objects(value, key, source)):
        if not isinstance(entry.get(field), int | str):
            raise InputError(source, f"{field} of {key} {place}", kind_of(entry.get(field)), "a number or a string")
        yield entry[field], entry
