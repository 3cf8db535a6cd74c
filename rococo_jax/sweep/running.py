"""Train and evaluate the unfinished points of a sweep, one after another.

Several processes (`rococo_jax.processes`) train and evaluate each point together; process 0 prints and writes.

WORKDIR/points/RUN/               working folder of `rococo train`
WORKDIR/points/RUN/evaluation/    results.json and per_query.parquet of its model
WORKDIR/influence/HASH/           influence of the captions' words, if runs need it and name no table
WORKDIR/journal.jsonl             events with their times

If a point fails on all processes, the failure is recorded in the journal and the other points are run. If one of
several processes fails alone, the sweep ends.
"""

import contextlib
import dataclasses
import gc
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.checkpoints.model_directory import MODEL_FILE, read_description
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.loading import ORIGIN
from rococo_jax.encoders.programs import Compute
from rococo_jax.errors import InputError, is_disk_full
from rococo_jax.evaluation.conditions import Request, refuse_other_conditions, request_of
from rococo_jax.evaluation.journal import JOURNAL, write_journal
from rococo_jax.evaluation.models import open_model
from rococo_jax.evaluation.results import PER_QUERY, RESULTS, make_fingerprint, read_results
from rococo_jax.evaluation.resume import holds, requests_in, union
from rococo_jax.evaluation.runner import evaluate_into
from rococo_jax.locks import hold
from rococo_jax.processes import broadcast_from_process_0, raised_everywhere, run_on_all_processes
from rococo_jax.runtime import make_mesh
from rococo_jax.storage import hash_json
from rococo_jax.sweep.plan import Plan, Point, value_text
from rococo_jax.sweep.train import make_evaluation_of
from rococo_jax.training.config import check_same_config, flat
from rococo_jax.training.log import METRICS
from rococo_jax.training.run import CONFIG, MODEL, run_training
from rococo_jax.training.setup import RunCache
from rococo_jax.training.step import check_batch

EVALUATION = "evaluation"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Evaluation of every model of the sweep; `compute` is the precision and batch size of the towers."""

    benchmarks: list[Benchmark]
    settings: Settings
    cache: EmbeddingCache
    compute: Compute | None = None


class Stopped(Exception):
    """Raised when a training has saved and stopped after a signal."""


def is_trained(folder: Path) -> bool:
    """Return whether a point's folder contains its model."""
    return (folder / MODEL).is_dir()


def is_evaluated(folder: Path) -> bool:
    """Return whether a point's folder contains results."""
    return (folder / EVALUATION / RESULTS).exists() and (folder / EVALUATION / PER_QUERY).exists()


def has_all_results(folder: Path, evaluation: Evaluation | None) -> bool:
    """Return whether a point's folder contains all requested results; always true without an evaluation."""
    if evaluation is None:
        return True
    return is_evaluated(folder) and holds(folder / EVALUATION, evaluation.benchmarks)


def refuse_other_points(plan: Plan, workdir: Path) -> None:
    """Raise InputError if a point's folder was started with another config, or from other weights than other points."""
    for point in plan.runs:
        saved_config = plan.folder(workdir, point) / CONFIG
        if saved_config.exists():
            check_same_config(saved_config, point.config)
    refuse_other_starts(plan, workdir)


def refuse_other_starts(plan: Plan, workdir: Path) -> None:
    """Raise InputError if points of one `init.model` were trained from different weights: it changed in between."""
    first: dict[str, tuple[str, Path]] = {}
    for point in plan.runs:
        folder, source = plan.folder(workdir, point), point.config.init.model
        if not source or not (folder / ORIGIN / MODEL_FILE).is_file():
            continue
        _, description = read_description(folder / ORIGIN)
        weights = str(description["provenance"]["started_from"].get("weights_sha256"))
        expected, other = first.setdefault(source, (weights, folder))
        if weights != expected:
            wanted = f"{expected[:12]}..., with which {other} was started; remove the points of one of the two"
            raise InputError(folder, f"weights of {source}", f"SHA-256 {weights[:12]}...", wanted)


def refuse_other_evaluations(plan: Plan, workdir: Path, evaluation: Evaluation) -> None:
    """Raise InputError if a point was evaluated on other data or with another protocol."""
    data = {benchmark.name: benchmark.fingerprint() for benchmark in evaluation.benchmarks}
    conditions = make_fingerprint(model={}, data=data, protocol=evaluation.settings.protocol)
    for point in plan.runs:
        path = plan.folder(workdir, point) / EVALUATION / RESULTS
        if is_evaluated(path.parent.parent):
            refuse_other_conditions(path, read_results(path), conditions, evaluation.benchmarks)


