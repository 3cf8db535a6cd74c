"""Multiple-choice benchmarks: a declaration of columns, headline and parts; files, images and tasks are handled here.

The declaration has a function `items(record)`, which yields the items of one record of a published file; for plain
columns, `caption_columns` and `pair_columns` make it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import (
    Benchmark,
    BenchmarkInfo,
    downloads_of,
    existing_files,
    open_images,
    register,
)
from rococo_jax.benchmarks.choices.items import Item, ItemTables, Picture, choose_pairs, choose_text, tasks_of
from rococo_jax.benchmarks.choices.records import Record, read_records, read_side_lines
from rococo_jax.benchmarks.excluded_input import ExcludedInput, excluded_by_list, select_images
from rococo_jax.benchmarks.image_sets import CroppedImages
from rococo_jax.benchmarks.pooling import Headline, Pool, pools_over
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.subset import read_subset
from rococo_jax.benchmarks.tables import ORIGINALS
from rococo_jax.benchmarks.variants import MEAN, Variant
from rococo_jax.data.images import FileImages, ImageSet
from rococo_jax.data.pictures import image_size
from rococo_jax.data.table_images import TableImage
from rococo_jax.data.tables import ParquetTable
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_file, hash_json

CROPS = "crops"
_EFFECT = "items without their images are left out"
Field = str | int
# Returns the part that the item of a record belongs to.
PartOf = Callable[[Record], str]


@dataclasses.dataclass(frozen=True)
class ChoiceReader:
    """Reader of a benchmark's published files.

    Attributes:
        items: yields the items of one record; none if the benchmark's own rules exclude it.
        records: reads the records of one file and a hash of their content.
        headline: the number that ranks models; tables show its metric first, and drops are measured on it.
        first_metrics: further metrics that tables show first.
        parts: all parts of the published files; empty if they are not known in advance.
        pooled: part -> the variant that is the mean over it and other parts; by default `mean`, over all parts. Each
            such variant is accompanied by one over all items of these parts.
        file_of: part -> the variant over all items of its file, if files have several parts.
        baselines: part -> the part that its drop is measured against.
        works_without_images: whether texts are compared without images if the folder of images is missing.
        notes: sentences for readers of the results.
        side_files: optional further files, whose lines `items` finds in `Record.side_lines`.
    """

    items: Callable[[Record], Iterable[Item]]
    records: Callable[[Path], tuple[str, Iterator[Record]]] = read_records
    headline: Headline | None = None
    first_metrics: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    pooled: Mapping[str, str] | None = None
    file_of: Callable[[str], str] | None = None
    baselines: Mapping[str, str] = dataclasses.field(default_factory=dict)
    works_without_images: bool = False
    notes: tuple[str, ...] = ()
    side_files: tuple[str, ...] = ()

    def pools(self, part: str) -> tuple[Pool, ...]:
        """Return the pooled variants of a part, the one with the headline's pooling first."""
        pooling = "parts" if self.headline is None else self.headline.pooling
        of_file = () if self.file_of is None else (Pool(Variant(pooled=self.file_of(part)), "items"),)
        if self.pooled is None:
            return (*pools_over(MEAN, pooling, len(self.parts) or None), *of_file)
        variant = self.pooled.get(part)
        return () if variant is None else pools_over(variant, pooling, [*self.pooled.values()].count(variant))

    def read(self, folder: Path, files: Iterable[str]) -> tuple[ItemTables, dict[str, str], int]:
        """Read all existing files of a folder: the items, a hash of each file's content, and the number of records.

        Raises InputError: no file exists, or a file has another form.
        """
        files = tuple(files)
        tables, hashes, count = ItemTables(folder), {}, 0
        side_lines = read_side_lines(folder, self.side_files)
        for path in _files_to_read(folder, files):
            stem = path.relative_to(folder).as_posix().rpartition(".")[0]
            hashes[stem], records = self.records(path)
            for record in records:
                count += 1
                if side_lines:
                    record = dataclasses.replace(record, side_lines=side_lines)
                for item in self.items(record):
                    tables.add(item, record.source)
        if not hashes:
            raise InputError(folder, "annotations", "none of its files", f"one of {', '.join(files)}"[:200])
        if not tables.parts:
            raise InputError(folder, "items", f"none in {count} records", "at least one")
        return tables, hashes | {name: hash_file(folder / name) for name in side_lines}, count


