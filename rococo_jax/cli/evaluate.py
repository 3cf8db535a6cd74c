"""`rococo evaluate`: evaluate models on benchmarks and write a report; interrupted runs are resumed."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.cli.outputs import output_folder, print_short, print_tables
from rococo_jax.errors import InputError, naming_source
from rococo_jax.evaluation.options import ANY_SIZE, DataOptions, EmbeddingOptions, ModelOptions
from rococo_jax.evaluation.tracking import read_tracker
from rococo_jax.options import Option

EXAMPLES = """\
  rococo evaluate demo:plain demo:sc-vc --data DATA --out out
  rococo evaluate models/a models/b --data DATA --benchmarks rococo,sugarcrepe --out out
  rococo evaluate a b --data DATA --benchmarks cifar10 --corruptions all --only selected.json --out out/selected
  rococo evaluate models/a --data DATA --benchmarks cue_conflict --image-size 160,224,288 --out out/sizes
  rococo evaluate models/a --images photos --captions photos.csv --out out
  rococo evaluate my_models.py:make_clip --data DATA --out out --allow-missing-images
  rococo evaluate models/blip --rerank 256 --images coco/images \\
      --annotations rococo/annotations --out out/blip
  rococo evaluate --models models.txt 'runs/*/model' --data DATA --out out --protocol strict
  rococo evaluate models/a models/b --data DATA --out out --log wandb:robustness
"""


def _tracker(text: str) -> str:
    """Check a tracker. Raises InputError as `read_tracker`."""
    with naming_source("--log"):
        read_tracker(text)
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Evaluate models on benchmarks: recall, false recall, drop and accuracy, with intervals and a report.

    Attributes:
        models: model directory, foreign checkpoint, hub name, zoo:NAME, file.py:function that returns an encoder,
            name=source, or a pattern such as 'runs/*/model'
        model_list: file with further models, one per line; # starts a comment
        out: output folder: results.json, per_query.parquet and examples.parquet (for several models in a folder each),
            report.html, .csv and .md, and journal.jsonl; missing results are added to existing ones
        captions: captions of --images in any form, instead of --annotations: a benchmark is made of them as by rococo
            make-benchmark, and kept in the cache folder
        baseline_captions: training captions, Karpathy form, for n-gram baselines, which see no image (default: only
            baselines without training captions)
        image_sizes: side of the images in pixels, if not the checkpoint's, with position embeddings interpolated as in
            its own library; several sizes, such as 160,224,288, give one result each, MODEL@160px
        no_report: do not write the report
        log: also log the numbers of each model to wandb:PROJECT or trackio:PROJECT, as a run of its name
        shard: evaluate shard K of N of the model list, for N processes that share --out; rococo report OUT then writes
            the report of all
        all: of several models, print every number and every primary difference instead of one screen
        json: print the results as JSON instead of the table
        data: data
        settings: questions
        model: models
        embedding: embedding
    """

    out: Annotated[str, Option("DIR", check=output_folder)]
    models: Annotated[tuple[str, ...], Option("MODEL", positional=True)] = ()
    model_list: Annotated[str | None, Option("FILE", flag="models")] = None
    captions: Annotated[str | None, Option("FILE", needs=("images",), excludes=("annotations", "data"))] = None
    baseline_captions: Annotated[str | None, Option("FILE")] = None
    image_sizes: Annotated[tuple[int, ...], Option("N,N", flag="image-size", least=1)] = ()
    no_report: bool = False
    log: Annotated[str | None, Option("TRACKER:PROJECT", check=_tracker)] = None
    shard: Annotated[str | None, Option("K/N")] = None
    all: bool = False
    json: bool = False
    data: DataOptions
    settings: Settings
    model: Annotated[ModelOptions, ANY_SIZE]
    embedding: EmbeddingOptions


def run(options: Options) -> int:
    """Evaluate every model, print the table and write the report. Returns 1 if a model failed."""
    from rococo_jax.processes import distributed_run
    from rococo_jax.runtime import enable_compilation_cache, set_gpu_options

    set_gpu_options()
    with distributed_run():
        enable_compilation_cache()
        return _run(options)


