"""`rococo evaluate`: every task for every model, resumable."""

import argparse

from rococo_jax.cli.outputs import add_table_arguments, output_folder

HELP = "Evaluate models on benchmarks: recall, false recall, drop and accuracy, with intervals and a report."
EXAMPLES = """\
  rococo evaluate models/clip-b32 --images coco/images --annotations rococo/annotations --out out/clip-b32
  rococo evaluate models/a models/b --data DATA --benchmarks rococo,sugarcrepe --out out --protocol strict
  rococo evaluate my_models.py:make_clip demo:plain --data DATA --out out --allow-missing-images
  rococo evaluate models/blip --rerank 256 --images coco/images --annotations rococo/annotations --out out/blip
  rococo evaluate --models models.txt 'runs/*/model' --images coco/images --annotations rococo/annotations --out out
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from rococo_jax.cli.embed import add_embedding_arguments, add_loading_arguments

    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="model directory, foreign checkpoint, hub name, "
        "file.py:function that returns an encoder, name=source, or a pattern such as 'runs/*/model'")  # fmt: skip
    add("--models", dest="model_list", metavar="FILE", help="the same, one a line; # begins a comment")
    add("--out", type=output_folder, required=True, metavar="DIR",
        help="results.json, per_query.parquet and examples.parquet; for several "
        "models a folder for each; report.html, .csv and .md; journal.jsonl")  # fmt: skip
    add_data_arguments(parser)
    add("--rerank", default="0", metavar="K", help="have the model's matching head (BLIP) judge the K best of every "
        "query by cosine; published: 256 on COCO (default: 0, off)")  # fmt: skip
    add("--baseline-captions", metavar="FILE", help="training captions, Karpathy form, for the baselines that see no "
        "image: n-gram models (default: only those that need none)")  # fmt: skip
    add("--baseline-images", metavar="DIR", help="the images of --baseline-captions, for a baseline that sees no "
        "caption: a linear detector of mixed images (default: none)")  # fmt: skip
    add("--require-clean", action="store_true", help="refuse a model that was trained on images of a benchmark")
    add("--no-report", action="store_true", help="do not write the report")
    add("--shard", metavar="K/N", help="only every N-th model, from the K-th: for N processes that share --out; write "
        "the report of all with `rococo report OUT`")  # fmt: skip
    add("--json", action="store_true", help="print the results as JSON instead of the table")
    add_table_arguments(parser)
    add_loading_arguments(parser)
    add_embedding_arguments(parser)


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Which benchmarks, and what is asked of them."""
    add = parser.add_argument
    add("--data", metavar="DIR", help="folder of benchmarks in the documented layout; see rococo benchmarks")
    add("--benchmarks", metavar="A,B", help="which of them (default: all whose files are under --data)")
    add("--data-dir", action="append", default=[], metavar="NAME=DIR", help="another place for a folder of the layout, "
        "such as coco/images, or for a benchmark's annotations; may be repeated")  # fmt: skip
    add("--images", metavar="DIR", help="instead of --data: the images of one benchmark")
    add("--annotations", metavar="DIR", help="and its annotation files, by which it is recognised")
    add("--tasks", metavar="A,B", help="only these tasks (default: all of each benchmark)")
    add("--protocol", choices=("paper", "strict"), default="paper",
        help="default: paper")  # fmt: skip
    add("--mixed-galleries", default="mix_0.9,patch_0.9", metavar="A,B", help="of RoCOCO's text_to_image: mix_R, "
        "patch_R, control alone, or none (default: %(default)s)")  # fmt: skip
    add("--seeds", default="1,10,100", metavar="N,N", help="of the mixing (default: %(default)s)")
    add("--corruptions", default="none", metavar="A,B", help="also ask the unaltered tasks on corrupted images: kinds "
        "of ImageNet-C, or all (default: none)")  # fmt: skip
    add("--severities", default="1,3,5", metavar="N,N", help="of the corruptions (default: 1,3,5)")
    add("--corrupted-benchmarks", metavar="A,B", help="corrupt the images of these alone (default: of all)")
    add(
        "--templates",
        default="80",
        metavar="N,FILE",
        help="prompts for classes: 1, 5, 30 or 80 of ours, or files with "
        "one template a line, {} for the class; the first is used throughout, the others are further variants",
    )
    add("--out-images", action="append", default=[], metavar="NAME=DIR", help="images of none of the classes, from "
        "which those of the classes are to be told; may be repeated")  # fmt: skip
    add("--limit", default="0", metavar="N", help="only the first N images of a benchmark, for a trial: such figures "
        "compare with each other alone (default: 0, all)")  # fmt: skip
    add("--allow-missing-images", action="store_true", help="leave out images that are not there, with a note")


