"""Open the texts and tables that people bring, all in one way: captions, labels, templates, lists, scores.

A text is UTF-8, or UTF-16 or UTF-32 with its byte order mark; a mark is no part of it, and a file may be packed
(`.gz`). Lines end at LF or CRLF, and at CR in a file that has no LF; other characters that Unicode calls line ends are
part of a line. A zero byte is no text. The form of a file is its suffix, in large or small letters.

In a table with commas, semicolons or bars a cell may be quoted: `"` around it, doubled inside, as the `csv` module of
Python reads it. A quoted cell that holds further rows of the table is refused: its mark was part of a text. In a table
with tabs a quotation mark is a letter like any other (IANA, text/tab-separated-values), unless every cell of the file
that begins with one is quoted correctly and holds no further row; this is decided once, for all cells.
"""

import codecs
import contextlib
import csv
import dataclasses
import gzip
import io
import itertools
import json
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.errors import InputError, first_line

JSON_LINES = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", ".tab")
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
# Texts pack 3 to 20 times, the most repetitive tables some 50 times; deflate itself reaches 1,032.
_LARGEST_TEXT_RATIO, _ALWAYS_UNPACKED = 100, 1 << 26
_DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_SPREADSHEETS = (".xlsx", ".xls", ".ods")
# First bytes of other kinds of files.
_BINARY = {
    b"PK\x03\x04": "a zip archive", b"ARROW1": "an Arrow file", b"PAR1": "a Parquet file", b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array", b"%PDF": "a PDF", b"\x80\x04\x95": "a pickle", b"\x80\x05\x95": "a pickle",
    b"\x1f\x8b": "a gzip file, whose name would end in .gz", b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image", b"SQLite format 3": "an SQLite database",
}  # fmt: skip
# Characters of a cell: an image as base64 text has millions, and a mark that is never closed has the rest of a file.
_LONGEST_CELL = 2**26
# Cells that tell a row from a line of a text: names of files with a suffix, links, and numbers.
_NAME = re.compile(r"[^\n]*\.[A-Za-z]\w{1,4}")
_LINK = re.compile(r"\w+://\S+")
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?%?")


def form_of(path: str | os.PathLike) -> str:
    """The suffix in small letters, without that of packing.

    >>> form_of("Labels.CSV"), form_of("ratings.csv.gz")
    ('.csv', '.csv')
    """
    return Path(str(path).lower().removesuffix(".gz")).suffix


def find_file(folder: Path, names: Collection[str]) -> Path | None:
    """The first of `names` that a folder has, whatever the case of its suffix; None where it has none."""
    spelt = {path.stem + path.suffix.lower(): path for path in sorted(folder.iterdir())} if folder.is_dir() else {}
    return next((spelt[name] for name in names if name in spelt and spelt[name].is_file()), None)


@contextlib.contextmanager
def _text_file(path: str | os.PathLike, wanted: str) -> Iterator[None]:
    """Raises InputError where the block reads a file that is missing, a folder, badly packed, or no text."""
    if form_of(path) in _SPREADSHEETS and Path(path).is_file():
        raise InputError(path, "file", f"a spreadsheet ({form_of(path)})", f"{wanted}: save it as CSV in UTF-8")
    try:
        yield
    except FileNotFoundError:
        raise InputError(path, "file", "nothing there", wanted) from None
    except IsADirectoryError:
        raise InputError(path, "file", "a folder", wanted) from None
    except UnicodeError:
        with _open(path, wanted) as file:  # the error counts from the last block
            raise _no_text(path, file.read(), wanted) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(path, "file", f"badly packed ({first_line(error)})", f"{wanted}, whole") from None


