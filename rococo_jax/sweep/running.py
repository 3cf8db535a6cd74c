"""Trains and evaluates the points of a sweep that are not done yet, one after another, here or by a launcher.

Several processes (`rococo_jax.processes`) train and evaluate each point together; process 0 says what is done.

WORKDIR/points/RUN/               the working folder of `rococo train`
WORKDIR/points/RUN/evaluation/    results.json and per_query.parquet of its model
WORKDIR/influence/HASH/           influence of the captions' words, where runs need it and no table is named
WORKDIR/journal.jsonl             what happened when

A point that fails is written into the journal, and the others go on; where one of several processes fails alone, the
sweep ends.

A launcher is a command in a shell's words. `{command}` in it stands for the whole `rococo train ...` as one word,
`{name}` for the point's name; where there is no `{command}`, the words of `train ...` come after it, as the launchers
of `launch/` take them:

    python launch/slurm.py --nodes 1 --time 2:00:00 --
    sbatch --job-name {name} --wrap {command}
"""

import contextlib
import dataclasses
import gc
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.programs import Compute
from rococo_jax.errors import InputError, is_disk_full
from rococo_jax.evaluation.companions import standard_companions
from rococo_jax.evaluation.conditions import Request, refuse_other_conditions, request_of
from rococo_jax.evaluation.model_series import JOURNAL, write_journal
from rococo_jax.evaluation.models import open_model
from rococo_jax.evaluation.results import PER_QUERY, RESULTS, read_results
from rococo_jax.evaluation.resume import holds, requests_in, union
from rococo_jax.evaluation.runner import evaluate_into
from rococo_jax.processes import broadcast_from_process_0, is_error_of_all, run_on_all_processes
from rococo_jax.runtime import make_mesh
from rococo_jax.storage import hash_json, hold
from rococo_jax.sweep.plan import Plan, Point, written
from rococo_jax.sweep.train import make_evaluation_of
from rococo_jax.training.config import flat, refuse_other_config
from rococo_jax.training.log import METRICS
from rococo_jax.training.run import CONFIG, MODEL, train
from rococo_jax.training.setup import RunCache
from rococo_jax.training.step import check_batch

EVALUATION = "evaluation"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What every model of the sweep is asked, as in `evaluate_model`; `compute` says how the towers compute."""

    benchmarks: list[Benchmark]
    settings: Settings
    cache: EmbeddingCache
    compute: Compute | None = None


class Stopped(Exception):
    """A training was told to stop (SIGTERM) and has saved."""


def is_trained(folder: Path) -> bool:
    """Whether the point's model is there."""
    return (folder / MODEL).is_dir()


def is_evaluated(folder: Path) -> bool:
    """Whether the point's results are there."""
    return (folder / EVALUATION / RESULTS).exists() and (folder / EVALUATION / PER_QUERY).exists()


def has_all(folder: Path, evaluation: Evaluation | None) -> bool:
    """Whether the point's results are there and have all that is requested; true without an evaluation."""
    if evaluation is None:
        return True
    return is_evaluated(folder) and holds(folder / EVALUATION, evaluation.benchmarks)


def is_begun(folder: Path) -> bool:
    """Whether the point has been worked on."""
    return (folder / METRICS).exists()


def refuse_other_points(plan: Plan, workdir: Path) -> None:
    """Raises InputError where a point's folder was begun with another config."""
    for point in plan.runs:
        kept = plan.folder(workdir, point) / CONFIG
        if kept.exists():
            refuse_other_config(kept, point.config)


def refuse_other_evaluations(plan: Plan, workdir: Path, evaluation: Evaluation) -> None:
    """Raises InputError where a point was evaluated on other data or under another protocol."""
    data = {benchmark.name: benchmark.fingerprint() for benchmark in evaluation.benchmarks}
    conditions = {"data": data, "protocol": evaluation.settings.protocol}
    for point in plan.runs:
        path = plan.folder(workdir, point) / EVALUATION / RESULTS
        if is_evaluated(path.parent.parent):
            refuse_other_conditions(path, read_results(path), conditions, evaluation.benchmarks)


def requests_of_all_points(plan: Plan, workdir: Path, evaluation: Evaluation) -> dict[str, Request]:
    """Return the request of each benchmark, joined with those of the results of all points.

    A mean over seeds of the training then has the same variants, seeds of the mixing and corruptions of each.

    Raises InputError: some points alone have results of a benchmark that is not requested.
    """
    requests = {benchmark.name: request_of(benchmark) for benchmark in evaluation.benchmarks}
    stored = {point.run: requests_in(plan.folder(workdir, point) / EVALUATION) for point in plan.runs}
    for of_point in stored.values():
        for name, request in of_point.items():
            if name in requests:
                requests[name] = union(request, requests[name])
            elif lacking := [run for run, others in stored.items() if name not in others]:
                found = f"none of {', '.join(lacking)}, which other points have"
                raise InputError(workdir, f"results of {name}", found, f"{name} among the benchmarks, too")
    return requests


