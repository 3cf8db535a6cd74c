"""What `rococo fetch` gets: `assets/sources.csv`, one row a file, an archive or the files of a folder.

`benchmarks`, separated by spaces, need it. `source` says where the address, the revision or the hash was read; what has
no hash was never tried. The other columns are fields of `Download`, empty where they have their defaults; the addresses
are described in `data.hub_downloads`.
"""

import csv
import functools
from pathlib import Path

from rococo_jax.data.downloads import Download

SOURCES = Path(__file__).parent / "assets" / "sources.csv"


@functools.cache
def read_sources() -> tuple[tuple[Download, frozenset[str], str], ...]:
    """The rows: what is got, for which benchmarks, and where that was read."""
    with SOURCES.open(encoding="utf-8", newline="") as file:
        rows = [{column: value for column, value in row.items() if value} for row in csv.DictReader(file)]
    needed_by = [(frozenset(row.pop("benchmarks").split()), row.pop("source")) for row in rows]
    downloads = [Download(**{**row, "size": int(row.get("size", 0))}) for row in rows]
    return tuple((download, *about) for download, about in zip(downloads, needed_by, strict=True))


def downloads_of(benchmark: str) -> tuple[Download, ...]:
    """What a benchmark needs, annotations first where images are listed in them; empty where it is got by hand."""
    return tuple(download for download, benchmarks, _ in read_sources() if benchmark in benchmarks)
