"""`rococo fetch`: the files of a benchmark, into the documented layout."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

from rococo_jax.cli.outputs import output_folder
from rococo_jax.data.downloads import Download
from rococo_jax.options import Option

EXAMPLES = """\
  rococo fetch rococo --data DATA
  rococo fetch rococo sugarcrepe --data DATA --only annotations
  rococo fetch rococo --data DATA --dry-run
The same command goes on where it was stopped. Files appear under their names only when they are whole."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Download what benchmarks need, checked and resumable, into the documented layout; says the licence first.

    Attributes:
        names: benchmarks, as rococo benchmarks lists them
        data: the data folder, as of rococo evaluate --data
        only: only the files of this role
        dry_run: say what would be got, and get nothing
        quiet: no progress; errors and warnings are still printed
    """

    names: Annotated[tuple[str, ...], Option("NAME", positional=True)]
    data: Annotated[str, Option("DIR", check=output_folder)]
    only: Literal["images", "annotations"] | None = None
    dry_run: bool = False
    quiet: bool = False


def run(options: Options) -> None:
    from pathlib import Path

    from rococo_jax.benchmarks.benchmark import find_benchmark
    from rococo_jax.data.downloads import terms
    from rococo_jax.data.hub_downloads import fetch_files
    from rococo_jax.errors import InputError
    from rococo_jax.progress import progress

    infos = [find_benchmark(name) for name in dict.fromkeys(options.names)]
    for info in infos:
        if not info.downloads:
            raise InputError(info.name, "downloads", "none that a program may get", f"by hand: {info.source}")
    data, wanted = Path(options.data), {}
    for info in infos:
        print(f"{info.name}: {info.licence}")
        wanted |= {each.to: each for each in info.downloads if options.only in (None, each.role)}
    for download in wanted.values():
        size = "there already" if download.exists(data) else f"{size_of([download])}, {download.verification}"
        print(f"  {data / download.to}: {size}\n    from {download.url}", flush=True)
    for page in dict.fromkeys(each.page for each in wanted.values() if each.page and not each.exists(data)):
        print(f"  needs {terms(page)}", flush=True)
    if options.dry_run:
        return
    for download in wanted.values():
        if download.exists(data):
            fetch_files(download, data)  # compares its hash, and clears what a run left that was killed at its end
        else:
            with progress(f"getting {download.to}", download.size or None, "bytes") as advance:
                fetch_files(download, data, advance)
    print(f"{data}: all there; rococo evaluate MODEL --data {data} --benchmarks {','.join(options.names)} --out OUT")


def size_of(downloads: Sequence[Download]) -> str:
    """How much comes, as far as it is known before."""
    known = sum(each.size for each in downloads)
    if not known:
        return "size not known"
    return f"{'about' if all(each.size for each in downloads) else 'over'} {in_bytes(known)}"


def in_bytes(size: int) -> str:
    """
    >>> in_bytes(3_200_000), in_bytes(6_645_013_297)
    ('3.2 MB', '6.6 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"
