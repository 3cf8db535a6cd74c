"""`rococo benchmarks`: list the benchmarks, show whether their data are available, and how to cite them."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

if TYPE_CHECKING:
    from rococo_jax.benchmarks.benchmark import BenchmarkInfo

EXAMPLES = """\
  rococo benchmarks
  rococo benchmarks --data DATA
  rococo benchmarks valse sugarcrepe --data DATA
  rococo benchmarks rococo winoground --cite > papers.bib
  rococo benchmarks --data DATA --items valse --out items.jsonl
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """List the benchmarks and show which are ready; with names, show their paper, licence, folders and missing files.

    Attributes:
        names: show the details of these benchmarks (default: list all, one line each)
        data: data folder; also show whether each benchmark is ready, partly available or missing
        cite: print BibTeX of the named benchmarks, or of all, and of this software
        items: write the items of this multiple-choice benchmark as JSON lines, in the form of your own items
        out: the JSON lines file
    """

    names: Annotated[tuple[str, ...], Option("NAME", positional=True)] = ()
    data: Annotated[str | None, Option("DIR")] = None
    cite: bool = False
    items: Annotated[str | None, Option("NAME", needs=("data+out",))] = None
    out: Annotated[str | None, Option("FILE", check=output_file, needs=("items",))] = None


def run(options: Options) -> None:
    """Print one line per benchmark, the details of the named ones, or BibTeX."""
    from rococo_jax.benchmarks.benchmark import find_benchmark, known_benchmarks
    from rococo_jax.benchmarks.own import own_benchmarks
    from rococo_jax.errors import require_folder

    data = None if options.data is None else Path(options.data)
    if data is not None:
        require_folder(data, "data", "a folder in the documented layout, such as DIR/coco/images")
    if options.items is not None:
        _write_items(options.items, data, options.out)
        return
    user_benchmarks = {} if data is None else own_benchmarks(data)
    infos = [find_benchmark(name, user_benchmarks) for name in options.names]
    if options.cite:
        from rococo_jax.benchmarks.citations import bibtex

        print(bibtex(infos or known_benchmarks().values()))
    elif infos:
        for info in infos:
            _print_details(info, data)
    else:
        _print_list([*known_benchmarks().values(), *user_benchmarks.values()], data)


def _print_list(infos: "list[BenchmarkInfo]", data: Path | None) -> None:
    width = max(len(info.name) for info in infos)
    for info in infos:
        if data is None:
            print(f"{info.name:{width}}  {info.question}")
        else:
            status, details = _check(info, data)
            print(f"{info.name:{width}}  {status:8} {details or info.question}")
    if data is None:
        print("\nrococo benchmarks NAME shows paper, licence, folders and downloads; --data DIR shows which are ready.")
    else:
        print(f"\nrococo benchmarks NAME --data {data} shows what is missing of a benchmark, and how to get it.")


def _check(info: "BenchmarkInfo", data: Path) -> tuple[str, str]:
    """Return the status of a benchmark and a phrase about it. A file that cannot be read is reported in the phrase."""
    from rococo_jax.benchmarks.benchmark import MISSING, availability
    from rococo_jax.errors import InputError
    from rococo_jax.evaluation.inputs import layout_folders

    try:
        return availability(info, layout_folders(info, data))
    except InputError as error:
        return MISSING, str(error)


def _print_details(info: "BenchmarkInfo", data: Path | None) -> None:
    from rococo_jax.cli.fetch import size_of

    lines = [
        ("paper", info.paper),
        ("licence", info.licence),
        ("size", info.size),
        ("tasks", ", ".join(info.tasks)),
    ]
    if info.headline is not None:
        lines.append(("headline", f"{info.headline.phrase}: {info.headline.source}"))
    for humans in info.humans:
        lines.append(("humans", f"{humans.task or info.name}: {humans.items} ({humans.source})"))
    root = "DIR" if data is None else str(data)
    lines += [("folders", ", ".join(f"{root}/{place}" for place in info.folders.values())), ("source", info.source)]
    if info.downloads:
        lines.append(("fetch", f"rococo fetch {info.name} --data {root} ({size_of(info.downloads)})"))
    if data is not None:
        status, details = _check(info, data)
        lines.append(("status", f"{status}: {details}" if details else status))
    print(f"{info.name}: {info.question}")
    print("\n".join(f"  {label:8} {text}" for label, text in lines), end="\n\n")


def _write_items(name: str, data: Path | None, out: str | None) -> None:
    """Write the items of a benchmark's files, whether or not their images exist."""
    from rococo_jax.benchmarks.benchmark import find_benchmark
    from rococo_jax.benchmarks.readers.plain_choices import as_json
    from rococo_jax.errors import InputError
    from rococo_jax.evaluation.inputs import layout_folders
    from rococo_jax.storage import write_json_lines

    info = find_benchmark(name)
    if info.reader is None:
        raise InputError("--items", "name", name, "a multiple-choice benchmark")
    folder = layout_folders(info, data)["annotations"]
    if not folder.is_dir():
        raise InputError(folder, name, "nothing there", f"{info.size}; from {info.source}")
    tables, _, _ = info.reader.read(folder, info.files)
    count = sum(map(len, tables.parts.values()))
    write_json_lines(out, map(as_json, tables.items()))
    print(f"{out}: {count:,} items of {name}, {len(tables.names):,} images, {len(tables.texts):,} texts")
