"""The part of `rococo score` that takes logits of classes."""

import argparse
from typing import Any

_OTHERS = ("similarities", "embeddings", "image_embeddings", "text_embeddings", "annotation")


def add_logits_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add = parser.add_argument
    add("--logits", metavar="F.npz", help="images by classes; 'logits', and 'classes', 'names' if known; with --labels")
    add("--labels", metavar="F", help="image,label in .csv, .tsv or .jsonl; one a line in .txt; columns in .npy; or a "
        "folder of evaluated results, to stand in one table with them")  # fmt: skip
    add("--task", default="classes", help="what to call it, or which task of evaluated results (default: classes)")
    add("--classes", metavar="F.json", help="names of the columns (default: those in the logits' file)")
    add("--groups", metavar="F.json", help="{coarse class: [class, ...]}; labels are then coarse ones")
    add("--corrupted", action="append", default=[], metavar="fog_3=F.npz",
        help="logits of the same images, corrupted; may be repeated")  # fmt: skip
    add("--out-logits", action="append", default=[], metavar="NAME=F.npz",
        help="logits of images of none of the classes; may be repeated")  # fmt: skip


def score_logits_file(arguments: argparse.Namespace) -> None:
    """Scores, writes, and prints the table."""
    from rococo_jax.errors import InputError
    from rococo_jax.evaluation.inputs import named_values
    from rococo_jax.evaluation.models.class_logits import score_logits

    for name in _OTHERS:
        if getattr(arguments, name, None):
            raise InputError("rococo score", "input", f"--logits with --{name.replace('_', '-')}", "one of them")
    if arguments.labels is None:
        raise InputError("rococo score", "--labels", "nothing", "a file, with --logits")
    evaluated = score_logits(
        arguments.logits,
        arguments.labels,
        task=arguments.task,
        name=arguments.name,
        classes=arguments.classes,
        groups=arguments.groups,
        corrupted=named_values(arguments.corrupted, "--corrupted", "fog_3=F.npz"),
        outside=named_values(arguments.out_logits, "--out-logits", "NAME=F.npz"),
    )
    write_evaluated(evaluated, arguments)


def write_evaluated(evaluated: Any, arguments: argparse.Namespace) -> None:
    """Write the results, and the rows where they are wanted, and print the table."""
    from rococo_jax.evaluation.results import with_checksum, write_per_query
    from rococo_jax.evaluation.summary import print_summary
    from rococo_jax.storage import write_json

    if arguments.per_query:
        write_per_query(arguments.per_query, evaluated.per_query)
    write_json(arguments.out, with_checksum(evaluated.results))
    print_summary([evaluated.results], wide=arguments.wide)
