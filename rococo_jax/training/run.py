"""A training run in its working directory. The same call starts it, resumes it, or returns at once if it is finished.

WORKDIR/config.json          the resolved config; a different config is refused
WORKDIR/metrics.jsonl        one line per logged step
WORKDIR/evaluations.jsonl    one line per evaluation
WORKDIR/tensorboard/         the same curves for TensorBoard
WORKDIR/checkpoints/         the latest states and the best one; each can be loaded as a model
WORKDIR/origin/              what all these models share: spec, preprocessing, tokenizer, list of training images
WORKDIR/influence.jsonl      influence of the captions' words, for the SC loss; influence_of.json says of what model
WORKDIR/model/               the final model directory
"""

import contextlib
import gc
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.checkpoints.model_directory import write_description, write_model
from rococo_jax.data.training_images import (
    read_training_images,
    source_images,
    union,
)
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.loading import CHECKPOINTS, EVALUATIONS, ORIGIN, encoder_of, read_scores
from rococo_jax.errors import InputError
from rococo_jax.locks import hold
from rococo_jax.processes import barrier, broadcast_from_process_0
from rococo_jax.progress import say
from rococo_jax.storage import atomic_directory, refuse_url, remove_folder
from rococo_jax.training.batch import Batch
from rococo_jax.training.config import check_config, check_same_config, flat, write_config
from rococo_jax.training.config_keys import profiled_steps
from rococo_jax.training.hooks import Hooks, Log, Profile, StepInfo
from rococo_jax.training.init import with_training
from rococo_jax.training.log import Meter, RunLog, check_wandb
from rococo_jax.training.loop import CompiledStep, Outcome, StopOnSignal, run_loop
from rococo_jax.training.program import compile_step, memory_of, step_bytes
from rococo_jax.training.setup import RunCache, Setup
from rococo_jax.training.state import TrainingCheckpoints, TrainState, gather_to_host, local_parameters
from rococo_jax.training.step import Metrics

CONFIG, MODEL = "config.json", "model"

EvaluateModel = Callable[[Encoder], Mapping[str, float]]


class Run(NamedTuple):
    """Result of a call of `train`.

    Attributes:
        step: number of steps of the run so far.
        model: the model directory if the run is finished, else None.
        resumed_from: the step from which this call resumed, 0 for a new run.
        stopped: name of the signal that stopped the run, else None. By default `rococo_jax.train` raises it again.
    """

    step: int
    model: Path | None
    resumed_from: int
    stopped: str | None = None


def run_training(
    config: ConfigDict,
    workdir: str | os.PathLike,
    *,
    mesh: Mesh | None = None,
    evaluate: EvaluateModel | None = None,
    on_step: Callable[[int, TrainState], None] = lambda step, state: None,
    run_cache: RunCache | None = None,
    influence_folder: Path | None = None,
) -> Run:
    """Train in `workdir` until `config.steps`, or until SIGTERM or Ctrl-C; `load_model(run.model)` loads the model.

    The public function is `rococo_jax.train`, which also makes the evaluation that `config.eval` describes.

    Args:
        config: a changed `default_config()`, or from `read_config`.
        workdir: created if it does not exist.
        mesh: the devices; all of them by default.
        evaluate: called with the model every `config.eval.every` steps and at the end; a `score` among its results
            selects the best checkpoint.
        on_step: called after every step, for tests and launchers.
        run_cache: starting models, data and features of earlier runs of this process.
        influence_folder: stores the influence table if the config names none; `workdir` by default.

    Raises:
        InputError: something in the config, the data, the starting model or the working directory is unusable.
        Diverged: the loss or its gradient is not finite.
    """
    config = config.copy_and_resolve_references()
    check_config(config)
    check_wandb(config.log.wandb)
    refuse_url(workdir, "working folder")
    workdir = Path(workdir)
    saved_config = _saved_config(workdir, config)
    if saved_config is not None and (workdir / MODEL).exists() and saved_config["steps"] == config.steps:
        _say_finished(workdir, config.steps)
        return Run(config.steps, workdir / MODEL, config.steps)
    with contextlib.ExitStack() as folder_lock:
        broadcast_from_process_0("the working folder", lambda: _lock_workdir(folder_lock, workdir))
        setup = Setup(config, influence_folder or workdir, mesh, run_cache)
        gc.collect()  # drop reference cycles (of nnx modules), so that the initial parameters can be donated
        images = broadcast_from_process_0(
            "the working folder", lambda: _prepare_workdir(workdir, saved_config, config, setup)
        )
        setup.origin = setup.origin._replace(training_images=read_training_images(workdir / ORIGIN))
        scores: dict[int, float] = {}
        with contextlib.ExitStack() as resources:
            resources.callback(setup.batches.close)
            checkpoints = TrainingCheckpoints(
                workdir / CHECKPOINTS,
                config.checkpoint.keep,
                setup.identity(images),
                config.checkpoint.keep_every,
                scores,
            )
            resources.callback(checkpoints.close)
            state = setup.begin_or_resume(checkpoints)
            resumed_from = int(state.step)
            if 0 < resumed_from < config.steps:
                say(f"resumed from step {resumed_from}")
            log = _open_log(workdir, config, resumed_from)
            resources.callback(log.close)
            scores |= broadcast_from_process_0("scores", lambda: read_scores(workdir))
            outcome = _loop(config, setup, state, checkpoints, log, scores, evaluate, on_step)
        model = _write_final_model(config, workdir, setup, outcome.state) if outcome.stop_signal is None else None
        return Run(int(outcome.state.step), model, resumed_from, outcome.stop_signal)


