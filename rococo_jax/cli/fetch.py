"""`rococo fetch`: download the files of benchmarks."""

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
If a download is interrupted, run the same command again: it resumes. A file that exists is complete."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Download the files that benchmarks need into the documented layout, verified and resumable.

    Prints the licences first.

    Attributes:
        names: benchmarks, as listed by rococo benchmarks
        data: the data folder, as in rococo evaluate --data
        only: only the files of this role
        dry_run: list the downloads without downloading
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
    data = Path(options.data)
    downloads: dict[str, Download] = {}
    for info in infos:
        print(f"{info.name}: {info.licence}")
        downloads |= {each.to: each for each in info.downloads if options.only in (None, each.role)}
    for download in downloads.values():
        size = "there already" if download.exists(data) else f"{size_of([download])}, {download.verification}"
        print(f"  {data / download.to}: {size}\n    from {download.url}", flush=True)
    for page in dict.fromkeys(each.page for each in downloads.values() if each.page and not each.exists(data)):
        print(f"  needs {terms(page)}", flush=True)
    if options.dry_run:
        return
    for download in downloads.values():
        if download.exists(data):
            fetch_files(download, data)  # verifies its hash, and removes temporary files of a run that was killed
        else:
            with progress(f"downloading {download.to}", download.size or None, "bytes") as advance:
                fetch_files(download, data, advance)
    print(f"{data}: complete; rococo evaluate MODEL --data {data} --benchmarks {','.join(options.names)} --out OUT")


def size_of(downloads: Sequence[Download]) -> str:
    """Return the total size of downloads in words, as far as it is known in advance."""
    total = sum(each.size for each in downloads)
    if not total:
        return "size not known"
    are_all_known = all(each.size for each in downloads)
    return f"{'about' if are_all_known else 'over'} {in_bytes(total)}"


def in_bytes(size: int) -> str:
    """Return a size in words.

    >>> in_bytes(3_200_000), in_bytes(6_645_013_297)
    ('3.2 MB', '6.6 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"
