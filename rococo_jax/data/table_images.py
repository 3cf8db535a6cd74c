"""Read captioned images from tables that contain the image files, as bytes or as Hugging Face's `{"bytes", "path"}`.

Tables are Parquet files (`parquet_table`) and data sets of the `datasets` library:

    hf:nlphuji/flickr30k?split=test
    hf:NAME:CONFIG?split=test&image=photo&caption=texts
    a folder written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`, also as hf:FOLDER?split=test

Options are `split` (`table_splits`; necessary if a data set has several), and the columns of the image, the captions
and the image's name.
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
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa

from rococo_jax.data.caption_tables import (
    USUAL,
    CaptionsFile,
    caption_columns,
    choose_column,
    collect_rows,
    refuse_name_column,
    split_column,
    splits_of,
)
from rococo_jax.data.content_hashes import hash_files
from rococo_jax.data.downloaded_images import STATUS, describe_failed_downloads, is_download_table, is_downloaded
from rococo_jax.data.image_files import hash_image
from rococo_jax.data.parquet_table import ImageTable, ParquetTable, image_columns, with_paths
from rococo_jax.data.pictures import image_format
from rococo_jax.data.read_options import ReadOptions
from rococo_jax.data.table_splits import ALL, USUAL_SPLITS, ChosenTables, choose_tables
from rococo_jax.errors import InputError, first_line, missing_library
from rococo_jax.runtime import cache_folder
from rococo_jax.safe_paths import is_inner_file
from rococo_jax.storage import hash_json, is_url, remove_folder

_CELLS_CHECKED = 8
_SUFFIXES = ((b"\xff\xd8", ".jpg"), (b"\x89PNG", ".png"), (b"GIF8", ".gif"), (b"RIFF", ".webp"), (b"BM", ".bmp"))
_BEGINNINGS = tuple(magic for magic, _ in _SUFFIXES)
_BASE64_START = 16  # characters, enough for the first bytes of a file


class TableImage(NamedTuple):
    """An image inside a table, which can be read like a path."""

    table: ImageTable
    row: int
    column: str

    def read_bytes(self) -> bytes:
        """Return the bytes of the image file. Raises InputError: the cell is empty."""
        value = self.table.image(self.row, self.column)
        if not value:
            expected = f"an image file inside the table, in row {self.row + 1} of the column {self.column!r}"
            raise InputError(self, "image", "no bytes", expected)
        return value

    def __str__(self) -> str:
        return f"{self.table}/{self.row}/{self.column}"


# File names of a split on the hub: `test-00000-of-00002.parquet`, or only a usual name of a split.
_FILE_OF_SPLIT = re.compile(rf"(\w+(?:\.\w+)*)-\d+-of-\d+.*|({'|'.join(USUAL_SPLITS)})")


def open_parquet(source: str, files: Sequence[Path], options: ReadOptions) -> CaptionsFile:
    """Open the captioned images of Parquet files; the names of the files or of their folders may name a split.

    Raises InputError: as `choose_tables` and `read_image_tables`.
    """
    tables: dict[str, list[ImageTable]] = {}
    folders = {path.parent.name for path in files}
    for path in files:
        match = _FILE_OF_SPLIT.fullmatch(path.stem)
        split_of_file = match[1] or match[2] if match else ""
        tables.setdefault(path.parent.name if len(folders) > 1 else split_of_file, []).append(ParquetTable(path))
    return read_image_tables(source, choose_tables(source, tables, options), options)


def read_image_tables(source: str, selection: ChosenTables, options: ReadOptions) -> CaptionsFile:
    """Read the captioned images of tables that have the same columns.

    Images are inside the table, or named in a column. An image inside is named by its `path` or by a column of names if
    every image has a name and no two images share one. Otherwise it is named by the SHA-256 of its bytes, so that rows
    of the same image are merged.

    Raises InputError: names the table, and the column or row with its field.
    """
    schema, columns = selection.tables[0].schema(), options.requested_columns
    inside = list(image_columns(schema))
    if len(inside) == 1 and "image" not in columns:
        image = inside[0]
    else:
        image = choose_column("image", schema.names, columns, source)
    if image not in inside:
        refuse_name_column(source, columns)
    texts, split = caption_columns(schema.names, columns, source), split_column(schema.names, columns, source)
    name = choose_column("name", schema.names, columns, source) if "name" in columns else image
    columns_read = {"image": image}
    if len(texts) == 1:
        columns_read["caption"] = texts[0]
    if split:
        columns_read["split"] = split
    has_status = is_download_table(schema.names)
    names = dict.fromkeys([image, *texts, *([split] if split else []), name])
    rows = _read_rows(selection.tables, image, [*names, *([STATUS] if has_status else [])])
    downloaded = [row for row in rows if is_downloaded(row.values)] if has_status else rows
    remarks = selection.remark + describe_failed_downloads(len(rows) - len(downloaded))
    image_files: dict[str, TableImage] = {}
    if image in inside:
        _check_are_images(selection.tables[0], image)
        downloaded, image_files = _name_images(downloaded, image, name, split, selection.row_split)
    numbered = ((f"row {row.number}", {key: row.values[key] for key in names}) for row in downloaded)
    row_options = dataclasses.replace(
        options,
        columns=columns_read,
        split=selection.row_split,
        split_in_name="",
        image_folders=() if image in inside else options.image_folders,
    )
    file = collect_rows(source, numbered, row_options, selection.must_choose)
    return dataclasses.replace(
        file,
        remarks=f"{remarks}{file.remarks}",
        image_files={item.image: image_files[item.image] for item in file.items} if image in inside else {},
    )


def _name_images(
    rows: "Sequence[_Row]", image: str, name: str, split: str | None, row_split: str
) -> "tuple[list[_Row], dict[str, TableImage]]":
    """Put the names of images into their rows, and return the rows, and the images by name.

    Only rows of the requested splits are named, since that may need the bytes of their images; the others are just
    counted later.
    """
    requested = splits_of(row_split) - {ALL}
    is_read = [not requested or str(row.values[split]).strip() in requested for row in rows]
    rows_read = list(itertools.compress(rows, is_read))
    image_names = _names_of(rows_read, name)
    # Of rows with the same image, the first one counts.
    image_files = dict(zip(reversed(image_names), (row.image for row in reversed(rows_read)), strict=True))
    names_by_row = dict(zip((row.number for row in rows_read), image_names, strict=True))
    named = [row._replace(values={**row.values, image: names_by_row.get(row.number, "")}) for row in rows]
    return named, image_files


class _Row(NamedTuple):
    """A row, numbered through all tables, and its image if that is inside the table."""

    number: int
    values: dict[str, Any]
    image: TableImage


def _read_rows(tables: Sequence[ImageTable], image: str, names: list[str]) -> list[_Row]:
    rows: list[_Row] = []
    for table in tables:
        for row, values in enumerate(table.read(names).to_pylist()):
            rows.append(_Row(len(rows) + 1, values, TableImage(table, row, image)))
    return rows


def _check_are_images(table: ImageTable, column: str) -> None:
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
            digest = hash_image(image)
            if digests.setdefault(name, digest) != digest:
                return False
    return True


def _content_name(image: TableImage) -> str:
    content = image.read_bytes()
    suffix = next((suffix for magic, suffix in _SUFFIXES if content.startswith(magic)), "")
    return hashlib.sha256(content).hexdigest()[:16] + suffix


_FILES_OF_SAVED_DATASET = ("dataset_dict.json", "dataset_info.json", "state.json")


def is_saved_dataset(path: Path) -> bool:
    """Return whether a folder was written by `save_to_disk`."""
    return any((path / name).is_file() for name in _FILES_OF_SAVED_DATASET)


def open_dataset(name: str, options: ReadOptions) -> CaptionsFile:
    """Open the captioned images of a data set; the text of this module describes its names.

    Raises InputError: `datasets` is not installed or finds no such data set, an option is unknown, a split is missing
    (`choose_tables`), or a column or a row cannot be used.
    """
    path, _, query = name.removeprefix("hf:").partition("?")
    values = dict(urllib.parse.parse_qsl(query.replace("+", "%2B")))
    if unknown := set(values) - {"split", *USUAL}:
        raise InputError(name, "option", min(unknown), f"one of {', '.join(('split', *USUAL))}")
    split = values.pop("split", options.split_in_name)
    options = dataclasses.replace(
        options, columns={**options.requested_columns, **values}, split_in_name=split, image_folders=()
    )
    is_slice = "[" in split  # such as test[:100]
    dataset = _load(name, path, split if is_slice else None)
    if is_slice and isinstance(dataset, dict):
        raise InputError(name, "split", repr(split), f"one of {', '.join(dataset)}: a folder has no slices")
    by_split = dataset if isinstance(dataset, dict) else {"": dataset}
    tables = {split_name: [DatasetTable(each, name)] for split_name, each in by_split.items()}
    if is_slice:
        selection = ChosenTables(tables[""], options.split, must_choose=True)
    else:
        selection = choose_tables(name, tables, options)
    return read_image_tables(name, selection, options)


def _load(name: str, path: str, split: str | None) -> Any:
    try:
        import datasets
    except ImportError:
        raise missing_library(name, "library", "datasets", "datasets") from None
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


class DatasetTable:
    """A data set as an `ImageTable`. Its pickle refers to the files that it maps."""

    def __init__(self, dataset: Any, name: str):
        self.dataset, self.name = dataset.with_format("arrow"), name

    def schema(self) -> pa.Schema:
        """See `ImageTable`."""
        return self.dataset.features.arrow_schema

    def read(self, columns: Sequence[str]) -> pa.Table:
        """See `ImageTable`."""
        return with_paths(self.dataset.select_columns(list(columns))[:], columns)

    def image(self, row: int, column: str) -> bytes | None:
        """See `ImageTable`."""
        value = self.dataset[row][column][0].as_py()
        if isinstance(value, dict) and not value["bytes"] and value["path"]:
            try:
                return Path(value["path"]).read_bytes()
            except FileNotFoundError:
                field = f"row {row + 1}, column {column!r}"
                raise InputError(self, field, f"no file {value['path']!r}", "an image file") from None
        return value["bytes"] if isinstance(value, dict) else value

    def first_images(self, column: str, count: int) -> list[bytes | None]:
        """See `ImageTable`."""
        return [self.image(row, column) for row in range(min(count, len(self.dataset)))]

    def row_count(self) -> int:
        """See `ImageTable`."""
        return len(self.dataset)

    def __str__(self) -> str:
        return self.name
