"""Read captions from tables: a row for each caption, or for each image with a list of captions.

These are CSV, TSV and text with a header (`,`, tab, `;` or `|`), JSON lines, JSON lists with other keys than those of
Karpathy's form, Parquet, and Flickr's lines without a header (`NAME.jpg#0`, tab, caption). Columns are found by their
usual names, ignoring case, or named by the user. Captions may be in several columns (`caption_0`, `caption_1`, ...),
in several rows of one image, and in a cell that is a list in JSON or Python. If there is a column `split`, its values
are counted, and the user can choose the splits to read.
"""

import contextlib
import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.data.captions import CaptionedImage, Columns, ReadOptions, check_image_name, check_text, json_type
from rococo_jax.data.list_cells import EXPECTED as EXPECTED_CELL
from rococo_jax.data.list_cells import MalformedList, is_caption, parse_list
from rococo_jax.errors import InputError
from rococo_jax.storage import is_url

USUAL = {
    "image": ("image", "file_name", "filepath", "filename", "image_path", "path", "file", "image_name", "image_file",
              "img", "img_path", "jpg", "png"),
    "caption": ("caption", "captions", "text", "texts", "title", "sentence", "sentences", "raw", "description",
                "comment", "alt_text", "txt"),
    "name": ("file_name", "filename", "image_name"),
    "split": ("split",),
}  # fmt: skip
# What `str` makes of a missing text.
_MISSING = ("nan", "NaN", "<NA>")
# The roles of a table without images.
_TEXT_ROLES = ("image", "caption", "split")
_LINKS = ("url", "image_url", "img_url", "photo_url", "coco_url", "flickr_url")
_NUMBERED = re.compile(rf"({'|'.join(USUAL['caption'])})[ _-]?(\d+)")
# Messages shorten the name of a column to this many characters.
_LONGEST_NAME = 40


def parse_columns(text: str) -> dict[str, str]:
    """Parse `image=photo,caption=title` into columns by role.

    Raises InputError: a role is unknown, has no column, or appears twice.
    """
    columns: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        role, _, column = (piece.strip() for piece in part.partition("="))
        if role not in USUAL or not column or role in columns:
            raise InputError("columns", "entry", repr(part), "image=COLUMN,caption=COLUMN, each once")
        columns[role] = column
    return columns


def refuse_columns(source: object, columns: Columns, expected: str, but: Sequence[str] = ()) -> None:
    """Raise InputError if the user names columns that a source does not have, except for the roles `but`."""
    for role, column in columns.items():
        if role not in but:
            raise InputError(source, "columns", f"{role}={column}", expected)


def refuse_name_column(source: object, columns: Columns) -> None:
    """Raise InputError if the user names a column of names for a table without images, which has them as images."""
    refuse_columns(source, columns, "image=, caption= or split=: names are of images inside a table", _TEXT_ROLES)


