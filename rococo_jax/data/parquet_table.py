"""Read tables of images, and Parquet files as such tables.

A Parquet file can only be decoded by row groups. Its images are therefore copied once to an Arrow file in the cache
folder (`remember`), as the `datasets` library does, and read there in any order. The copy is named by path and contents
of the Parquet file and has the SHA-256 of each image, which is verified at each read; a damaged copy is written again.

Arrow files with compressed images (`arrow_table`) have copies as well.
"""

import bisect
import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from rococo_jax.data.content_hashes import hash_files
from rococo_jax.data.file_state import FileState, local_state
from rococo_jax.data.remember import Kind, find_remembered, map_content, remembered
from rococo_jax.errors import InputError, first_line
from rococo_jax.progress import say
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import check_free_space, hash_json, whole_file

_MAX_GROUPS_IN_MEMORY = 4
_COPY = Kind("tables", ".arrow", 4, is_verified=False)
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
        with contextlib.suppress(pa.ArrowException, OSError, KeyError):
            copy = _copy(table, column, state)
            if copy is None:
                break
            image = copy["image"][row].as_py()
            if copy["sha256"][row].as_py() == _digest(image):
                return image
        _discard_copy(table, column)
    return table.image_without_copy(row, column, state)


@lru_cache(maxsize=256)
def _copy(table: CopiedTable, column: str, state: FileState) -> pa.Table | None:
    """Open the copy of a column's images, mapped into memory; write it to the cache folder if there is none.

    Return None if that fails or would take more than half of the disk's free space. Raises ArrowException: the copy is
    damaged.
    """
    try:
        copy = remembered(*_place_of(table, column), partial(_write_copy, table, column, state.size))
    except (InputError, OSError, pa.ArrowException) as error:
        say(
            f"{table.path}: no copy of its images that is quick to read in any order: {first_line(error)[:200]}; set "
            "ROCOCO_CACHE to a folder that can be written and has room for it"
        )
        return None
    images = pa.ipc.open_file(pa.py_buffer(map_content(copy))).read_all()
    images.validate(full=True)  # checks the offsets of the images; their bytes are verified at each read
    return images


def _place_of(table: CopiedTable, column: str) -> tuple[Kind, str, str]:
    return _COPY, str(table.path.resolve()), hash_json([column, *hash_files([table.path])])


def _discard_copy(table: CopiedTable, column: str) -> None:
    if (copy := find_remembered(*_place_of(table, column))) is not None:
        copy.unlink(missing_ok=True)
    _copy.cache_clear()


def _write_copy(table: CopiedTable, column: str, size: int, file: BufferedIOBase, earlier: memoryview | None) -> None:
    del earlier
    check_free_space(cache_folder() / _COPY.folder / "copy", 2 * size)
    with contextlib.ExitStack() as stack:
        writer = None
        for values in table.pieces(column):
            values = pc.struct_field(values, "bytes") if pa.types.is_struct(values.type) else values
            digests = pa.array([_digest(image.as_py()) for image in values], pa.binary())
            images = pa.table({"image": values, "sha256": digests})
            writer = writer or stack.enter_context(pa.ipc.new_file(file, images.schema))
            writer.write_table(images)


def _digest(image: bytes | None) -> bytes | None:
    return None if image is None else hashlib.sha256(image).digest()


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
