"""A training run in its working folder. The same call begins it, resumes it, or returns where it is done.

WORKDIR/config.json          the resolved config; another config is refused
WORKDIR/metrics.jsonl        one line a logged step
WORKDIR/evaluations.jsonl    one line an evaluation
WORKDIR/tensorboard/         the same curves
WORKDIR/checkpoints/         the last few states, and the best; each is a model, too
WORKDIR/origin/              what these have in common: spec, preprocessing, tokenizer
WORKDIR/influence.jsonl      influence of the captions' words, for the SC loss
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
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.checkpoints.model_directory import write_description, write_model
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.data.pair_source import CaptionedImages, PairSource, content_sample
from rococo_jax.data.training_images import TrainingImages, training_images, write_training_images
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.loading import CHECKPOINTS, ORIGIN
from rococo_jax.errors import InputError
from rococo_jax.models.fsdp import place_parameters
from rococo_jax.processes import barrier, broadcast_from_process_0, on_any_process
from rococo_jax.runtime import make_mesh, rows_of
from rococo_jax.storage import atomic_directory, hold, refuse_url
from rococo_jax.training.batch import Batch
from rococo_jax.training.config import flat, refuse_other_config, write_config
from rococo_jax.training.config_keys import profiled_steps
from rococo_jax.training.freezing import split_parameters
from rococo_jax.training.hooks import Evaluate, Log, OnStep, Profile, Save
from rococo_jax.training.init import Origin, starting_encoder
from rococo_jax.training.inputs import active_inputs
from rococo_jax.training.inputs.batches import make_input, text_length
from rococo_jax.training.inputs.loss_input import InputContext
from rococo_jax.training.log import Meter, RunLog, check_wandb
from rococo_jax.training.loop import Input, Outcome, Program, Stop, run_loop
from rococo_jax.training.optimizer import make_optimizer
from rococo_jax.training.program import compile_step, memory_of, step_bytes, step_flops
from rococo_jax.training.run_cache import RunCache
from rococo_jax.training.state import (
    TrainingCheckpoints,
    TrainState,
    gather_to_host,
    make_state,
    parameters_where_they_are,
    state_shapes,
)
from rococo_jax.training.step import Step, check_batch, make_step

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
    """Trains until `config.steps`, or until SIGTERM or Ctrl-C.

    Args:
        config: from `read_config`.
        workdir: made where it does not exist.
        mesh: the devices; all of them by default.
        evaluate: called with the model every `config.eval.every` steps and at the end; a `score` among its figures
            picks the best checkpoint.
        on_step: called after every step, for tests and launchers.
        run_cache: starting models, data and features of earlier runs of this process.
        influence_folder: keeps the table of influence where the config names none; `workdir` by default.

    Raises:
        InputError: anything in the config, the data, the starting model or the working folder that does not fit.
        Diverged: the loss or its gradient is not finite.
    """
    refuse_url(workdir, "working folder")
    workdir = Path(workdir)
    check_wandb(config.log.wandb)
    kept = refuse_other_config(workdir / CONFIG, config) if (workdir / CONFIG).exists() else None
    folders = [name for name in (CHECKPOINTS, MODEL) if (workdir / name).is_dir() and any((workdir / name).iterdir())]
    if kept is None and folders:
        found = f"nothing there beside {folders[0]}"
        raise InputError(workdir / CONFIG, "config", found, "the one they were written with")
    if (workdir / MODEL).exists() and kept is not None and kept["steps"] == config.steps:
        return Run(config.steps, workdir / MODEL, config.steps)
    with contextlib.ExitStack() as while_held:
        broadcast_from_process_0("the working folder", lambda: _hold_folder(while_held, workdir))
        run = _open(config, influence_folder or workdir, mesh, run_cache)
        gc.collect()  # modules refer to themselves in circles; from here on the parameters are the run's alone
        if jax.process_index() == 0:
            _begin_folder(workdir, kept, config, run.origin)
        with contextlib.ExitStack() as closing:
            closing.callback(run.batches.close)
            checkpoints = _checkpoints(config.checkpoint, workdir / CHECKPOINTS, run)
            closing.callback(checkpoints.close)
            state = _begin_or_resume(run, checkpoints, averaged=config.ema > 0)
            resumed_from = int(state.step)
            file = closing.enter_context(contextlib.closing(_open_log(config, workdir, resumed_from)))
            outcome = _loop(config, run, state, checkpoints, file, evaluate, on_step)
        done = int(outcome.state.step)
        model = None if outcome.stopped else _finish(config, workdir, run, outcome.state)
        return Run(done, model, resumed_from, outcome.stopped)


def _hold_folder(while_held: contextlib.ExitStack, workdir: Path) -> None:
    """Makes the working folder and holds it, until the stack is closed; one that stays empty is removed."""
    made = not workdir.exists()
    workdir.mkdir(parents=True, exist_ok=True)
    if made:
        while_held.callback(lambda: None if any(workdir.iterdir()) else workdir.rmdir())
    while_held.enter_context(hold(workdir))


@dataclasses.dataclass
class _Opened:
    """A run before its first step: model, data and step, on their devices.

    Attributes:
        trained: the starting parameters that are trained; emptied once they are the state's.
        frozen: the others.
        owns_model: whether no later run of this process starts from the same parameters.
    """

    mesh: Mesh
    source: PairSource
    origin: Origin
    trained: dict[str, jax.Array]
    frozen: dict[str, jax.Array]
    owns_model: bool
    optimizer: optax.GradientTransformation
    step: Step
    batches: Input
    text_length: int


def _open(config: ConfigDict, folder: Path, mesh: Mesh | None, run_cache: RunCache | None) -> _Opened:
    """Opens data and model. What is computed of them beforehand is kept in `folder`."""
    check_batch(config, jax.device_count() if mesh is None else mesh.size)
    mesh = make_mesh(fsdp=config.fsdp) if mesh is None else mesh
    owns_model, run_cache = run_cache is None, RunCache() if run_cache is None else run_cache
    source = run_cache.source(config.data)
    encoder = run_cache.encoder(config, mesh)
    trained, frozen = split_parameters(parameters_of(encoder.model), encoder.spec, config.train)
    optimizer = make_optimizer(config.optimizer, config.steps, encoder.spec, trained)
    step = make_step(config, encoder.spec, encoder.preprocessing, optimizer, mesh)
    local_encoder = _on_own_devices(config, encoder, folder)
    rows = rows_of(mesh.local_devices, mesh, config.batch_size)
    batches = make_input(InputContext(config, local_encoder, source, folder), run_cache.features, rows)
    barrier("the starting state")
    frozen = place_parameters(frozen, mesh)
    return _Opened(
        mesh, source, Origin.of(encoder), trained, frozen, owns_model,
        optimizer, step, batches, text_length(config.data.text_length, encoder),
    )  # fmt: skip


def _open_log(config: ConfigDict, workdir: Path, first_step: int) -> RunLog:
    wandb = config.log.wandb and {"project": config.log.wandb, "name": workdir.name, "config": flat(config)}
    folder = workdir if jax.process_index() == 0 else None
    return RunLog(folder, first_step, tensorboard=config.log.tensorboard, wandb=wandb or None)


def _checkpoints(config: ConfigDict, folder: Path, run: _Opened) -> TrainingCheckpoints:
    identity = {"init": run.origin.provenance.get("weights_sha256"), "spec": run.origin.spec.to_json()}
    identity |= {"preprocessing": run.origin.preprocessing.hash(), "tokenizer": run.origin.tokenizer.hash()}
    identity |= {"images": content_sample(run.source)}
    return TrainingCheckpoints(folder, config.keep, identity, keep_every=config.keep_every)


def _begin_or_resume(run: _Opened, checkpoints: TrainingCheckpoints, *, averaged: bool) -> TrainState:
    """The state of the last checkpoint, where the input then stands, too; or that of step 0."""
    latest = checkpoints.latest()
    if latest:
        like = state_shapes(run.trained, run.optimizer, run.mesh, averaged=averaged)
        run.trained.clear()
        state, input_state = checkpoints.restore(latest, like)
        run.batches.set_state(input_state)
        return state
    state = make_state(run.trained, run.optimizer, run.mesh, averaged=averaged, donate=run.owns_model)
    run.trained.clear()
    return state


def _loop(
    config: ConfigDict,
    run: _Opened,
    state: TrainState,
    checkpoints: TrainingCheckpoints,
    file: RunLog,
    evaluate: EvaluateModel | None,
    on_step: Callable[[int, TrainState], None],
) -> Outcome:
    """Trains on from a state, with all that happens around its steps."""
    origin, mesh, first = run.origin, run.mesh, int(state.step)
    meter = Meter(config.batch_size, mesh.size, step_flops(config, origin.spec, run.text_length) / mesh.size)

    def compile_for(state: TrainState, batch: Batch) -> Program:
        with meter.paused("compiling"):
            lowered = run.step.lower(state, run.frozen, batch)
            compiled = compile_step(lowered, batch, config, memory_of(mesh.local_devices[0]))
            # CPU processes must reach a program's first exchange within 30 seconds of each other, and some compile
            # faster than others.
            barrier("the first step")
        meter.memory = step_bytes(compiled)
        return lambda state, batch: compiled(state, run.frozen, batch)

    def evaluate_state(state: TrainState) -> Mapping[str, float]:
        parameters, own_mesh = parameters_where_they_are(state.average or state.parameters, run.frozen, mesh)
        return evaluate(origin.encoder(parameters, _record(config, int(state.step)), own_mesh))

    log = Log(file, config.log.every, range(first, config.steps), meter, checkpoints)
    save = Save(config.checkpoint, checkpoints, run.batches.get_state, log)
    stop = Stop()
    profile = Profile(file.folder, profiled_steps(config.profile.steps))
    evaluations = [] if evaluate is None else [Evaluate(evaluate_state, config.eval.every, log)]
    hooks = [profile, log, OnStep(on_step), stop, *evaluations, save]
    with contextlib.ExitStack() as closing:
        for hook in hooks:
            closing.callback(hook.close)
        outcome = run_loop(config.steps, state, run.batches, mesh, compile_for, hooks, stop)
    if jax.process_index() == 0 and log.loss:
        done = int(outcome.state.step)
        print(f"step {done} of {config.steps}: {log.loss}; {meter.goodput()[1]}", file=sys.stderr, flush=True)
    return outcome


def _finish(config: ConfigDict, workdir: Path, run: _Opened, state: TrainState) -> Path:
    """Writes the model directory."""
    first_process, origin = jax.process_index() == 0, run.origin
    parameters = gather_to_host(state.average or state.parameters, run.frozen, keep=first_process)

    def write() -> None:
        write_model(workdir / MODEL, origin.checkpoint(parameters, _record(config, int(state.step))))
        write_training_images(workdir / MODEL, _training_images(run.source, origin.training_images))

    broadcast_from_process_0("the model", write)
    return workdir / MODEL


def _begin_folder(workdir: Path, kept: Mapping[str, Any] | None, config: ConfigDict, origin: Origin) -> None:
    """Writes the config and what checkpoints need to be models. A model of fewer steps moves to `model-STEPS`."""
    if kept is not None and (workdir / MODEL).exists():
        (workdir / MODEL).rename(workdir / f"{MODEL}-{kept['steps']}")
    if not (workdir / ORIGIN).exists():
        with atomic_directory(workdir / ORIGIN) as folder:
            write_description(folder, origin.checkpoint({}, _record(config, 0)))
    if kept != flat(config):
        write_config(workdir / CONFIG, config)


def _on_own_devices(config: ConfigDict, encoder: Encoder, folder: Path) -> Encoder:
    """The encoder that computes influence and features beforehand: whole, on this process's devices."""
    alone = jax.process_count() == 1
    if alone and encoder.mesh.shape["fsdp"] == 1:
        return encoder
    computes = config.data.cached_features or any(
        each.computes(config, folder) for each in active_inputs(config.losses)
    )
    # All processes read the model, or none does.
    if not on_any_process(computes):
        return encoder
    return starting_encoder(config, make_mesh(list(encoder.mesh.devices.flat) if alone else jax.local_devices()))


def _training_images(source: PairSource, before: TrainingImages | None) -> TrainingImages | None:
    """Training images of the run and of the model that it started from; None for sources without files."""
    if not isinstance(source, CaptionedImages):
        return None
    return training_images(source.names, map(source.place, range(len(source)))) | before


def _record(config: ConfigDict, step: int) -> dict:
    keys = ("seed", "steps", "batch_size", "init.model", "train.vision", "train.text")
    leaves = flat(config)
    chosen = {key: leaves[key] for key in keys}
    chosen |= {key: value for key, value in leaves.items() if key.startswith(("losses.", "optimizer."))}
    return {"step": step, "config": chosen}
