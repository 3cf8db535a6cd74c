"""The base of all benchmarks of choices: a reader says what an item is; files, images, tasks and errors are here.

A reader is `items(record) -> items`, called with each record of each of its files that is there. Every item names its
part.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark, BenchmarkInfo, existing_files, open_images, register
from rococo_jax.benchmarks.choices.items import Item, ItemTables, Picture, tasks_of
from rococo_jax.benchmarks.choices.records import Record, lines_beside, read_records
from rococo_jax.benchmarks.image_sets import CroppedImages
from rococo_jax.benchmarks.lost_input import take_images
from rococo_jax.benchmarks.pooling import Headline, Pool, pools_over
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.sources import downloads_of
from rococo_jax.benchmarks.tables import ORIGINALS
from rococo_jax.benchmarks.variants import MEAN, Variant
from rococo_jax.data.images import FileImages, ImageSet
from rococo_jax.data.parquet_table import ParquetTable
from rococo_jax.data.pictures import image_size
from rococo_jax.data.table_images import TableImage
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_file, hash_json

CROPS = "crops"
_EFFECT = "items without their images are left out"


@dataclasses.dataclass(frozen=True)
class ChoiceReader:
    """Reader that makes items of a benchmark's published files.

    Attributes:
        items: the items of one record; none where the benchmark's own rule leaves it out.
        records: the records of one file, with a hash of what they hold.
        headline: the number that ranks models; its metric is put first, and drops are measured on it.
        leads: further metrics to put first.
        parts: all parts of the published files; empty where they are not known beforehand.
        pooled: part -> the variant that is a mean over it and others; by default `mean`, over all parts. Each such
            variant has another beside it, for which all of their items count alike.
        file_of: from a part to the variant of all items of its file, where files have several parts.
        baselines: part -> the part that its drop is measured against.
        works_without_images: whether its texts can be compared alone where there is no folder of images.
        notes: what a reader of any results must know.
        beside: further files, where they are there, whose lines `items` looks into.
    """

    items: Callable[[Record], Iterable[Item]]
    records: Callable[[Path], tuple[str, Iterator[Record]]] = read_records
    headline: Headline | None = None
    leads: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    pooled: Mapping[str, str] | None = None
    file_of: Callable[[str], str] | None = None
    baselines: Mapping[str, str] = dataclasses.field(default_factory=dict)
    works_without_images: bool = False
    notes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def pools(self, part: str) -> tuple[Pool, ...]:
        """The variants that a part and others make together, the headline's way of pooling first."""
        pooling = "parts" if self.headline is None else self.headline.pooling
        of_file = () if self.file_of is None else (Pool(Variant(pooled=self.file_of(part)), "items"),)
        if self.pooled is None:
            return (*pools_over(MEAN, pooling, len(self.parts) or None), *of_file)
        variant = self.pooled.get(part)
        return () if variant is None else pools_over(variant, pooling, [*self.pooled.values()].count(variant))

    def read(self, folder: Path, files: Iterable[str]) -> tuple[ItemTables, dict[str, str], int]:
        """All items of the files that are there, a hash of each file's contents, and how many records there were.

        Raises InputError: none is there, or one holds something else.
        """
        tables, hashes, count, files = ItemTables(folder), {}, 0, tuple(files)
        beside = lines_beside(folder, self.beside)
        for name in files:
            # Patterns stand for the same items in another form.
            for path in existing_files(folder, name) if "*" not in name or not hashes else ():
                known = path.relative_to(folder).as_posix().rpartition(".")[0]
                hashes[known], records = self.records(path)
                for record in records:
                    count += 1
                    for item in self.items(dataclasses.replace(record, beside=beside) if beside else record):
                        tables.add(item, record.source)
        hashes |= {name: hash_file(folder / name) for name in beside if hashes}
        if not hashes:
            raise InputError(folder, "annotations", "none of its files", f"one of {', '.join(files)}"[:200])
        if not tables.parts:
            raise InputError(folder, "items", f"none in {count} records", "at least one")
        return tables, hashes, count


def choice_benchmark(reader: ChoiceReader, **about: Any) -> BenchmarkInfo:
    """Registers a benchmark of choices; `about` as in `BenchmarkInfo`, with the benchmark's name as its one task."""
    optional = ("images",) if reader.works_without_images else ()
    about = {"tasks": (about["name"],), "optional": optional, "downloads": downloads_of(about["name"]), **about}
    opener = partial(open_choices, about["name"], about["files"], reader)

    def image_names(annotations: Path) -> list[str]:
        return list(reader.read(annotations, about["files"])[0].names)

    info = BenchmarkInfo(**about, reader=reader, open=opener, headline=reader.headline, image_names=image_names)
    return register(info)


