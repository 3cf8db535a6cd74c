"""Read tables of images, and Parquet files as such tables.

A Parquet file can only be decoded by row groups. Its images are therefore copied once to an Arrow file in the cache
folder, as the `datasets` library does, and read there in any order. The copy is named by path and contents of the
Parquet file and has the SHA-256 of each image, which is verified at each read; a damaged copy is written again.

Arrow files with compressed images (`arrow_table`) have copies as well.

Writing a copy removes this machine's copies of earlier versions of the table. The first copy that a process writes also
removes those of tables that no longer exist, and what killed processes left. Copies of other machines, which may have
mounted their tables elsewhere, are left alone.
"""

import bisect
import contextlib
import hashlib
import itertools
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from rococo_jax.data.content_hashes import hash_files
from rococo_jax.data.file_state import FileState, local_state
from rococo_jax.errors import InputError, first_line
from rococo_jax.locks import hold
from rococo_jax.progress import say
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import atomic_write, check_free_space, hash_json, remove_old, target_name, whole_file

_MAX_GROUPS_IN_MEMORY = 4
_COPY_FORMAT = "rococo_jax.table_copy 3"
_KINDS_OF_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


@runtime_checkable
class ImageTable(Protocol):
    """A table that contains images."""

    def schema(self) -> pa.Schema:
        """Return the names and types of the columns."""

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Read some columns; images are represented by their paths."""

    def image(self, row: int, column: str) -> bytes | None:
        """Return the bytes of an image file."""

    def first_images(self, column: str, count: int) -> list[bytes | None]:
        """Return the bytes of the first image files, without reading the others."""

    def row_count(self) -> int:
        """Return the number of rows."""


class ParquetTable(NamedTuple):
    """A Parquet file as an `ImageTable`. It can be pickled and keeps no open file."""

    path: Path

    def schema(self) -> pa.Schema:
        """Return the names and types of the columns. Raises InputError: it is not a complete Parquet file."""
        return _opened(self.path).schema_arrow

    def read(self, columns: Sequence[str]) -> pa.Table:
        """See `ImageTable`. Raises InputError: the file is damaged."""
        inside = image_columns(self.schema())
        fields = [f"{name}.path" if pa.types.is_struct(inside.get(name, pa.null())) else name for name in columns]
        fields = [field for field in fields if field not in inside]
        # pyarrow's `read_table` would rename the field `image.path` to `path`.
        with whole_file(self.path, "a table of images and captions"):
            table = _opened(self.path).read(columns=fields)
            table.validate(full=True)  # finds texts that are not UTF-8
        return with_paths(table, columns)

    def image(self, row: int, column: str) -> bytes | None:
        """See `ImageTable`."""
        with whole_file(self.path, "a Parquet file"):
            state = local_state(self.path)
        return image_from_copy(self, row, column, state)

    def image_without_copy(self, row: int, column: str, state: FileState) -> bytes | None:
        """Return the bytes of an image file from its row group."""
        ends = _ends(self.path, state)
        group = bisect.bisect_right(ends, row)
        return _images(self.path, group, column, state)[row - (ends[group - 1] if group else 0)]

    def pieces(self, column: str) -> Iterator[pa.ChunkedArray]:
        """Yield the values of a column by row groups."""
        for group in range(_opened(self.path).num_row_groups):
            yield _read(self.path, group, [column])[column]

    def first_images(self, column: str, count: int) -> list[bytes | None]:
        """See `ImageTable`."""
        with whole_file(self.path, "a table of images and captions"):
            batches = _opened(self.path).iter_batches(count, columns=[column])
            values = next(batches)[column].to_pylist() if self.row_count() else []
        return [value["bytes"] if isinstance(value, dict) else value for value in values]

    def row_count(self) -> int:
        """See `ImageTable`."""
        return _opened(self.path).metadata.num_rows

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, with the name `FILE.parquet/ROW/COLUMN` instead of an image."""
        images, row = image_columns(self.schema()), 0
        for group in range(_opened(self.path).num_row_groups):
            columns = [name for name in self.schema().names if name not in images]
            for values in _read(self.path, group, columns).to_pylist():
                yield values | {column: f"{self.path.name}/{row}/{column}" for column in images}
                row += 1

    def __str__(self) -> str:
        return str(self.path)


