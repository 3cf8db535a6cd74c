"""`rococo evaluate`: every task for every model, resumable."""

import argparse

HELP = "Evaluate models on altered captions and images: recall, false recall and drop, with intervals and a report."
EXAMPLES = """\
  rococo evaluate models/clip-b32 --images coco/images --annotations rococo/annotations --out out/clip-b32
  rococo evaluate models/a models/b --images coco/images --annotations rococo/annotations --out out --protocol strict
  rococo evaluate MODEL --images some/images --annotations rococo/annotations --out out --allow-missing-images
  rococo evaluate models/blip --rerank 256 --images coco/images --annotations rococo/annotations --out out/blip
  rococo evaluate --models models.txt 'runs/*/model' --images coco/images --annotations rococo/annotations --out out
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from rococo_jax.cli.embed import add_embedding_arguments

    parser.add_argument("models", nargs="*", metavar="MODEL", help="model directory, foreign checkpoint, hub name, "
                        "name=source, or a pattern such as 'runs/*/model'")  # fmt: skip
    parser.add_argument("--models", dest="model_list", metavar="FILE", help="the same, one a line; # begins a comment")
    parser.add_argument("--images", required=True, metavar="DIR", help="folder of the images that the annotations name")
    parser.add_argument("--annotations", required=True, metavar="DIR", help="folder of annotation files")
    parser.add_argument("--out", required=True, metavar="DIR", help="results.json and per_query.parquet; for several "
                        "models a folder for each; report.html, .csv and .md; journal.jsonl")  # fmt: skip
    parser.add_argument("--tasks", default="image_to_text,text_to_image", metavar="A,B", help="default: %(default)s")
    parser.add_argument("--protocol", choices=("paper", "strict", "control"), default="paper", help="default: paper")
    parser.add_argument("--mixes", default="mix_0.9,patch_0.9", metavar="A,B", help="mixed galleries of text_to_image: "
                        "mix_R, patch_R, or none (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seeds", default="1,10,100", metavar="N,N", help="of the mixing (default: %(default)s)")
    parser.add_argument("--corruptions", default="none", metavar="A,B", help="also ask the clean tasks on corrupted "
                        "images: kinds of ImageNet-C, or all (default: none)")  # fmt: skip
    parser.add_argument("--severities", default="1,3,5", metavar="N,N", help="of the corruptions (default: 1,3,5)")
    parser.add_argument("--rerank", default="0", metavar="K", help="have the model's matching head (BLIP) judge the K "
                        "best of every query by cosine; published: 256 on COCO (default: 0, off)")  # fmt: skip
    parser.add_argument("--allow-missing-images", action="store_true", help="shrink the gallery to the images present")
    parser.add_argument("--no-report", action="store_true", help="do not write the report")
    parser.add_argument("--part", metavar="K/N", help="only every N-th model, from the K-th: for N processes that "
                        "share --out; write the report of all with `rococo report OUT`")  # fmt: skip
    add_embedding_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from rococo_jax.runtime import distributed_run, enable_compilation_cache

    with distributed_run():
        enable_compilation_cache()
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    import sys
    from pathlib import Path

    import jax

    from rococo_jax.cli.embed import embedding_cache
    from rococo_jax.evaluation.estimate import estimate_lines
    from rococo_jax.evaluation.inputs import read_inputs
    from rococo_jax.evaluation.journal import JOURNAL, write_journal
    from rococo_jax.evaluation.model_list import part_of, read_models
    from rococo_jax.evaluation.runner import estimate, evaluate_all
    from rococo_jax.evaluation.summary import print_summary
    from rococo_jax.processes import broadcast_from_process_0, run_on_all_processes
    from rococo_jax.report import write_report

    settings = run_on_all_processes("settings", lambda: _settings(arguments))
    out = Path(arguments.out)
    models = broadcast_from_process_0("models", lambda: read_models(arguments.models, arguments.model_list))
    # A list may grow, and its results must not move when it does.
    alone = len(models) == 1 and arguments.model_list is None and arguments.part is None
    models = models if arguments.part is None else run_on_all_processes("part", lambda: part_of(models, arguments.part))
    folders = {model.source: out if alone else out / model.name for model in models}
    names = {model.source: model.name for model in models if model.renamed}
    read = (arguments.images, arguments.annotations, arguments.allow_missing_images)
    inputs = run_on_all_processes("annotations and images", lambda: read_inputs(*read))

    def begin() -> None:
        print(f"{len(folders)} model(s), {inputs.in_words()}; protocol {arguments.protocol}", file=sys.stderr)
        told = estimate_lines(*estimate(folders, inputs, settings, arguments.dtype))
        print("\n".join(told), file=sys.stderr, flush=True)
        if not alone:
            write_journal(out / JOURNAL, event="started", models=list(folders), estimate=told)

    broadcast_from_process_0("estimate", begin)
    cache = embedding_cache(arguments)
    all_results, failed = evaluate_all(folders, out, inputs, settings, cache, arguments.dtype, names)
    if jax.process_index() == 0:
        if all_results:
            print_summary(all_results)
            if not arguments.no_report and arguments.part is None:
                written = [folder for source, folder in folders.items() if source not in failed]
                print(f"report: {write_report(written, out / 'report.html')[0]}")
        if failed:
            print(f"rococo: {len(failed)} of {len(folders)} models failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _settings(arguments: argparse.Namespace):
    from rococo_jax.evaluation.settings import Settings
    from rococo_jax.perturb.images.corruptions import CORRUPTIONS

    corruptions = tuple(CORRUPTIONS) if arguments.corruptions == "all" else _names(arguments.corruptions)
    return Settings(
        protocol=arguments.protocol,
        tasks=_names(arguments.tasks),
        mixes=_names(arguments.mixes),
        seeds=_numbers("--seeds", arguments.seeds),
        corruptions=corruptions,
        severities=_numbers("--severities", arguments.severities),
        rerank=_number("--rerank", arguments.rerank),
    )


def _names(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(text.split(","))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    from rococo_jax.errors import InputError

    numbers = text.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise InputError(option, "numbers", text, "whole numbers with commas between them")
    return tuple(map(int, numbers))


def _number(option: str, text: str) -> int:
    from rococo_jax.errors import InputError

    if not text.isdecimal():
        raise InputError(option, "number", text, "a whole number, 0 or more")
    return int(text)
