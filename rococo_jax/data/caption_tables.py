"""Captions as tables: a row for each caption, or for each image with a list of them.

CSV, TSV and text with a header (`,`, tab, `;` or `|`), JSON lines, JSON lists of other keys than the Karpathy form's,
Parquet. Columns are found by their usual names, whatever their case, or named by the user. An image may come back in a
later row; its captions add up. A cell that is a list in JSON or Python holds several captions.
"""

import ast
import contextlib
import csv
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.data.captions import JSON_LINES, CaptionedImage, check_image_name, check_text, kind_of, read_jsonl
from rococo_jax.errors import InputError, is_list_of
from rococo_jax.storage import is_url, text_file

USUAL = {
    "image": ("image", "file_name", "filepath", "filename", "image_path", "path", "file", "image_name", "image_file",
              "img", "img_path", "jpg", "png"),
    "caption": ("caption", "captions", "text", "texts", "title", "sentence", "sentences", "raw", "description",
                "comment", "alt_text", "txt"),
    "name": ("file_name", "filename", "image_name"),
}  # fmt: skip
_LINKS = ("url", "image_url", "img_url", "photo_url", "coco_url", "flickr_url")
_DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_WANTED = "a table of images and captions"

# Roles (`image`, `caption`, and `name` of images inside the table) -> columns that the user names.
Columns = Mapping[str, str]


def parse_columns(text: str) -> dict[str, str]:
    """Columns by role, of `image=photo,caption=title`.

    Raises InputError: another role, or one without a column or twice.
    """
    columns: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        role, _, column = (piece.strip() for piece in part.partition("="))
        if role not in USUAL or not column or role in columns:
            raise InputError("columns", "entry", repr(part), "image=COLUMN,caption=COLUMN, each once")
        columns[role] = column
    return columns


def choose_column(role: str, header: Sequence[str], columns: Columns, source: object, where: str = "columns") -> str:
    """The column of a role: the one that the user names, or the only one of the usual names.

    Raises InputError: there is none, several, or only one of links.
    """
    plain = {name.strip().lower(): name for name in reversed(header)}
    names = ", ".join(map(repr, header)) if len(header) < 30 else f"{len(header)} names"
    if role in columns:
        if columns[role] not in header and columns[role].strip().lower() not in plain:
            raise InputError(source, f"{role} column {columns[role]!r}", f"the columns {names}", "one of them")
        return columns[role] if columns[role] in header else plain[columns[role].strip().lower()]
    fitting = [plain[name] for name in USUAL[role] if name in plain]
    if len(fitting) > 1:
        found = f"{' and '.join(map(repr, fitting))}, any of which may be the {role}"
        raise InputError(source, where, found, f"one of them, named: columns {role}={fitting[0]}")
    if not fitting:
        links = [plain[name] for name in _LINKS if name in plain]
        if role == "image" and links:
            raise InputError(source, f"column {links[0]!r}", "links", _DOWNLOAD)
        wanted = f"one of {', '.join(USUAL[role][:6])}, ..., or columns {role}=NAME"
        raise InputError(source, f"{where} for the {role}", names or "none", wanted)
    if header.count(fitting[0]) > 1:
        raise InputError(source, f"column {fitting[0]!r}", f"{header.count(fitting[0])} of that name", "one")
    return fitting[0]


_DOWNLOAD = "files of images: download them first (img2dataset makes tars that are read as they are)"


@dataclasses.dataclass(frozen=True)
class CaptionsFile:
    """What a captions file, folder or data set holds.

    Attributes:
        items: images in the order in which they first come, with their captions in file order.
        columns: that were read, where the form has columns.
        folder: where its images lie, where the form says so.
        places: of images inside the table, by name: whatever has `read_bytes()`.
    """

    source: str
    items: tuple[CaptionedImage, ...]
    columns: tuple[str, ...] = ()
    folder: Path | None = None
    places: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def summary(self) -> str:
        """One line for people: what was understood."""
        captions = [caption for item in self.items for caption in item.captions]
        repeated = len(captions) - sum(len(set(item.captions)) for item in self.items)
        said = f"{Path(self.source).name}: {len(self.items):,} images, {len(captions):,} captions"
        said += f", {repeated:,} of them twice for one image" if repeated else ""
        return f"{said}, columns {' and '.join(self.columns)}" if self.columns else said


Rows = Iterable[tuple[str, Mapping[str, Any]]]


def table_rows(path: str, columns: Columns) -> Rows:
    """The rows of JSON lines, or of a table with a header: where each is, and its values by column.

    Raises InputError: it names the file, and the line.
    """
    return _json_rows(path) if path.endswith(JSON_LINES) else _delimited_rows(path, columns)


