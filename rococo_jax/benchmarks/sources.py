"""Shipped benchmarks' downloads, from `assets/sources.csv`: a row is a file, an archive or the files of a folder.

`benchmarks` lists the benchmarks that need it, separated by spaces. `source` names where the address, the revision or
the hash was published; downloads without a hash have never been tested. The other columns are fields of `Download`,
empty for their defaults. `data.hub_downloads` describes the addresses.
"""

import csv
import functools
from pathlib import Path

from rococo_jax.data.downloads import Download

SOURCES = Path(__file__).parent / "assets" / "sources.csv"


@functools.cache
def read_sources() -> tuple[tuple[Download, frozenset[str], str], ...]:
    """Read the rows: the download, the benchmarks that need it, and the source of its address."""
    with SOURCES.open(encoding="utf-8", newline="") as file:
        rows = [{column: value for column, value in row.items() if value} for row in csv.DictReader(file)]
    needed_by = [(frozenset(row.pop("benchmarks").split()), row.pop("source")) for row in rows]
    downloads = [Download(**{**row, "size": int(row.get("size", 0))}) for row in rows]
    return tuple((download, *about) for download, about in zip(downloads, needed_by, strict=True))


def downloads_of(benchmark: str) -> tuple[Download, ...]:
    """Return the downloads of a benchmark, annotations first; empty if its files must be downloaded by hand."""
    return tuple(download for download, benchmarks, _ in read_sources() if benchmark in benchmarks)
