"""`rococo select`: images on which corruption changes what models say, no two of them alike."""

import argparse

from rococo_jax.cli.outputs import output_file

HELP = "List discriminative images: those whose answers corruption changes for most models, and that differ most."
EXAMPLES = """\
  rococo evaluate a b c --data DATA --benchmarks cifar10 --corruptions all --severities 3 --out out
  rococo select out --count 200 --out selected.json
  rococo select out --task cifar10 --embeddings images.npz --weight 0.5 --out selected.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add = parser.add_argument
    add("results", nargs="+", metavar="RESULTS", help="results of two models or more, with --corruptions")
    add("--out", type=output_file, required=True, metavar="F.json", help="the list, with reasons")
    add("--task", help="which task (default: the first that all have on corrupted images)")
    add("--count", type=int, default=100, help="how many images at most (default: 100)")
    add("--weight", type=float, default=0.5, help="of inconsistency against distance, 0 to 1 (default: 0.5)")
    add("--embeddings", metavar="F.npz", help="of the images, as rococo embed writes them; without, inconsistency "
        "decides alone")  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Selects, writes, and says how many."""
    from rococo_jax.evaluation.select import select
    from rococo_jax.report.collection import load_results
    from rococo_jax.storage import write_json

    paths = [path for path, _ in load_results(arguments.results)]
    found = select(paths, arguments.task, arguments.count, arguments.weight, arguments.embeddings)
    write_json(arguments.out, found)
    print(
        f"{arguments.out}: {len(found['chosen'])} of {found['inconsistent']} inconsistent images of {found['images']}"
    )
