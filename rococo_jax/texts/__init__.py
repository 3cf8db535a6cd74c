"""Read all texts and tables of users in the same way: captions, labels, templates, lists, scores.

A text is UTF-8, or UTF-16 or UTF-32 with a byte order mark, which is not part of the text. A file may be compressed
(`.gz`). Lines end at LF or CRLF, or at CR in a file without LF; other characters that Unicode defines as line ends are
part of a line. A file with a zero byte is not a text. The suffix of a file determines its format, ignoring case.

`delimited` defines the meaning of quotation marks in a table.
"""

import codecs
import contextlib
import dataclasses
import gzip
import io
import json
import os
import zlib
from collections import Counter, deque
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
# Texts compress 3 to 20 times, the most repetitive tables about 50 times; deflate itself reaches 1,032.
_MAX_COMPRESSION_RATIO = 100
_ALWAYS_DECOMPRESSED_BYTES = 1 << 26
_SPREADSHEETS = (".xlsx", ".xls", ".ods")
# The first bytes of files that are not texts.
_BINARY = {
    b"PK\x03\x04": "a zip archive", b"ARROW1": "an Arrow file", b"PAR1": "a Parquet file", b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array", b"%PDF": "a PDF", b"\x80\x04\x95": "a pickle", b"\x80\x05\x95": "a pickle",
    b"\x1f\x8b": "a gzip file, whose name would end in .gz", b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image", b"SQLite format 3": "an SQLite database",
}  # fmt: skip


def file_suffix(path: str | os.PathLike) -> str:
    """Return the suffix of a file in lower case, ignoring `.gz`.

    >>> file_suffix("Labels.CSV"), file_suffix("ratings.csv.gz")
    ('.csv', '.csv')
    """
    return Path(str(path).lower().removesuffix(".gz")).suffix


def find_file(folder: Path, names: Collection[str]) -> Path | None:
    """Return the first of `names` that a folder has, ignoring the case of the suffix, or None."""
    if not folder.is_dir():
        return None
    paths = {path.stem + path.suffix.lower(): path for path in sorted(folder.iterdir())}
    return next((paths[name] for name in names if name in paths and paths[name].is_file()), None)


@contextlib.contextmanager
def _refusing_unreadable(path: str | os.PathLike, expected: str) -> Iterator[None]:
    """Raise InputError if the block reads a file that is missing, a folder, badly compressed, or not a text."""
    if file_suffix(path) in _SPREADSHEETS and Path(path).is_file():
        raise InputError(path, "file", f"a spreadsheet ({file_suffix(path)})", f"{expected}: save it as CSV in UTF-8")
    try:
        yield
    except FileNotFoundError:
        raise InputError(path, "file", "nothing there", expected) from None
    except IsADirectoryError:
        raise InputError(path, "file", "a folder", expected) from None
    except UnicodeError:
        # The offset in the error itself counts from the last block.
        with _open(path, expected) as file:
            raise _describe_bytes(path, file.read(), expected) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(path, "file", f"badly compressed ({first_line(error)})", f"{expected}, complete") from None


class _GzipFile(gzip.GzipFile):
    """A `.gz` file that is refused once it yields many times its compressed size, as no text compresses that well.

    Without a limit, a file of a few megabytes could fill all memory.
    """

    def __init__(self, path: str | os.PathLike, expected: str):
        super().__init__(path, "rb")
        self._path, self._expected = path, expected
        self._compressed_size = Path(path).stat().st_size
        self._remaining = max(_ALWAYS_DECOMPRESSED_BYTES, _MAX_COMPRESSION_RATIO * self._compressed_size)

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(self._remaining + 1 if size is None or size < 0 else size)
        self._remaining -= len(data)
        if self._remaining < 0:
            problem = f"over {_MAX_COMPRESSION_RATIO} times its {self._compressed_size:,} bytes when unpacked"
            raise InputError(self._path, "file", problem, f"{self._expected}; if that is right, unpacked (gunzip)")
        return data


def _open(path: str | os.PathLike, expected: str) -> Any:
    return _GzipFile(path, expected) if str(path).lower().endswith(".gz") else Path(path).open("rb")


def _encoding_of(start: bytes) -> str:
    return next((encoding for mark, encoding in _MARKS.items() if start.startswith(mark)), "utf-8")


def _describe_bytes(source: object, data: bytes, expected: str) -> InputError:
    """Return the error for bytes that are not a text."""
    encoding = _encoding_of(data)
    kind = next((f" ({kind})" for start, kind in _BINARY.items() if data.startswith(start)), "")
    try:
        zero = data.decode(encoding).find("\0")
        return InputError(source, "encoding", f"a zero byte at character {zero}{kind}", f"{expected}, in UTF-8")
    except UnicodeDecodeError as error:
        name = encoding.removesuffix("-sig").upper()
        return InputError(source, "encoding", f"bytes that are not {name} at offset {error.start}{kind}", expected)


def decode_text(data: bytes, source: object, expected: str) -> str:
    """Decode the bytes of a text. Raises InputError: they are not a text."""
    with contextlib.suppress(UnicodeError):
        if "\0" not in (text := data.decode(_encoding_of(data))):
            return text
    raise _describe_bytes(source, data, expected)