def choose_column(role: str, header: Sequence[str], columns: Columns, source: object, field: str = "columns") -> str:
    """Return the column of a role: the one that the user names, or the only one with a usual name.

    Args:
        field: names the header in errors.

    Raises InputError: there is no such column, there are several, or the only one has links.
    """
    by_plain_name = {name.strip().lower(): name for name in reversed(header)}
    short = (repr(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...") for name in header)
    names = ", ".join(short) if len(header) < 30 else f"{len(header)} names"
    if role in columns:
        requested = columns[role]
        if requested in header:
            return requested
        if requested.strip().lower() not in by_plain_name:
            raise InputError(source, f"{role} column {requested!r}", f"the columns {names}", "one of them")
        return by_plain_name[requested.strip().lower()]
    candidates = [by_plain_name[name] for name in USUAL[role] if name in by_plain_name]
    if len(candidates) > 1:
        problem = f"{' and '.join(map(repr, candidates))}, any of which may be the {role}"
        raise InputError(source, field, problem, f"one of them, named: `columns` {role}={candidates[0]}")
    if not candidates:
        links = [by_plain_name[name] for name in _LINKS if name in by_plain_name]
        if role == "image" and links:
            raise InputError(source, f"column {links[0]!r}", "links", _DOWNLOAD)
        if role == "image" and "image_id" in by_plain_name:
            expected = "the names of image files: COCO's ids belong to the `images` of its annotations"
            raise InputError(source, f"{field} for the image", f"{by_plain_name['image_id']!r}, ids", expected)
        expected = f"one of {', '.join(USUAL[role][:6])}, ..., or `columns` {role}=NAME"
        raise InputError(source, f"{field} for the {role}", names or "none", expected)
    count = [name.strip().lower() for name in header].count(candidates[0].strip().lower())
    if count > 1:
        raise InputError(source, f"column {candidates[0]!r}", f"{count} columns of that name", "one")
    return candidates[0]


def caption_columns(header: Sequence[str], columns: Columns, source: object, field: str = "columns") -> tuple[str, ...]:
    """Return the column of captions, or the numbered ones in their order. Raises InputError as `choose_column`."""
    by_plain_name = {name.strip().lower(): name for name in header}
    numbered = {match: by_plain_name[match[0]] for match in map(_NUMBERED.fullmatch, by_plain_name) if match}
    if "caption" in columns or not numbered:
        return (choose_column("caption", header, columns, source, field),)
    unnumbered = [by_plain_name[name] for name in USUAL["caption"] if name in by_plain_name]
    have_one_name = len({match[1] for match in numbered}) == 1
    have_own_numbers = len({int(match[2]) for match in numbered}) == len(numbered)
    if unnumbered or not (have_one_name and have_own_numbers):
        problem = f"{', '.join(map(repr, [*unnumbered, *numbered.values()][:4]))}, any of which may be the captions"
        raise InputError(
            source, field, problem, "columns with the same name and different numbers, or `columns` caption=NAME"
        )
    return tuple(numbered[match] for match in sorted(numbered, key=lambda match: int(match[2])))


def check_split_choice(source: object, split: str, counts: Mapping[str, int], must_choose: bool = False) -> str:
    """Check the requested splits, and return a remark on the splits of the source and on those that are read.

    Args:
        split: the requested splits, separated by `+` or commas; "all", or "" for no request.
        counts: rows of each split of the source.
        must_choose: whether a request is necessary if there are several splits.

    Raises InputError: a requested split does not exist, or a request is necessary and missing.
    """
    requested = splits_of(split)
    unknown = sorted(requested - counts.keys() - ({"all"} if counts else set()))
    available = ", ".join(f"{name} ({count:,})" for name, count in counts.items())
    if unknown or (must_choose and len(counts) > 1 and not requested):
        problem = repr(unknown[0]) if unknown else "none named, of several"
        expected = f"{available or 'a column split'}, one or several (train+val), or all"
        raise InputError(source, "split", problem, expected)
    if not counts:
        return ""
    return f", splits {available}: " + (f"read: {split}" if requested else "all read; `split` chooses")


def splits_of(split: str) -> set[str]:
    """Return the splits that a request names."""
    return {name.strip() for name in re.split("[+,]", split)} - {""}


_DOWNLOAD = "image files: download them first (tars and folders of img2dataset can be read directly)"


@dataclasses.dataclass(frozen=True)
class CaptionsFile:
    """The contents of a captions file, folder or data set.

    Attributes:
        items: images in the order of their first row, with their captions in file order.
        columns: the columns that were read, if the form has columns.
        folder: the folder of the images, if the form defines it.
        image_files: images inside the table, by name: objects with `read_bytes()`.
        skipped: number of images that were left out because they have no caption.
        remarks: more for the summary, such as the splits.
    """

    source: str
    items: tuple[CaptionedImage, ...]
    columns: tuple[str, ...] = ()
    folder: Path | None = None
    image_files: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    skipped: int = 0
    remarks: str = ""

    def summary(self) -> str:
        """Return a line that says what was read."""
        captions = [caption for item in self.items for caption in item.captions]
        repeated = len(captions) - sum(len(set(item.captions)) for item in self.items)
        parts = [f"{Path(self.source).name}: {len(self.items):,} images, {len(captions):,} captions"]
        if repeated:
            parts.append(f"{repeated:,} of them twice for one image")
        if missing := sum(caption.strip() in _MISSING for caption in captions):
            parts.append(f"{missing:,} captions are 'nan', as pandas writes missing texts")
        if self.skipped:
            parts.append(f"{self.skipped:,} images without a caption left out")
        if self.columns:
            parts.append(f"columns {' and '.join(self.columns)}")
        return ", ".join(parts) + self.remarks


# Rows of a table: how errors name each row ("row 3", "line 4"), and its values by column.
Rows = Iterable[tuple[str, Mapping[str, Any]]]


def collect_rows(source: str, rows: Rows, options: ReadOptions, must_choose: bool = False) -> CaptionsFile:
    """Collect the captions of each image from the rows of a table.

    Args:
        must_choose: whether the user has to choose if there are several splits.

    Raises InputError: names the file, and the column or the line with its field.
    """
    columns, requested_splits = options.requested_columns, splits_of(options.split) - {"all"}
    refuse_name_column(source, columns)
    captions: list[tuple[str, list[str]]] = []
    columns_read: dict[str, None] = {}
    roles_by_header: dict[tuple[str, ...], _Roles] = {}
    split_counts = Counter[str]()
    checked_names: dict[Any, str] = {}  # an image has several rows
    for location, row in rows:
        header = tuple(row)
        if header not in roles_by_header:
            # Rows of a table share their header; a JSON line has its own.
            roles = _choose_roles(header, columns, source, "columns" if location.startswith("row") else location)
            roles_by_header[header] = roles
            columns_read |= dict.fromkeys([roles.image, *roles.captions])
        roles = roles_by_header[header]
        if roles.split is not None:
            split = str(row[roles.split]).strip()
            split_counts[split] += 1
            if requested_splits and split not in requested_splits:
                continue
        cell = row[roles.image]
        name = checked_names.get(cell) if isinstance(cell, str) else None
        if name is None:
            name = _image_name(cell, options.image_folders, f"{roles.image} of {location}", source)
            checked_names[cell] = name
        first_cell = row[roles.captions[0]]
        if len(roles.captions) == 1 and is_caption(first_cell):
            captions.append((name, [first_cell]))
        else:
            captions.append((name, _captions_in_row(row, roles.captions, f"{location} ({name!r})", source)))
    remarks = check_split_choice(source, options.split, split_counts, must_choose)
    _refuse_unquoted_lists(captions, source)
    return CaptionsFile(source, by_image(captions, source), tuple(columns_read), remarks=remarks)


class _Roles(NamedTuple):
    """The columns of a header that are read."""

    image: str
    captions: tuple[str, ...]
    split: str | None


def _choose_roles(header: Sequence[str], columns: Columns, source: object, field: str) -> _Roles:
    return _Roles(
        choose_column("image", header, columns, source, field),
        caption_columns(header, columns, source, field),
        split_column(header, columns, source),
    )


def _captions_in_row(row: Mapping[str, Any], columns: Sequence[str], location: str, source: object) -> list[str]:
    """Return the captions in these columns of a row; if there are several columns, some of them may be blank."""
    if len(columns) > 1:
        filled = [name for name in columns if isinstance(row[name], list) or str(row[name] or "").strip()]
        columns = filled or columns[:1]
    captions = (captions_in_cell(row[name], name, location, source) for name in columns)
    return list(itertools.chain.from_iterable(captions))


def _refuse_unquoted_lists(captions: Iterable[tuple[str, Sequence[str]]], source: object) -> None:
    """Raise InputError if every caption is `[..., ...]`, a list as DuckDB and pandas print it, without quotes."""
    texts = [text.strip() for _, texts_of_row in captions for text in texts_of_row]
    lists = [text for text in texts if text.startswith("[") and text.endswith("]")]
    several = next((text for text in lists if "," in text), None)
    if several is not None and len(lists) == len(texts):
        raise InputError(source, "captions", f"brackets around each, without quotes: {several[:40]!r}", EXPECTED_CELL)


def split_column(header: Sequence[str], columns: Columns, source: object) -> str | None:
    """Return the column of splits, or None if there is none."""
    has_one = "split" in columns or any(name.strip().lower() in USUAL["split"] for name in header)
    return choose_column("split", header, columns, source) if has_one else None


def by_image(captions: Iterable[tuple[str, Sequence[str]]], source: object) -> tuple[CaptionedImage, ...]:
    """Merge rows of the same image; images are in the order of their first row.

    Args:
        captions: the image's name and the captions of each row.

    Raises InputError: there are no rows.
    """
    merged: dict[str, list[str]] = {}
    for name, texts in captions:
        merged.setdefault(name, []).extend(texts)
    if not merged:
        raise InputError(source, "rows", "none", "at least one image with a caption")
    return tuple(CaptionedImage(name, tuple(texts)) for name, texts in merged.items())


def _image_name(name: Any, folders: Iterable[Path], field: str, source: object) -> str:
    """Return the checked name of an image; an absolute path below one of the folders becomes a name inside it."""
    if isinstance(name, str) and is_url(name):
        raise InputError(source, field, f"the link {name[:60]!r}", _DOWNLOAD)
    if isinstance(name, str) and name.startswith("/"):
        for folder in folders:
            with contextlib.suppress(ValueError):
                return check_image_name(Path(name).relative_to(folder.absolute()).as_posix(), field, source)
    return check_image_name(name, field, source)


def captions_in_cell(value: Any, column: str, location: str, source: object) -> list[str]:
    """Return the captions of a cell: a text, a list of texts, or a list written as JSON or Python.

    Raises InputError: there is no text, or an empty one.
    """
    if isinstance(value, str):
        try:
            texts_in_cell = parse_list(value)
        except MalformedList as error:
            raise InputError(source, f"{column} of {location}", f"{error}: {value[:40]!r}", EXPECTED_CELL) from None
        value = value if texts_in_cell is None else texts_in_cell
    if not isinstance(value, str | list):
        raise InputError(source, f"{column} of {location}", json_type(value), "a string or a list of strings")
    texts = {column: value} if isinstance(value, str) else {f"{column} {n}": text for n, text in enumerate(value)}
    if not texts:
        raise InputError(source, f"{column} of {location}", "an empty list", "at least one caption")
    for field, text in texts.items():
        if not check_text(text, f"{field} of {location}", source).strip():
            raise InputError(source, f"{field} of {location}", "an empty text", "a caption")
    return list(texts.values())
