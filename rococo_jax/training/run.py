"""A training run in its working folder. The same call begins it, resumes it, or returns where it is done.

WORKDIR/config.json          the resolved config; another config is refused
WORKDIR/metrics.jsonl        one line a logged step
WORKDIR/evaluations.jsonl    one line an evaluation
WORKDIR/tensorboard/         the same curves
WORKDIR/checkpoints/         the last few states, and the best; each is a model, too
WORKDIR/origin/              what these have in common: spec, preprocessing, tokenizer, training images
WORKDIR/influence.jsonl      influence of the captions' words, for the SC loss; influence_of.json: what it is of
WORKDIR/model/               at the end: a model directory
"""

import contextlib
import dataclasses
import gc
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.checkpoints.model_directory import write_description, write_model
from rococo_jax.data.training_images import (
    read_training_images,
    source_images,
    union,
)
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.loading import CHECKPOINTS, ORIGIN, read_scores
from rococo_jax.errors import InputError
from rococo_jax.processes import barrier, broadcast_from_process_0
from rococo_jax.storage import atomic_directory, hold, refuse_url, remove_folder
from rococo_jax.training.batch import Batch
from rococo_jax.training.config import check_config, flat, refuse_other_config, write_config
from rococo_jax.training.config_keys import profiled_steps
from rococo_jax.training.hooks import Evaluate, Log, OnStep, Profile, Save
from rococo_jax.training.log import Meter, RunLog, check_wandb
from rococo_jax.training.loop import Outcome, Program, Stop, run_loop
from rococo_jax.training.program import compile_step, memory_of, step_bytes
from rococo_jax.training.setup import RunCache, Setup, set_up
from rococo_jax.training.state import TrainingCheckpoints, TrainState, gather_to_host, parameters_where_they_are

CONFIG, MODEL = "config.json", "model"

EvaluateModel = Callable[[Encoder], Mapping[str, float]]


class Run(NamedTuple):
    """How a call ended: the step reached, the model directory where the run is done, the step it resumed from, and the
    signal that stopped it, if any."""

    step: int
    model: Path | None
    resumed_from: int
    stopped: str | None = None


def train(
    config: ConfigDict,
    workdir: str | os.PathLike,
    *,
    mesh: Mesh | None = None,
    evaluate: EvaluateModel | None = None,
    on_step: Callable[[int, TrainState], None] = lambda done, state: None,
    run_cache: RunCache | None = None,
    influence_folder: Path | None = None,
) -> Run:
    """Trains in `workdir` until `config.steps`, or until SIGTERM or Ctrl-C; `load_model(run.model)` reads the model.

    Args:
        config: a changed `default_config()`, or from `read_config`.
        workdir: made where it does not exist.
        mesh: the devices; all of them by default.
        evaluate: called with the model every `config.eval.every` steps and at the end; a `score` among its results
            picks the best checkpoint. `rococo_jax.train` makes it of the keys `config.eval`.
        on_step: called after every step, for tests and launchers.
        run_cache: starting models, data and features of earlier runs of this process.
        influence_folder: keeps the table of influence where the config names none; `workdir` by default.

    Raises:
        InputError: anything in the config (`config.stepz = 1` adds a key that does not exist), the data, the starting
            model or the working folder that does not fit.
        Diverged: the loss or its gradient is not finite.
    """
    config = config.copy_and_resolve_references()
    check_config(config)
    check_wandb(config.log.wandb)
    refuse_url(workdir, "working folder")
    workdir = Path(workdir)
    kept = _kept_config(workdir, config)
    if kept is not None and (workdir / MODEL).exists() and kept["steps"] == config.steps:
        return Run(config.steps, workdir / MODEL, config.steps)
    with contextlib.ExitStack() as while_held:
        broadcast_from_process_0("the working folder", lambda: _hold_folder(while_held, workdir))
        setup = set_up(config, influence_folder or workdir, mesh, run_cache)
        gc.collect()  # modules refer to themselves in circles; from here on the parameters are the run's alone
        folder = workdir if jax.process_index() == 0 else None
        images = broadcast_from_process_0("the working folder", lambda: _prepare_folder(workdir, kept, config, setup))
        setup.origin = dataclasses.replace(setup.origin, training_images=read_training_images(workdir / ORIGIN))
        with contextlib.ExitStack() as closing:
            closing.callback(setup.batches.close)
            scores: dict[int, float] = {}
            keep = config.checkpoint.keep, setup.identity(images), config.checkpoint.keep_every, scores
            checkpoints = TrainingCheckpoints(workdir / CHECKPOINTS, *keep)
            closing.callback(checkpoints.close)
            state = setup.begin_or_resume(checkpoints, averaged=config.ema > 0)
            resumed_from = int(state.step)
            wandb = config.log.wandb and {"project": config.log.wandb, "name": workdir.name, "config": flat(config)}
            log = RunLog(folder, resumed_from, tensorboard=config.log.tensorboard, wandb=wandb or None)
            closing.callback(log.close)
            scores |= broadcast_from_process_0("scores", lambda: read_scores(workdir))
            outcome = _loop(config, setup, state, checkpoints, log, scores, evaluate, on_step)
        done = int(outcome.state.step)
        model = None if outcome.stopped else _finish(config, workdir, setup, outcome.state)
        return Run(done, model, resumed_from, outcome.stopped)