def requests_of_all_points(plan: Plan, workdir: Path, evaluation: Evaluation) -> dict[str, Request]:
    """Return the request of each benchmark, joined with the requests of the results that all points have already.

    Means over training seeds then cover the same variants, mixing seeds and corruptions for every seed.

    Raises InputError: only some points have results of a benchmark that is not requested.
    """
    requests = {benchmark.name: request_of(benchmark) for benchmark in evaluation.benchmarks}
    stored = {point.run: requests_in(plan.folder(workdir, point) / EVALUATION) for point in plan.runs}
    for stored_requests in stored.values():
        for name, request in stored_requests.items():
            if name in requests:
                requests[name] = union(request, requests[name])
                continue
            lacking = [run for run, run_requests in stored.items() if name not in run_requests]
            if lacking:
                problem = f"none for {', '.join(lacking)}, but for other points"
                raise InputError(workdir, f"results of {name}", problem, f"{name} among the benchmarks, too")
    return requests


def refuse_what_cannot_train(plan: Plan) -> None:
    """Raise InputError if a point's batch cannot be divided over the devices of all processes."""
    for point in plan.runs:
        check_batch(point.config, jax.device_count())


def train_point(plan: Plan, workdir: Path, point: Point, run_cache: RunCache) -> None:
    """Train a point to its end, resuming if it was started. Raises Stopped on SIGTERM, and as `train`."""
    config = point.config
    evaluate = make_evaluation_of(config) if config.eval.every else None
    influence_folder = workdir / "influence" / _influence_hash(point)
    folder = plan.folder(workdir, point)
    result = run_training(config, folder, evaluate=evaluate, run_cache=run_cache, influence_folder=influence_folder)
    if result.model is None:
        raise Stopped(result.stopped)
    broadcast_from_process_0("the points", lambda: refuse_other_starts(plan, workdir))


def printed_commands(plan: Plan, workdir: Path) -> list[str]:
    """Return a shell command for each run that is not trained."""
    waiting = [point for point in plan.runs if not is_trained(plan.folder(workdir, point))]
    return [shlex.join(["rococo", *plan.command(workdir, point)]) for point in waiting]


def _influence_hash(point: Point) -> str:
    """Return a hash of the settings that the influence of the captions' words depends on."""
    leaves = flat(point.config)
    settings = {key: value for key, value in leaves.items() if key.startswith(("init.", "dtype"))}
    settings |= {key: leaves[key] for key in ("data.images", "data.captions", "data.split", "losses.sc.lexicon")}
    return hash_json(settings)[:12]


def evaluate_point(folder: Path, name: str, evaluation: Evaluation) -> None:
    """Evaluate the model of a point into its folder."""
    mesh, out = make_mesh(jax.local_devices()), folder / EVALUATION
    model = run_on_all_processes(
        f"loading {name}", lambda: open_model(str(folder / MODEL), name=name, mesh=mesh, compute=evaluation.compute)
    )
    with contextlib.ExitStack() as stack:
        lock = hold(out, beside=True)
        broadcast_from_process_0("the results", lambda: stack.enter_context(lock) and None)
        evaluate_into(out, model, evaluation.benchmarks, evaluation.settings, evaluation.cache)


def run_points(
    plan: Plan, workdir: Path, evaluation: Evaluation | None, train_one: Callable[[Point], None] | None
) -> dict[str, str]:
    """Train and evaluate the points that are not done yet.

    Args:
        plan: the points.
        workdir: the working folder of the sweep.
        evaluation: None to train only.
        train_one: trains a point; None to evaluate trained points only.

    Returns:
        The runs that failed, with their errors.

    Raises:
        InputError: all points failed for the same reason.
        Exception: one process failed and the others did not.
        OSError, DiskFull: the disk is full.
        Stopped: training was stopped by a signal.
    """
    runs, failed, errors, is_first = plan.runs, {}, [], jax.process_index() == 0
    clock = _Clock([point.work for point in runs])
    for number, point in enumerate(runs, 1):
        folder, events = plan.folder(workdir, point), _Events(workdir / JOURNAL if is_first else None, point.run)
        try:
            # Other processes may see changes on a shared disk later, so process 0 decides.
            has_model, has_results = broadcast_from_process_0(
                point.run, lambda at=folder: (is_trained(at), has_all_results(at, evaluation))
            )
            if not has_model and train_one is not None:
                train_one(point)
                has_model = True
                events.record("trained")
            if has_model and not has_results:
                evaluate_point(folder, point.run, evaluation)
                events.record("evaluated")
        except Stopped:
            raise
        except Exception as error:  # the failure of one point must not end the others
            if is_disk_full(error) or not raised_everywhere(error):
                raise
            errors.append(error)
            is_bad_input = isinstance(error, InputError)
            failed[point.run] = str(error) if is_bad_input else f"{type(error).__name__}: {error}"
            trace = {} if is_bad_input else {"traceback": traceback.format_exc()}
            events.record("failed", error=failed[point.run], **trace)
            if is_first:
                print(f"rococo: {point.run} failed: {' '.join(failed[point.run].split())}", file=sys.stderr, flush=True)
        time_left = clock.time_left(number, events.seconds if "trained" in events.names else None)
        if is_first and events.names and "failed" not in events.names:
            line = f"{number} of {len(runs)}: {point.run} {' and '.join(events.names)}, {events.seconds:.1f} s"
            print(line + time_left, file=sys.stderr, flush=True)
        # Modules refer to each other in cycles, which only the garbage collector frees.
        gc.collect()
    if len(failed) == len(runs) and len(set(failed.values())) == 1 and isinstance(errors[0], InputError):
        raise errors[0]
    return failed


