"""`rococo score`: compute the metrics of a model of any framework from its similarities, embeddings or logits.

`--data`, or `--images` and `--annotations`, name whole benchmarks, whose results can be compared with those of
`rococo evaluate`. `--annotation` names one file of captions. `--logits` are those of classes, compared with labels, or
those of the options of questions.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.cli.outputs import output_file, output_file_or_folder, output_folder, print_tables
from rococo_jax.errors import InputError
from rococo_jax.evaluation.options import QUESTIONS, DataOptions
from rococo_jax.options import Option
from rococo_jax.texts import JSON_LINES, TABLES, file_suffix

EXAMPLES = """\
  rococo score --embeddings my-vectors --images coco/images --annotations rococo/annotations --out out/my-model
  rococo score --similarities my-scores --data DATA --benchmarks rococo --out out/my-model
  rococo score --similarities S.npy --annotation rococo/annotations/same_concept.json --out same_concept.json
  rococo score --logits F.npz --labels labels.csv --corrupted fog_3=G.npz --out-logits coco=H.npz --out F.json
  rococo score --logits answers.jsonl --corrupted fog_3=answers-fog.jsonl --out out/my-model/results.json

`rococo report out` compares the first two with evaluated models; `rococo export-inputs` writes the images and texts to
embed. With --annotation, rows are the images and columns the captions of the file, in file order: image by image, the
originals before the altered captions. A file of plain captions gives the tasks without altered captions.

