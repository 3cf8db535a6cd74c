"""Parquet files as tables of images.

A file can only be decoded by row groups, so its images are copied once to an Arrow file in the cache folder, as the
`datasets` library does with its own, and read there in any order.
"""

import bisect
import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from rococo_jax.errors import InputError, first_line
from rococo_jax.progress import say
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import atomic_write, check_free_space, hash_json, hold, whole_file

_GROUPS_KEPT = 4


class ParquetTable(NamedTuple):
    """A Parquet file as an `ImageTable` of `table_images`. It pickles, and holds nothing open."""

    path: Path

    def schema(self) -> pa.Schema:
        """Names and types of the columns. Raises InputError where it is no whole Parquet file."""
        return _opened(self.path).schema_arrow

    def read(self, columns: Sequence[str]) -> pa.Table:
        """See `table_images.ImageTable`. Raises InputError where the file is damaged."""
        inside = image_columns(self.schema())
        fields = [f"{name}.path" if pa.types.is_struct(inside.get(name, pa.null())) else name for name in columns]
        wanted = [field for field in fields if field not in inside]
        # Not by `read_table` of pyarrow, which calls a field `image.path` by its last name.
        with whole_file(self.path, "a table of images and captions"):
            table = _opened(self.path).read(columns=wanted)
            table.validate(full=True)  # texts that are no UTF-8 are found here
        return with_paths(table, columns)

    def image(self, row: int, column: str) -> bytes | None:
        """See `table_images.ImageTable`."""
        with whole_file(self.path, "a Parquet file"):
            about = self.path.stat()
        if (copy := _copy(self.path, column, about.st_size, about.st_mtime_ns)) is not None:
            return copy[row].as_py()
        ends = _ends(self.path)
        group = bisect.bisect_right(ends, row)
        return _images(self.path, group, column)[row - (ends[group - 1] if group else 0)]

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, with the name `FILE.parquet/ROW/COLUMN` in place of an image."""
        images, row = image_columns(self.schema()), 0
        for group in range(_opened(self.path).num_row_groups):
            others = [name for name in self.schema().names if name not in images]
            for values in _read(self.path, group, others).to_pylist():
                yield values | {column: f"{self.path.name}/{row}/{column}" for column in images}
                row += 1

    def __str__(self) -> str:
        return str(self.path)


def with_paths(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The columns in this order; images are replaced by their paths, or by nulls where a table has none."""
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
    """The columns that hold images, with their types."""
    return {field.name: field.type for field in schema if _holds_images(field.type)}


def _holds_images(kind: pa.DataType) -> bool:
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return is_bytes or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


@lru_cache(maxsize=256)
def _copy(path: Path, column: str, size: int, changed: int) -> pa.ChunkedArray | None:
    """The images of a column, in an Arrow file that is mapped into memory; it is written to the cache folder once.

    None where that fails or would take more than half of the disk's free space: each row then reads its row group.
    """
    key = hash_json([str(path.resolve()), column, size, changed])
    file = cache_folder() / "tables" / f"{key[:32]}.arrow"
    try:
        with _copying, hold(file, wait=True):
            if not file.is_file():
                check_free_space(file, 2 * size)
                _write_copy(path, column, file)
        return pa.ipc.open_file(pa.memory_map(str(file))).read_all().column(0)
    except (InputError, OSError, pa.ArrowException) as error:
        say(f"{path}: no copy of its images that is quick to read in any order: {first_line(error)[:200]}")
        return None


_copying = threading.Lock()


def _write_copy(path: Path, column: str, file: Path) -> None:
    with atomic_write(file) as temporary, contextlib.ExitStack() as stack:
        writer = None
        for group in range(_opened(path).num_row_groups):
            values = _read(path, group, [column])[column]
            values = pc.struct_field(values, "bytes") if pa.types.is_struct(values.type) else values
            images = pa.table({column: values})
            writer = writer or stack.enter_context(pa.ipc.new_file(temporary, images.schema))
            writer.write_table(images)


@lru_cache(maxsize=8)
def _ends(path: Path) -> list[int]:
    about = _opened(path).metadata
    return list(itertools.accumulate(about.row_group(group).num_rows for group in range(about.num_row_groups)))


@lru_cache(maxsize=_GROUPS_KEPT)
def _images(path: Path, group: int, column: str) -> list[bytes | None]:
    values = _read(path, group, [column])[column].to_pylist()
    return [value["bytes"] if isinstance(value, dict) else value for value in values]


def _read(path: Path, group: int, columns: list[str]) -> pa.Table:
    try:
        return _opened(path).read_row_group(group, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise InputError(path, "table", first_line(error)[:200], "a whole Parquet file") from None


def _opened(path: Path) -> pyarrow.parquet.ParquetFile:
    try:
        return pyarrow.parquet.ParquetFile(path)
    except FileNotFoundError:
        raise InputError(path, "file", "nothing there", "a Parquet file") from None
    except (OSError, pa.ArrowException) as error:
        raise InputError(path, "table", first_line(error)[:200], "a whole Parquet file") from None