def open_choices(
    name: str, files: tuple[str, ...], reader: ChoiceReader, folders: Mapping[str, Path], settings: Settings
) -> Benchmark:
    """The parts that are there, over the images that are present."""
    annotations = folders["annotations"]
    tables, hashes, _ = reader.read(annotations, files)
    data: dict[str, Any] = {"annotations": str(annotations.resolve())}
    image_sets: dict[str, ImageSet] = {}
    notes, decides, places, lost = list(reader.notes), {"parts": hashes}, {}, ()
    if reader.works_without_images and not folders["images"].is_dir():
        names = tuple(tables.names)
        notes.append("no images were there: texts are compared alone")
    else:
        if any(map(_is_packed, tables.names)):
            tables_of = [file for file in files if file.endswith(".parquet")]
            packed_tables = [path for file in tables_of for path in existing_files(annotations, file)]
            places_in_tables = _packed_images(annotations, packed_tables, list(tables.names))
            packed = str(annotations.resolve()), list(tables.names), places_in_tables
            originals, lost, about = take_images(*packed, settings, _EFFECT, tables.in_turns())
        else:
            order = tables.in_turns()
            originals, lost, about = open_images(folders["images"], list(tables.names), settings, _EFFECT, order)
        names = originals.names
        data |= about
        decides["images"] = hash_json(dict(zip(names, originals.hashes, strict=True)))
        image_sets, places = _picture_rows(tables, originals)
    rows = {one: row for row, one in enumerate(names)}
    first_metrics = (*filter(None, [reader.headline and reader.headline.metric]), *reader.leads)
    tasks, texts = tasks_of(tables, name, places, rows, first_metrics, reader.pools, reader.baselines)
    data |= {"caption_count": len(texts)}
    tasks = tuple(tasks) if settings.wants(name) else ()
    unread = _unread(annotations, files)
    about_data = tuple(notes), data, decides, unread, lost
    return Benchmark(name, names, texts, image_sets, tasks, *about_data, headline=reader.headline)


def _is_packed(name: str) -> bool:
    """Whether a name is that of an image inside a table, as `ParquetTable.rows` gives it."""
    return ".parquet/" in name


def _packed_images(folder: Path, tables: Sequence[Path], names: Sequence[str]) -> dict[str, TableImage]:
    """Where the images inside tables below a folder are: none of them is ever missing.

    Raises InputError: two tables have one name.
    """
    by_name = {path.name: ParquetTable(path) for path in tables}
    if len(by_name) < len(tables):
        raise InputError(folder, "tables", "two of one name", "every table once")
    parts = ((name, *name.split("/", 2)) for name in names)
    return {name: TableImage(by_name[table], int(row), column) for name, table, row, column in parts}


def _unread(folder: Path, files: tuple[str, ...]) -> tuple[str, ...]:
    """Files that are no part, and parts that are absent: a misspelt name is on both sides."""
    kinds = {Path(name).suffix for name in files}
    read = [path for name in files for path in existing_files(folder, name)]
    others = sorted(path.name for path in folder.iterdir() if path.suffix in kinds and path not in read)
    absent = [name for name in files if "*" not in name and not (folder / name).is_file()]
    return (*others, *(f"{name} (absent)" for name in absent if not any(path.suffix == ".parquet" for path in read)))


def _picture_rows(
    tables: ItemTables, originals: FileImages
) -> tuple[dict[str, ImageSet], dict[Picture, tuple[str, int]]]:
    """The image sets, and where each picture is in them. Boxes are checked against the images' sizes."""
    row = {name: place for place, name in enumerate(originals.names)}
    there = [picture for picture in tables.pictures if picture.file in row]
    cut = [picture for picture in there if picture.box is not None]
    places = {picture: (ORIGINALS, row[picture.file]) for picture in there if picture.box is None}
    places |= {picture: (CROPS, place) for place, picture in enumerate(cut)}
    if not cut:
        return {ORIGINALS: originals}, places
    sizes = {file: image_size(originals.paths[row[file]]) for file in {picture.file for picture in cut}}
    for picture in cut:
        _check_inside(tables.source, picture, sizes[picture.file])
    crops = CroppedImages(originals, tuple(row[each.file] for each in cut), tuple(each.box for each in cut), CROPS)
    # Files of which no picture is whole need not be embedded.
    has_whole = any(picture.box is None for picture in there)
    return {**({ORIGINALS: originals} if has_whole else {}), CROPS: crops}, places


def _check_inside(source: object, picture: Picture, size: tuple[int, int]) -> None:
    (width, height), (left, top, right, bottom) = size, picture.box
    # Published boxes reach a few pixels outside; further, and the image has another size than theirs.
    is_near = 0 <= left + right <= 2 * width and 0 <= top + bottom <= 2 * height
    if not is_near or right - left > 2 * width or bottom - top > 2 * height:
        found = f"{list(picture.box)} in {picture.file} of {width} x {height} pixels"
        raise InputError(source, "box", found, "a box whose middle is inside its image, at most twice its size")
