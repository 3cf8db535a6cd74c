"""Read captioned images from tables (`tables`): Parquet and Arrow files, and data sets of the `datasets` library.

    hf:nlphuji/flickr30k?split=test
    hf:NAME:CONFIG?split=test&image=photo&caption=texts
    a folder written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`, also as hf:FOLDER?split=test

Options are `split` (necessary if a data set has several), and the columns of the image, the captions and the image's
name.
"""

import base64
import contextlib
import dataclasses
import errno
import hashlib
import itertools
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from rococo_jax.data.caption_tables import (
    USUAL,
    CaptionsFile,
    caption_columns,
    check_split_choice,
    choose_column,
    collect_rows,
    refuse_name_column,
    split_column,
    splits_of,
)
from rococo_jax.data.captions import ReadOptions
from rococo_jax.data.content_hashes import hash_files
from rococo_jax.data.image_files import USUAL_SPLITS, is_saved_dataset, parquet_files
from rococo_jax.data.pictures import image_format
from rococo_jax.data.tables import ArrowTable, DatasetTable, ParquetTable, Table, image_columns
from rococo_jax.errors import InputError, first_line, import_library
from rococo_jax.runtime import cache_folder
from rococo_jax.safe_paths import is_inner_file
from rococo_jax.storage import hash_json, is_url, remove_folder

_CELLS_CHECKED = 8
_SUFFIXES = ((b"\xff\xd8", ".jpg"), (b"\x89PNG", ".png"), (b"GIF8", ".gif"), (b"RIFF", ".webp"), (b"BM", ".bmp"))
_BEGINNINGS = tuple(magic for magic, _ in _SUFFIXES)
_BASE64_START = 16  # characters, enough for the first bytes of a file
# img2dataset writes a row for each link, with `jpg` inside if `output_format=parquet`.
_STATUS = "status"
_COLUMNS_OF_DOWNLOADS = {"url", "key", _STATUS}


class TableImage(NamedTuple):
    """An image inside a table, which can be read like a path."""

    table: Table
    row: int
    column: str

    def read_bytes(self) -> bytes:
        """Return the bytes of the image file. Raises InputError: the cell is empty."""
        value = self.table.image(self.row, self.column)
        if not value:
            expected = f"an image file inside the table, in row {self.row + 1} of the column {self.column!r}"
            raise InputError(self, "image", "no bytes", expected)
        return value

    def sha256(self) -> str:
        """Return the SHA-256 of the image file as 64 hex digits. Raises InputError: the cell is empty."""
        return self.table.image_hash(self.row, self.column) or hashlib.sha256(self.read_bytes()).hexdigest()

    def __str__(self) -> str:
        return f"{self.table}/{self.row}/{self.column}"


# File names of a split on the hub: `test-00000-of-00002.parquet`, or only a usual name of a split.
_FILE_OF_SPLIT = re.compile(rf"(\w+(?:\.\w+)*)-\d+-of-\d+.*|({'|'.join(USUAL_SPLITS)})")


def open_arrow(source: str, options: ReadOptions) -> CaptionsFile:
    """Open the captioned images of an Arrow file. Raises InputError: as `read_tables`."""
    return read_tables(source, [("", ArrowTable(Path(source)))], options)


def open_parquet(source: str, options: ReadOptions) -> CaptionsFile:
    """Open the captioned images of a Parquet file or of a folder of them, whose names may name a split.

    Raises InputError: as `parquet_files` and `read_tables`.
    """
    files = parquet_files(Path(source))
    folders = {path.parent.name for path in files}
    tables = []
    for path in files:
        match = _FILE_OF_SPLIT.fullmatch(path.stem)
        split_of_file = match[1] or match[2] if match else ""
        tables.append((path.parent.name if len(folders) > 1 else split_of_file, ParquetTable(path)))
    return read_tables(source, tables, options)


