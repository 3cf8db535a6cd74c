"""`rococo score`: the same metrics for any model of any framework, from its similarities or its embeddings."""

import argparse

from rococo_jax.cli.outputs import output_file

HELP = "Score similarities or embeddings that any model made, against one annotation file."
EXAMPLES = """\
  rococo score --similarities S.npy --annotation rococo/annotations/same_concept.json --out same_concept.json
  rococo score --image-embeddings A.npy --text-embeddings B.npy --annotation danger.json --protocol strict --out F.json

rows are the images and columns the captions of the annotation, in file order: image by image, the originals, then the
altered captions. A file of plain captions gives the clean tasks alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--similarities", metavar="S.npy", help="images by captions, higher is more similar")
    parser.add_argument("--image-embeddings", metavar="A.npy", help="images by width")
    parser.add_argument("--text-embeddings", metavar="B.npy", help="captions by width")
    parser.add_argument(
        "--annotation", required=True, metavar="FILE", help="published form, our own, or plain captions"
    )
    parser.add_argument("--out", type=output_file, required=True, metavar="F.json", help="where the results go")
    parser.add_argument(
        "--protocol",
        choices=("paper", "strict", "control"),
        default="paper",
        metavar="{paper,strict}",
        help="default: paper",
    )
    parser.add_argument(
        "--name", help="what to call the model; default: the name of the first file, without its ending"
    )
    parser.add_argument(
        "--per-query",
        type=output_file,
        metavar="F.parquet",
        help="also write one row a query: its ranks, who came first",
    )


def run(arguments: argparse.Namespace) -> None:
    """Ranks, writes, and prints the table."""
    _check_inputs(arguments)

    from rococo_jax.benchmarks.settings import settings_from
    from rococo_jax.evaluation.results import with_checksum, write_per_query
    from rococo_jax.evaluation.scoring import score_embeddings, score_similarities
    from rococo_jax.evaluation.summary import print_summary
    from rococo_jax.runtime import enable_compilation_cache, make_mesh
    from rococo_jax.storage import write_json

    enable_compilation_cache()
    # `control` was a protocol once; without images it is `paper`.
    arguments.protocol = settings_from({"protocol": arguments.protocol}).protocol
    if arguments.similarities:
        results, table = score_similarities(
            arguments.similarities, arguments.annotation, arguments.protocol, arguments.name
        )
    else:
        results, table = score_embeddings(
            arguments.image_embeddings,
            arguments.text_embeddings,
            arguments.annotation,
            arguments.protocol,
            arguments.name,
            mesh=make_mesh(),
        )
    if arguments.per_query:
        write_per_query(arguments.per_query, table)
    write_json(arguments.out, with_checksum(results))
    print_summary([results])


def _check_inputs(arguments: argparse.Namespace) -> None:
    from rococo_jax.errors import InputError

    embeddings = {"--image-embeddings": arguments.image_embeddings, "--text-embeddings": arguments.text_embeddings}
    given = [option for option, path in {"--similarities": arguments.similarities, **embeddings}.items() if path]
    if given not in (["--similarities"], list(embeddings)):
        wanted = "either --similarities, or --image-embeddings and --text-embeddings"
        raise InputError("rococo score", "input", " and ".join(given) or "none", wanted)