def _say_finished(workdir: Path, steps: int) -> None:
    if jax.process_index() == 0:
        say(
            f"{workdir}: nothing to do: this run finished all {steps} steps, and its model is {workdir / MODEL}."
            " To train it longer, raise config.steps; to start again, name another workdir."
        )


def _saved_config(workdir: Path, config: ConfigDict) -> dict[str, Any] | None:
    """Return the config with which the working directory was started, None if it is new.

    Raises InputError: that config differs from `config`, or there are checkpoints or a model without a config.
    """
    if (workdir / CONFIG).exists():
        return check_same_config(workdir / CONFIG, config)
    folders = [name for name in (CHECKPOINTS, MODEL) if (workdir / name).is_dir() and any((workdir / name).iterdir())]
    if folders:
        problem = f"nothing there beside {folders[0]}"
        raise InputError(workdir / CONFIG, "config", problem, "the one they were written with")
    return None


def _lock_workdir(folder_lock: contextlib.ExitStack, workdir: Path) -> None:
    """Create and lock the working directory until the stack is closed; remove it then if it is new and still empty."""
    is_new = not workdir.exists()
    workdir.mkdir(parents=True, exist_ok=True)
    if is_new:
        folder_lock.callback(lambda: None if any(workdir.iterdir()) else workdir.rmdir())
    folder_lock.enter_context(hold(workdir))


def _open_log(workdir: Path, config: ConfigDict, first_step: int) -> RunLog:
    """Open the log of the run, which only process 0 writes."""
    wandb = None
    if config.log.wandb:
        wandb = {"project": config.log.wandb, "name": workdir.name, "config": flat(config)}
    folder = workdir if jax.process_index() == 0 else None
    return RunLog(folder, first_step, tensorboard=config.log.tensorboard, wandb=wandb)


def _prepare_workdir(workdir: Path, saved: Mapping[str, Any] | None, config: ConfigDict, setup: Setup) -> str:
    """Write the config and what checkpoints need to be models; return the hash of the training images.

    A finished model of fewer steps moves to `model-STEPS`. Until the first checkpoint is written, changed data are
    accepted.
    """
    if saved is not None and (workdir / MODEL).exists():
        (workdir / MODEL).rename(workdir / f"{MODEL}-{saved['steps']}")
    origin, images = workdir / ORIGIN, source_images(setup.source)
    has_checkpoints = (workdir / CHECKPOINTS).is_dir() and any((workdir / CHECKPOINTS).glob("[0-9]*"))
    if not has_checkpoints:
        training_images = union(images.images, setup.origin.training_images)
        start = setup.origin._replace(training_images=training_images)
        remove_folder(origin)
        with atomic_directory(origin) as folder:
            write_description(folder, with_training(start, {}, _training_record(config, 0)))
    if saved != flat(config):
        write_config(workdir / CONFIG, config)
    return images.sha256


