"""Images inside Parquet tables, as data sets of the Hugging Face hub have them: a column of `{"bytes", "path"}`.

An image is called `FILE.parquet/ROW/COLUMN`. Row groups are read when they are asked for, and the last few are kept.
"""

import bisect
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from rococo_jax.data.images import FileImages, decode_image
from rococo_jax.data.pixels import Views
from rococo_jax.errors import InputError, first_line

_ENDING = ".parquet"
_GROUPS_KEPT = 4


def is_packed(name: str) -> bool:
    """Whether a name is that of an image inside a table.

    >>> is_packed("test-00000-of-00001.parquet/3/image_1"), is_packed("images/3.jpg")
    (True, False)
    """
    return f"{_ENDING}/" in name


def packed_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a table, with an image's name in place of the image.

    Raises:
        InputError: it is no whole Parquet file.
    """
    import pyarrow as pa

    file = _opened(path)
    schema = file.schema_arrow
    structs = [field for field in schema if pa.types.is_struct(field.type)]
    images = [field.name for field in structs if field.type.get_field_index("bytes") >= 0]
    others = [field.name for field in schema if field.name not in images]
    row = 0
    for group in range(file.num_row_groups):
        for values in _read(file, path, group, others).to_pylist():
            yield values | {column: f"{path.name}/{row}/{column}" for column in images}
            row += 1


class PackedImages(FileImages):
    """Images inside tables, as `FileImages`; a path is that of the table, the row and the column."""

    @cached_property
    def hashes(self) -> tuple[str, ...]:
        """SHA-256 of every image's bytes."""
        return tuple(hashlib.sha256(self.encoded(row)).hexdigest() for row in range(len(self)))

    @cached_property
    def views(self) -> Views:
        """Prepared forms of the images, kept."""
        return Views(self.paths, self._decoded)

    def _decoded(self, row: int) -> Image.Image:
        return decode_image(self.encoded(row), self.paths[row])

    def encoded(self, row: int) -> bytes:
        """The bytes of an image file.

        Raises:
            InputError: the table has none there.
        """
        path = self.paths[row]
        table, place, column = path.parent.parent, int(path.parent.name), path.name
        ends = _ends(table)
        group = bisect.bisect_right(ends, place)
        value = _images(table, group, column)[place - (ends[group - 1] if group else 0)]
        if not value:
            raise InputError(path, "image", "no bytes", "an image file inside the table")
        return value


def packed_images(
    folder: Path, tables: Sequence[Path], names: Sequence[str], limit: int
) -> tuple[PackedImages, tuple[str, ...], dict[str, Any]]:
    """As `benchmark.open_images`, of images inside tables below a folder: none of them is ever missing.

    Raises:
        InputError: two tables have one name.
    """
    by_name = {path.name: path for path in tables}
    if len(by_name) < len(tables):
        raise InputError(folder, "tables", "two of one name", "every table once")
    opened, left_out = names[:limit] if limit else names, names[limit:] if limit else ()
    paths = tuple(by_name[name.partition("/")[0]] / name.partition("/")[2] for name in opened)
    coverage = {"present": len(opened), "wanted": len(names), "complete": not left_out}
    data = {"images": str(folder.resolve()), "image_count": len(opened), "coverage": coverage}
    return PackedImages(tuple(opened), paths), tuple(left_out), data


@lru_cache(maxsize=8)
def _ends(path: Path) -> list[int]:
    about = _opened(path).metadata
    return list(itertools.accumulate(about.row_group(group).num_rows for group in range(about.num_row_groups)))


@lru_cache(maxsize=_GROUPS_KEPT)
def _images(path: Path, group: int, column: str) -> list[bytes | None]:
    return [value and value["bytes"] for value in _read(_opened(path), path, group, [column])[column].to_pylist()]


def _read(file, path: Path, group: int, columns: list[str]):
    import pyarrow as pa

    try:
        return file.read_row_group(group, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise InputError(path, "table", first_line(error)[:200], "a whole Parquet file") from None


def _opened(path: Path):
    import pyarrow as pa
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(path, "table", first_line(error)[:200], "a whole Parquet file") from None
