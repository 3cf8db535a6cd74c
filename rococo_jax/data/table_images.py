"""Images inside tables: a column of files' bytes, or of `{"bytes", "path"}` as data sets of Hugging Face have them.

Tables are Parquet files (`parquet_table`) and data sets of the `datasets` library:

    hf:nlphuji/flickr30k?split=test
    hf:NAME:CONFIG?split=test&image=photo&caption=texts
    a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote, also as hf:FOLDER?split=test

Options: `split` (`test` by default, or the only one), and the columns of the image, the captions and the image's name.
"""

import dataclasses
import hashlib
import itertools
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

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
from rococo_jax.data.parquet_table import ParquetTable, image_columns, with_paths
from rococo_jax.errors import InputError, first_line
from rococo_jax.storage import is_url

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