def _files_to_read(folder: Path, files: Sequence[str]) -> list[Path]:
    """Return the existing files; a pattern names the same items in another form, for folders without the others."""
    paths: list[Path] = []
    for name in files:
        if "*" not in name or not paths:
            paths += existing_files(folder, name)
    return paths


def choice_benchmark(reader: ChoiceReader, **about: Any) -> BenchmarkInfo:
    """Register a multiple-choice benchmark; `about` as in `BenchmarkInfo`. By default its one task has its name.

    Without `downloads` in `about`, `rococo fetch` downloads the rows of `assets/sources.csv`.
    """
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
    """Open the existing parts of a benchmark, over the existing images."""
    annotations = folders["annotations"]
    tables, hashes, _ = reader.read(annotations, files)
    data: dict[str, Any] = {"annotations": str(annotations.resolve())}
    listed: tuple[ExcludedInput, ...] = ()
    if settings.only:
        count, tables = tables.count, tables.select(subset := read_subset(settings.only[0]))
        data |= subset.describe(tables.count, count, "items")
        listed = (excluded_by_list(data, "the numbers are of these items only"),)
        settings = dataclasses.replace(settings, only=())
    image_sets: dict[str, ImageSet] = {}
    notes, conditions, places, excluded = list(reader.notes), {"parts": hashes}, {}, ()
    if reader.works_without_images and not folders["images"].is_dir():
        names = tuple(tables.names)
        notes.append("there is no folder of images: texts are compared without images")
    else:
        all_names, order = list(tables.names), tables.in_turns()
        # Names of images inside Parquet tables, as in `ParquetTable.named_rows`.
        if any(".parquet/" in name for name in all_names):
            patterns = [file for file in files if file.endswith(".parquet")]
            parquet_files = [path for pattern in patterns for path in existing_files(annotations, pattern)]
            images = _table_images(annotations, parquet_files, all_names)
            source = str(annotations.resolve())
            originals, excluded, about = select_images(source, all_names, images, settings, _EFFECT, order)
        else:
            originals, excluded, about = open_images(folders["images"], all_names, settings, _EFFECT, order)
        names = originals.names
        data |= about
        conditions["images"] = hash_json(dict(zip(names, originals.hashes, strict=True)))
        image_sets, places = _picture_rows(tables, originals)
    rows = {one: row for row, one in enumerate(names)}
    first_metrics = (*filter(None, [reader.headline and reader.headline.metric]), *reader.first_metrics)
    tasks, texts = tasks_of(tables, name, places, rows, first_metrics, reader.pools, reader.baselines)
    data |= {"caption_count": len(texts)}
    tasks = tuple(tasks) if settings.wants(name) else ()
    ignored_files = _ignored_files(annotations, files)
    about_data = tuple(notes), data, conditions, ignored_files, (*listed, *excluded)
    return Benchmark(name, names, texts, image_sets, tasks, *about_data, headline=reader.headline)


def _table_images(folder: Path, tables: Sequence[Path], names: Sequence[str]) -> dict[str, TableImage]:
    """Return the images inside Parquet tables by name. Raises InputError: two tables have the same name."""
    by_name = {path.name: ParquetTable(path) for path in tables}
    if len(by_name) < len(tables):
        raise InputError(folder, "tables", "two of the same name", "every table once")
    parts = ((name, *name.split("/", 2)) for name in names)
    return {name: TableImage(by_name[table], int(row), column) for name, table, row, column in parts}


