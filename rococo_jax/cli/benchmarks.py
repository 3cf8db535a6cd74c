"""`rococo benchmarks`: what can be evaluated, what it needs, and what of it is there."""

import argparse

HELP = "List the benchmarks: question, paper, licence, size, what each needs, and whether it is under a data folder."
EXAMPLES = """\
  rococo benchmarks
  rococo benchmarks --data DATA
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--data", metavar="DIR", help="also say what is there of each under this folder")


def run(arguments: argparse.Namespace) -> None:
    """Prints one paragraph a benchmark."""
    from pathlib import Path

    from rococo_jax.benchmarks.benchmark import known_benchmarks
    from rococo_jax.errors import InputError
    from rococo_jax.evaluation.inputs import layout_folders

    data = None if arguments.data is None else Path(arguments.data)
    if data is not None and not data.is_dir():
        found = "a file" if data.exists() else "nothing there"
        raise InputError(data, "data", found, "a folder in the documented layout, such as DIR/coco/images")
    for info in known_benchmarks().values():
        print(f"{info.name}: {info.question}")
        lines = [
            ("paper", info.paper),
            ("licence", info.licence),
            ("size", info.size),
            ("tasks", ", ".join(info.tasks)),
        ]
        lines += [("needs", ", ".join(f"DIR/{place}" for place in info.folders.values())), ("from", info.source)]
        if data is not None:
            missing = info.missing(layout_folders(info, data))
            lines.append(("found", "no: " + ", ".join(missing) if missing else "yes"))
        print("\n".join(f"  {label:8} {text}" for label, text in lines), end="\n\n")