def _loop(
    config: ConfigDict,
    setup: Setup,
    state: TrainState,
    checkpoints: TrainingCheckpoints,
    run_log: RunLog,
    scores: dict[int, float],
    evaluate: EvaluateModel | None,
    on_step: Callable[[int, TrainState], None],
) -> Outcome:
    """Train from `state` to the last step, with the hooks of the run."""
    mesh, steps = setup.mesh, range(int(state.step), config.steps)
    meter = Meter(config.batch_size, mesh.size, setup.flops)
    log = Log(run_log, config.log.every, steps, meter, checkpoints)
    profile = Profile(run_log.folder, profiled_steps(config.profile.steps))
    last_save = time.monotonic()

    def compile_first_step(state: TrainState, batch: Batch) -> CompiledStep:
        with meter.paused("compiling"):
            lowered = setup.step.lower(state, setup.frozen, batch)
            compiled = compile_step(lowered, batch, config, memory_of(mesh.local_devices[0]))
            # Processes compile at different speeds, but processes on CPUs must reach the first exchange of a program
            # within 30 seconds of each other.
            barrier("the first step")
        meter.memory = step_bytes(compiled)
        numbers = iter(steps)

        def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
            profile.before_step(next(numbers), state)
            return compiled(state, setup.frozen, batch)

        return step

    def save(info: StepInfo) -> None:
        nonlocal last_save
        log.flush()  # nothing is saved before its loss is known to be finite
        with meter.paused("saving"):
            checkpoints.save(info.step, info.state, setup.batches.get_state())
        last_save = time.monotonic()

    def is_time_to_save() -> bool:
        """Return whether the minutes since the last checkpoint have passed, once for each time."""
        nonlocal last_save
        minutes = config.checkpoint.minutes
        is_time = minutes > 0 and time.monotonic() - last_save > 60 * minutes
        if is_time:
            last_save = time.monotonic()
        return is_time

    def evaluate_state(info: StepInfo) -> Mapping[str, float]:
        log.flush()
        with meter.paused("saving"):
            # From here on a kill costs no step, and memory holds no copy of the state for a writer in the background.
            checkpoints.wait()
        with meter.paused("evaluating"):
            parameters, local_mesh = local_parameters(info.state.average or info.state.parameters, setup.frozen, mesh)
            checkpoint = with_training(setup.origin, parameters, _training_record(config, int(info.state.step)))
            results = dict(evaluate(encoder_of(checkpoint, local_mesh, jnp.dtype(config.dtype))))
        if math.isfinite(results.get("score", math.nan)):
            scores[info.step] = results["score"]
        return results

    hooks = Hooks(run_log)
    hooks.add(profile.after_step, every=1)
    hooks.add(log.after_step, every=1)
    # A state is saved before it is evaluated, so an evaluation that fails or is interrupted costs no step.
    save_periods = [config.checkpoint.every, config.checkpoint.keep_every]
    if evaluate is not None:
        save_periods.append(config.eval.every)
    hooks.add(save, every=save_periods, also_when=is_time_to_save)
    if evaluate is not None:
        # A stop does not wait for an evaluation that is due: the resumed run makes it first.
        hooks.add(evaluate_state, every=config.eval.every, on_signal=False, log_file=EVALUATIONS)
    with contextlib.closing(profile), contextlib.closing(log), contextlib.closing(StopOnSignal()) as stop:
        hooks.run_missing(StepInfo(steps.start, state, is_last=steps.start == config.steps))
        outcome = run_loop(config.steps, state, setup.batches, mesh, compile_first_step, hooks, stop, on_step)
        checkpoints.wait()  # while another signal cannot end the process
    if jax.process_index() == 0 and log.loss:
        step = int(outcome.state.step)
        print(f"step {step} of {config.steps}: {log.loss}; {meter.goodput()[1]}", file=sys.stderr, flush=True)
    return outcome


def _write_final_model(config: ConfigDict, workdir: Path, setup: Setup, state: TrainState) -> Path:
    """Write the model directory from process 0 and return its path."""
    is_first_process = jax.process_index() == 0
    parameters = gather_to_host(state.average or state.parameters, setup.frozen, keep=is_first_process)
    record = _training_record(config, int(state.step))
    checkpoint = with_training(setup.origin, parameters, record)
    broadcast_from_process_0("the model", lambda: write_model(workdir / MODEL, checkpoint))
    return workdir / MODEL


def _training_record(config: ConfigDict, step: int) -> dict[str, Any]:
    """Return what the provenance of a model says of its training: the step and the keys that matter most."""
    keys = ("seed", "steps", "batch_size", "init.model", "train.vision", "train.text")
    leaves = flat(config)
    record = {key: leaves[key] for key in keys}
    record |= {key: value for key, value in leaves.items() if key.startswith(("losses.", "optimizer."))}
    return {"step": step, "config": record}