class _Unpacked(gzip.GzipFile):
    """A `.gz` file that is refused once it gives many times its packed size: a text never packs that well.

    Without a limit a file of a few megabytes can take all memory.
    """

    def __init__(self, path: str | os.PathLike, wanted: str):
        super().__init__(path, "rb")
        self._path, self._wanted, self._packed = path, wanted, Path(path).stat().st_size
        self._left = max(_ALWAYS_UNPACKED, _LARGEST_TEXT_RATIO * self._packed)

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(self._left + 1 if size is None or size < 0 else size)
        self._left -= len(data)
        if self._left < 0:
            found = f"over {_LARGEST_TEXT_RATIO} times its {self._packed:,} bytes when unpacked"
            raise InputError(self._path, "file", found, f"{self._wanted}; if that is right, unpacked (gunzip)")
        return data


def _open(path: str | os.PathLike, wanted: str) -> Any:
    return _Unpacked(path, wanted) if str(path).lower().endswith(".gz") else Path(path).open("rb")


def _encoding_of(start: bytes) -> str:
    return next((encoding for mark, encoding in _MARKS.items() if start.startswith(mark)), "utf-8")


def _no_text(source: object, data: bytes, wanted: str) -> InputError:
    encoding = _encoding_of(data)
    kind = next((f" ({kind})" for start, kind in _BINARY.items() if data.startswith(start)), "")
    try:
        zero = data.decode(encoding).find("\0")
        return InputError(source, "encoding", f"a zero byte at character {zero}{kind}", f"{wanted}, in UTF-8")
    except UnicodeDecodeError as error:
        name = encoding.removesuffix("-sig").upper()
        return InputError(source, "encoding", f"bytes that are not {name} at offset {error.start}{kind}", wanted)


def decode_text(data: bytes, source: object, wanted: str) -> str:
    """A text from its bytes. Raises InputError where they are none."""
    with contextlib.suppress(UnicodeError):
        if "\0" not in (text := data.decode(_encoding_of(data))):
            return text
    raise _no_text(source, data, wanted)


def read_text(path: str | os.PathLike, wanted: str) -> str:
    """A whole text. Raises InputError where the file is missing or no text; `wanted` describes the content."""
    with _text_file(path, wanted), _open(path, wanted) as file:
        return decode_text(file.read(), path, wanted)


def split_lines(text: str) -> list[str]:
    r"""The lines of a text, without their ends.

    >>> split_lines("a\r\nb\x85c\n"), split_lines("a\rb")
    (['a', 'b\x85c'], ['a', 'b'])
    """
    lines = text.replace("\r\n", "\n").split("\n") if "\n" in text else text.split("\r")
    return lines[:-1] if lines[-1] == "" else lines


def read_lines(path: str | os.PathLike, wanted: str) -> list[str]:
    """The lines of a file, without their ends. Raises InputError as `read_text`."""
    return split_lines(read_text(path, wanted))


def iterate_lines(path: str | os.PathLike, wanted: str) -> Iterator[str]:
    """The lines of a file with their ends, one in memory at a time. Raises InputError as `read_text`."""
    with _text_file(path, wanted), _open(path, wanted) as packed, io.BufferedReader(packed, 2**16) as file:
        start = file.peek()
        encoding = _encoding_of(start)
        begins = start.decode(encoding, errors="ignore")
        newline = "\r" if "\r" in begins and "\n" not in begins else "\n"
        with io.TextIOWrapper(file, encoding, newline=newline) as text:
            for line in text:
                if "\0" in line:
                    raise UnicodeError
                yield line


def parse_json(text: str, source: object, wanted: str, field: str = "JSON") -> Any:
    """The value of a JSON text; `field` is the line that it is of, where it is one of several.

    Raises InputError where it is not valid JSON (with line and column), or has an object with one key twice.
    """
    try:
        return _JSON.decode(text)
    except KeyError as twice:
        raise InputError(source, field, f"the key {twice} twice in one object", "every key once") from None
    except RecursionError:
        raise InputError(source, field, "values nested too deeply", wanted) from None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if field == "JSON" else ""
        raise InputError(source, field, f"{error.msg} at {line}column {error.colno}", f"{wanted}, whole") from None
    except ValueError as error:  # a number of more digits than Python converts
        raise InputError(source, field, f"a number that is too long ({error})"[:80], wanted) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise KeyError(next(key for key in value if sum(key == other for other, _ in pairs) > 1))
    return value


