"""Published annotation records, with checked access to their fields.

Files are JSON (a list, or an object of records by id), JSON lines, tables or Parquet. Errors name file, record and
field.
"""

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.choices.items import Box, Picture
from rococo_jax.data.captions import json_type, refuse_image_data
from rococo_jax.data.list_cells import MalformedList, parse_list
from rococo_jax.data.tables import ParquetTable
from rococo_jax.errors import InputError, require_file
from rococo_jax.safe_paths import is_inner_file
from rococo_jax.storage import hash_file, hash_json, read_json
from rococo_jax.texts import JSON_LINES, file_suffix, iterate_lines, open_table, read_jsonl, read_lines


@dataclasses.dataclass(frozen=True)
class Record:
    """An entry of a file.

    Attributes:
        source: the file.
        id: its key, line or position in the file.
        value: an object, or a list whose fields are positions.
        side_lines: lines of further files of the folder, by file name (`ChoiceReader.side_files`).
    """

    source: Path
    id: str
    value: Any
    side_lines: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)

    def error(self, field: object, found: object, wanted: str) -> InputError:
        """Return the error to raise for a field."""
        return InputError(self.source, f"item {self.id}: {field}", found, wanted)

    def get(self, field: str | int, wanted: str = "the field") -> Any:
        """Return the value of a field."""
        value = self.value
        if isinstance(value, dict) and field in value:
            return value[field]
        if isinstance(value, list) and isinstance(field, int) and field < len(value):
            return value[field]
        found = f"the fields {sorted(map(str, value))}" if isinstance(value, dict) else json_type(value)
        raise self.error(field, f"nothing ({found})"[:120], wanted)

    def text(self, field: str | int) -> str:
        """Return a field that is a non-empty string."""
        return self._text(field, self.get(field, "a non-empty string"))

    def texts(self, field: str | int) -> tuple[str, ...]:
        """Return a field that is a list of texts, or, in a table, a cell with such a list (`list_cells`)."""
        value = self.get(field, "a list of texts")
        if isinstance(value, str):
            try:
                value = parse_list(value) or value
            except MalformedList as error:
                raise self.error(field, f"{error}: {value[:40]!r}", "a list of texts") from None
        if not isinstance(value, list) or not value:
            raise self.error(field, repr(value)[:80], "a list of texts, at least one")
        return tuple(self._text(f"{field} {place}", one) for place, one in enumerate(value))

    def _text(self, field: object, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self.error(field, repr(value)[:80], "a non-empty string")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self.error(field, "half of a surrogate pair", "whole Unicode characters")
        return value

    def label(self, field: str | int) -> str:
        """Return a field that is an id or a label: a non-empty string or a whole number."""
        value = self.get(field, "an id")
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            raise self.error(field, repr(value)[:80], "a string or a whole number")
        return str(value).strip()

    def number(self, field: str | int) -> int:
        """Return a field that is a whole number, as a number or as text."""
        value = self.get(field, "a whole number")
        try:
            number = float(value) if not isinstance(value, bool) else None
            if number is not None and number == int(number):
                return int(number)
        except (TypeError, ValueError, OverflowError):
            pass
        raise self.error(field, repr(value)[:80], "a whole number")

    def numbers(self, field: str | int) -> list[float]:
        """Return a field that is a list of finite numbers, or, in a table, a cell with such a list as JSON."""
        value = self.get(field, "a list of numbers")
        if isinstance(value, str):
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(value)
        if not isinstance(value, list) or any(type(number) not in (int, float) for number in value):
            raise self.error(field, repr(value)[:80], "a list of numbers")
        if not all(map(math.isfinite, value)):
            raise self.error(field, "NaN or infinite values", "numbers")
        return [*map(float, value)]

    def link(self, field: str | int) -> Picture:
        """Return an image named by the last part of a link or path."""
        return self.image(field, last=True)

    def image(self, field: str | int, name: str = "{}", last: bool = False) -> Picture:
        """Return an image by its name, a path inside the folder of images.

        Args:
            field: the field.
            name: template of the name, with `{}` for the field.
            last: use only the last part of the field, which is a link or path.
        """
        named = self.text(field) if name == "{}" else name.format(self.label(field))
        named = named.rpartition("/")[2] if last else named
        refuse_image_data(named, f"item {self.id}: {field}", self.source)
        if not is_inner_file(named):
            raise self.error(field, repr(named)[:80], "a path inside the image folder")
        return Picture(named)

    def crop(self, image: Picture, x: str | int, y: str | int, width: str | int, height: str | int) -> Picture:
        """Return the region of an image inside a box that is given by its corner and size."""
        left, top = self.number(x), self.number(y)
        return self.inside(image, (left, top, left + self.number(width), top + self.number(height)))

    def inside(self, image: Picture, box: Box) -> Picture:
        """Return the region of an image inside a box. Outside the image, `Image.crop` makes it black."""
        left, top, right, bottom = box
        if not (left < right and top < bottom):
            raise self.error("box", list(box), "left < right and top < bottom")
        return dataclasses.replace(image, box=box)

    def child(self, field: str | int) -> "Record":
        """Return a field that is an object or a list, as a record."""
        value = self.get(field, "an object or a list")
        if not isinstance(value, dict | list):
            raise self.error(field, json_type(value), "an object or a list")
        return Record(self.source, f"{self.id}: {field}", value)


def read_side_lines(folder: Path, names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the lines of the files that exist, by file name."""
    paths = [folder / name for name in names if (folder / name).is_file()]
    return {path.name: frozenset(map(str.strip, read_lines(path, "entries, one per line"))) for path in paths}


def read_records(path: Path) -> tuple[str, Iterator[Record]]:
    """Return a file's hash and its records, in file order. Raises InputError: it cannot be read or has no record."""
    if file_suffix(path) == ".parquet":
        rows = enumerate(ParquetTable(path).named_rows())
        return hash_file(path), (Record(path, f"{path.stem}/{row}", value) for row, value in rows)
    if file_suffix(path) == ".json":
        value = read_json(path, "a file of items")
        if not isinstance(value, dict | list) or not value:
            raise InputError(
                path, "items", json_type(value), "an object of items by id, at least one, or a list of them"
            )
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        return hash_json(value), (_record(path, key, entry) for key, entry in entries)
    require_file(path, "a file of items")
    return hash_file(path), _of_lines(path)


def _of_lines(path: Path) -> Iterator[Record]:
    count = 0
    if file_suffix(path) in JSON_LINES:
        for number, entry in read_jsonl(path, "items as JSON lines"):
            yield _record(path, f"in line {number}", entry)
            count += 1
    else:
        for count, row in open_table(path, "a table of items").rows:
            yield Record(path, str(count - 1), row)
    if not count:
        raise InputError(path, "items", "none", "at least one")


def _record(path: Path, key: object, entry: Any) -> Record:
    if not isinstance(entry, dict | list):
        raise InputError(path, f"item {key}", json_type(entry), "an object or a list of fields")
    return Record(path, str(key), entry)


def holds_object(path: Path) -> bool:
    """Return whether the first character of a JSON file opens an object."""
    return _first_character(path) == "{"


def holds_list(path: Path) -> bool:
    """Return whether the first character of a JSON file opens a list."""
    return _first_character(path) == "["


def _first_character(path: Path) -> str:
    with contextlib.suppress(InputError):
        return next((line.lstrip()[0] for line in iterate_lines(path, "JSON") if line.strip()), "")
    return ""
