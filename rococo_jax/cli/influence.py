"""`rococo influence`: write the embedding influence of every word of every caption."""

import argparse

from rococo_jax.cli.inputs import add_captions_arguments, read_captions_of
from rococo_jax.cli.outputs import output_file

HELP = "Write the embedding influence of every word of every caption, one JSON line a caption."
EXAMPLES = """\
  rococo influence models/clip-b32 --captions coco/captions_test.json --out influence.jsonl
  rococo influence models/minilm --captions coco/captions_test.json --method mask --out masked.jsonl
"""
_METHOD = "how a word is ablated: removed, or masked (BERT)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="model directory, Hugging Face folder, or hub name")
    add_captions_arguments(parser)
    parser.add_argument("--out", type=output_file, required=True, metavar="F.jsonl", help="output file")
    add_influence_arguments(parser)


def add_influence_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that computes influence."""
    parser.add_argument("--method", choices=("remove", "mask"), default="remove", help=_METHOD)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of the tower")


def run(arguments: argparse.Namespace) -> None:
    from rococo_jax.runtime import distributed_run, enable_compilation_cache

    with distributed_run():
        enable_compilation_cache()
        _run(arguments)


def _run(arguments: argparse.Namespace) -> None:
    import jax

    from rococo_jax.encoders import load_model
    from rococo_jax.perturb.text.influence_table import write_influence_table
    from rococo_jax.processes import run_on_all_processes
    from rococo_jax.progress import progress
    from rococo_jax.runtime import make_mesh

    images = run_on_all_processes("captions", lambda: read_captions_of(arguments))
    own_devices = make_mesh(jax.local_devices())
    encoder = run_on_all_processes(
        "model", lambda: load_model(arguments.model, mesh=own_devices, dtype=arguments.dtype)
    )
    total = sum(len(image.captions) for image in images)
    with progress("influence", total, "captions") as advance:
        left = write_influence_table(
            encoder, images, arguments.out, method=arguments.method, on_progress=advance, together=True
        )
    if jax.process_index() == 0:
        resumed = f", {left} of them by an earlier run" if left else ""
        print(f"{arguments.out}: {total} captions{resumed}")
