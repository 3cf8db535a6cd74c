"""Tables with images inside, as bytes or as Hugging Face's `{"bytes", "path"}`: Parquet, Arrow, and `datasets`.

Images of Arrow files and of data sets are read from the file, mapped into memory. A Parquet file can only be decoded by
row groups. Its images are therefore copied once to an Arrow file in the cache folder (`remember`), as the `datasets`
library does, and read there in any order. The copy is named by path and contents of the Parquet file and has the
SHA-256 of each image. These are verified when it is opened, and an image at each read; a damaged copy is written again.
"""

import abc
import bisect
import contextlib
import hashlib
import itertools
import mmap
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from rococo_jax.data.content_hashes import hash_files
from rococo_jax.data.remember import Kind, find_remembered, map_content, recorded_digest, remembered
from rococo_jax.data.remote import FileState, local_state
from rococo_jax.errors import InputError, first_line
from rococo_jax.progress import say
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import check_free_space, hash_json, whole_file

_EXPECTED = "a table of images and captions"
_ROWS_AT_ONCE = 4096
_MAX_GROUPS_IN_MEMORY = 4
_COPY = Kind("tables", ".arrow", 4, is_verified=False)
_KINDS_OF_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


class Table(abc.ABC):
    """A table that may contain images. Tables can be pickled, and hold neither images nor open files."""

    @abc.abstractmethod
    def schema(self) -> pa.Schema:
        """Return the names and types of the columns. Raises InputError: the table is damaged or something else."""

    @abc.abstractmethod
    def row_count(self) -> int:
        """Return the number of rows."""

    @abc.abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of these columns, with images as they are or as their paths alone."""

    @abc.abstractmethod
    def image(self, row: int, column: str) -> bytes | None:
        """Return the bytes of an image file."""

    def image_hash(self, row: int, column: str) -> str | None:
        """Return the SHA-256 of an image file as 64 hex digits; None for an empty cell."""
        image = self.image(row, column)
        return hashlib.sha256(image).hexdigest() if image else None

    @abc.abstractmethod
    def first_images(self, column: str, count: int) -> list[bytes | None]:
        """Return the bytes of the first image files, without reading the others."""

    def rows(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of some columns; an image is its path, or None if it has none.

        Raises InputError: the table is damaged, or a text is not UTF-8.
        """
        for batch in self.batches(columns):
            table = _with_paths(batch, columns)
            try:
                table.validate(full=True)
            except pa.ArrowInvalid as error:
                raise InputError(self, "contents", f"something else ({first_line(error)[:200]})", _EXPECTED) from None
            for some in table.to_batches(_ROWS_AT_ONCE):
                yield from some.to_pylist()