def with_paths(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the columns in this order, with images replaced by their paths, or by nulls if they have none."""
    values = [table[name] if name in table.column_names else pa.nulls(len(table), pa.string()) for name in columns]
    values = [
        pc.struct_field(each, "path")
        if pa.types.is_struct(each.type) and each.type.get_field_index("path") >= 0
        else each
        for each in values
    ]
    nothing = pa.nulls(len(table), pa.string())
    return pa.table(
        {name: nothing if _holds_images(each.type) else each for name, each in zip(columns, values, strict=True)}
    )


def image_columns(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the columns that contain images, with their types."""
    return {field.name: field.type for field in schema if _holds_images(field.type)}


def _holds_images(kind: pa.DataType) -> bool:
    is_bytes = any(is_kind(kind) for is_kind in _KINDS_OF_BYTES)
    return is_bytes or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


@runtime_checkable
class CopiedTable(Protocol):
    """A file whose images are read from a copy; hashable."""

    path: Path

    def pieces(self, column: str) -> Iterator[pa.ChunkedArray]:
        """Yield the values of a column."""

    def image_without_copy(self, row: int, column: str, state: FileState) -> bytes | None:
        """Return the bytes of an image file from the file itself, which is in this state."""


def image_from_copy(table: CopiedTable, row: int, column: str, state: FileState) -> bytes | None:
    """Return the bytes of an image file from the table's copy, which is written if there is none.

    A damaged copy is written again. Without a copy, the image is read from the table.
    """
    for _ in range(2):
        copy = _copy(table, column, state)
        if copy is None:
            break
        image = copy["image"][row].as_py()
        if copy["sha256"][row].as_py() == _digest(image):
            return image
        _discard_copy(table.path, column)
    return table.image_without_copy(row, column, state)


@lru_cache(maxsize=256)
def _copy(source: CopiedTable, column: str, state: FileState) -> pa.Table | None:
    """Open the copy of a column's images, mapped into memory; write it to the cache folder if there is none.

    Return None if that fails or would take more than half of the disk's free space.
    """
    path = source.path
    try:
        copy = _place_of(path, column)
        if (table := _read_copy(copy)) is not None:
            return table
        with _copying, hold(copy, wait=True):
            if _read_copy(copy) is None:
                check_free_space(copy, 2 * state.size)
                _write_copy(source, column, copy)
                _remove_outdated(copy)
        return _read_copy(copy)
    except (InputError, OSError, pa.ArrowException) as error:
        say(
            f"{path}: no copy of its images that is quick to read in any order: {first_line(error)[:200]}; set "
            "ROCOCO_CACHE to a folder that can be written and has room for it"
        )
        return None


_copying = threading.Lock()


def _place_of(path: Path, column: str) -> Path:
    table, contents = hash_json([str(path.resolve()), column]), hash_json([_COPY_FORMAT, *hash_files([path])])
    return cache_folder() / "tables" / f"{table[:16]}-{contents[:24]}.arrow"


def _read_copy(copy: Path) -> pa.Table | None:
    """Return the table of a copy, or None if it is missing or damaged."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(copy))).read_all().select(["image", "sha256"])
        table.validate(full=True)  # checks the offsets of the images; their bytes are verified at each read
    except (OSError, KeyError, pa.ArrowException):
        return None
    return table


def _discard_copy(path: Path, column: str) -> None:
    with _copying:
        _place_of(path, column).unlink(missing_ok=True)
        _copy.cache_clear()


def _write_copy(table: CopiedTable, column: str, copy: Path) -> None:
    source = {"source": json.dumps([socket.gethostname(), str(table.path.resolve())])}
    with atomic_write(copy) as temporary, contextlib.ExitStack() as stack:
        writer = None
        for values in table.pieces(column):
            values = pc.struct_field(values, "bytes") if pa.types.is_struct(values.type) else values
            digests = pa.array([_digest(image.as_py()) for image in values], pa.binary())
            images = pa.table({"image": values, "sha256": digests}).replace_schema_metadata(source)
            writer = writer or stack.enter_context(pa.ipc.new_file(temporary, images.schema))
            writer.write_table(images)


def _digest(image: bytes | None) -> bytes | None:
    return None if image is None else hashlib.sha256(image).digest()


def _remove_outdated(copy: Path) -> None:
    """Remove this machine's copies of earlier versions of the table, and once in a process all that are of no use."""
    folder, table = copy.parent, copy.name.partition("-")[0]
    for earlier in folder.glob(f"{table}-*.arrow"):
        if earlier != copy and (_source_of(earlier) or [""])[0] == socket.gethostname():
            earlier.unlink(missing_ok=True)
    if folder in _cleaned_folders:
        return
    _cleaned_folders.add(folder)
    remove_old(filter(target_name, folder.glob(".*.arrow.*.part")))
    for other in folder.glob("*.arrow"):
        source = _source_of(other)
        if source is None:  # damaged, or of another format
            remove_old([other])
        elif source[0] == socket.gethostname() and not Path(source[1]).exists():
            other.unlink(missing_ok=True)


# Folders of copies that this process has cleaned.
_cleaned_folders: set[Path] = set()


def _source_of(copy: Path) -> list[str] | None:
    """Return the machine that wrote a copy, and the path of its table; None if it is damaged or has another format."""
    try:
        with pa.memory_map(str(copy)) as file:
            host, path = json.loads(pa.ipc.open_file(file).schema.metadata[b"source"])
            return [host, path]
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException):
        return None


@lru_cache(maxsize=8)
def _ends(path: Path, state: FileState) -> list[int]:
    del state  # only part of the cache key, so that another version of the file is read again
    metadata = _opened(path).metadata
    return list(itertools.accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)))


@lru_cache(maxsize=_MAX_GROUPS_IN_MEMORY)
def _images(path: Path, group: int, column: str, state: FileState) -> list[bytes | None]:
    del state
    values = _read(path, group, [column])[column].to_pylist()
    return [value["bytes"] if isinstance(value, dict) else value for value in values]


def _read(path: Path, group: int, columns: list[str]) -> pa.Table:
    try:
        return _opened(path).read_row_group(group, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise InputError(path, "table", first_line(error)[:200], "a complete Parquet file") from None


def _opened(path: Path) -> pyarrow.parquet.ParquetFile:
    try:
        return pyarrow.parquet.ParquetFile(path)
    except FileNotFoundError:
        raise InputError(path, "file", "nothing there", "a Parquet file") from None
    except (OSError, pa.ArrowException) as error:
        raise InputError(path, "table", first_line(error)[:200], "a complete Parquet file") from None