def read_tables(source: str, tables: Sequence[tuple[str, Table]], options: ReadOptions) -> CaptionsFile:
    """Read the captioned images of tables that have the same columns.

    Images are inside the table, or named in a column. An image inside is named by its `path` or by a column of names if
    every image has a name and no two images share one. Otherwise it is named by the SHA-256 of its bytes, so that rows
    of the same image are merged. Rows of failed downloads, of which img2dataset records the status, are left out.

    Args:
        tables: with the split that the name of each table's file has; "" for none.

    Raises InputError: names the table, and the column or row with its field.
    """
    first_table = tables[0][1]
    schema, columns = first_table.schema(), options.requested_columns
    inside = list(image_columns(schema))
    if len(inside) == 1 and "image" not in columns:
        image = inside[0]
    else:
        image = choose_column("image", schema.names, columns, source)
    if image not in inside:
        refuse_name_column(source, columns)
    texts = caption_columns(schema.names, columns, source)
    name = choose_column("name", schema.names, columns, source) if "name" in columns else image
    columns_read = {"image": image} | ({"caption": texts[0]} if len(texts) == 1 else {})
    status = [_STATUS] if {*schema.names} >= _COLUMNS_OF_DOWNLOADS else []
    splits, remark = _splits_of_rows(source, tables, options)
    requested = splits_of(options.split) - {"all"}
    failed = 0

    def rows() -> Iterator[_Row]:
        nonlocal failed
        first_number = 1
        for (_, table), splits_of_table in zip(tables, splits, strict=True):
            if not requested or requested & {*splits_of_table}:
                for row, values in enumerate(table.rows([*dict.fromkeys([image, *texts, name]), *status])):
                    if requested and splits_of_table[row] not in requested:
                        continue
                    if status and values.pop(_STATUS) != "success":
                        failed += 1
                        continue
                    yield _Row(first_number + row, values, TableImage(table, row, image))
            first_number += table.row_count()

    selected: Iterable[_Row] = rows()
    image_files: dict[str, TableImage] = {}
    if image in inside:
        _check_are_images(first_table, image)
        selected = list(selected)
        names = _names_of(selected, name)
        # Of rows with the same image, the first one counts.
        image_files = dict(zip(reversed(names), (row.image for row in reversed(selected)), strict=True))
        for row, image_name in zip(selected, names, strict=True):
            row.values[image] = image_name
            if name not in (image, *texts):
                del row.values[name]
    row_options = dataclasses.replace(
        options,
        columns=columns_read,
        split="",
        image_folders=() if image in inside else options.image_folders,
    )
    file = collect_rows(source, ((f"row {row.number}", row.values) for row in selected), row_options)
    remark += f", {failed:,} failed downloads left out" if failed else ""
    return dataclasses.replace(file, remarks=f"{remark}{file.remarks}", image_files=image_files)


class _Row(NamedTuple):
    """A row, numbered through all tables, and its image if that is inside the table."""

    number: int
    values: dict[str, Any]
    image: TableImage


def _splits_of_rows(
    source: str, tables: Sequence[tuple[str, Table]], options: ReadOptions
) -> tuple[list[Sequence[str]], str]:
    """Return the split of each row of each table, and a remark on those that are read.

    The split of a row is the value of its column of splits if that has several values, else what the file's name says:
    all images of `nlphuji/flickr30k` are in the files of `test`, and a column divides them into train, val and test.

    Raises InputError: a requested split does not exist, or a request is necessary and missing.
    """
    column = split_column(tables[0][1].schema().names, options.requested_columns, source)
    splits: list[Sequence[str]] = [()] * len(tables)
    if column is not None:
        splits = [[str(row[column]).strip() for row in table.rows([column])] for _, table in tables]
    are_named = any(split for split, _ in tables)
    if are_named and len({*itertools.chain.from_iterable(splits)}) < 2:
        splits = [[split or "(without one)"] * table.row_count() for split, table in tables]
    counts = Counter(itertools.chain.from_iterable(splits))
    remark = check_split_choice(source, options.split, counts, must_choose=are_named)
    return splits, remark if len(counts) > 1 or not are_named else ""


def _check_are_images(table: Table, column: str) -> None:
    """Raise InputError if the first cells do not contain image files but, for example, pixels or text."""
    cells = table.first_images(column, _CELLS_CHECKED)
    kinds = {
        number: _describe_other_bytes(cell, TableImage(table, number - 1, column))
        for number, cell in enumerate(cells, 1)
        if cell
    }
    if kinds and all(kinds.values()):
        number, description = next(iter(kinds.items()))
        expected = "the bytes of image files, such as JPEG or PNG"
        raise InputError(table, f"row {number}, column {column!r}", description, expected)