_JSON = json.JSONDecoder(object_pairs_hook=_unique)


def read_jsonl(path: str | os.PathLike, wanted: str) -> Iterator[tuple[int, Any]]:
    """Yields (line number from 1, value) of every line that is not blank. `wanted`: what the file should hold.

    Raises InputError as `read_text` and, with the line, as `parse_json`.
    """
    for number, line in enumerate(iterate_lines(path, wanted), 1):
        if line.strip():
            yield number, parse_json(line, path, wanted, f"line {number}")


class Table(NamedTuple):
    """A table with a heading: its names, trimmed, and the rows from the first, counted from 1."""

    header: list[str]
    rows: Iterator[tuple[int, dict[str, str]]]


def open_table(
    path: str | os.PathLike, wanted: str, fits: Callable[[set[str]], bool] = lambda names: len(names) > 1
) -> Table:
    """Opens a table of commas, tabs, semicolons or bars. Rows without a word are passed by.

    Args:
        fits: whether the names of a heading, in small letters, are those of such a table. The delimiter is the usual
            one of the suffix where its names fit, else one of the others, else the one that makes most names.

    Raises:
        InputError: as `read_text`; there is no heading, or a name in it twice, a row has more or fewer cells, quotes
            are not closed, or a quoted cell holds further rows.
    """
    layout = _layout_of(path, wanted, fits)
    if layout.delimiter == "\t" and not is_well_formed(path, wanted, fits):
        layout = dataclasses.replace(layout, has_quotes=False)
    rows = layout.read(path, wanted)
    header = _names_of(next(rows, None))
    if not header:
        raise InputError(path, "header", "an empty file", f"{wanted}, named in the first row")
    if twice := next((name for name in header if name and header.count(name) > 1), None):
        raise InputError(path, f"column {twice!r}", f"{header.count(twice)} of that name", "one")
    return Table(header, _check_rows(path, header, rows, layout))


def is_well_formed(path: str | os.PathLike, wanted: str, fits: Callable[[set[str]], bool]) -> bool:
    """Whether each row of a table, with its quotation marks, has as many cells as the header, and none holds rows.

    Arguments as `open_table` has them.
    """
    layout = _layout_of(path, wanted, fits)
    rows = layout.read(path, wanted)
    try:
        deque(_check_rows(path, _names_of(next(rows, None)), rows, layout), maxlen=0)
    except InputError:
        return False
    return True


class _Row(NamedTuple):
    """A row of a table: its number, from 0, which is the header; its cells; its lines by number, from 1."""

    number: int
    cells: list[str]
    lines: dict[int, str]


def _names_of(header: _Row | None) -> list[str]:
    """The names of the columns, trimmed, without the empty ones at the end."""
    names = [name.strip() for name in header.cells] if header else []
    while names and not names[-1]:
        names.pop()
    return names


@dataclasses.dataclass(frozen=True)
class _Layout:
    """How the lines of a table become cells.

    Attributes:
        is_named: whether a line before the header names the delimiter, as Excel writes it (`sep=;`).
        skips_blanks: whether blanks after a delimiter belong to no cell, as where the header has them, too.
        has_quotes: whether a quotation mark may enclose a cell.
    """

    delimiter: str
    is_named: bool
    skips_blanks: bool
    has_quotes: bool = True

    def read(self, path: str | os.PathLike, wanted: str) -> Iterator[_Row]:
        """Yield each row that has a word."""
        lines_of_row: dict[int, str] = {}

        def lines_of_table() -> Iterator[str]:
            numbered = enumerate(iterate_lines(path, wanted), 1)
            numbered = itertools.dropwhile(lambda each: not each[1].strip(), numbered)
            for number, line in itertools.islice(numbered, int(self.is_named), None):
                lines_of_row[number] = line
                yield line

        csv.field_size_limit(_LONGEST_CELL)
        quoting = csv.QUOTE_MINIMAL if self.has_quotes else csv.QUOTE_NONE
        reader = csv.reader(
            lines_of_table(), delimiter=self.delimiter, strict=True, skipinitialspace=self.skips_blanks, quoting=quoting
        )
        number = 0
        try:
            for cells in reader:
                if any(map(str.strip, cells)):
                    yield _Row(number, cells, dict(lines_of_row))
                    number += 1
                lines_of_row.clear()
        except csv.Error as error:
            where = f"row {number}" if number else "header"
            raise InputError(path, where, str(error), "cells whose quotes are closed, and doubled inside") from None


