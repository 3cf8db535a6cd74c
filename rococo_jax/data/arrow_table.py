"""Read Arrow and Feather files as tables of images, such as those of pandas, pyarrow or the cache of `datasets`.

Images of uncompressed files are read from the file, mapped into memory. Decompressed, all images of a batch would be in
the memory of every process that reads one of them: pandas writes 65,536 rows as a batch. So images of compressed files
are read from a copy in the cache folder, as those of Parquet files (`parquet_table`).
"""

import itertools
import mmap
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from rococo_jax.data.file_state import FileState, local_state
from rococo_jax.data.parquet_table import image_columns, image_from_copy, with_paths
from rococo_jax.errors import InputError
from rococo_jax.storage import whole_file

_EXPECTED = "an Arrow or Feather table of images and captions"
_FEATHER_1 = b"FEA1"
_FILE = b"ARROW1"


class ArrowTable(NamedTuple):
    """A file in one of Arrow's formats (file or stream) as an `ImageTable`. It is pickled as its path."""

    path: Path

    def schema(self) -> pa.Schema:
        """Return the names and types of the columns. Raises InputError: it is not a complete Arrow file."""
        with whole_file(self.path, _EXPECTED):
            return _open(self.path).schema

    def read(self, columns: Sequence[str]) -> pa.Table:
        """See `ImageTable`."""
        inside = image_columns(self.schema())
        # Images without a path have nothing to be read.
        read = [name for name in columns if not (name in inside and not pa.types.is_struct(inside[name]))]
        with whole_file(self.path, _EXPECTED):
            tables = [with_paths(batch, columns) for batch in self._batches(read or list(columns[:1]))]
            table = pa.concat_tables(tables) if tables else with_paths(self.schema().empty_table(), columns)
            table.validate(full=True)  # texts that are no UTF-8 are found here
        return table

    def image(self, row: int, column: str) -> bytes | None:
        """See `ImageTable`."""
        with whole_file(self.path, _EXPECTED):
            state = local_state(self.path)
            table = _mapped_table(self.path, state)
        return image_from_copy(self, row, column, state) if table is None else _bytes_of(table[column][row])

    def image_without_copy(self, row: int, column: str, state: FileState) -> bytes | None:
        """Return the bytes of an image file from the decompressed column."""
        with whole_file(self.path, _EXPECTED):
            return _bytes_of(_decompressed_column(self.path, column, state)[row])

    def pieces(self, column: str) -> Iterator[pa.ChunkedArray]:
        """Yield the values of a column by batches."""
        return (batch[column] for batch in self._batches([column]))

    def first_images(self, column: str, count: int) -> list[bytes | None]:
        """See `ImageTable`."""
        with whole_file(self.path, _EXPECTED):
            values = itertools.chain.from_iterable(self.pieces(column))
            return [_bytes_of(value) for value in itertools.islice(values, count)]

    def row_count(self) -> int:
        """See `ImageTable`."""
        schema = self.schema()
        inside = image_columns(schema)
        smallest = next((name for name in schema.names if name not in inside), schema.names[0])
        with whole_file(self.path, _EXPECTED):
            return sum(map(len, self._batches([smallest])))

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the batches of the file with these columns; other columns are not decompressed."""
        numbers = sorted({self.schema().get_field_index(name) for name in columns})
        reader = _open(self.path, numbers)
        batches = (
            reader
            if isinstance(reader, pa.RecordBatchStreamReader)
            else map(reader.get_batch, range(reader.num_record_batches))
        )
        for batch in batches:
            yield pa.Table.from_batches([batch])

    def __str__(self) -> str:
        return str(self.path)


def _bytes_of(value: pa.Scalar) -> bytes | None:
    image = value.as_py()
    return image["bytes"] if isinstance(image, dict) else image


def _open(path: Path, columns: Sequence[int] = ()) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
    """Open a file; with `columns`, read only these, by number."""
    with path.open("rb") as file:
        start = file.read(len(_FILE))
    if start.startswith(_FEATHER_1):
        raise InputError(path, "format", "version 1 of Feather", "version 2, or Parquet: pandas writes both")
    open_reader = pa.ipc.open_file if start == _FILE else pa.ipc.open_stream
    return open_reader(pa.memory_map(str(path)), options=pa.ipc.IpcReadOptions(included_fields=list(columns)))


@lru_cache(maxsize=8)
def _mapped_table(path: Path, state: FileState) -> pa.Table | None:
    """Return the table of an uncompressed file, mapped into memory; None if it is compressed."""
    del state  # only part of the cache key, so that another version of the file is read again
    reader = _open(path)  # checks the beginning of the file
    with path.open("rb") as file:
        content = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    # The file format is the stream format between a beginning of 8 bytes and a footer.
    is_file = isinstance(reader, pa.RecordBatchFileReader)
    for message in pa.ipc.MessageReader.open_stream(content[8:] if is_file else content):
        if message.type == "record batch":
            if _is_compressed(message.metadata.to_pybytes()):
                return None
            break
    table = reader.read_all()
    table.validate(full=True)
    return table


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the metadata of a record batch, a flatbuffer `Message` of Arrow's format, names a compression."""

    def field(table: int, number: int) -> int:
        """Return the position of a field of a table, or 0 if it is absent."""
        fields = table - struct.unpack_from("<i", metadata, table)[0]
        entry = 4 + 2 * number
        if entry >= struct.unpack_from("<H", metadata, fields)[0]:
            return 0
        offset = struct.unpack_from("<H", metadata, fields + entry)[0]
        return table + offset if offset else 0

    def target(position: int) -> int:
        return position + struct.unpack_from("<I", metadata, position)[0]

    header = target(field(target(0), 2))
    return field(header, 3) != 0


@lru_cache(maxsize=1)
def _decompressed_column(path: Path, column: str, state: FileState) -> pa.ChunkedArray:
    del state
    return _open(path, [_open(path).schema.get_field_index(column)]).read_all()[column]
