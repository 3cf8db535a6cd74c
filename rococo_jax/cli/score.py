"""`rococo score`: the same metrics for any model of any framework, from its similarities or its embeddings.

With `--annotation` one file of captions; with `--data`, or `--images` and `--annotations`, whole benchmarks, whose
results stand in one table with those of `rococo evaluate`.
"""

import argparse

from rococo_jax.cli.outputs import add_table_arguments, output_file, output_file_or_folder, output_folder
from rococo_jax.cli.score_logits import add_logits_arguments, score_logits_file, write_evaluated

HELP = "Score similarities, embeddings or class logits that any model made, on benchmarks, an annotation or labels."
EXAMPLES = """\
  rococo score --embeddings my-vectors --images coco/images --annotations rococo/annotations --out out/my-model
  rococo score --similarities my-scores --data DATA --benchmarks rococo --out out/my-model
  rococo score --similarities S.npy --annotation rococo/annotations/same_concept.json --out same_concept.json
  rococo score --image-embeddings A.npy --text-embeddings B.npy --annotation danger.json --protocol strict --out F.json
  rococo score --logits F.npz --labels labels.csv --corrupted fog_3=G.npz --out-logits coco=H.npz --out F.json

the first two are compared with evaluated models by `rococo report out`; `rococo export-inputs` writes what to embed.
with --annotation, rows are the images and columns the captions of the annotation, in file order: image by image, the
originals, then the altered captions. A file of plain captions gives the clean tasks alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from rococo_jax.cli.evaluate import add_data_arguments

    parser.add_argument("--similarities", metavar="S.npy", help="images by captions, higher is more similar; "
                        "or a folder with one SET.npy for each image set of the benchmarks")  # fmt: skip
    parser.add_argument("--embeddings", metavar="PATH", help=".npz or .parquet files keyed by image name and caption "
                        "(a file or a folder), such as of rococo embed")  # fmt: skip
    parser.add_argument(
        "--allow-unknown", action="store_true", help="with --embeddings: also vectors that no benchmark asks for"
    )
    parser.add_argument("--image-embeddings", metavar="A.npy", help="images by width")
    parser.add_argument("--text-embeddings", metavar="B.npy", help="captions by width")
    parser.add_argument("--annotation", metavar="FILE", help="one file: published form, our own, or plain captions")
    parser.add_argument(
        "--out",
        type=output_file_or_folder,
        required=True,
        metavar="F.json",
        help="where the results go; of whole benchmarks a folder, as of rococo evaluate",
    )
    add_logits_arguments(parser)
    add_data_arguments(parser)
    parser.add_argument(
        "--name", help="what to call the model; default: the name of the first file, without its ending"
    )
    add_table_arguments(parser)
    parser.add_argument(
        "--per-query",
        type=output_file,
        metavar="F.parquet",
        help="also write one row a query: its ranks, who came first",
    )


def run(arguments: argparse.Namespace) -> None:
    """Ranks, writes, and prints the table."""
    one_file = arguments.logits or arguments.annotation is not None
    (output_file if one_file else output_folder)(arguments.out)
    if arguments.logits:
        score_logits_file(arguments)
        return
    _check_inputs(arguments)
    if arguments.annotation is None:
        _score_benchmarks(arguments)
        return

    from rococo_jax.benchmarks.settings import Settings
    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.evaluation.models.arrays import annotation_benchmark
    from rococo_jax.evaluation.models.stored_embeddings import ArrayEmbeddings
    from rococo_jax.evaluation.models.stored_similarities import SimilarityMatrix
    from rococo_jax.evaluation.runner import evaluate_model
    from rococo_jax.runtime import enable_compilation_cache

    enable_compilation_cache()
    benchmark = annotation_benchmark(arguments.annotation, arguments.protocol)
    if arguments.similarities:
        model = SimilarityMatrix(arguments.similarities, arguments.name)
    else:
        model = ArrayEmbeddings(arguments.image_embeddings, arguments.text_embeddings, arguments.name)
    settings = Settings(protocol=arguments.protocol)
    write_evaluated(evaluate_model(model, [benchmark], settings, EmbeddingCache(None)), arguments)


def _score_benchmarks(arguments: argparse.Namespace) -> None:
    from pathlib import Path

    from rococo_jax.cli.evaluate import benchmarks_of, settings_of
    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.evaluation.companions import standard_companions
    from rococo_jax.evaluation.models.stored_embeddings import StoredEmbeddings
    from rococo_jax.evaluation.models.stored_similarities import StoredSimilarities
    from rococo_jax.evaluation.runner import evaluate_into
    from rococo_jax.evaluation.summary import print_summary
    from rococo_jax.runtime import enable_compilation_cache

    enable_compilation_cache()
    benchmarks, settings = benchmarks_of(arguments), settings_of(arguments)
    if arguments.similarities:
        model = StoredSimilarities(arguments.similarities, arguments.name)
    else:
        model = StoredEmbeddings(arguments.embeddings, arguments.name, arguments.allow_unknown)
    out, companions = Path(arguments.out), standard_companions()
    results, _ = evaluate_into(out, model, benchmarks, settings, EmbeddingCache(None), companions)
    print_summary([results], wide=arguments.wide)


def _check_inputs(arguments: argparse.Namespace) -> None:
    from rococo_jax.errors import InputError

    whole = arguments.data or arguments.images or arguments.annotations
    if arguments.annotation is None:
        if not whole:
            raise InputError(
                "rococo score", "input", "no --annotation", "--annotation, --data, or --images and --annotations"
            )
        if bool(arguments.similarities) == bool(arguments.embeddings):
            found = "both" if arguments.embeddings else "neither"
            raise InputError("rococo score", "input", found, "--embeddings or --similarities, for whole benchmarks")
        if arguments.out.endswith(".json") or arguments.per_query:
            raise InputError("--out", "path", arguments.out, "a folder, for whole benchmarks")
        return
    if whole or arguments.embeddings:
        given = "--embeddings" if arguments.embeddings else "--data, --images or --annotations"
        raise InputError("rococo score", "input", f"--annotation with {given}", "one annotation file, or benchmarks")

    embeddings = {"--image-embeddings": arguments.image_embeddings, "--text-embeddings": arguments.text_embeddings}
    given = [option for option, path in {"--similarities": arguments.similarities, **embeddings}.items() if path]
    if given not in (["--similarities"], list(embeddings)):
        wanted = "either --similarities, or --image-embeddings and --text-embeddings"
        raise InputError("rococo score", "input", " and ".join(given) or "none", wanted)