def collect_rows(source: str, rows: Rows, columns: Columns, roots: Iterable[Path] = ()) -> CaptionsFile:
    """The images of rows, with their captions; `rows` are where each is, and its values by column.

    An absolute path below one of `roots`, folders of images, is taken as a name inside it.

    Raises InputError: it names the file, and the column or the line with its field.
    """
    captions: list[tuple[str, list[str]]] = []
    used: dict[str, None] = {}
    chosen: dict[tuple[str, ...], tuple[str, str]] = {}
    for where, row in rows:
        header = tuple(row)
        if header not in chosen:
            at = "columns" if where.startswith("row") else where
            chosen[header] = tuple(choose_column(role, header, columns, source, at) for role in ("image", "caption"))
            used |= dict.fromkeys(chosen[header])
        image, caption = chosen[header]
        name = _name_below(row[image], roots, f"{image} of {where}", source)
        captions.append((name, texts_of(row[caption], caption, f"{where} ({name!r})", source)))
    return CaptionsFile(source, by_image(captions, source), tuple(used))


def by_image(captions: Iterable[tuple[str, Sequence[str]]], source: object) -> tuple[CaptionedImage, ...]:
    """The images in the order in which they first come, with the captions of all their rows; InputError without any."""
    texts: dict[str, list[str]] = {}
    for name, more in captions:
        texts.setdefault(name, []).extend(more)
    if not texts:
        raise InputError(source, "rows", "none", "at least one image with a caption")
    return tuple(CaptionedImage(name, tuple(each)) for name, each in texts.items())


def _name_below(name: Any, roots: Iterable[Path], where: str, source: object) -> str:
    if isinstance(name, str) and is_url(name):
        raise InputError(source, where, f"the link {name[:60]!r}", _DOWNLOAD)
    if isinstance(name, str) and name.startswith("/"):
        for root in roots:
            with contextlib.suppress(ValueError):
                return check_image_name(Path(name).relative_to(root.absolute()).as_posix(), where, source)
    return check_image_name(name, where, source)


def texts_of(value: Any, column: str, where: str, source: object) -> list[str]:
    """The captions of a cell: a text, or a list of texts, also one that is written in JSON or Python.

    Raises InputError: no text, or an empty one.
    """
    if isinstance(value, str) and value.startswith("[") and value.rstrip().endswith("]"):
        value = _as_list(value)
    if not isinstance(value, str | list):
        raise InputError(source, f"{column} of {where}", kind_of(value), "a string or a list of strings")
    texts = {column: value} if isinstance(value, str) else {f"{column} {n}": text for n, text in enumerate(value)}
    if not texts:
        raise InputError(source, f"{column} of {where}", "an empty list", "at least one caption")
    for field, text in texts.items():
        if not check_text(text, f"{field} of {where}", source).strip():
            raise InputError(source, f"{field} of {where}", "an empty text", "a caption")
    return list(texts.values())


def _as_list(text: str) -> str | list:
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = parse(text)
            if is_list_of(str, value):
                return value
    return text


def _json_rows(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, entry in read_jsonl(path, "image-text pairs as JSON lines"):
        if not isinstance(entry, dict):
            raise InputError(path, f"line {number}", kind_of(entry), "an object with an image and captions")
        yield f"line {number}", entry


def _delimited_rows(path: str, columns: Columns) -> Iterator[tuple[str, Mapping[str, Any]]]:
    number = 0
    # `newline=""` leaves line breaks inside quotes to the reader.
    with text_file(path, _WANTED), Path(path).open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        delimiter = _delimiter_of(path, first, columns)
        file.seek(0)
        # Spaces after delimiters belong to no cell where the header has them, too.
        reader = csv.reader(file, delimiter=delimiter, strict=True, skipinitialspace=f"{delimiter} " in first)
        try:
            header = [name.strip() for name in next(reader)]
            for role in ("image", "caption"):
                choose_column(role, header, columns, path)
            for number, cells in enumerate(reader, 1):
                if len(cells) == len(header):
                    yield f"row {number}", dict(zip(header, cells, strict=True))
                elif any(cell.strip() for cell in cells):
                    wanted = f"{len(header)} between {_DELIMITERS[delimiter]}, as in the header"
                    raise InputError(path, f"row {number} (to line {reader.line_num})", f"{len(cells)} cells", wanted)
        except csv.Error as error:
            wanted = "cells whose quotes are closed, and doubled inside"
            raise InputError(path, f"row {number + 1}", str(error), wanted) from None


def _delimiter_of(path: str, line: str, columns: Columns) -> str:
    """What stands between the names of the header: the usual one of the suffix, or else one that finds the columns."""
    if not line.strip():
        raise InputError(
            path, "header", "an empty line" if line else "an empty file", f"{_WANTED}, named in the first row"
        )
    headers = {}
    for delimiter in dict.fromkeys(["\t" if path.endswith((".tsv", ".tab")) else ",", *_DELIMITERS]):
        names = {name.strip().strip('"').lower() for name in line.split(delimiter)}
        headers[delimiter] = names
        if all(columns.get(role, "").lower() in names or names & {*USUAL[role]} for role in ("image", "caption")):
            return delimiter
    return max(headers, key=lambda each: len(headers[each]))