def _describe_other_bytes(cell: bytes, image: TableImage) -> str:
    """Return what a cell contains if it is not an image file; "" for an image file."""
    if cell.startswith(_BEGINNINGS):
        return ""
    with contextlib.suppress(InputError):
        image_format(cell, image)
        return ""
    with contextlib.suppress(ValueError):
        if base64.b64decode(cell[:_BASE64_START], validate=True).startswith(_BEGINNINGS):
            return f"{len(cell):,} bytes of base64 text"
    return f"{len(cell):,} bytes that are no image file (pixels without a format?)"


def _names_of(rows: Sequence[_Row], column: str) -> list[str]:
    """Return the names of the images: their own, as paths inside a folder, or else names from their contents."""
    values = [row.values[column] for row in rows]
    if all(values):
        names = [
            value if is_inner_file(value) and not is_url(value) else PurePosixPath(value).name
            for value in map(str, values)
        ]
        if all(names) and _are_unique(names, [row.image for row in rows]):
            return names
    return [_content_name(row.image) for row in rows]


def _are_unique(names: Sequence[str], images: Sequence[TableImage]) -> bool:
    """Return whether rows of the same name have the same image."""
    digests: dict[str, str] = {}
    repeated = {name for name, count in Counter(names).items() if count > 1}
    for name, image in zip(names, images, strict=True):
        if name in repeated:
            digest = image.sha256()
            if digests.setdefault(name, digest) != digest:
                return False
    return True


def _content_name(image: TableImage) -> str:
    content = image.read_bytes()
    suffix = next((suffix for magic, suffix in _SUFFIXES if content.startswith(magic)), "")
    return image.sha256()[:16] + suffix


def open_dataset(name: str, options: ReadOptions) -> CaptionsFile:
    """Open the captioned images of a data set; the text of this module describes its names.

    Raises InputError: `datasets` is not installed or finds no such data set, an option is unknown, a split is missing
    or a column or a row cannot be used.
    """
    path, _, query = name.removeprefix("hf:").partition("?")
    values = dict(urllib.parse.parse_qsl(query.replace("+", "%2B")))
    if unknown := set(values) - {"split", *USUAL}:
        raise InputError(name, "option", min(unknown), f"one of {', '.join(('split', *USUAL))}")
    split = values.pop("split", "")
    is_slice = "[" in split  # such as test[:100]
    split_of_rows = options.split if is_slice else split or options.split
    options = dataclasses.replace(
        options, columns={**options.requested_columns, **values}, split=split_of_rows, image_folders=()
    )
    dataset = _load(name, path, split if is_slice else None)
    if is_slice and isinstance(dataset, dict):
        raise InputError(name, "split", repr(split), f"one of {', '.join(dataset)}: a folder has no slices")
    by_split = dataset if isinstance(dataset, dict) else {split if is_slice else "": dataset}
    return read_tables(name, [(split_name, DatasetTable(each, name)) for split_name, each in by_split.items()], options)


def _load(name: str, path: str, split: str | None) -> Any:
    datasets = import_library(name, "datasets", "datasets")
    dataset, _, config = path.partition(":")
    is_folder = Path(dataset).is_dir()
    try:
        if is_folder and is_saved_dataset(Path(path)):
            return datasets.load_from_disk(path)
        cache = str(_cache_of_contents(Path(dataset))) if is_folder else None
        return datasets.load_dataset(dataset, config or None, split=split, cache_dir=cache)
    except Exception as error:  # what the library raises differs from one builder and file system to the next
        expected = "a data set of the hub, its cache, or a folder by save_to_disk, and a split of it"
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.ENOSPC):
            variable = "ROCOCO_CACHE" if is_folder else "HF_HOME"
            expected += f"; {variable} must be a folder that can be written and has room for it"
        raise InputError(name, "data set", first_line(error)[:200], expected) from None


def _cache_of_contents(folder: Path) -> Path:
    """Return a cache folder of the library for the files in a folder, named by their contents.

    The library's own cache identifies local files by path and time, so it would return old rows if a file was written
    again with the same time. Caches of earlier contents of the folder are removed.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]
    caches = cache_folder() / "datasets" / hash_json(str(folder.resolve()))[:24]
    cache = caches / hash_json([names, hash_files(files)])[:24]
    if caches.exists() and not cache.exists():
        for earlier in caches.iterdir():
            remove_folder(earlier)
    return cache