def image_columns(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the columns that contain images, with their types."""
    return {field.name: field.type for field in schema if _holds_images(field.type)}


def _holds_images(kind: pa.DataType) -> bool:
    is_bytes = any(is_kind(kind) for is_kind in _KINDS_OF_BYTES)
    return is_bytes or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def _with_paths(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the columns in this order, with images replaced by their paths, or by nulls if they have none."""

    def path_of(values: pa.ChunkedArray) -> pa.ChunkedArray:
        if pa.types.is_struct(values.type) and values.type.get_field_index("path") >= 0:
            values = pc.struct_field(values, "path")
        return nothing if _holds_images(values.type) else values

    nothing = pa.chunked_array([pa.nulls(len(table), pa.string())])
    return pa.table({name: path_of(table[name]) if name in table.column_names else nothing for name in columns})


def _bytes_of(value: Any) -> bytes | None:
    return value["bytes"] if isinstance(value, dict) else value


class MappedTable(Table):
    """A table that is mapped into memory."""

    @abc.abstractmethod
    def mapped(self) -> pa.Table:
        """Return the table."""

    def schema(self) -> pa.Schema:
        return self.mapped().schema

    def row_count(self) -> int:
        return len(self.mapped())

    def batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        yield self.mapped().select(list(columns))

    def image(self, row: int, column: str) -> bytes | None:
        return _bytes_of(self.mapped()[column][row].as_py())

    def first_images(self, column: str, count: int) -> list[bytes | None]:
        return [self.image(row, column) for row in range(min(count, self.row_count()))]


class ArrowTable(MappedTable):
    """A file in one of Arrow's formats (file or stream), without compression."""

    def __init__(self, path: Path):
        self.path = path

    def mapped(self) -> pa.Table:
        """Return the table. Raises InputError: it is compressed, so that it would be in memory as a whole."""
        with whole_file(self.path, _EXPECTED):
            return _map_file(self.path, local_state(self.path))

    def __str__(self) -> str:
        return str(self.path)


@lru_cache(maxsize=8)
def _map_file(path: Path, state: FileState) -> pa.Table:
    del state  # only part of the cache key, so that another version of the file is read again
    with path.open("rb") as file:
        content = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    open_reader = pa.ipc.open_file if content[:6].to_pybytes() == b"ARROW1" else pa.ipc.open_stream
    table = open_reader(content).read_all()
    addresses = range(content.address, content.address + content.size)
    buffers = (buffer for column in table.columns for chunk in column.chunks for buffer in chunk.buffers() if buffer)
    if any(buffer.size and buffer.address not in addresses for buffer in buffers):
        raise InputError(path, "table", "a compressed Arrow or Feather file", "one without compression, or Parquet")
    table.validate(full=True)
    return table


class DatasetTable(MappedTable):
    """A data set of the `datasets` library. Its pickle refers to the files that it maps."""

    def __init__(self, dataset: Any, name: str):
        self.dataset, self.name = dataset, name
        self._mapped = dataset.with_format("arrow")[:]

    def __reduce__(self):
        return DatasetTable, (self.dataset, self.name)

    def mapped(self) -> pa.Table:
        return self._mapped

    def image(self, row: int, column: str) -> bytes | None:
        """Return the bytes of an image, which may be in a file of its own."""
        value = self.mapped()[column][row].as_py()
        if isinstance(value, dict) and not value["bytes"] and value["path"]:
            try:
                return Path(value["path"]).read_bytes()
            except FileNotFoundError:
                field = f"row {row + 1}, column {column!r}"
                raise InputError(self, field, f"no file {value['path']!r}", "an image file") from None
        return _bytes_of(value)

    def __str__(self) -> str:
        return self.name


class ParquetTable(Table):
    """A Parquet file."""

    def __init__(self, path: Path):
        self.path = path

    def schema(self) -> pa.Schema:
        return self._opened().schema_arrow

    def row_count(self) -> int:
        return self._opened().metadata.num_rows

    def batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the row groups, without the bytes of images."""
        file = self._opened()
        inside = image_columns(file.schema_arrow)
        fields = [f"{name}.path" if pa.types.is_struct(inside.get(name, pa.null())) else name for name in columns]
        fields = [field for field in fields if field not in inside]
        # Without a column, a row group has no rows.
        fields = fields or [next((name for name in file.schema_arrow.names if name not in inside), columns[0])]
        for group in range(file.num_row_groups):
            yield _read_group(self.path, group, fields)

    def image(self, row: int, column: str) -> bytes | None:
        """Return the bytes of an image file from the copy, or from the file if there can be no copy."""
        with whole_file(self.path, "a Parquet file"):
            state = local_state(self.path)
        for _ in range(2):
            with contextlib.suppress(pa.ArrowException, OSError, KeyError):
                copy = _open_copy(self.path, column, state)
                if copy is None:
                    break
                image = copy["image"][row].as_py()
                if copy["sha256"][row].as_py() == _digest(image):
                    return image
            _discard_copy(self.path, column)
        ends = _ends(self.path, state)
        group = bisect.bisect_right(ends, row)
        return _images(self.path, group, column, state)[row - (ends[group - 1] if group else 0)]

    def image_hash(self, row: int, column: str) -> str | None:
        """Return the SHA-256 of an image file, which its copy has, without reading the image."""
        with contextlib.suppress(pa.ArrowException, OSError, KeyError):
            copy = _open_copy(self.path, column, local_state(self.path))
            if copy is not None:
                digest = copy["sha256"][row].as_py()
                return digest.hex() if digest not in (None, _digest(b"")) else None
        return super().image_hash(row, column)

    def first_images(self, column: str, count: int) -> list[bytes | None]:
        with whole_file(self.path, _EXPECTED):
            values = next(self._opened().iter_batches(count, columns=[column]))[column] if self.row_count() else []
            return [_bytes_of(value.as_py()) for value in values]

    def named_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows with all columns; an image is named `FILE.parquet/ROW/COLUMN`."""
        images = image_columns(self.schema())
        for row, values in enumerate(self.rows(self.schema().names)):
            yield values | {column: f"{self.path.name}/{row}/{column}" for column in images}

    def _opened(self) -> pyarrow.parquet.ParquetFile:
        with whole_file(self.path, "a complete Parquet file"):
            return pyarrow.parquet.ParquetFile(self.path)

    def __str__(self) -> str:
        return str(self.path)


@lru_cache(maxsize=256)
def _open_copy(path: Path, column: str, state: FileState) -> pa.Table | None:
    """Open the copy of a column's images, mapped into memory; write it to the cache folder if there is none.

    Return None if that fails or would take more than half of the disk's free space. Raises ArrowException: the copy is
    damaged.
    """
    try:
        copy = remembered(*_place_of(path, column), partial(_write_copy, path, column, state.size))
    except (InputError, OSError, pa.ArrowException) as error:
        say(
            f"{path}: no copy of its images that is quick to read in any order: {first_line(error)[:200]}; set "
            "ROCOCO_CACHE to a folder that can be written and has room for it"
        )
        return None
    images = pa.ipc.open_file(pa.py_buffer(map_content(copy))).read_all()
    images.validate(full=True)  # checks the offsets of the images; their bytes are verified at each read
    if _digest_of_batches(images["sha256"].chunks) != recorded_digest(copy):
        raise pa.ArrowInvalid("other digests than those that were written")
    return images


def _place_of(path: Path, column: str) -> tuple[Kind, str, str]:
    return _COPY, str(path.resolve()), hash_json([column, *hash_files([path])])


def _discard_copy(path: Path, column: str) -> None:
    if (copy := find_remembered(*_place_of(path, column))) is not None:
        copy.unlink(missing_ok=True)
    _open_copy.cache_clear()


def _write_copy(path: Path, column: str, size: int, file: BufferedIOBase, earlier: memoryview | None) -> str:
    del earlier
    all_digests = []
    check_free_space(cache_folder() / _COPY.folder / "copy", 2 * size)
    with contextlib.ExitStack() as stack:
        writer = None
        for group in range(pyarrow.parquet.ParquetFile(path).num_row_groups):
            values = _read_group(path, group, [column])[column]
            values = pc.struct_field(values, "bytes") if pa.types.is_struct(values.type) else values
            digests = pa.array([_digest(image.as_py()) for image in values], pa.binary())
            all_digests.append(digests)
            images = pa.table({"image": values, "sha256": digests})
            writer = writer or stack.enter_context(pa.ipc.new_file(file, images.schema))
            writer.write_table(images)
    return _digest_of_batches(all_digests)


def _digest_of_batches(batches: Sequence[pa.Array]) -> str:
    digests = itertools.chain.from_iterable(batches)
    return hashlib.sha256(b"".join(each.as_py() or bytes(32) for each in digests)).hexdigest()


def _digest(image: bytes | None) -> bytes | None:
    return None if image is None else hashlib.sha256(image).digest()


@lru_cache(maxsize=8)
def _ends(path: Path, state: FileState) -> list[int]:
    del state
    metadata = pyarrow.parquet.ParquetFile(path).metadata
    return list(itertools.accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)))


@lru_cache(maxsize=_MAX_GROUPS_IN_MEMORY)
def _images(path: Path, group: int, column: str, state: FileState) -> list[bytes | None]:
    del state
    return [_bytes_of(value.as_py()) for value in _read_group(path, group, [column])[column]]


def _read_group(path: Path, group: int, columns: Sequence[str]) -> pa.Table:
    with whole_file(path, "a complete Parquet file"):
        return pyarrow.parquet.ParquetFile(path).read_row_group(group, columns=columns)