def read_text(path: str | os.PathLike, expected: str) -> str:
    """Read a text. Raises InputError: the file is missing or not a text; `expected` describes its content."""
    with _refusing_unreadable(path, expected), _open(path, expected) as file:
        return decode_text(file.read(), path, expected)


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text, without their ends.

    >>> split_lines("a\r\nb\x85c\n"), split_lines("a\rb")
    (['a', 'b\x85c'], ['a', 'b'])
    """
    lines = text.replace("\r\n", "\n").split("\n") if "\n" in text else text.split("\r")
    return lines[:-1] if lines[-1] == "" else lines


def read_lines(path: str | os.PathLike, expected: str) -> list[str]:
    """Return the lines of a file, without their ends. Raises InputError as `read_text`."""
    return split_lines(read_text(path, expected))


def iterate_lines(path: str | os.PathLike, expected: str) -> Iterator[str]:
    """Yield the lines of a file with their ends, with one in memory at a time. Raises InputError as `read_text`."""
    with _refusing_unreadable(path, expected), _open(path, expected) as raw, io.BufferedReader(raw, 2**16) as file:
        start = file.peek()
        encoding = _encoding_of(start)
        first_text = start.decode(encoding, errors="ignore")
        newline = "\r" if "\r" in first_text and "\n" not in first_text else "\n"
        with io.TextIOWrapper(file, encoding, newline=newline) as text:
            for line in text:
                if "\0" in line:
                    raise UnicodeError
                yield line


def parse_json(text: str, source: object, expected: str, field: str = "JSON") -> Any:
    """Parse a JSON text; `field` names its line if it is one line of a file.

    Raises InputError: it is not valid JSON (with line and column), or an object has a key twice.
    """
    try:
        return _JSON.decode(text)
    except KeyError as key:
        raise InputError(source, field, f"the key {key} twice in one object", "every key once") from None
    except RecursionError:
        raise InputError(source, field, "values nested too deeply", expected) from None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if field == "JSON" else ""
        problem = f"{error.msg} at {line}column {error.colno}"
        wanted = f"{expected}, complete"
        if error.msg == "Extra data" and field == "JSON" and Path(str(source)).suffix not in JSON_LINES:
            wanted += "; a file of JSON lines, with a value in each line, is named .jsonl"
        raise InputError(source, field, problem, wanted) from None
    except ValueError as error:  # a number with more digits than Python converts
        raise InputError(source, field, f"a number that is too long ({error})"[:80], expected) from None


def _dict_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise KeyError(next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1))
    return value


_JSON = json.JSONDecoder(object_pairs_hook=_dict_of_unique_keys)


def read_jsonl(path: str | os.PathLike, expected: str) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, value) of every line that is not blank; `expected` describes the content.

    Raises InputError: as `read_text` and, with the line, as `parse_json`.
    """
    for number, line in enumerate(iterate_lines(path, expected), 1):
        if number == 1 and line.strip() in ("[", "{"):
            problem = "the beginning of a value of several lines"
            wanted = f"{expected}: a value in each line; a file with one value is named .json"
            raise InputError(path, f"line {number}", problem, wanted)
        if line.strip():
            yield number, parse_json(line, path, expected, f"line {number}")


class Table(NamedTuple):
    """A table: the names of its columns, trimmed, and its rows with their numbers from 1."""

    header: list[str]
    rows: Iterator[tuple[int, dict[str, str]]]


def open_table(
    path: str | os.PathLike, expected: str, has_columns: Callable[[set[str]], bool] = lambda names: len(names) > 1
) -> Table:
    """Open a table delimited by commas, tabs, semicolons or bars. Blank rows are skipped.

    Args:
        has_columns: whether names, in lower case, are those of the expected columns. The delimiter is the usual one of
            the suffix if it gives such names, else another one that does, else the one that gives most names.

    Raises:
        InputError: as `read_text`; there is no header, a name occurs twice in it, a row has more or fewer cells, quotes
            are not closed, or a quoted cell contains further rows.
    """
    layout = _layout_of(path, expected, has_columns)
    if layout.delimiter == "\t" and not is_well_formed(path, expected, has_columns):
        layout = dataclasses.replace(layout, has_quotes=False)
    header, rows = layout.read(iterate_lines(path, expected), path)
    if not header:
        raise InputError(path, "header", "an empty file", f"{expected}, named in the first row")
    repeated = next((name for name, count in Counter(header).items() if name and count > 1), None)
    if repeated:
        raise InputError(path, f"column {repeated!r}", f"{header.count(repeated)} columns of that name", "one")
    return Table(header, rows)


def is_well_formed(path: str | os.PathLike, expected: str, has_columns: Callable[[set[str]], bool]) -> bool:
    """Return whether all rows of a table have as many cells as the header, and no quoted cell contains rows.

    The arguments are those of `open_table`.
    """
    try:
        _, rows = _layout_of(path, expected, has_columns).read(iterate_lines(path, expected), path)
        deque(rows, maxlen=0)
    except InputError:
        return False
    return True


def _layout_of(path: str | os.PathLike, expected: str, has_columns: Callable[[set[str]], bool]) -> Layout:
    usual_delimiter = "\t" if file_suffix(path) in (".tsv", ".tab") else ","
    return layout_of(iterate_lines(path, expected), usual_delimiter, has_columns)