class _Events:
    """Events of one run in this call, written to the journal, if any, at once."""

    def __init__(self, journal: Path | None, run: str):
        self.journal, self.run = journal, run
        self.start, self.names = time.perf_counter(), []

    @property
    def seconds(self) -> float:
        """Seconds since the run was reached."""
        return time.perf_counter() - self.start

    def record(self, event: str, **details: str) -> None:
        """Record an event."""
        self.names.append(event)
        if self.journal is not None:
            write_journal(self.journal, point=self.run, event=event, seconds=round(self.seconds, 2), **details)


class _Clock:
    """Estimate of the remaining time, from the number of images trained on."""

    def __init__(self, work: list[int]):
        self.work, self.seconds, self.images = work, 0.0, 0

    def time_left(self, number: int, seconds: float | None) -> str:
        """Return a phrase after point `number`; `seconds` is what its training took, or None if it was not trained."""
        if seconds is not None:
            self.seconds, self.images = self.seconds + seconds, self.images + self.work[number - 1]
        remaining = sum(self.work[number:])
        if not self.images or not remaining:
            return ""
        minutes = remaining * self.seconds / self.images / 60
        return f"; about {minutes:.0f} min left" if minutes >= 1 else "; less than a minute left"


TO_TRAIN, BEGUN, TRAINED, COMPLETE = "to train", "begun", "trained", "done"


def states_of(plan: Plan, workdir: Path, evaluation: Evaluation | None) -> dict[str, str]:
    """Return the state of each run. A trained run that lacks requested results is `trained`, not `done`."""
    states = {}
    for point in plan.runs:
        folder = plan.folder(workdir, point)
        if is_trained(folder):
            states[point.run] = COMPLETE if has_all_results(folder, evaluation) else TRAINED
        else:
            states[point.run] = BEGUN if (folder / METRICS).exists() else TO_TRAIN
    return states


def plan_lines(plan: Plan, workdir: Path, evaluation: Evaluation | None) -> Iterator[str]:
    """Yield lines that describe the grid, the state of its runs, and the evaluation."""
    grid = [f"{len(plan.values(place))} of {axis.name}" for place, axis in enumerate(plan.axes)]
    arms = f"{len(plan.arms)} arms ({', '.join(arm.name for arm in plan.arms)})"
    seeds = "1 seed" if len(plan.seeds) == 1 else f"{len(plan.seeds)} seeds"
    factors = [arms] * bool(plan.arms[0].name) + [*grid, seeds]
    repeated = len(plan.points) - len(plan.runs)
    runs = f"; {len(plan.runs)} runs, as {repeated} points have the config of another point" if repeated else ""
    yield f"sweep of {len(plan.points)} points: {' x '.join(factors)}{runs}"
    states = list(states_of(plan, workdir, evaluation).values())
    all_states = (COMPLETE, TRAINED, BEGUN, TO_TRAIN)
    counts = ", ".join(f"{states.count(state)} {state}" for state in all_states if state in states)
    processes = f"by {jax.process_count()} processes" if jax.process_count() > 1 else "in this process"
    yield f"{counts}; runs are trained one after another {processes}"
    if evaluation is None:
        yield "no evaluation: neither data, nor images and annotations, nor the config's eval keys are given"
        return
    for benchmark in evaluation.benchmarks:
        yield f"every model is evaluated on {benchmark.summary()}; protocol {evaluation.settings.protocol}"


def point_lines(plan: Plan, workdir: Path, evaluation: Evaluation | None) -> Iterator[str]:
    """Yield a line for each point: its name, the length of its training, and its state."""
    states = states_of(plan, workdir, evaluation)
    width = max(len(point.name) for point in plan.points)
    for point in plan.points:
        config = point.config
        rate = value_text(config.optimizer.learning_rate)
        length = f"{config.steps} steps of {config.batch_size}, learning rate {rate}"
        alias = "" if point.run == point.name else f" (as {point.run})"
        yield f"{point.name:{width}}  {length}: {states[point.run]}{alias}"


def waiting_line(states: Mapping[str, str], failed: Mapping[str, str]) -> str | None:
    """Return a phrase with the number of runs that are not done and did not fail; None if there are none."""
    waiting = [name for name, state in states.items() if state != COMPLETE and name not in failed]
    if not waiting:
        return None
    return f"{len(waiting)} of {len(states)} runs are not done yet"
