"""Read the rows of caption tables that are texts: with a header, as JSON lines, or as Flickr's lines without a header.

`caption_tables` collects the captions of the rows.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rococo_jax.data.caption_tables import Rows, caption_columns, choose_column
from rococo_jax.data.captions import json_type
from rococo_jax.data.read_options import Columns
from rococo_jax.errors import InputError
from rococo_jax.texts import JSON_LINES, file_suffix, is_well_formed, iterate_lines, open_table, read_jsonl

_EXPECTED = "a table of images and captions"


def table_rows(path: str, columns: Columns) -> Rows:
    """Return the rows of JSON lines, of Flickr's lines, or of a table with a header.

    Raises InputError: names the file, and the line.
    """
    if file_suffix(path) in JSON_LINES:
        return json_rows(path)
    is_flickr = _FLICKR.fullmatch(next(iterate_lines(path, _EXPECTED), "").rstrip("\r\n"))
    return _flickr_rows(path) if is_flickr else _delimited_rows(path, columns)


def json_rows(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of JSON lines as rows. Raises InputError: a line has no object."""
    for number, entry in read_jsonl(path, "image-text pairs as JSON lines"):
        if not isinstance(entry, dict):
            raise InputError(path, f"line {number}", json_type(entry), "an object with an image and captions")
        yield f"line {number}", entry


def _delimited_rows(path: str, columns: Columns) -> Iterator[tuple[str, Mapping[str, Any]]]:
    def has_roles(names: set[str]) -> bool:
        with contextlib.suppress(InputError):
            choose_column("image", header := sorted(names), columns, path)
            return bool(caption_columns(header, columns, path))
        return False

    if file_suffix(path) == ".txt" and not is_well_formed(path, _EXPECTED, has_roles) and _has_names_and_texts(path):
        yield from _named_lines(path)
        return
    header, rows = open_table(path, _EXPECTED, has_roles)
    choose_column("image", header, columns, path)
    caption_columns(header, columns, path)
    for number, cells in rows:
        yield f"row {number}", cells


# Lines of CLIP_benchmark's files (flickr30k_test_karpathy.txt): NAME.jpg, a comma, and a caption whose own commas and
# quotation marks have no meaning. Its reader (clip_benchmark/datasets/flickr.py) splits a stripped line at ".jpg,".
_NAMED = re.compile(r"(.+?\.(?:jpe?g|png)),(.*)", re.IGNORECASE)


def _has_names_and_texts(path: str) -> bool:
    lines = filter(None, map(str.strip, iterate_lines(path, _EXPECTED)))
    return next(lines, "").lower() == "image,caption" and all(map(_NAMED.fullmatch, lines))


def _named_lines(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(iterate_lines(path, _EXPECTED), 1):
        if match := _NAMED.fullmatch(line.strip()):
            yield f"line {number}", {"image": match[1], "caption": match[2]}


# Lines of Flickr8k.token.txt and results_20130124.token (NAME.jpg#0, tab, caption), and of Flickr30k's results.csv
# (NAME.jpg| 0| caption; one line lacks the second bar). Quotation marks belong to the caption.
_FLICKR = re.compile(r"([^\t|]+\.\w+)(?:#\d+\t|\| *\d+(?:\|| {2}))\s*(.*)|image_name\| *comment_number\| *comment")


def _flickr_rows(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(iterate_lines(path, _EXPECTED), 1):
        match = _FLICKR.fullmatch(text := line.rstrip("\r\n"))
        if match is None and text.strip():
            raise InputError(
                path, f"line {number}", repr(text)[:80], "NAME.jpg#0, a tab and a caption, or as results.csv"
            )
        if match and match[1]:
            yield f"line {number}", {"image": match[1], "caption": match[2]}
