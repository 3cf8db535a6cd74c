"""Records of published annotation files, with checked access to their fields: every reader's bad input ends here.

JSON (a list, or an object of records by id), JSON lines, tables and Parquet. An error names file, record and field.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from rococo_jax.benchmarks.choices.items import Box, Picture
from rococo_jax.data.captions import json_type, refuse_image_data
from rococo_jax.data.list_cells import MalformedList, parse_list
from rococo_jax.data.parquet_table import ParquetTable
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_file, hash_json, read_json
from rococo_jax.texts import JSON_LINES, file_suffix, iterate_lines, open_table, read_jsonl, read_lines


@dataclasses.dataclass(frozen=True)
class Record:
    """One entry of a file.

    Attributes:
        source: the file.
        id: its key, its line, or its place.
        value: an object, or a list, whose fields are places.
        beside: lines of further files of the folder, by their names (`ChoiceReader.beside`).
    """

    source: Path
    id: str
    value: Any
    beside: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)

    def refuse(self, field: object, found: object, wanted: str) -> InputError:
        """The error to raise for a field."""
        return InputError(self.source, f"item {self.id}: {field}", found, wanted)

    def get(self, field: str | int, wanted: str = "the field") -> Any:
        """A field's value."""
        value = self.value
        if isinstance(value, dict) and field in value:
            return value[field]
        if isinstance(value, list) and isinstance(field, int) and field < len(value):
            return value[field]
        found = f"the fields {sorted(map(str, value))}" if isinstance(value, dict) else json_type(value)
        raise self.refuse(field, f"nothing ({found})"[:120], wanted)

    def text(self, field: str | int) -> str:
        """A text: a non-empty string."""
        return self._text(field, self.get(field, "a non-empty string"))

    def texts(self, field: str | int) -> tuple[str, ...]:
        """Several texts: a list, or in a table one that is written in a cell (`list_cells`); at least one."""
        value = self.get(field, "a list of texts")
        if isinstance(value, str):
            try:
                value = parse_list(value) or value
            except MalformedList as error:
                raise self.refuse(field, f"{error}: {value[:40]!r}", "a list of texts") from None
        if not isinstance(value, list) or not value:
            raise self.refuse(field, repr(value)[:80], "a list of texts, at least one")
        return tuple(self._text(f"{field} {place}", one) for place, one in enumerate(value))

    def _text(self, field: object, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(field, repr(value)[:80], "a non-empty string")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self.refuse(field, "half of a surrogate pair", "whole Unicode characters")
        return value

    def word(self, field: str | int) -> str:
        """An id or a label: a non-empty string or a whole number."""
        value = self.get(field, "an id")
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            raise self.refuse(field, repr(value)[:80], "a string or a whole number")
        return str(value).strip()

    def number(self, field: str | int) -> int:
        """A whole number, as a number or in words."""
        value = self.get(field, "a whole number")
        try:
            number = float(value) if not isinstance(value, bool) else None
            if number is not None and number == int(number):
                return int(number)
        except (TypeError, ValueError, OverflowError):
            pass
        raise self.refuse(field, repr(value)[:80], "a whole number")

    def link(self, field: str | int) -> Picture:
        """An image by the last part of a link or path."""
        return self.image(field, last=True)

    def image(self, field: str | int, name: str = "{}", last: bool = False) -> Picture:
        """An image by its name, a path inside the folder of images; `name` makes it of the field."""
        named = self.text(field) if name == "{}" else name.format(self.word(field))
        named = named.rpartition("/")[2] if last else named
        refuse_image_data(named, f"item {self.id}: {field}", self.source)
        path = PureWindowsPath(named)  # in which both slashes separate folders, so that it is safe on every system
        if path.anchor or ".." in path.parts or not path.parts or "\0" in named:
            raise self.refuse(field, repr(named)[:80], "a path inside the image folder")
        return Picture(named)

    def crop(self, image: Picture, x: str | int, y: str | int, width: str | int, height: str | int) -> Picture:
        """The part of an image inside a box that is given by its corner and size."""
        left, top = self.number(x), self.number(y)
        return self.inside(image, (left, top, left + self.number(width), top + self.number(height)))

    def inside(self, image: Picture, box: Box) -> Picture:
        """The part of an image inside a box, which may reach outside: `Image.crop` puts black there."""
        left, top, right, bottom = box
        if not (left < right and top < bottom):
            raise self.refuse("box", list(box), "left < right and top < bottom")
        return dataclasses.replace(image, box=box)

    def under(self, field: str | int) -> "Record":
        """A field that is an object or a list itself."""
        value = self.get(field, "an object or a list")
        if not isinstance(value, dict | list):
            raise self.refuse(field, json_type(value), "an object or a list")
        return Record(self.source, f"{self.id}: {field}", value)


def lines_beside(folder: Path, names: Iterable[str]) -> dict[str, frozenset[str]]:
    """The lines of those files that are there, by their names."""
    there = [folder / name for name in names if (folder / name).is_file()]
    return {path.name: frozenset(map(str.strip, read_lines(path, "entries, one a line"))) for path in there}


def read_records(path: Path) -> tuple[str, Iterator[Record]]:
    """A file's hash and its records, in file order. Raises InputError: it cannot be read, or holds no record."""
    if file_suffix(path) == ".parquet":
        rows = enumerate(ParquetTable(path).rows())
        return hash_file(path), (Record(path, f"{path.stem}/{row}", value) for row, value in rows)
    if file_suffix(path) == ".json":
        value = read_json(path, "a file of items")
        if not isinstance(value, dict | list) or not value:
            raise InputError(
                path, "items", json_type(value), "an object of items by id, at least one, or a list of them"
            )
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        return hash_json(value), (_record(path, key, entry) for key, entry in entries)
    if not path.is_file():
        raise InputError(path, "file", "nothing there", "a file of items")
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
    """Whether a JSON file holds an object, told by its first character."""
    return _first_character(path) == "{"


def holds_list(path: Path) -> bool:
    """Whether a JSON file holds a list, told by its first character."""
    return _first_character(path) == "["


def _first_character(path: Path) -> str:
    with contextlib.suppress(InputError):
        return next((line.lstrip()[0] for line in iterate_lines(path, "JSON") if line.strip()), "")
    return ""
