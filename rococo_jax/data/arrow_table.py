"""Read Arrow and Feather files as tables of images, such as those of pandas, pyarrow or the cache of `datasets`."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from rococo_jax.data.parquet_table import with_paths
from rococo_jax.errors import InputError
from rococo_jax.storage import whole_file

_FEATHER_1 = b"FEA1"
_FILE = b"ARROW1"


class ArrowTable(NamedTuple):
    """A file in one of Arrow's formats (file or stream) as an `ImageTable`. It is pickled as its path."""

    path: Path

    def schema(self) -> pa.Schema:
        """Return the names and types of the columns. Raises InputError: it is not a complete Arrow file."""
        return self._table().schema

    def read(self, columns: Sequence[str]) -> pa.Table:
        """See `ImageTable`."""
        return with_paths(self._table().select(list(columns)), columns)

    def image(self, row: int, column: str) -> bytes | None:
        """See `ImageTable`."""
        value = self._table()[column][row].as_py()
        return value["bytes"] if isinstance(value, dict) else value

    def first_images(self, column: str, count: int) -> list[bytes | None]:
        """See `ImageTable`."""
        return [self.image(row, column) for row in range(min(count, len(self._table())))]

    def row_count(self) -> int:
        """See `ImageTable`."""
        return len(self._table())

    def _table(self) -> pa.Table:
        with whole_file(self.path, "an Arrow or Feather table of images and captions"):
            about = self.path.stat()
            return _open(self.path, about.st_size, about.st_mtime_ns)

    def __str__(self) -> str:
        return str(self.path)


@lru_cache(maxsize=8)
def _open(path: Path, size: int, modified_at: int) -> pa.Table:
    """Return the table, mapped into memory if it is not compressed; the size and the time distinguish versions."""
    with path.open("rb") as file:
        start = file.read(len(_FILE))
    if start.startswith(_FEATHER_1):
        raise InputError(path, "format", "version 1 of Feather", "version 2, or Parquet: pandas writes both")
    open_table = pa.ipc.open_file if start == _FILE else pa.ipc.open_stream
    table = open_table(pa.memory_map(str(path))).read_all()
    table.validate(full=True)  # texts that are no UTF-8 are found here
    return table