def refuse_what_cannot_train(plan: Plan) -> None:
    """Raises InputError where a point's batch does not split over the devices of all processes."""
    for point in plan.runs:
        check_batch(point.config, jax.device_count())


def train_point(plan: Plan, workdir: Path, point: Point, run_cache: RunCache) -> None:
    """Trains a point to its end, from wherever it stands. Raises Stopped on SIGTERM, and what `train` raises."""
    config = point.config
    evaluate = make_evaluation_of(config) if config.eval.every else None
    beside = workdir / "influence" / _words_hash(point)
    kept = {"run_cache": run_cache, "influence_folder": beside}
    done = train(config, plan.folder(workdir, point), evaluate=evaluate, **kept)
    if done.model is None:
        raise Stopped(done.stopped)


def printed_commands(plan: Plan, workdir: Path) -> list[str]:
    """A line for each run that is not done, as a shell takes it."""
    waiting = [point for point in plan.runs if not is_trained(plan.folder(workdir, point))]
    return [shlex.join(["rococo", *plan.command(workdir, point)]) for point in waiting]


def launch_words(template: str, plan: Plan, workdir: Path, point: Point) -> list[str]:
    """The words that start a point. Raises InputError where the template is no command, or its program is nowhere."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise InputError("launch", "template", f"{template!r} ({error})", "a command, as a shell takes it") from None
    if not words or shutil.which(words[0]) is None:
        raise InputError("launch", "program", repr(words[0] if words else ""), "a program on the PATH")
    command = plan.command(workdir, point)
    whole = shlex.join(["rococo", *command])
    filled = [word.replace("{command}", whole).replace("{name}", point.run) for word in words]
    return filled if any("{command}" in word for word in words) else filled + command


def launch_point(template: str, plan: Plan, workdir: Path, point: Point) -> bool:
    """Starts a point; InputError where that fails. True if it is trained when the program ends, False if under way."""
    words = launch_words(template, plan, workdir, point)
    code = subprocess.run(words).returncode
    if code:
        raise InputError(shlex.join(words), "exit code", code, "0")
    return is_trained(plan.folder(workdir, point))


def _words_hash(point: Point) -> str:
    """Hash of what decides the influence of the captions' words."""
    leaves = flat(point.config)
    chosen = {key: value for key, value in leaves.items() if key.startswith(("init.", "dtype"))}
    chosen |= {key: leaves[key] for key in ("data.images", "data.captions", "data.split", "losses.sc.lexicon")}
    return hash_json(chosen)[:12]


def evaluate_point(folder: Path, name: str, evaluation: Evaluation) -> None:
    """Evaluates the model of a point into its folder."""
    mesh, out = make_mesh(jax.local_devices()), folder / EVALUATION
    model = run_on_all_processes(
        f"loading {name}",
        lambda: open_model(str(folder / MODEL), name=name, mesh=mesh, compute=evaluation.compute),
    )
    companions = standard_companions()
    with contextlib.ExitStack() as held:
        lock = hold(out, beside=True)
        broadcast_from_process_0("the results", lambda: held.enter_context(lock) and None)
        evaluate_into(out, model, evaluation.benchmarks, evaluation.settings, evaluation.cache, companions)


def run_points(
    plan: Plan,
    workdir: Path,
    evaluation: Evaluation | None,
    train_one: Callable[[Point], bool],
) -> dict[str, str]:
    """Trains and evaluates what is not done yet. Returns the runs that failed, with what was wrong.

    `train_one` trains a point; it returns False where the point is on its way elsewhere.

    Raises:
        InputError: all points failed, and for the same reason.
        Exception: what one process failed with and the others did not.
        OSError, DiskFull: the disk is full.
        Stopped: a training was told to stop.
    """
    runs, failed, errors, first = plan.runs, {}, [], jax.process_index() == 0
    clock = _Clock([point.work for point in runs])
    for number, point in enumerate(runs, 1):
        folder, done = plan.folder(workdir, point), _Events(workdir / JOURNAL if first else None, point.run)
        try:
            # The others may see the disk later.
            trained, evaluated = broadcast_from_process_0(
                point.run, lambda at=folder: (is_trained(at), has_all(at, evaluation))
            )
            if not trained:
                # A point that a launcher has taken over has no model yet.
                trained = train_one(point)
                done.note("trained" if trained else "handed over")
            if trained and not evaluated:
                evaluate_point(folder, point.run, evaluation)
                done.note("evaluated")
        except Stopped:
            raise
        except Exception as error:  # one point's failure is no other's
            if is_disk_full(error) or not is_error_of_all(error):
                raise
            errors.append(error)
            known = isinstance(error, InputError)
            failed[point.run] = str(error) if known else f"{type(error).__name__}: {error}"
            trace = {} if known else {"traceback": traceback.format_exc()}
            done.note("failed", error=failed[point.run], **trace)
            if first:
                print(f"rococo: {point.run} failed: {' '.join(failed[point.run].split())}", file=sys.stderr, flush=True)
        left = clock.left(number, done.seconds if "trained" in done.events else None)
        if first and done.events and "failed" not in done.events:
            told = f"{number} of {len(runs)}: {point.run} {' and '.join(done.events)}, {done.seconds:.1f} s{left}"
            print(told, file=sys.stderr, flush=True)
        # Models refer to themselves in circles, which only the collector frees.
        gc.collect()
    if len(failed) == len(runs) and len(set(failed.values())) == 1 and isinstance(errors[0], InputError):
        raise errors[0]
    return failed


