"""`rococo benchmarks`: what can be evaluated, what it needs, and what of it is there."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo benchmarks
  rococo benchmarks --data DATA
  rococo benchmarks --data DATA --items valse --out items.jsonl
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """List the benchmarks: question, paper, licence, size, needs, and what is there; write choices as JSON lines.

    Attributes:
        data: also say what is there of each under this folder
        items: write the items of this benchmark of choices in the plain form
        out: with --items: the file, JSON lines
    """

    data: Annotated[str | None, Option("DIR")] = None
    items: Annotated[str | None, Option("NAME")] = None
    out: Annotated[str | None, Option("FILE", check=output_file)] = None


def run(options: Options) -> None:
    """Prints one paragraph a benchmark."""
    from pathlib import Path

    from rococo_jax.benchmarks.benchmark import known_benchmarks, nearest_folder
    from rococo_jax.benchmarks.own import own_benchmarks
    from rococo_jax.cli.fetch import size_of
    from rococo_jax.errors import InputError
    from rococo_jax.evaluation.inputs import layout_folders

    data = None if options.data is None else Path(options.data)
    if data is not None and not data.is_dir():
        found = "a file" if data.exists() else "nothing there"
        raise InputError(data, "data", found, "a folder in the documented layout, such as DIR/coco/images")
    if options.items is not None:
        _write_items(options.items, data, options.out)
        return
    own = {} if data is None else own_benchmarks(data)
    for info in (*known_benchmarks().values(), *own.values()):
        print(f"{info.name}: {info.question}")
        lines = [
            ("paper", info.paper),
            ("licence", info.licence),
            ("size", info.size),
            ("tasks", ", ".join(info.tasks)),
        ]
        if info.headline is not None:
            lines.append(("headline", f"{info.headline.phrase}: {info.headline.source}"))
        lines += [("needs", ", ".join(f"DIR/{place}" for place in info.folders.values())), ("from", info.source)]
        if info.downloads:
            lines.append(("fetch", f"rococo fetch {info.name} --data DIR ({size_of(info.downloads)})"))
        if data is not None:
            places = layout_folders(info, data)
            missing = info.missing(places)
            there = ", ".join(str(place) for place in places.values() if place.is_dir())
            lines.append(("found", "no: " + ", ".join(missing) if missing else f"yes: {there}"))
            absent = [role for role, place in places.items() if any(path.startswith(str(place)) for path in missing)]
            near = {str(folder) for role in absent if (folder := nearest_folder(info, role, data)) is not None}
            lines += [("nearest", ", ".join(sorted(near)) or "nothing of a similar name")] if missing else []
        print("\n".join(f"  {label:8} {text}" for label, text in lines), end="\n\n")


def _write_items(name: str, data, out: str | None) -> None:
    """Writes the items of a benchmark's files, whether or not their images are there."""
    from rococo_jax.benchmarks.benchmark import find_benchmark
    from rococo_jax.benchmarks.plain_choices import as_json
    from rococo_jax.errors import InputError
    from rococo_jax.evaluation.inputs import layout_folders
    from rococo_jax.storage import write_json_lines

    info = find_benchmark(name)
    if info.reader is None:
        raise InputError("--items", "name", name, "a benchmark of choices")
    for option, value in (("--data", data), ("--out", out)):
        if value is None:
            raise InputError(option, "path", "nothing", "a path, with --items")
    folder = layout_folders(info, data)["annotations"]
    if not folder.is_dir():
        raise InputError(folder, name, "nothing there", f"{info.size}; from {info.source}")
    tables, _, _ = info.reader.read(folder, info.files)
    count = sum(map(len, tables.parts.values()))
    write_json_lines(out, map(as_json, tables.items()))
    print(f"{out}: {count:,} items of {name}, {len(tables.names):,} images, {len(tables.texts):,} texts")
