"""`rococo sweep`: train and evaluate a model for every value of a setting, and tabulate the results."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.cli.outputs import output_folder
from rococo_jax.errors import InputError
from rococo_jax.evaluation.options import QUESTIONS, DataOptions, EmbeddingOptions
from rococo_jax.options import Group, Option

EXAMPLES = """\
  rococo sweep --config configs/ablations/batch_size.py --workdir runs/batch --seeds 0,1,2 \\
      --config.init.model=models/joined --config.data.images=coco/images --config.data.captions=captions.json \\
      --images coco/images --annotations rococo/annotations
  rococo sweep --config configs/scenes_tiny.py --workdir runs/weights --over losses.sc.weight=0,1,2 --dry-run
  rococo sweep --config configs/scenes_tiny.py --workdir runs/grid --over batch_size=64,128 --seeds 0,1 \\
      --arm 'plain: losses.sc.weight=0' --arm 'sc: losses.sc.weight=1'
  python launch/slurm.py --nodes 2 --gpus 8 -- sweep --config configs/scenes_tiny.py --over batch_size=64,128

Run the same command again to resume an interrupted sweep; points that are done are not run again. To train the points
elsewhere, run the commands that --print-commands prints, then the sweep with --collect.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Train and evaluate a model for every value of a setting, and write one table and charts.

    Attributes:
        config: config of rococo train; its get_sweep(), if any, sets the defaults of the sweep
        workdir: output folder: points/NAME for each run; sweep.json, .csv, .md, .svg and .html; journal.jsonl
        over: key and values to sweep; several make a grid; KEY+KEY=V,V gives several keys the same value; separate
            values that contain commas with ';'
        arm: a curve of the charts and its overrides, or the name of an arm of the config file (default: all of these)
        seeds: training seeds (default: the config's)
        keep: length that is equal for all batch sizes (default: the config file's, else samples)
        lr_scaling: how the learning rate depends on the batch size (default: the config file's, else constant)
        config_key: override a key of the config for all points
        dry_run: print what would be done, and stop
        print_commands: print the rococo train command of each point that is not trained, and stop
        collect: train nothing; evaluate the trained points and write the table
        data: data to evaluate on (default: the config's eval keys)
        settings: questions
        embedding: embedding
    """

    config: Annotated[str, Option("FILE")]
    workdir: Annotated[str, Option("DIR", check=output_folder)]
    over: Annotated[tuple[str, ...], Option("KEY=V,V", repeated=True)] = ()
    arm: Annotated[tuple[str, ...], Option("NAME[: KEY=V ...]", repeated=True)] = ()
    seeds: Annotated[tuple[int, ...], Option("N,N")] = ()
    keep: Literal["samples", "steps"] | None = None
    lr_scaling: Literal["constant", "square-root", "linear"] | None = None
    config_key: Annotated[str | None, Option("VALUE", flag="config.KEY")] = None
    dry_run: bool = False
    print_commands: bool = False
    collect: bool = False
    data: DataOptions
    settings: Annotated[Settings, Group(QUESTIONS.only, {"seeds": "mixing_seeds"})]
    embedding: EmbeddingOptions

    def __post_init__(self):
        modes = {"--dry-run": self.dry_run, "--print-commands": self.print_commands, "--collect": self.collect}
        requested = [flag for flag, is_on in modes.items() if is_on]
        if len(requested) > 1:
            raise InputError("rococo sweep", "option", " and ".join(requested), "one of them")


def run(options: Options, overrides: Sequence[str]) -> int:
    """Train and evaluate the points that are not done, and write the table and the charts."""
    from rococo_jax.processes import distributed_run
    from rococo_jax.runtime import enable_compilation_cache, set_gpu_options
    from rococo_jax.sweep.plan import make_plan

    plan = make_plan(
        options.config,
        overrides,
        over=options.over,
        arms=options.arm,
        seeds=options.seeds,
        keep=options.keep,
        lr_scaling=options.lr_scaling,
    )
    set_gpu_options()
    with distributed_run():
        enable_compilation_cache()
        return _run(options, plan, Path(options.workdir))


def _run(options: Options, plan, workdir) -> int:
    from rococo_jax.processes import broadcast_from_process_0, run_on_all_processes
    from rococo_jax.sweep.running import (
        Stopped,
        plan_lines,
        point_lines,
        printed_commands,
        refuse_other_evaluations,
        refuse_other_points,
        refuse_what_cannot_train,
        requests_of_all_points,
        run_points,
        train_point,
    )
    from rococo_jax.training.setup import RunCache

    def print_plan() -> None:
        print("\n".join(plan_lines(plan, workdir, evaluation)), file=sys.stderr, flush=True)
        if options.dry_run:
            print("\n".join(point_lines(plan, workdir, evaluation)))

    broadcast_from_process_0("the points", lambda: refuse_other_points(plan, workdir))
    if options.print_commands:
        broadcast_from_process_0("commands", lambda: print("\n".join(printed_commands(plan, workdir))))
        return 0
    evaluation = run_on_all_processes("benchmarks", lambda: _evaluation(options, plan.base))
    if evaluation is not None:
        broadcast_from_process_0("results", lambda: refuse_other_evaluations(plan, workdir, evaluation))
        requests = broadcast_from_process_0("requests", lambda: requests_of_all_points(plan, workdir, evaluation))
        evaluation = run_on_all_processes("benchmarks", lambda: _with_requests(evaluation, requests))
    if not options.collect:
        run_on_all_processes("batches", lambda: refuse_what_cannot_train(plan))
    broadcast_from_process_0("the plan", print_plan)
    if options.dry_run:
        return 0

    run_cache = RunCache()
    train_one = None if options.collect else lambda point: train_point(plan, workdir, point, run_cache)
    try:
        failed = run_points(plan, workdir, evaluation, train_one)
    except Stopped as stopped:
        message = "stopped; everything is saved. Run the same command again to resume"
        broadcast_from_process_0("stopped", lambda: print(message, file=sys.stderr))
        return 130 if "SIGINT" in stopped.args else 0
    broadcast_from_process_0("the table", lambda: _write(plan, workdir, failed, evaluation))
    return 1 if failed else 0


def _write(plan, workdir, failed, evaluation) -> None:
    """Write and print the table of the finished runs, and report the others."""
    from rococo_jax.locks import hold
    from rococo_jax.storage import remove_path, temporary_files
    from rococo_jax.sweep.collect import collect
    from rococo_jax.sweep.page import write_figures
    from rococo_jax.sweep.running import states_of, waiting_line
    from rococo_jax.sweep.tables import write_tables

    rows, states = collect(plan, workdir), states_of(plan, workdir, evaluation)
    if rows:
        with hold(workdir / "sweep", beside=True, wait=True):  # processes that share the points may end together
            for suffix in (".csv", ".json", ".md", ".html", ".svg"):
                for unfinished in temporary_files(workdir / f"sweep{suffix}"):  # of a process that was killed
                    remove_path(unfinished)
            write_tables(plan, rows, workdir, failed, states)
            page = write_figures(plan, rows, workdir, failed)
        print(page.with_suffix(".md").read_text(encoding="utf-8"))
        print(f"table: {workdir / 'sweep.csv'}, sweep.json, sweep.md; charts: {page.with_suffix('.svg')}, sweep.html")
    if waiting := waiting_line(states, failed):
        print(f"{waiting}: run the same command again to continue, or --collect for the others", file=sys.stderr)
    for name, error in failed.items():
        print(f"rococo: {name} failed: {' '.join(error.split())}", file=sys.stderr)


def _with_requests(evaluation, requests):
    """Return the evaluation with its benchmarks reopened for these requests."""
    from rococo_jax.evaluation.resume import with_request

    settings = evaluation.settings
    benchmarks = [with_request(each, requests[each.name], settings) for each in evaluation.benchmarks]
    return dataclasses.replace(evaluation, benchmarks=benchmarks)


def _evaluation(options: Options, base):
    """Return the evaluation that the command line or the config's `eval` keys request; None if neither does."""
    from rococo_jax.evaluation.callback import open_eval_benchmarks
    from rococo_jax.sweep.running import Evaluation

    data, settings = options.data, options.settings
    folders = {"--images": data.images, "--annotations": data.annotations}
    missing = [option for option, folder in folders.items() if folder is None]
    if len(missing) == 1:
        raise InputError("rococo sweep", missing[0], "nothing", "both of --images and --annotations, or neither")
    if missing and data.data is None:
        opened = open_eval_benchmarks(base.eval)
        if opened is None:
            return None
        benchmarks, settings = opened
    else:
        benchmarks = data.open(settings)
    return Evaluation(benchmarks, settings, options.embedding.open_cache(), options.embedding.compute())
