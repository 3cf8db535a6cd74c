"""`rococo fetch`: the files of a benchmark, into the documented layout."""

import argparse

HELP = "Download what benchmarks need, checked and resumable, into the documented layout; says the licence first."
EXAMPLES = """\
  rococo fetch rococo --data DATA
  rococo fetch rococo sugarcrepe --data DATA --only annotations
  rococo fetch rococo --data DATA --dry-run
The same command goes on where it was stopped. Files appear under their names only when they are whole."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="benchmarks, as rococo benchmarks lists them")
    parser.add_argument("--data", required=True, metavar="DIR", help="the data folder, as of rococo evaluate --data")
    parser.add_argument("--only", choices=("images", "annotations"), help="only the files of this role")
    parser.add_argument("--dry-run", action="store_true", help="say what would be got, and get nothing")
    parser.add_argument("--quiet", action="store_true", help="no progress; errors and warnings are still printed")


def run(arguments: argparse.Namespace) -> None:
    from pathlib import Path

    from rococo_jax.benchmarks.benchmark import find_benchmark
    from rococo_jax.data.downloads import clear_leftovers, fetch
    from rococo_jax.errors import InputError
    from rococo_jax.progress import progress

    infos = [find_benchmark(name) for name in dict.fromkeys(arguments.names)]
    for info in infos:
        if not info.downloads:
            raise InputError(info.name, "downloads", "none that a program may get", f"by hand: {info.source}")
    data, wanted = Path(arguments.data), {}
    for info in infos:
        print(f"{info.name}: {info.licence}")
        wanted |= {each.to: each for each in info.downloads if arguments.only in (None, each.role)}
    for download in wanted.values():
        there = download.is_there(data)
        checked = "SHA-256 known" if download.sha256 else "no known hash: only the length is checked"
        size = "there already" if there else f"about {in_bytes(download.size)}, {checked}"
        print(f"  {data / download.to}: {size}\n    from {download.url}", flush=True)
    if arguments.dry_run:
        return
    for download in wanted.values():
        if download.is_there(data):
            clear_leftovers(download, data)  # of a run that was killed at its end
        else:
            with progress(f"getting {download.to}", download.size, "bytes") as advance:
                fetch(download, data, advance)
    print(f"{data}: all there; rococo evaluate MODEL --data {data} --benchmarks {','.join(arguments.names)} --out OUT")


def in_bytes(size: int) -> str:
    """
    >>> in_bytes(3_200_000), in_bytes(6_645_013_297)
    ('3.2 MB', '6.6 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"
