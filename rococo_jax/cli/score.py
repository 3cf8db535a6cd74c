"""`rococo score`: the same metrics for any model of any framework, from its similarities, embeddings or class logits.

With `--annotation` one file of captions; with `--data`, or `--images` and `--annotations`, whole benchmarks, whose
results stand in one table with those of `rococo evaluate`; with `--logits` labels.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.cli.outputs import output_file, output_file_or_folder, output_folder, print_tables
from rococo_jax.errors import InputError
from rococo_jax.evaluation.options import QUESTIONS, DataOptions
from rococo_jax.options import Option

EXAMPLES = """\
  rococo score --embeddings my-vectors --images coco/images --annotations rococo/annotations --out out/my-model
  rococo score --similarities my-scores --data DATA --benchmarks rococo --out out/my-model
  rococo score --similarities S.npy --annotation rococo/annotations/same_concept.json --out same_concept.json
  rococo score --image-embeddings A.npy --text-embeddings B.npy --annotation danger.json --protocol strict --out F.json
  rococo score --logits F.npz --labels labels.csv --corrupted fog_3=G.npz --out-logits coco=H.npz --out F.json

the first two are compared with evaluated models by `rococo report out`; `rococo export-inputs` writes what to embed.
with --annotation, rows are the images and columns the captions of the annotation, in file order: image by image, the
originals, then the altered captions. A file of plain captions gives the clean tasks alone."""
_KEYED = ("--embeddings", "--token-embeddings")
_INPUTS = ("--similarities", *_KEYED, "--image-embeddings", "--text-embeddings")


@dataclasses.dataclass(frozen=True)
class LogitsOptions:
    """Logits of classes, and what they are scored against.

    Attributes:
        logits: images by classes, before the softmax; 'logits', and 'classes', 'names' if known; with --labels
        labels: image,label in .csv, .tsv or .jsonl; one a line in .txt; columns in .npy; or a folder of evaluated
            results, to stand in one table with them
        task: what to call it, or which task of evaluated results
        classes: names of the columns (default: those in the logits' file)
        groups: {coarse class: [class, ...]}; labels are then coarse ones
        corrupted: logits of the same images, corrupted; may be repeated
        out_logits: logits of images of none of the classes; may be repeated
    """

    logits: Annotated[str | None, Option("F.npz")] = None
    labels: Annotated[str | None, Option("F")] = None
    task: str = "classes"
    classes: Annotated[str | None, Option("F.json")] = None
    groups: Annotated[str | None, Option("F.json")] = None
    corrupted: Annotated[tuple[tuple[str, str], ...], Option("fog_3=F.npz")] = ()
    out_logits: Annotated[tuple[tuple[str, str], ...], Option("NAME=F.npz")] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Score similarities, embeddings or class logits that any model made, on benchmarks, an annotation or labels.

    Attributes:
        similarities: images by captions, higher is more similar; or a folder with one SET.npy for each image set of
            the benchmarks
        token_embeddings: .npz of token vectors, scored by MaxSim: image_names, image_tokens, image_lengths (how many
            each image has), captions, text_tokens, text_lengths
        embeddings: .npz or .parquet files keyed by image name and caption (a file or a folder), such as of rococo
            embed
        image_embeddings: images by width
        text_embeddings: captions by width
        annotation: one file: published form, our own, or plain captions
        out: where the results go; of whole benchmarks a folder, as of rococo evaluate: what is missing is added
        name: what to call the model; default: the name of the first file, without its ending
        per_query: also write one row a query: its ranks, who came first; named per_query.parquet beside the results,
            rococo report compares models by it
        classes: class logits
        data: data
        settings: questions
    """

    out: Annotated[str, Option("F.json", check=output_file_or_folder)]
    similarities: Annotated[str | None, Option("S.npy")] = None
    token_embeddings: Annotated[str | None, Option("F.npz")] = None
    embeddings: Annotated[str | None, Option("PATH")] = None
    image_embeddings: Annotated[str | None, Option("A.npy")] = None
    text_embeddings: Annotated[str | None, Option("B.npy")] = None
    annotation: Annotated[str | None, Option("FILE")] = None
    name: str | None = None
    per_query: Annotated[str | None, Option("F.parquet", check=output_file)] = None
    classes: LogitsOptions
    data: DataOptions
    settings: Annotated[Settings, QUESTIONS]


def run(options: Options) -> None:
    """Ranks, writes, and prints the table."""
    one_file = options.classes.logits or options.annotation is not None
    (output_file if one_file else output_folder)(options.out)
    if options.classes.logits:
        _score_logits(options)
        return
    _check_inputs(options)

    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.evaluation.companions import standard_companions
    from rococo_jax.evaluation.models.arrays import annotation_benchmark
    from rococo_jax.evaluation.models.stored_embeddings import ArrayEmbeddings, StoredEmbeddings
    from rococo_jax.evaluation.models.stored_similarities import StoredSimilarities
    from rococo_jax.evaluation.models.stored_tokens import StoredTokens
    from rococo_jax.evaluation.runner import evaluate_into, evaluate_model
    from rococo_jax.runtime import enable_compilation_cache

    enable_compilation_cache()
    settings, cache, name = options.settings, EmbeddingCache(None), options.name
    if options.annotation is not None:
        benchmark = annotation_benchmark(options.annotation, settings.protocol)
        if options.similarities:
            model = StoredSimilarities(options.similarities, name, is_file=True)
        else:
            model = ArrayEmbeddings(options.image_embeddings, options.text_embeddings, name)
        _write(evaluate_model(model, [benchmark], Settings(protocol=settings.protocol), cache), options)
        return
    benchmarks = options.data.open(settings)
    if options.similarities:
        model = StoredSimilarities(options.similarities, name)
    elif options.token_embeddings:
        model = StoredTokens(options.token_embeddings, name)
    else:
        model = StoredEmbeddings(options.embeddings, name)
    results, _ = evaluate_into(Path(options.out), model, benchmarks, settings, cache, standard_companions())
    print_tables([results])


def _score_logits(options: Options) -> None:
    from rococo_jax.evaluation.models.class_logits import score_logits

    classes = options.classes
    if others := _given(options, *_INPUTS, "--annotation"):
        raise InputError("rococo score", "input", f"--logits with {others[0]}", "one of them")
    if classes.labels is None:
        raise InputError("rococo score", "--labels", "nothing", "a file, with --logits")
    evaluated = score_logits(
        classes.logits,
        classes.labels,
        task=classes.task,
        name=options.name,
        classes=classes.classes,
        groups=classes.groups,
        corrupted=dict(classes.corrupted),
        outside=dict(classes.out_logits),
    )
    _write(evaluated, options)


def _write(evaluated: Any, options: Options) -> None:
    """Writes the results, and the rows where they are wanted, and prints the table."""
    from rococo_jax.evaluation.results import with_checksum, write_per_query
    from rococo_jax.evaluation.table_metadata import numbers_hash, written_with
    from rococo_jax.storage import write_json

    if options.per_query:
        numbers = numbers_hash(evaluated.results)
        write_per_query(options.per_query, written_with(evaluated.per_query, numbers))
    write_json(options.out, with_checksum(evaluated.results))
    print_tables([evaluated.results])


def _given(options: Options, *flags: str) -> list[str]:
    return [flag for flag in flags if getattr(options, flag.removeprefix("--").replace("-", "_"))]


def _check_inputs(options: Options) -> None:
    given, folders = _given(options, *_INPUTS), options.data.data or options.data.images or options.data.annotations
    found = " and ".join(given) or "neither"
    if options.annotation is not None:
        if others := [*_given(options, *_KEYED), *(["--data, --images or --annotations"] if folders else [])]:
            found, wanted = f"--annotation with {others[0]}", "one annotation file, or benchmarks"
            raise InputError("rococo score", "input", found, wanted)
        if given not in (["--similarities"], ["--image-embeddings", "--text-embeddings"]):
            wanted = "either --similarities, or --image-embeddings and --text-embeddings"
            raise InputError("rococo score", "input", found, wanted)
    elif not folders:
        wanted = "--annotation, --data, or --images and --annotations"
        raise InputError("rococo score", "input", "no --annotation", wanted)
    elif given not in (["--similarities"], *([each] for each in _KEYED)):
        wanted = "one of --embeddings, --token-embeddings and --similarities, for whole benchmarks"
        raise InputError("rococo score", "input", found, wanted)
    elif options.out.endswith(".json") or options.per_query:
        raise InputError("--out", "path", options.out, "a folder, for whole benchmarks")
