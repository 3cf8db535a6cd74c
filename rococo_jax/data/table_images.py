"""Images inside tables: a column of files' bytes, or of `{"bytes", "path"}` as data sets of Hugging Face have them.

Tables are Parquet files and data sets of the `datasets` library. A Parquet file can only be decoded by row groups, so
its images are copied once to an Arrow file in the cache folder, as that library does with its own, and read there.

    hf:nlphuji/flickr30k?split=test
    hf:NAME:CONFIG?split=test&image=photo&caption=texts
    a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote, also as hf:FOLDER?split=test

Options: `split` (`test` by default, or the only one), and the columns of the image, the captions and the image's name.
"""

import bisect
import contextlib
import dataclasses
import hashlib
import itertools
import re
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from rococo_jax.data.caption_tables import (
    USUAL,
    CaptionsFile,
    Columns,
    caption_columns,
    choose_column,
    collect_rows,
    said_of_splits,
    split_column,
    splits_of,
)
from rococo_jax.data.captions import stays_inside
from rococo_jax.errors import InputError, first_line
from rococo_jax.progress import say
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import atomic_write, check_free_space, hash_json, hold, is_url, whole_file

_GROUPS_KEPT = 4
_SUFFIXES = ((b"\xff\xd8", ".jpg"), (b"\x89PNG", ".png"), (b"GIF8", ".gif"), (b"RIFF", ".webp"), (b"BM", ".bmp"))


@runtime_checkable
class ImageTable(Protocol):
    """A table with images in it."""

    def schema(self) -> pa.Schema:
        """Names and types of the columns."""

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Some columns, of images their paths in place of the bytes."""

    def image(self, row: int, column: str) -> bytes | None:
        """The bytes of an image file."""


class TableImage(NamedTuple):
    """The place of an image inside a table, which can be read as a path can."""

    table: ImageTable
    row: int
    column: str

    def read_bytes(self) -> bytes:
        """The bytes of the image file. Raises InputError where the table has none there."""
        value = self.table.image(self.row, self.column)
        if not value:
            raise InputError(self, "image", "no bytes", "an image file inside the table")
        return value

    def __str__(self) -> str:
        return f"{self.table}/{self.row}/{self.column}"


class ParquetTable(NamedTuple):
    """A Parquet file. It pickles, and holds nothing open."""

    path: Path

    def schema(self) -> pa.Schema:
        """Names and types of the columns. Raises InputError where it is no whole Parquet file."""
        return _opened(self.path).schema_arrow

    def read(self, columns: Sequence[str]) -> pa.Table:
        """See `ImageTable`. Raises InputError where the file is damaged."""
        inside = image_columns(self.schema())
        fields = [f"{name}.path" if pa.types.is_struct(inside.get(name, pa.null())) else name for name in columns]
        wanted = [field for field in fields if field not in inside]
        # Not by `read_table` of pyarrow, which calls a field `image.path` by its last name.
        with whole_file(self.path, "a table of images and captions"):
            table = _opened(self.path).read(columns=wanted)
            table.validate(full=True)  # texts that are no UTF-8 are found here
        return with_paths(table, columns)

    def image(self, row: int, column: str) -> bytes | None:
        """See `ImageTable`."""
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


_OF_SPLIT = re.compile(r"(\w+)-\d+-of-\d+")


def open_parquet(
    source: str, files: Sequence[Path], columns: Columns, roots: Iterable[Path], split: str
) -> CaptionsFile:
    """The captioned images of Parquet files, of which the names may tell the split (`test-00000-of-00001.parquet`).

    Raises InputError: as `read_image_tables`; the files are of several splits and none is chosen.
    """
    named = {path: match[1] for path in files if (match := _OF_SPLIT.match(path.name))}
    if len({*named.values()}) > 1:
        said_of_splits(source, split, Counter(named.values()), must_choose=True)
        files = [path for path in files if named.get(path) in splits_of(split) or split == "all"]
        split = ""
    return read_image_tables(source, [ParquetTable(path) for path in files], columns, roots, split)


def read_image_tables(
    source: str, tables: Sequence[ImageTable], columns: Columns, roots: Iterable[Path] = (), split: str = ""
) -> CaptionsFile:
    """The captioned images of tables of one schema; images are named in a column, or inside.

    An image inside is called by its `path` or a column of names, where every image has one and no two share it, and
    otherwise by the SHA-256 of its bytes, so that rows of one image come together.

    Raises InputError: it names the table, and the column or row with its field.
    """
    schema = tables[0].schema()
    inside = list(image_columns(schema))
    only = inside if len(inside) == 1 and "image" not in columns else schema.names
    image = only[0] if only is inside else choose_column("image", schema.names, columns, source)
    texts, of_split = caption_columns(schema.names, columns, source), split_column(schema.names, columns, source)
    read = [table.read([image, *texts, *([of_split] if of_split else [])]) for table in tables]
    columns_read = {"image": image} | ({"caption": texts[0]} if len(texts) == 1 else {})
    columns_read |= {"split": of_split} if of_split else {}
    rows = itertools.chain.from_iterable(table.to_pylist() for table in read)
    numbered = ((f"row {number}", row) for number, row in enumerate(rows, 1))
    if image not in inside:
        return collect_rows(source, numbered, columns_read, roots, split)
    places = [
        TableImage(table, row, image) for table, part in zip(tables, read, strict=True) for row in range(len(part))
    ]
    names = _names_in(image, columns, source, tables, read)
    if names is None or not _are_unique(names, places):
        names = [_content_key(place) for place in places]
    named = ((where, {**row, image: name}) for (where, row), name in zip(numbered, names, strict=True))
    file = collect_rows(source, named, columns_read, split=split)
    first = dict(zip(reversed(names), reversed(places), strict=True))
    return dataclasses.replace(file, places={item.image: first[item.image] for item in file.items})


def _names_in(
    image: str, columns: Columns, source: str, tables: Sequence[ImageTable], read: Sequence[pa.Table]
) -> list[str] | None:
    """The images' own names, as paths inside a folder; None where one has none."""
    if "name" in columns:
        image = choose_column("name", tables[0].schema().names, columns, source)
        read = [table.read([image]) for table in tables]
    values = [value for table in read for value in table[image].to_pylist()]
    if not all(values):
        return None
    is_name = [stays_inside(value) and not is_url(value) for value in map(str, values)]
    return [
        value if inside else PurePosixPath(value).name for value, inside in zip(map(str, values), is_name, strict=True)
    ]