def benchmarks_of(arguments: argparse.Namespace) -> list:
    """The benchmarks that the arguments ask for, opened."""
    from rococo_jax.evaluation.inputs import read_benchmarks

    return read_benchmarks(vars(arguments), settings_of(arguments), _option)


def run(arguments: argparse.Namespace) -> int:
    """Evaluates every model, prints the table, writes the report. Returns 1 where a model failed."""
    from rococo_jax.runtime import distributed_run, enable_compilation_cache, set_gpu_options

    set_gpu_options()
    with distributed_run():
        enable_compilation_cache()
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    import sys
    from pathlib import Path

    import jax

    from rococo_jax.cli.embed import compute_of, embedding_cache, load_options
    from rococo_jax.evaluation.companions import standard_companions
    from rococo_jax.evaluation.estimate import estimate
    from rococo_jax.evaluation.journal import JOURNAL, write_journal
    from rococo_jax.evaluation.model_list import read_models, shard_of
    from rococo_jax.evaluation.model_series import evaluate_all
    from rococo_jax.processes import broadcast_from_process_0, run_on_all_processes
    from rococo_jax.progress import say
    from rococo_jax.report import write_report

    settings = run_on_all_processes("settings", lambda: settings_of(arguments))
    training = run_on_all_processes("baseline captions", lambda: _training(arguments))
    compute = run_on_all_processes("settings", lambda: compute_of(arguments))
    options = run_on_all_processes("settings", lambda: load_options(arguments))
    out, shard = Path(arguments.out), arguments.shard
    models = broadcast_from_process_0("models", lambda: read_models(arguments.models, arguments.model_list))
    # A list may grow, and its results must not move when it does.
    alone = len(models) == 1 and arguments.model_list is None and shard is None
    models = models if shard is None else run_on_all_processes("shard", lambda: shard_of(models, shard))
    folders = {model.source: out if alone else out / model.name for model in models}
    names = {model.source: model.name for model in models if model.renamed}
    benchmarks = run_on_all_processes("benchmarks", lambda: benchmarks_of(arguments))

    def begin() -> None:
        data = "; ".join(benchmark.summary() for benchmark in benchmarks)
        say(f"{len(folders)} model(s); {data}; protocol {settings.protocol}")
        lines = estimate(folders, benchmarks, settings.rerank, compute)
        say("\n".join(lines))
        if not alone:
            write_journal(out / JOURNAL, event="started", models=list(folders), estimate=lines)

    broadcast_from_process_0("estimate", begin)
    cache = embedding_cache(arguments)
    companions = standard_companions(training)
    all_results, failed = evaluate_all(folders, out, benchmarks, settings, cache, companions, compute, names, options)
    if jax.process_index() == 0:
        if all_results:
            show_results(all_results, arguments)
            if not arguments.no_report and shard is None:
                written = [folder for source, folder in folders.items() if source not in failed]
                print(f"report: {write_report(written, out / 'report.html')[0]}", file=_beside(arguments))
        if failed:
            print(f"rococo: {len(failed)} of {len(folders)} models failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def show_results(all_results: list, arguments: argparse.Namespace) -> None:
    """Prints the table, or with `--json` the results: an object for one model, else a list."""
    import json

    from rococo_jax.evaluation.summary import print_summary

    if arguments.json:
        print(json.dumps(all_results[0] if len(all_results) == 1 else all_results, indent=2, ensure_ascii=False))
    elif not arguments.quiet:
        print_summary(all_results, wide=arguments.wide)


def _beside(arguments: argparse.Namespace):
    """Where what is no result is printed: standard output is the results' with `--json`."""
    import io
    import sys

    return io.StringIO() if arguments.quiet else sys.stderr if arguments.json else sys.stdout


def settings_of(arguments: argparse.Namespace):
    """The settings that the arguments ask for; also of commands that have no reranking."""
    from rococo_jax.evaluation.inputs import read_settings

    return read_settings(vars(arguments), _option)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _training(arguments: argparse.Namespace):
    from rococo_jax.errors import InputError
    from rococo_jax.evaluation.companions import read_training_captions

    captions, images = arguments.baseline_captions, arguments.baseline_images
    if captions is None and images is not None:
        raise InputError("--baseline-images", "captions", "no --baseline-captions", "the file that names the images")
    return None if captions is None else read_training_captions(captions, images)
