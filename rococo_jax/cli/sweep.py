"""`rococo sweep`: an ablation as one table and one figure."""

import argparse

from rococo_jax.cli.outputs import output_folder

HELP = "Train and evaluate a model for every value of a setting: an ablation as one table and one figure."
EXAMPLES = """\
  rococo sweep --config configs/ablations/batch_size.py --workdir runs/batch --seeds 0,1,2 \\
      --config.init.model=models/joined --config.data.images=coco/images --config.data.captions=captions.json \\
      --images coco/images --annotations rococo/annotations
  rococo sweep --config configs/scenes_tiny.py --workdir runs/weights --over losses.sc.weight=0,1,2 --dry-run
  rococo sweep --config configs/scenes_tiny.py --workdir runs/grid --over batch_size=64,128 --seeds 0,1 \\
      --arm 'plain: losses.sc.weight=0' --arm 'sc: losses.sc.weight=1'
  rococo sweep --config configs/coco_finetune.py --workdir runs/batch --over batch_size=256,512 \\
      --launch 'python launch/slurm.py --nodes 1 --'
  python launch/local.py --processes 2 -- sweep --config configs/scenes_tiny.py --over batch_size=64,128
The same command goes on where it was stopped; points that are done are taken as read.
"""
TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from rococo_jax.cli.embed import add_embedding_arguments

    parser.add_argument("--config", required=True, metavar="FILE", help="config of `rococo train`; its get_sweep(), if "
                        "any, says what is swept by default")  # fmt: skip
    parser.add_argument("--workdir", type=output_folder, required=True, metavar="DIR",
                        help="points/NAME for each run; sweep.json, .csv, "
                        ".md, .svg and .html; journal.jsonl")  # fmt: skip
    parser.add_argument("--over", action="append", default=[], metavar="KEY=V,V", help="what is swept; several make a "
                        "grid; KEY+KEY=V,V gives several keys the same value; values with commas stand between ';'"
                        )  # fmt: skip
    parser.add_argument("--arm", action="append", default=[], metavar="NAME[: KEY=V ...]", help="a curve and what it "
                        "sets, or one of the config file's (default: all of those)")  # fmt: skip
    parser.add_argument("--seeds", metavar="N,N", help="of the runs (default: the config's)")
    parser.add_argument("--keep", choices=("samples", "steps"), help="what is the same for all batch sizes (default: "
                        "the config file's, else samples)")  # fmt: skip
    parser.add_argument("--lr-scaling", choices=("constant", "square-root", "linear", "adam"), help="how the learning "
                        "rate follows the batch size; adam: betas and epsilon too (default: the config file's, else "
                        "constant)")  # fmt: skip
    parser.add_argument("--config.KEY", dest="shown_in_help_only", metavar="VALUE",
                        help="override a key of the config for all points")  # fmt: skip
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    how.add_argument("--print-commands", action="store_true", help="print a `rococo train` for each point that is not "
                     "done, and do nothing")  # fmt: skip
    how.add_argument("--launch", metavar="COMMAND", help="hand each point that is not done to this command, as its "
                     "further words, or where {command} stands in it")  # fmt: skip
    how.add_argument("--collect", action="store_true", help="train nothing; evaluate and tabulate what is there")
    parser.add_argument("--images", metavar="DIR", help="evaluate every model on these images (default: the config's "
                        "eval keys)")  # fmt: skip
    parser.add_argument("--annotations", metavar="DIR", help="and its annotation files, by which the benchmark is "
                        "recognised")  # fmt: skip
    parser.add_argument(
        "--data", metavar="DIR", help="instead of the two: folder of benchmarks in the documented layout"
    )
    parser.add_argument("--benchmarks", metavar="A,B", help="which of them (default: all whose files are under --data)")
    parser.add_argument("--tasks", metavar="A,B", help="only these tasks (default: all of each benchmark)")
    parser.add_argument("--protocol", choices=("paper", "strict"), default="paper",
                        metavar="{paper,strict}", help="default: paper")  # fmt: skip
    parser.add_argument("--mixed-galleries", default="mix_0.9,patch_0.9", metavar="A,B", help="of RoCOCO's "
                        "text_to_image: mix_R, patch_R, control alone, or none (default: %(default)s)")  # fmt: skip
    parser.add_argument("--mixing-seeds", default="1,10,100", metavar="N,N", help="default: %(default)s")
    parser.add_argument("--allow-missing-images", action="store_true", help="shrink the gallery to the images present")
    add_embedding_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    import os
    from pathlib import Path

    import rococo_jax.demo  # noqa: F401 - registers `scenes:COUNT` as training data
    from rococo_jax.errors import InputError
    from rococo_jax.runtime import distributed_run, enable_compilation_cache, set_gpu_options
    from rococo_jax.sweep.plan import make_plan

    plan = make_plan(
        arguments.config,
        arguments.overrides,
        over=arguments.over,
        arms=arguments.arm,
        seeds=arguments.seeds,
        keep=arguments.keep,
        lr_scaling=arguments.lr_scaling,
    )
    if arguments.launch and "ROCOCO_COORDINATOR" in os.environ:
        found = os.environ["ROCOCO_COORDINATOR"]
        raise InputError("environment", "ROCOCO_COORDINATOR", found, "none with --launch: one process hands out points")
    set_gpu_options()
    with distributed_run():
        enable_compilation_cache()
        return _run(arguments, plan, Path(arguments.workdir))