def _layout_of(path: str | os.PathLike, wanted: str, fits: Callable[[set[str]], bool]) -> _Layout:
    lines = iterate_lines(path, wanted)
    first = next((line for line in lines if line.strip()), "")
    named = first[4:5] if first[:4].lower() == "sep=" and first[4:5] in _DELIMITERS else ""
    first = next(lines, "") if named else first
    usual = "\t" if form_of(path) in (".tsv", ".tab") else ","
    csv.field_size_limit(_LONGEST_CELL)
    names = {each: _header(first, each) for each in ([named] if named else dict.fromkeys([usual, *_DELIMITERS]))}
    fitting = (each for each in names if fits({name.lower() for name in names[each]}))
    delimiter = next(fitting, None) or max(names, key=lambda each: len(names[each]))
    return _Layout(delimiter, bool(named), f"{delimiter} " in first)


def _header(line: str, delimiter: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])]


def _check_rows(
    path: str | os.PathLike, header: list[str], rows: Iterable[_Row], layout: _Layout
) -> Iterator[tuple[int, dict[str, str]]]:
    between = _DELIMITERS[layout.delimiter]
    for number, cells, lines in rows:
        if _holds_rows(cells, [*lines.values()], layout.delimiter, len(header)):
            where = f"row {number} (lines {min(lines)} to {max(lines)})"
            found = "a quotation mark that begins a cell and ends in a later row"
            wanted = 'a mark of a text doubled in a quoted cell (""), or a table with tabs, where marks are letters'
            raise InputError(path, where, found, wanted)
        if len(cells) < len(header) or any(map(str.strip, cells[len(header) :])):
            wanted = f"{len(header)} between {between}, as in the header"
            raise InputError(path, f"row {number} (to line {max(lines)})", f"{len(cells)} cells", wanted)
        yield number, dict(zip(header, cells, strict=False))


def _holds_rows(cells: Sequence[str], lines: Sequence[str], delimiter: str, columns: int) -> bool:
    """Whether a row of several lines is several rows, which a quotation mark put into one cell.

    Two of its lines or more are then rows of their own: they have enough cells, and names of files, links and numbers
    where the row has them. In a row without any of these all lines must have exactly as many cells as the header; in
    a table with tabs, which are rare in texts, two that have enough will do.
    """
    broken = [place for place, cell in enumerate(cells) if "\n" in cell or "\r" in cell]
    if not broken or columns < 2:
        return False
    places = [*range(broken[0]), *range(broken[-1] - len(cells) + 1, 0)]  # from the end behind the broken cells
    kinds = {place: kind for place in places if (kind := _kind_of(cells[place])) is not None}
    split = [line.rstrip("\r\n").split(delimiter) for line in lines]
    enough = [each for each in split if len(each) >= max(columns, len(places))]
    if delimiter == "\t":
        return len(enough) > 1
    if not kinds:
        return all(len(each) == columns for each in split)
    return sum(all(_kind_of(each[place]) is kind for place, kind in kinds.items()) for each in enough) > 1


def _kind_of(cell: str) -> re.Pattern | None:
    """The pattern of a cell that is no text."""
    cell = cell.strip().strip('"')
    return next((kind for kind in (_NUMBER, _LINK, _NAME) if kind.fullmatch(cell)), None)
