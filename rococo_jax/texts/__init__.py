"""Open the texts and tables that people bring, all in one way: captions, labels, templates, lists, scores.

A text is UTF-8, or UTF-16 or UTF-32 with its byte order mark; a mark is no part of it, and a file may be packed
(`.gz`). Lines end at LF or CRLF, and at CR in a file that has no LF; other characters that Unicode calls line ends are
part of a line. A zero byte is no text. The form of a file is its suffix, in large or small letters.

`delimited` has what a quotation mark means in a table.
"""

import codecs
import contextlib
import dataclasses
import gzip
import io
import json
import os
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.errors import InputError, first_line
from rococo_jax.texts.delimited import Layout, layout_of

JSON_LINES = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", ".tab")
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
# Texts pack 3 to 20 times, the most repetitive tables some 50 times; deflate itself reaches 1,032.
_LARGEST_TEXT_RATIO, _ALWAYS_UNPACKED = 100, 1 << 26
_SPREADSHEETS = (".xlsx", ".xls", ".ods")
# First bytes of other kinds of files.
_BINARY = {
    b"PK\x03\x04": "a zip archive", b"ARROW1": "an Arrow file", b"PAR1": "a Parquet file", b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array", b"%PDF": "a PDF", b"\x80\x04\x95": "a pickle", b"\x80\x05\x95": "a pickle",
    b"\x1f\x8b": "a gzip file, whose name would end in .gz", b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image", b"SQLite format 3": "an SQLite database",
}  # fmt: skip


def file_suffix(path: str | os.PathLike) -> str:
    """The suffix in small letters, without that of packing.

    >>> file_suffix("Labels.CSV"), file_suffix("ratings.csv.gz")
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
    if file_suffix(path) in _SPREADSHEETS and Path(path).is_file():
        raise InputError(path, "file", f"a spreadsheet ({file_suffix(path)})", f"{wanted}: save it as CSV in UTF-8")
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
        is_many = error.msg == "Extra data" and field == "JSON"
        whole = "whole; JSON lines, a value in each, are named .jsonl" if is_many else "whole"
        raise InputError(source, field, f"{error.msg} at {line}column {error.colno}", f"{wanted}, {whole}") from None
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
        if number == 1 and line.strip() in ("[", "{"):
            found = "the beginning of a value of several lines"
            raise InputError(
                path, f"line {number}", found, f"{wanted}: a value in each line; one of a whole file is .json"
            )
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
    header, rows = layout.read(iterate_lines(path, wanted), path)
    if not header:
        raise InputError(path, "header", "an empty file", f"{wanted}, named in the first row")
    if twice := next((name for name in header if name and header.count(name) > 1), None):
        raise InputError(path, f"column {twice!r}", f"{header.count(twice)} of that name", "one")
    return Table(header, rows)


def is_well_formed(path: str | os.PathLike, wanted: str, fits: Callable[[set[str]], bool]) -> bool:
    """Whether each row of a table, with its quotation marks, has as many cells as the header, and none holds rows.

    Arguments as `open_table` has them.
    """
    try:
        _, rows = _layout_of(path, wanted, fits).read(iterate_lines(path, wanted), path)
        deque(rows, maxlen=0)
    except InputError:
        return False
    return True


def _layout_of(path: str | os.PathLike, wanted: str, fits: Callable[[set[str]], bool]) -> Layout:
    usual = "\t" if file_suffix(path) in (".tsv", ".tab") else ","
    return layout_of(iterate_lines(path, wanted), usual, fits)