def _run(options: Options) -> int:
    import jax

    from rococo_jax.evaluation.model_list import read_models, shard_of
    from rococo_jax.evaluation.model_series import JOURNAL, evaluate_all, write_journal
    from rococo_jax.evaluation.tracking import log_results
    from rococo_jax.processes import broadcast_from_process_0, run_on_all_processes
    from rococo_jax.progress import say

    settings, out, shard = options.settings, Path(options.out), options.shard
    tracker = None if options.log is None else read_tracker(options.log)
    training = run_on_all_processes("baseline captions", lambda: _training_captions(options))
    compute = run_on_all_processes("settings", options.embedding.compute)
    load_options = run_on_all_processes("settings", options.model.load_options)
    models = broadcast_from_process_0("models", lambda: read_models(options.models, options.model_list))
    sizes = tuple(dict.fromkeys(options.image_sizes)) or (None,)
    # Results of a list are in folders of their own, as models may be added to the list later.
    alone = len(models) == 1 and options.model_list is None and shard is None and len(sizes) == 1
    models = models if shard is None else run_on_all_processes("shard", lambda: shard_of(models, shard))
    data = broadcast_from_process_0("benchmark", lambda: _data_options(options))
    benchmarks = run_on_all_processes("benchmarks", lambda: data.open(settings))

    def begin() -> None:
        _refuse_other_layout(out, models[0].name, alone)
        models_phrase = "1 model" if len(models) == 1 else f"{len(models)} models"
        models_phrase += f" at {len(sizes)} image sizes" if len(sizes) > 1 else ""
        say(f"evaluating {models_phrase}: {compute.summary()}, protocol {settings.protocol}")
        for benchmark in benchmarks:
            say(benchmark.summary())
        if not alone:
            write_journal(out / JOURNAL, event="started", models=[model.source for model in models])

    broadcast_from_process_0("start", begin)
    cache = options.embedding.open_cache()
    all_results, evaluated_folders, failed = [], [], []
    for size in sizes:
        named = [model.at_image_size(size) for model in models] if len(sizes) > 1 else models
        folders = {model.source: out if alone else out / model.name for model in named}
        names = {model.source: model.name for model in named if model.renamed}
        at_size = dataclasses.replace(load_options, image_size=size)
        results, failures = evaluate_all(folders, out, benchmarks, settings, cache, training, compute, names, at_size)
        all_results += results
        evaluated_folders += [folder for source, folder in folders.items() if source not in failures]
        failed += [names.get(source, source) if len(sizes) > 1 else source for source in failures]
    if jax.process_index() == 0:
        for each in all_results if tracker else ():
            log_results(tracker, each)
        if all_results:
            _print_and_report(options, all_results, evaluated_folders, out / "report.html")
        if failed:
            print(
                f"rococo: {len(failed)} of {len(models) * len(sizes)} models failed: {', '.join(failed)}",
                file=sys.stderr,
            )
    return 1 if failed else 0


def _data_options(options: Options) -> DataOptions:
    """Return the requested data, with the benchmark made of `--captions` in place of its images."""
    if options.captions is None:
        return options.data
    from rococo_jax.benchmarks.own import make_once
    from rococo_jax.progress import say

    data = str(make_once(options.data.images, options.captions, options.settings.allow_missing_images))
    say(f"benchmark of {options.captions}: {data}")
    return dataclasses.replace(options.data, images=None, data=data)


def _refuse_other_layout(out: Path, name: str, alone: bool) -> None:
    """Raise InputError if one model's results would lie beside those of a list of models, or the reverse.

    Results of one model are in `out` itself, and those of several in a folder each. Both together would be one table
    for `rococo report OUT`, and the report of one would replace that of the others.
    """
    from rococo_jax.evaluation.model_series import JOURNAL
    from rococo_jax.evaluation.results import RESULTS

    has_one = (out / RESULTS).is_file()
    if not alone and has_one:
        expected = "another folder for several models"
        raise InputError("rococo evaluate", "--out", f"{out}, which contains the results of one model", expected)
    folders = sorted(path.parent.name for path in out.glob(f"*/{RESULTS}")) if (out / JOURNAL).is_file() else []
    if alone and folders and not has_one:
        found = f"{out}, which contains results of {', '.join(folders)} in a folder each"
        raise InputError("rococo evaluate", "--out", found, f"{out / name} for one more model, or a list of all models")


def _print_and_report(options: Options, results: Sequence[dict], folders: list[Path], page: Path) -> None:
    """Print the results and how several models compare, and write the report; a shard has no comparison."""
    from rococo_jax.report import write_compared
    from rococo_jax.report.collection import group_by_fingerprint, load_results
    from rococo_jax.report.comparison import compare_groups, left_out_lines
    from rococo_jax.report.leaderboard import leaderboard_tables, print_leaderboards
    from rococo_jax.report.verdicts import print_verdicts

    quiet = options.json or options.embedding.quiet
    is_compared = len(folders) > 1 and options.shard is None and not quiet
    is_reported = options.shard is None and not options.no_report
    groups = group_by_fingerprint(load_results(folders)) if is_compared or is_reported else []
    leaderboards = leaderboard_tables(groups)
    if is_compared and options.all:
        print_leaderboards(leaderboards)
    if not is_compared or options.all:
        print_tables(results, as_json=options.json, quiet=options.embedding.quiet)
    if not groups:
        return
    comparisons = compare_groups(groups)
    if is_compared:
        if not options.all:
            print_short(groups, comparisons, leaderboards, results, options.out)
            print(f"every difference: rococo compare {options.out} --all")
        elif comparisons:
            print_verdicts(comparisons)
        for line in left_out_lines(groups, comparisons):
            print(f"note: {line}")
    if not options.no_report:
        write_compared(groups, comparisons, page, leaderboards=leaderboards)
        if not options.embedding.quiet:
            # With --json, standard output contains only the results.
            print(f"report: {page}", file=sys.stderr if options.json else sys.stdout)


def _training_captions(options: Options):
    from rococo_jax.evaluation.caption_baselines import read_training_captions

    return None if options.baseline_captions is None else read_training_captions(options.baseline_captions)