def _kept_config(workdir: Path, config: ConfigDict) -> dict[str, Any] | None:
    """The config that the working folder was begun with, None for a new folder.

    Raises InputError: it is another config, or there are checkpoints or a model without one.
    """
    if (workdir / CONFIG).exists():
        return refuse_other_config(workdir / CONFIG, config)
    folders = [name for name in (CHECKPOINTS, MODEL) if (workdir / name).is_dir() and any((workdir / name).iterdir())]
    if folders:
        found = f"nothing there beside {folders[0]}"
        raise InputError(workdir / CONFIG, "config", found, "the one they were written with")
    return None


def _hold_folder(while_held: contextlib.ExitStack, workdir: Path) -> None:
    """Makes the working folder and holds it, until the stack is closed; one that stays empty is removed."""
    made = not workdir.exists()
    workdir.mkdir(parents=True, exist_ok=True)
    if made:
        while_held.callback(lambda: None if any(workdir.iterdir()) else workdir.rmdir())
    while_held.enter_context(hold(workdir))


def _prepare_folder(workdir: Path, saved: Mapping[str, Any] | None, config: ConfigDict, setup: Setup) -> str:
    """Write the config and what checkpoints need to be models; return the hash of the training images.

    A model of fewer steps moves to `model-STEPS`. Before the first checkpoint, the folder takes the data as they are.
    """
    if saved is not None and (workdir / MODEL).exists():
        (workdir / MODEL).rename(workdir / f"{MODEL}-{saved['steps']}")
    origin, images = workdir / ORIGIN, source_images(setup.source)
    has_checkpoints = (workdir / CHECKPOINTS).is_dir() and any((workdir / CHECKPOINTS).glob("[0-9]*"))
    if not has_checkpoints:
        training_images = union(images.images, setup.origin.training_images)
        start = dataclasses.replace(setup.origin, training_images=training_images)
        remove_folder(origin)
        with atomic_directory(origin) as folder:
            write_description(folder, start.checkpoint({}, _record(config, 0)))
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
    """Trains on from a state, with all that happens around its steps."""
    mesh, steps = setup.mesh, range(int(state.step), config.steps)
    meter = Meter(config.batch_size, mesh.size, setup.flops)

    def compile_for(state: TrainState, batch: Batch) -> Program:
        with meter.paused("compiling"):
            lowered = setup.step.lower(state, setup.frozen, batch)
            compiled = compile_step(lowered, batch, config, memory_of(mesh.local_devices[0]))
            # CPU processes must reach a program's first exchange within 30 seconds of each other, and some compile
            # faster than others.
            barrier("the first step")
        meter.memory = step_bytes(compiled)
        return lambda state, batch: compiled(state, setup.frozen, batch)

    def evaluate_state(state: TrainState) -> Mapping[str, float]:
        parameters, own_mesh = parameters_where_they_are(state.average or state.parameters, setup.frozen, mesh)
        return evaluate(setup.origin.encoder(parameters, _record(config, int(state.step)), own_mesh))

    log = Log(run_log, config.log.every, steps, meter, checkpoints)
    evaluations = [Evaluate(evaluate_state, config.eval.every, config.steps, log, scores)] if evaluate else []
    save = Save(config.checkpoint, checkpoints, setup.batches.get_state, log, evaluations)
    stop = Stop()
    profile = Profile(run_log.folder, profiled_steps(config.profile.steps))
    hooks = [profile, log, OnStep(on_step), stop, save, *evaluations]
    with contextlib.ExitStack() as closing:
        for hook in hooks:
            closing.callback(hook.close)
        for evaluation in evaluations:
            evaluation.catch_up(steps.start, state)
        outcome = run_loop(config.steps, state, setup.batches, mesh, compile_for, hooks, stop)
    if jax.process_index() == 0 and log.loss:
        done = int(outcome.state.step)
        print(f"step {done} of {config.steps}: {log.loss}; {meter.goodput()[1]}", file=sys.stderr, flush=True)
    return outcome


def _finish(config: ConfigDict, workdir: Path, setup: Setup, state: TrainState) -> Path:
    """Write the model directory."""
    first_process, origin = jax.process_index() == 0, setup.origin
    parameters = gather_to_host(state.average or state.parameters, setup.frozen, keep=first_process)
    record = _record(config, int(state.step))
    broadcast_from_process_0("the model", lambda: write_model(workdir / MODEL, origin.checkpoint(parameters, record)))
    return workdir / MODEL


def _record(config: ConfigDict, step: int) -> dict:
    keys = ("seed", "steps", "batch_size", "init.model", "train.vision", "train.text")
    leaves = flat(config)
    chosen = {key: leaves[key] for key in keys}
    chosen |= {key: value for key, value in leaves.items() if key.startswith(("losses.", "optimizer."))}
    return {"step": step, "config": chosen}