def _run(arguments: argparse.Namespace, plan, workdir) -> int:
    import sys

    from rococo_jax.processes import broadcast_from_process_0, run_on_all_processes
    from rococo_jax.sweep.running import (
        Stopped,
        launch_point,
        launch_words,
        plan_lines,
        point_lines,
        printed_commands,
        refuse_other_evaluations,
        refuse_other_points,
        refuse_what_cannot_train,
        run_points,
        train_point,
    )
    from rococo_jax.training.run_cache import RunCache

    here = not (arguments.launch or arguments.collect)

    def check() -> None:
        refuse_other_points(plan, workdir)
        if arguments.launch:
            launch_words(arguments.launch, plan, workdir, plan.points[0])

    def say() -> None:
        print("\n".join(plan_lines(plan, workdir, evaluation, arguments.launch)), file=sys.stderr, flush=True)
        if arguments.dry_run:
            print("\n".join(point_lines(plan, workdir, evaluation is not None)))

    broadcast_from_process_0("the points", check)
    if arguments.print_commands:
        broadcast_from_process_0("commands", lambda: print("\n".join(printed_commands(plan, workdir))))
        return 0
    evaluation = run_on_all_processes("benchmarks", lambda: _evaluation(arguments, plan.base))
    if evaluation is not None:
        broadcast_from_process_0("results", lambda: refuse_other_evaluations(plan, workdir, evaluation))
    if here:
        run_on_all_processes("batches", lambda: refuse_what_cannot_train(plan))
    broadcast_from_process_0("the plan", say)
    if arguments.dry_run:
        return 0

    run_cache = RunCache()

    def train_one(point) -> bool:
        if arguments.launch:
            return launch_point(arguments.launch, plan, workdir, point)
        if here:
            train_point(plan, workdir, point, run_cache)
        return here

    try:
        failed = run_points(plan, workdir, evaluation, train_one)
    except Stopped as stopped:
        broadcast_from_process_0(
            "stopped", lambda: print("stopped, with everything saved; the same command goes on", file=sys.stderr)
        )
        return 130 if "SIGINT" in stopped.args else 0
    broadcast_from_process_0("the table", lambda: _write(plan, workdir, failed, evaluation is not None))
    return 1 if failed else 0


def _write(plan, workdir, failed, evaluated: bool) -> None:
    """Writes and prints the table of what is done, and says what is not."""
    import sys

    from rococo_jax.storage import hold
    from rococo_jax.sweep.collect import collect, power_laws
    from rococo_jax.sweep.page import write_figures
    from rococo_jax.sweep.running import states_of, waiting_line
    from rococo_jax.sweep.tables import markdown_lines, write_tables

    rows, states = collect(plan, workdir), states_of(plan, workdir, evaluated)
    if rows:
        laws = power_laws(plan, rows)
        with hold(workdir / "sweep", beside=True, wait=True):  # processes that share the points end at the same time
            write_tables(plan, rows, laws, workdir, failed, states)
            page = write_figures(plan, rows, laws, workdir, failed)
        print("\n".join(markdown_lines(plan, rows, laws, {})))
        print(f"\ntable: {workdir / 'sweep.csv'}, sweep.json, sweep.md; figure: {page.with_suffix('.svg')}, sweep.html")
    waiting = waiting_line(states, failed)
    if waiting:
        print(waiting, file=sys.stderr)
    for name, error in failed.items():
        print(f"rococo: {name} failed: {' '.join(error.split())}", file=sys.stderr)


def _evaluation(arguments: argparse.Namespace, base):
    """What every model is asked: by the command line, else by the config's `eval` keys, else nothing."""
    from rococo_jax.benchmarks.settings import Settings
    from rococo_jax.cli.embed import compute_of, embedding_cache
    from rococo_jax.errors import InputError
    from rococo_jax.evaluation.callback import open_questions
    from rococo_jax.evaluation.inputs import names_in, open_benchmarks
    from rococo_jax.sweep.axes import parse_seeds
    from rococo_jax.sweep.running import Evaluation

    given = {"--images": arguments.images, "--annotations": arguments.annotations}
    missing = [option for option, value in given.items() if value is None]
    if len(missing) == 1:
        raise InputError("command line", missing[0], "nothing", "both of --images and --annotations, or none")
    if missing and arguments.data is None:
        opened = open_questions(base.eval)
        if opened is None:
            return None
        benchmarks, settings = opened
    else:
        seeds = parse_seeds(arguments.mixing_seeds, "--mixing-seeds")
        mixed = names_in(arguments.mixed_galleries)
        asked = {"tasks": names_in(arguments.tasks), "mixed_galleries": mixed, "seeds": seeds}
        asked |= {"protocol": arguments.protocol, "allow_missing_images": arguments.allow_missing_images}
        places = {"images": arguments.images, "annotations": arguments.annotations, "data": arguments.data}
        settings = Settings(**asked)
        benchmarks = open_benchmarks(settings, **places, names=names_in(arguments.benchmarks))
    return Evaluation(benchmarks, settings, embedding_cache(arguments), compute_of(arguments))
