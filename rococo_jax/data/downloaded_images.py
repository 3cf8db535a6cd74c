"""Read the output of img2dataset: tables with the outcome of each download, and folders of files.

    00000/000000012.jpg    an image; 000000012.txt with its caption, 000000012.json with its row
    00000.parquet          a row for each link: `url`, `caption`, `key` (000000012), `status` (success or an error)
    00000_stats.json

The table lists all links, including those that failed; only images whose status is success exist. With
`output_format=parquet` the images are inside the table, and with `webdataset` they are in tars beside it (`tar_pairs`).
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rococo_jax.data.caption_tables import CaptionsFile, by_image, caption_columns, captions_in_cell, refuse_columns
from rococo_jax.data.image_files import image_names
from rococo_jax.data.parquet_table import ParquetTable, image_columns
from rococo_jax.data.read_options import Columns
from rococo_jax.errors import InputError

STATUS = "status"
_KEY = "key"
_COLUMNS = {"url", _KEY, STATUS}
_SUCCESS = "success"


def is_download_table(names: Iterable[str]) -> bool:
    """Return whether a table with these columns is one of img2dataset."""
    return set(names) >= _COLUMNS


def is_downloaded(row: Mapping[str, Any]) -> bool:
    """Return whether the image of a row was downloaded."""
    return row[STATUS] == _SUCCESS


def describe_failed_downloads(count: int) -> str:
    """Return a remark on the number of failed downloads; "" for none."""
    return f", {count:,} failed downloads left out" if count else ""


def lists_files(files: Sequence[Path]) -> bool:
    """Return whether Parquet files are tables of img2dataset whose images are files beside them."""
    schemas = [ParquetTable(path).schema() for path in files]
    return all(is_download_table(schema.names) and not image_columns(schema) for schema in schemas)


def read_downloads(source: str, files: Sequence[Path], columns: Columns) -> CaptionsFile:
    """Read the captions of img2dataset's tables and the names of their image files.

    Names are relative to the folder of the tables: `00000/000000012.jpg`.

    Raises InputError: there is no column of captions, no download succeeded, or a caption is not a text.
    """
    others = {role: column for role, column in columns.items() if (role, column) != ("image", _KEY)}
    refuse_columns(source, others, f"caption= alone: the files of img2dataset are named by {_KEY}", ("caption",))
    captions: list[tuple[str, list[str]]] = []
    failed = blank = 0
    for path in files:
        table = ParquetTable(path)
        texts = caption_columns(table.schema().names, columns, source)
        folder = path.with_suffix("")
        file_of = {Path(name).stem: name for name in image_names(folder)}
        rows: pa.Table = table.read([_KEY, STATUS, *texts])
        for number, row in enumerate(rows.to_pylist(), 1):
            if not is_downloaded(row):
                failed += 1
                continue
            cells = {column: row[column] for column in texts if str(row[column] or "").strip()}
            if not cells:
                blank += 1
                continue
            name = f"{folder.name}/{file_of.get(row[_KEY], f'{row[_KEY]}.jpg')}"
            location = f"row {number} ({name!r})"
            captions_of_row = (captions_in_cell(value, column, location, path) for column, value in cells.items())
            captions.append((name, list(itertools.chain.from_iterable(captions_of_row))))
    if not captions:
        problem = f"{failed:,} failed downloads and {blank:,} images without a caption"
        raise InputError(source, "rows", problem, "at least one image that was downloaded")
    return CaptionsFile(
        source,
        by_image(captions, source),
        (_KEY, *texts),
        files[0].parent,
        skipped=blank,
        remarks=describe_failed_downloads(failed),
    )