class _Events:
    """What happens to a run in this call, written into the journal, if any, at once."""

    def __init__(self, journal: Path | None, run: str):
        self.journal, self.run = journal, run
        self.started, self.events = time.perf_counter(), []

    @property
    def seconds(self) -> float:
        """Since the run's turn came."""
        return time.perf_counter() - self.started

    def note(self, event: str, **more: str) -> None:
        """Something has happened."""
        self.events.append(event)
        if self.journal is not None:
            write_journal(self.journal, point=self.run, event=event, seconds=round(self.seconds, 2), **more)


class _Clock:
    """How long the rest will take, by the images that were trained on."""

    def __init__(self, work: list[int]):
        self.work, self.seconds, self.done = work, 0.0, 0

    def left(self, number: int, seconds: float | None) -> str:
        """After point `number`, which took so many seconds if it was trained now."""
        if seconds is not None:
            self.seconds, self.done = self.seconds + seconds, self.done + self.work[number - 1]
        rest = sum(self.work[number:])
        if not self.done or not rest:
            return ""
        minutes = rest * self.seconds / self.done / 60
        return f"; about {minutes:.0f} min left" if minutes >= 1 else "; less than a minute left"


NEW, BEGUN, TRAINED, DONE = "to train", "begun", "trained", "done"


def states_of(plan: Plan, workdir: Path, evaluation: Evaluation | None) -> dict[str, str]:
    """How far each run is; a run whose results lack something that is requested is trained, and not done."""
    states = {}
    for point in plan.runs:
        folder = plan.folder(workdir, point)
        if is_trained(folder):
            states[point.run] = DONE if has_all(folder, evaluation) else TRAINED
        else:
            states[point.run] = BEGUN if is_begun(folder) else NEW
    return states


def plan_lines(plan: Plan, workdir: Path, evaluation: Evaluation | None, launch: str | None) -> Iterator[str]:
    """The grid, what is done, and what will happen."""
    grid = [f"{len(plan.values(place))} of {axis.name}" for place, axis in enumerate(plan.axes)]
    arms = f"{len(plan.arms)} arms ({', '.join(arm.name for arm in plan.arms)})"
    parts = [arms] * bool(plan.arms[0].name) + grid + [f"{len(plan.seeds)} seed(s)"]
    same = len(plan.points) - len(plan.runs)
    runs = f", {len(plan.runs)} runs: {same} have the config of another" if same else ""
    yield f"sweep of {len(plan.points)} points: {' x '.join(parts)}{runs}"
    states = list(states_of(plan, workdir, evaluation).values())
    counted = ", ".join(f"{states.count(state)} {state}" for state in (DONE, TRAINED, BEGUN, NEW) if state in states)
    several = f"by {jax.process_count()} processes" if jax.process_count() > 1 else "in this process"
    how = f"one command a run: {launch}" if launch else f"one run after another {several}"
    yield f"{counted}; {how}"
    if evaluation is None:
        yield "no evaluation: neither images and annotations nor the config's eval.data or eval.images is given"
    else:
        data = "; ".join(benchmark.summary() for benchmark in evaluation.benchmarks)
        yield f"every model is evaluated on {data}; protocol {evaluation.settings.protocol}"


def point_lines(plan: Plan, workdir: Path, evaluation: Evaluation | None) -> Iterator[str]:
    """A line for each point: its name, its length, and how far it is."""
    states = states_of(plan, workdir, evaluation)
    width = max(len(point.name) for point in plan.points)
    for point in plan.points:
        config = point.config
        rate = written(config.optimizer.learning_rate)
        length = f"{config.steps} steps of {config.batch_size}, learning rate {rate}"
        same = "" if point.run == point.name else f" (as {point.run})"
        yield f"{point.name:{width}}  {length}: {states[point.run]}{same}"


def waiting_line(states: Mapping[str, str], failed: Mapping[str, str]) -> str | None:
    """How many runs are still to come; None where none is."""
    left = [name for name, state in states.items() if state != DONE and name not in failed]
    if not left:
        return None
    return f"{len(left)} of {len(states)} runs are not done yet"