def _ignored_files(folder: Path, files: tuple[str, ...]) -> tuple[str, ...]:
    """Return files that are no part, and parts without a file: a misspelt name appears in both."""
    suffixes = {Path(name).suffix for name in files}
    parts = _files_to_read(folder, files)
    other_files = sorted(path.name for path in folder.iterdir() if path.suffix in suffixes and path not in parts)
    names = [name for name in files if "*" not in name]
    absent = [f"{name} (absent)" for name in names if not (folder / name).is_file()]
    # If all are absent, the items are in another form.
    return (*other_files, *(absent if len(absent) < len(names) else ()))


def _picture_rows(
    tables: ItemTables, originals: FileImages
) -> tuple[dict[str, ImageSet], dict[Picture, tuple[str, int]]]:
    """Return the image sets, and the set and row of each picture.

    Raises InputError: a box is outside its image.
    """
    row = {name: place for place, name in enumerate(originals.names)}
    present = [picture for picture in tables.pictures if picture.file in row]
    whole_images = [picture for picture in present if picture.box is None]
    regions = [picture for picture in present if picture.box is not None]
    rows = {picture: (ORIGINALS, row[picture.file]) for picture in whole_images}
    rows |= {picture: (CROPS, place) for place, picture in enumerate(regions)}
    if not regions:
        return {ORIGINALS: originals}, rows
    sizes = {file: image_size(originals.paths[row[file]]) for file in {picture.file for picture in regions}}
    for picture in regions:
        _check_inside(tables.source, picture, sizes[picture.file])
    region_rows, boxes = tuple(row[each.file] for each in regions), tuple(each.box for each in regions)
    crops = CroppedImages(originals, region_rows, boxes, CROPS)
    # Originals are embedded only if an item shows a whole image.
    return {**({ORIGINALS: originals} if whole_images else {}), CROPS: crops}, rows


def _check_inside(source: object, picture: Picture, size: tuple[int, int]) -> None:
    (width, height), (left, top, right, bottom) = size, picture.box
    # Published boxes reach a few pixels outside. If they reach further, the image is not of the published size.
    is_near = 0 <= left + right <= 2 * width and 0 <= top + bottom <= 2 * height
    if not is_near or right - left > 2 * width or bottom - top > 2 * height:
        problem = f"{list(picture.box)} in {picture.file} of {width} x {height} pixels"
        raise InputError(
            source, "box", problem, "a box with its centre inside the image, at most twice as large as the image"
        )


def file_stem(record: Record) -> str:
    """Return the name of the record's file without its ending: one part for each file."""
    return record.source.stem


def caption_columns(
    image: Field,
    true: Sequence[Field],
    false: Sequence[Field],
    *,
    id: Field | None = None,
    part: PartOf = file_stem,
) -> Callable[[Record], Iterator[Item]]:
    """Return a reader of items with one image, its true captions, and false ones.

    Args:
        image, true, false: columns of the image and of the captions.
        id: column of the item's id; by default its key or line in the file.
        part: returns the part of an item; by default each file is a part.
    """

    def items(record: Record) -> Iterator[Item]:
        true_captions, false_captions = map(record.text, true), map(record.text, false)
        item_id = record.id if id is None else record.label(id)
        yield choose_text(item_id, record.image(image), [*true_captions], [*false_captions], part(record))

    return items


def pair_columns(
    images: Sequence[Field],
    texts: Sequence[Field],
    *,
    id: Field | None = None,
    part: PartOf = file_stem,
    image_name: str = "{}",
) -> Callable[[Record], Iterator[Item]]:
    """Return a reader of items with as many images as texts; each text belongs to the image at its position.

    Args:
        images, texts: their columns.
        id, part: as for `caption_columns`.
        image_name: file name of an image, with `{}` for the value of its column.
    """

    def items(record: Record) -> Iterator[Item]:
        item_id = record.id if id is None else record.label(id)
        files = [record.image(field, image_name) for field in images]
        yield choose_pairs(item_id, files, [record.text(field) for field in texts], part(record))

    return items
