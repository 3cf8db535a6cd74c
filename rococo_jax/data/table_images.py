"""Images inside tables: a column of files' bytes, or of `{"bytes", "path"}` as data sets of Hugging Face have them.

Tables are Parquet files (`parquet_table`) and data sets of the `datasets` library:

    hf:nlphuji/flickr30k?split=test
    hf:NAME:CONFIG?split=test&image=photo&caption=texts
    a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote, also as hf:FOLDER?split=test

Options: `split` (`table_splits`; there must be one where a data set has several), and the columns of the image, the
captions and the image's name.
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
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa

from rococo_jax.data.caption_tables import (
    USUAL,
    CaptionsFile,
    Columns,
    caption_columns,
    choose_column,
    collect_rows,
    split_column,
    splits_of,
)
from rococo_jax.data.captions import stays_inside
from rococo_jax.data.content_hashes import hash_files
from rococo_jax.data.downloaded_images import STATUS, describe_failed_downloads, is_download_table, is_downloaded
from rococo_jax.data.parquet_table import ImageTable, ParquetTable, image_columns, with_paths
from rococo_jax.data.pictures import image_format
from rococo_jax.data.table_splits import ALL, NO_CHOICE, USUAL_SPLITS, ChosenTables, SplitChoice, choose_tables
from rococo_jax.errors import InputError, first_line
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import hash_json, is_url, remove_folder

_CELLS_CHECKED = 8
_SUFFIXES = ((b"\xff\xd8", ".jpg"), (b"\x89PNG", ".png"), (b"GIF8", ".gif"), (b"RIFF", ".webp"), (b"BM", ".bmp"))
_BEGINNINGS = tuple(magic for magic, _ in _SUFFIXES)
_BASE64_START = 16  # characters, which hold the beginning of a file


class TableImage(NamedTuple):
    """The place of an image inside a table, which can be read as a path can."""

    table: ImageTable
    row: int
    column: str

    def read_bytes(self) -> bytes:
        """The bytes of the image file. Raises InputError where the table has none there."""
        value = self.table.image(self.row, self.column)
        if not value:
            wanted = f"an image file inside the table, in row {self.row + 1} of the column {self.column!r}"
            raise InputError(self, "image", "no bytes", wanted)
        return value

    def __str__(self) -> str:
        return f"{self.table}/{self.row}/{self.column}"


# Names of files by split, as the hub has them: `test-00000-of-00002.parquet`, or a split's usual name alone.
_OF_SPLIT = re.compile(rf"(\w+(?:\.\w+)*)-\d+-of-\d+.*|({'|'.join(USUAL_SPLITS)})")


def open_parquet(
    source: str, files: Sequence[Path], columns: Columns, roots: Iterable[Path], split: SplitChoice
) -> CaptionsFile:
    """Open the captioned images of Parquet files; their names, or several folders of them, may tell the split.

    Raises InputError: as `choose_tables` and `read_image_tables`.
    """
    tables: dict[str, list[ImageTable]] = {}
    folders = {path.parent.name for path in files}
    for path in files:
        match = _OF_SPLIT.fullmatch(path.stem)
        of_file = match[1] or match[2] if match else ""
        tables.setdefault(path.parent.name if len(folders) > 1 else of_file, []).append(ParquetTable(path))
    return read_image_tables(source, choose_tables(source, tables, columns, split), columns, roots)


def read_image_tables(source: str, chosen: ChosenTables, columns: Columns, roots: Iterable[Path] = ()) -> CaptionsFile:
    """Read the captioned images of tables of one schema; images are named in a column, or inside.

    An image inside is called by its `path` or a column of names, where every image has one and no two share it, and
    otherwise by the SHA-256 of its bytes, so that rows of one image come together.

    Raises InputError: it names the table, and the column or row with its field.
    """
    schema = chosen.tables[0].schema()
    inside = list(image_columns(schema))
    if len(inside) == 1 and "image" not in columns:
        image = inside[0]
    else:
        image = choose_column("image", schema.names, columns, source)
    texts, of_split = caption_columns(schema.names, columns, source), split_column(schema.names, columns, source)
    name = choose_column("name", schema.names, columns, source) if "name" in columns else image
    columns_read = {"image": image} | ({"caption": texts[0]} if len(texts) == 1 else {})
    columns_read |= {"split": of_split} if of_split else {}
    status = [STATUS] if is_download_table(schema.names) else []
    names = dict.fromkeys([image, *texts, *([of_split] if of_split else []), name, *status])
    rows = _read_rows(chosen.tables, image, list(names))
    downloaded = [row for row in rows if is_downloaded(row.values)] if status else rows
    remark = chosen.remark + describe_failed_downloads(len(rows) - len(downloaded))
    if image in inside:
        _check_are_images(chosen.tables[0], image)
        wanted = splits_of(chosen.split) - {ALL}
        is_read = [not wanted or str(row.values[of_split]).strip() in wanted for row in downloaded]
        read = list(itertools.compress(downloaded, is_read))
        image_names = _names_of(read, name)
        places = dict(zip(reversed(image_names), (row.place for row in reversed(read)), strict=True))
        of_rows = dict(zip((row.number for row in read), image_names, strict=True))
        # Rows of other splits are counted; nothing else is read of them.
        downloaded = [row._replace(values={**row.values, image: of_rows.get(row.number, "")}) for row in downloaded]
    numbered = (
        (f"row {row.number}", {key: row.values[key] for key in names if key not in status}) for row in downloaded
    )
    file = collect_rows(
        source, numbered, columns_read, () if image in inside else roots, chosen.split, chosen.must_choose
    )
    file = dataclasses.replace(file, also=f"{remark}{file.also}")
    if image in inside:
        file = dataclasses.replace(file, places={item.image: places[item.image] for item in file.items})
    return file


class _Row(NamedTuple):
    """A row of several tables together, and the place of its image where that is inside."""

    number: int
    values: dict[str, Any]
    place: TableImage


def _read_rows(tables: Sequence[ImageTable], image: str, names: list[str]) -> list[_Row]:
    rows: list[_Row] = []
    for table in tables:
        for place, values in enumerate(table.read(names).to_pylist()):
            rows.append(_Row(len(rows) + 1, values, TableImage(table, place, image)))
    return rows


def _check_are_images(table: ImageTable, column: str) -> None:
    """Raises InputError where the first cells hold other bytes than those of image files, such as pixels or text."""
    cells = table.first_images(column, _CELLS_CHECKED)
    kinds = {
        number: _kind_of_bytes(cell, TableImage(table, number - 1, column))
        for number, cell in enumerate(cells, 1)
        if cell
    }
    if kinds and all(kinds.values()):
        number, found = next(iter(kinds.items()))
        wanted = "the bytes of image files, such as JPEG or PNG"
        raise InputError(table, f"row {number}, column {column!r}", found, wanted)


def _kind_of_bytes(cell: bytes, place: TableImage) -> str:
    """What a cell holds that is no image file; "" for an image file."""
    if cell.startswith(_BEGINNINGS):
        return ""
    with contextlib.suppress(InputError):
        image_format(cell, place)
        return ""
    with contextlib.suppress(ValueError):
        if base64.b64decode(cell[:_BASE64_START], validate=True).startswith(_BEGINNINGS):
            return f"{len(cell):,} bytes of base64 text"
    return f"{len(cell):,} bytes that are no image file (pixels without a format?)"


def _names_of(rows: Sequence[_Row], column: str) -> list[str]:
    """The names of the images: their own, as paths inside a folder, or those of their contents."""
    values = [row.values[column] for row in rows]
    if all(values):
        names = [
            value if stays_inside(value) and not is_url(value) else PurePosixPath(value).name
            for value in map(str, values)
        ]
        if _are_unique(names, [row.place for row in rows]):
            return names
    return [_content_key(row.place) for row in rows]


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


def open_dataset(name: str, columns: Columns, split: SplitChoice = NO_CHOICE) -> CaptionsFile:
    """Open the captioned images of a data set; see the module's text.

    Raises InputError: `datasets` is not installed or finds no such data set, an option is unknown, a split is missing
    (`choose_tables`), or a column or a row cannot be used.
    """
    path, _, query = name.removeprefix("hf:").partition("?")
    options = dict(urllib.parse.parse_qsl(query.replace("+", "%2B")))
    if unknown := set(options) - {"split", *USUAL}:
        raise InputError(name, "option", min(unknown), f"one of {', '.join(('split', *USUAL))}")
    split = SplitChoice(options.pop("split", split.source), split.option)
    columns = {**columns, **options}
    is_slice = "[" in split.source  # as the library has them: test[:100]
    dataset = _load(name, path, split.source if is_slice else None)
    if is_slice and isinstance(dataset, dict):
        raise InputError(name, "split", repr(split.source), f"one of {', '.join(dataset)}: a folder has no slices")
    by_split = dataset if isinstance(dataset, dict) else {"": dataset}
    tables = {split_name: [DatasetTable(each, name)] for split_name, each in by_split.items()}
    if is_slice:
        chosen = ChosenTables(tables[""], split.option, must_choose=True)
    else:
        chosen = choose_tables(name, tables, columns, split)
    return read_image_tables(name, chosen, columns)


def _load(name: str, path: str, split: str | None) -> Any:
    try:
        import datasets
    except ImportError:
        raise InputError(name, "datasets", "not installed", "pip install 'rococo-jax[datasets]'") from None
    dataset, _, config = path.partition(":")
    is_folder = Path(dataset).is_dir()
    try:
        if is_folder and is_saved_dataset(Path(path)):
            return datasets.load_from_disk(path)
        cache = str(_cache_of_contents(Path(dataset))) if is_folder else None
        return datasets.load_dataset(dataset, config or None, split=split, cache_dir=cache)
    except Exception as error:  # what the library raises differs from one builder and file system to the next
        wanted = "a data set of the hub, its cache, or a folder by save_to_disk, and a split of it"
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.ENOSPC):
            variable = "ROCOCO_CACHE" if is_folder else "HF_HOME"
            wanted += f"; {variable} must be a folder that can be written and has room for it"
        raise InputError(name, "data set", first_line(error)[:200], wanted) from None


def _cache_of_contents(folder: Path) -> Path:
    """Return where the library keeps what it makes of the files in a folder, by their contents.

    Its own cache knows local files by path and time, and gives the old rows where a file was written again with the
    time of the one before. What was made of an earlier state of the folder is removed.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]
    place = cache_folder() / "datasets" / hash_json(str(folder.resolve()))[:24]
    cache = place / hash_json([names, hash_files(files)])[:24]
    for earlier in [] if cache.exists() or not place.exists() else place.iterdir():
        remove_folder(earlier)
    return cache


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
        if isinstance(value, dict) and not value["bytes"] and value["path"]:
            try:
                return Path(value["path"]).read_bytes()
            except FileNotFoundError:
                where = f"row {row + 1}, column {column!r}"
                raise InputError(self, where, f"no file {value['path']!r}", "an image file") from None
        return value["bytes"] if isinstance(value, dict) else value

    def first_images(self, column: str, count: int) -> list[bytes | None]:
        """See `ImageTable`."""
        return [self.image(row, column) for row in range(min(count, len(self.dataset)))]

    def row_count(self) -> int:
        """See `ImageTable`."""
        return len(self.dataset)

    def __str__(self) -> str:
        return self.name