A line of answers.jsonl is a question with its own options, such as those of multiple choice for vision-language models:
{"image": "7.jpg", "question": "Which?", "options": ["a cat", "a dog"], "logits": [2.5, 0.5], "answer": "a cat"}
"""

# Files of questions; other files contain the logits of images for one list of classes.
QUESTION_FORMATS = (*JSON_LINES, ".json", ".parquet", *TABLES)


@dataclasses.dataclass(frozen=True)
class LogitsOptions:
    """Logits of classes and the labels that they are compared with, or logits of the options of questions.

    Attributes:
        logits: images by classes, before the softmax: an .npz file with 'logits' and, if known, 'classes' (names of
            the columns) and 'names' (of the images); needs --labels. Or questions with their own options: a .jsonl,
            .parquet or .csv file of image, question, options, logits and answer
        labels: table of image,label (.csv, .tsv or .jsonl); labels are names of classes
        task: name of the task in the results (default: classes, or questions)
        classes: names of the columns (default: those in the logits' file)
        groups: {coarse class: [class, ...]}; the labels are then names of coarse classes
        corrupted: logits of the same images or questions after a corruption; may be repeated
        out_logits: logits of out-of-distribution images; may be repeated
    """

    logits: Annotated[str | None, Option("F")] = None
    labels: Annotated[str | None, Option("F", needs=("logits",))] = None
    task: Annotated[str | None, Option(needs=("logits",))] = None
    classes: Annotated[str | None, Option("F.json", needs=("logits",))] = None
    groups: Annotated[str | None, Option("F.json", needs=("logits",))] = None
    corrupted: Annotated[tuple[tuple[str, str], ...], Option("fog_3=F", needs=("logits",))] = ()
    out_logits: Annotated[tuple[tuple[str, str], ...], Option("NAME=F.npz", needs=("logits",))] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Score the similarities, embeddings or logits of any model on benchmarks, an annotation file, labels or questions.

    Attributes:
        similarities: images by captions, higher is more similar; for whole benchmarks a folder with SET.npy for each
            image set
        embeddings: .npz or .parquet files keyed by image name and caption (a file or a folder), as rococo embed
            writes them
        annotation: one annotation file: published form, our own form, or plain captions
        out: results file; for whole benchmarks a folder, to which missing results are added
        name: name of the model in tables (default: name of the file or folder, without its ending)
        per_query: also write one row per query, with its ranks and what ranked first; name it per_query.parquet and
            put it next to the results, and rococo report and rococo compare use it
        classes: logits of classes or options
        data: data
        settings: questions
    """

    out: Annotated[str, Option("F.json", check=output_file_or_folder)]
    similarities: Annotated[str | None, Option("S.npy", excludes=("embeddings", "logits"))] = None
    embeddings: Annotated[str | None, Option("PATH", excludes=("logits",))] = None
    annotation: Annotated[
        str | None, Option("FILE", needs=("similarities",), excludes=("only", "data", "images", "annotations"))
    ] = None
    name: str | None = None
    per_query: Annotated[str | None, Option("F.parquet", check=output_file, needs=("annotation", "logits"))] = None
    classes: LogitsOptions
    data: DataOptions
    settings: Annotated[Settings, QUESTIONS]


def run(options: Options) -> None:
    """Score the given file or folder, write the results, and print the table."""
    _check(options)
    if options.classes.logits:
        output_file(options.out)
        _score_logits(options)
        return

    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.evaluation.models.arrays import annotation_benchmark
    from rococo_jax.evaluation.models.stored_embeddings import StoredEmbeddings, StoredSimilarities
    from rococo_jax.evaluation.runner import evaluate_into, evaluate_model
    from rococo_jax.runtime import enable_compilation_cache

    is_one_file = options.annotation is not None
    (output_file if is_one_file else output_folder)(options.out)
    enable_compilation_cache()
    settings, cache, name = options.settings, EmbeddingCache(None), options.name
    if is_one_file:
        benchmark = annotation_benchmark(options.annotation, settings.protocol)
        model = StoredSimilarities(options.similarities, name, is_file=True)
        _write(evaluate_model(model, [benchmark], Settings(protocol=settings.protocol), cache), options)
        return
    benchmarks = options.data.open(settings)
    if options.similarities:
        model = StoredSimilarities(options.similarities, name)
    else:
        model = StoredEmbeddings(options.embeddings, name, allow_unknown=bool(settings.only))
    results, _ = evaluate_into(Path(options.out), model, benchmarks, settings, cache)
    print_tables([results])


def _check(options: Options) -> None:
    """Raise InputError if the options name no input, or one that its kind of file rules out."""
    if not (options.similarities or options.embeddings or options.classes.logits):
        raise InputError("rococo score", "input", "none", "one of --similarities, --embeddings and --logits")
    if options.classes.logits:
        _check_logits(options.classes, options.settings)
    elif options.annotation is None and not (options.data.data or options.data.images or options.data.annotations):
        expected = "--annotation FILE, --data DIR, or --images DIR and --annotations DIR"
        raise InputError("rococo score", "data", "none", expected)
    elif options.annotation is None and options.out.endswith(".json"):
        raise InputError("--out", "path", options.out, "a folder, for whole benchmarks")


def _check_logits(options: LogitsOptions, settings: Settings) -> None:
    """Raise InputError if options are missing or superfluous for the kind of logits."""
    if CLEAN in dict(options.corrupted):
        raise InputError("rococo score", "--corrupted", CLEAN, "the name of a corruption; clean logits are --logits")
    defaults = Settings(only=settings.only[:1] if is_question_file(options.logits) else ())
    if ignored := [name for name, value in vars(settings).items() if value != getattr(defaults, name)]:
        raise InputError(
            "rococo score", f"--{ignored[0].replace('_', '-')}", "it with --logits", "benchmarks in folders"
        )
    if not is_question_file(options.logits):
        if options.labels is None:
            expected = f"a table of image,label beside --logits; or a file of questions ({', '.join(QUESTION_FORMATS)})"
            raise InputError("rococo score", "--labels", "nothing", expected)
        return
    of_classes = {"--labels": options.labels, "--classes": options.classes, "--groups": options.groups}
    of_classes["--out-logits"] = options.out_logits
    if flags := [flag for flag, value in of_classes.items() if value]:
        problem = f"{flags[0]} with {options.logits}"
        raise InputError("rococo score", flags[0], problem, "only --corrupted and --task with a file of questions")


def is_question_file(path: str) -> bool:
    """Return whether a file of logits has questions with their own options."""
    return file_suffix(Path(path)) in QUESTION_FORMATS


def _score_logits(options: Options) -> None:
    from rococo_jax.evaluation.models.class_logits import score_logits
    from rococo_jax.evaluation.models.option_logits import score_questions

    classes, corrupted = options.classes, dict(options.classes.corrupted)
    if is_question_file(classes.logits):
        task = classes.task or "questions"
        only = next(iter(options.settings.only), None)
        evaluated = score_questions(classes.logits, task=task, name=options.name, corrupted=corrupted, only=only)
        _write(evaluated, options)
        return
    evaluated = score_logits(
        classes.logits,
        classes.labels,
        task=classes.task or "classes",
        name=options.name,
        classes=classes.classes,
        groups=classes.groups,
        corrupted=corrupted,
        outside=dict(classes.out_logits),
    )
    _write(evaluated, options)


def _write(evaluated: Any, options: Options) -> None:
    """Write the results, and the rows if requested, and print the table."""
    from rococo_jax.evaluation.results import PER_QUERY, TABLES, with_checksum, write_per_query
    from rococo_jax.evaluation.table_metadata import numbers_hash, written_with
    from rococo_jax.storage import hash_file, write_json

    results = evaluated.results
    if options.per_query:
        rows = Path(options.per_query)
        write_per_query(rows, written_with(evaluated.per_query, numbers_hash(results)))
        if rows.resolve() == Path(options.out).with_name(PER_QUERY).resolve():
            results = {**results, TABLES: {PER_QUERY: hash_file(rows)}}
    write_json(options.out, with_checksum(results))
    print_tables([evaluated.results])