def _are_unique(names: Sequence[str], places: Sequence[TableImage]) -> bool:
    """Whether rows of one name have one image."""
    digests: dict[str, str] = {}
    repeated = {name for name, count in Counter(names).items() if count > 1}
    for name, place in zip(names, places, strict=True):
        if name in repeated and digests.setdefault(name, _digest(place)) != _digest(place):
            return False
    return True


def _digest(place: TableImage) -> str:
    return hashlib.sha256(place.read_bytes()).hexdigest()


def _content_key(place: TableImage) -> str:
    start = place.read_bytes()[:4]
    return _digest(place)[:16] + next((suffix for magic, suffix in _SUFFIXES if start.startswith(magic)), "")


_SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return any((path / name).is_file() for name in _SAVED)


def open_dataset(name: str, columns: Columns, split: str = "") -> CaptionsFile:
    """The captioned images of a data set; see the module's text. `split`: one of its, or of those a column of it tells.

    Raises InputError: `datasets` is not installed or finds no such data set or split, an option is unknown, or a column
    or a row cannot be used.
    """
    path, _, query = name.removeprefix("hf:").partition("?")
    options = dict(urllib.parse.parse_qsl(query.replace("+", "%2B")))
    if unknown := set(options) - {"split", *USUAL}:
        raise InputError(name, "option", min(unknown), f"one of {', '.join(('split', *USUAL))}")
    named = options.pop("split", None)
    dataset = _load(name, path, named)
    if isinstance(dataset, dict):
        if named is None and split in dataset:
            named, split = split, ""
        chosen = named or ("test" if "test" in dataset else next(iter(dataset)) if len(dataset) == 1 else None)
        if chosen not in dataset:
            raise InputError(name, "split", repr(named) if named else "none named", f"one of {', '.join(dataset)}")
        dataset = dataset[chosen]
    return read_image_tables(name, [DatasetTable(dataset, name)], {**columns, **options}, split=split)


def _load(name: str, path: str, split: str | None) -> Any:
    try:
        import datasets
    except ImportError:
        raise InputError(name, "datasets", "not installed", "pip install 'rococo-jax[datasets]'") from None
    try:
        if Path(path).is_dir() and is_saved_dataset(Path(path)):
            return datasets.load_from_disk(path)
        dataset, _, config = path.partition(":")
        return datasets.load_dataset(dataset, config or None, split=split)
    except Exception as error:  # what the library raises differs from one builder and file system to the next
        wanted = "a data set of the hub, its cache, or a folder by save_to_disk, and a split of it"
        raise InputError(name, "data set", first_line(error)[:200], wanted) from None


class DatasetTable:
    """A data set as an `ImageTable`. It pickles by the files that it maps."""

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
        if isinstance(value, dict):
            value = value["bytes"] or (value["path"] and Path(value["path"]).read_bytes())
        return value

    def __str__(self) -> str:
        return self.name
