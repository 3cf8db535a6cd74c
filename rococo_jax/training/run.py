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
import gc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.checkpoints.model_directory import write_description, write_model
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.data.pair_source import PairSource, content_sample
from rococo_jax.data.training_images import TrainingImages, training_images, write_training_images
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.run_checkpoints import CHECKPOINTS, ORIGIN
from rococo_jax.errors import InputError
from rococo_jax.models.fsdp import place_parameters
from rococo_jax.processes import broadcast_from_process_0
from rococo_jax.runtime import barrier, make_mesh, on_any_process, rows_of
from rococo_jax.storage import atomic_directory, hold, refuse_url
from rococo_jax.training.config import flat, refuse_other_config, write_config
from rococo_jax.training.cross_fit import refuse_seen_fold
from rococo_jax.training.freezing import split_parameters, with_teacher
from rococo_jax.training.init import Origin, starting_encoder
from rococo_jax.training.inputs import make_input, text_length
from rococo_jax.training.inputs.loss_input import Making, active_inputs
from rococo_jax.training.loop import run_loop
from rococo_jax.training.memory import Estimate, compile_within_memory
from rococo_jax.training.optimizer import make_optimizer
from rococo_jax.training.placement import gather_to_host, parameters_where_they_are
from rococo_jax.training.programs import Programs
from rococo_jax.training.run_cache import RunCache
from rococo_jax.training.run_log import RunLog, check_wandb
from rococo_jax.training.state import TrainingCheckpoints, TrainState, make_state, state_shapes
from rococo_jax.training.step import check_batch, make_step, reads_teacher
from rococo_jax.training.text_padding import agree_on_devices
from rococo_jax.training.throughput import StepFlops, step_flops

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
        on_step: see `run_loop`.
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
    if kept is None and (workdir / CHECKPOINTS).is_dir() and any((workdir / CHECKPOINTS).iterdir()):
        found = "nothing there beside checkpoints"
        raise InputError(workdir / CONFIG, "config", found, "the one they were written with")
    if (workdir / MODEL).exists() and (kept is None or kept["steps"] == config.steps):
        return Run(config.steps, workdir / MODEL, config.steps)
    with contextlib.ExitStack() as while_held:
        broadcast_from_process_0("the working folder", lambda: _hold_folder(while_held, workdir))
        return _train(config, workdir, kept, mesh, evaluate, on_step, run_cache, influence_folder)


def _hold_folder(while_held: contextlib.ExitStack, workdir: Path) -> None:
    """Makes the working folder and holds it, until the stack is closed; one that stays empty is removed."""
    made = not workdir.exists()
    workdir.mkdir(parents=True, exist_ok=True)
    if made:
        while_held.callback(lambda: None if any(workdir.iterdir()) else workdir.rmdir())
    while_held.enter_context(hold(workdir))


def _train(
    config: ConfigDict,
    workdir: Path,
    kept: Mapping[str, Any] | None,
    mesh: Mesh | None,
    evaluate: EvaluateModel | None,
    on_step: Callable[[int, TrainState], None],
    run_cache: RunCache | None,
    influence_folder: Path | None,
) -> Run:
    """As `train`, in a folder that was begun with the config `kept`, if any."""
    first_process = jax.process_index() == 0
    check_batch(config, jax.device_count() if mesh is None else mesh.size)
    mesh = make_mesh(fsdp=config.fsdp) if mesh is None else mesh
    owned, run_cache = run_cache is None, RunCache() if run_cache is None else run_cache
    source = run_cache.source(config)
    encoder = run_cache.encoder(config, mesh)
    origin, trained_before = Origin.of(encoder), encoder.training_images
    refuse_seen_fold(config, trained_before)
    trained, frozen = split_parameters(parameters_of(encoder.model), encoder.spec, config.train)
    optimizer = make_optimizer(config.optimizer, config.steps, encoder.spec, trained)
    step = make_step(config, encoder.spec, encoder.preprocessing, optimizer, mesh)
    folder = influence_folder or workdir
    whole = _on_own_devices(config, encoder, folder)
    agree = agree_on_devices(mesh) if jax.process_count() > 1 else None
    rows = rows_of(mesh.local_devices, mesh, config.batch_size)
    batches = make_input(Making(config, whole, source, folder), run_cache.features, agree, rows)
    tokens = text_length(config, encoder)
    barrier("the starting state")
    # From here on the parameters are the state's: no other copy stays on the devices.
    del encoder, whole
    run_cache = None if owned else run_cache
    frozen = place_parameters(frozen, mesh)
    # Copies: the step uses up the state that it is given.
    start = jax.tree.map(jax.numpy.copy, place_parameters(trained, mesh)) if reads_teacher(config) else {}
    gc.collect()  # modules refer to themselves in circles
    if first_process:
        _begin_folder(workdir, kept, config, origin)
    run = {"init": origin.provenance.get("weights_sha256"), "spec": origin.spec.to_json()}
    run |= {"preprocessing": origin.preprocessing.hash(), "tokenizer": origin.tokenizer.hash()}
    run |= {"images": content_sample(source)}
    checkpoints = TrainingCheckpoints(
        workdir / CHECKPOINTS, config.checkpoint.keep, run, keep_every=config.checkpoint.keep_every
    )
    resumed_from = checkpoints.latest() or 0
    averaged = config.ema > 0
    if resumed_from:
        like = state_shapes(trained, optimizer, mesh, averaged=averaged)
        del trained
        state, input_state = checkpoints.restore(resumed_from, like)
        batches.set_state(input_state)
    else:
        state = make_state(trained, optimizer, mesh, averaged=averaged, donate=owned)
        del trained
    wandb = config.log.wandb and {"project": config.log.wandb, "name": workdir.name, "config": flat(config)}
    log = RunLog(
        workdir if first_process else None, resumed_from, tensorboard=config.log.tensorboard, wandb=wandb or None
    )

    def current(state: TrainState) -> Encoder:
        parameters, own_mesh = parameters_where_they_are(state.average or state.parameters, frozen, mesh)
        return origin.encoder(parameters, _record(config, int(state.step)), own_mesh)

    def flops(text_tokens: int) -> StepFlops:
        return step_flops(config, origin.spec, text_tokens or tokens).over(mesh.size)

    bytes_in_parts = Estimate(
        config, origin.spec, origin.preprocessing, tokens, state, with_teacher(frozen, start), mesh
    )

    programs = Programs(
        step,
        batches.lengths,
        lambda lowered, batch: compile_within_memory(lowered, batch, config, mesh, bytes_in_parts),
        ahead=mesh.local_devices[0].platform != "cpu",
    )
    callback = None if evaluate is None else lambda state: evaluate(current(state))
    try:
        outcome = run_loop(
            config,
            programs,
            state,
            with_teacher(frozen, start),
            batches,
            mesh,
            checkpoints,
            log,
            evaluate=callback,
            flops=flops,
            on_step=on_step,
        )
    finally:
        checkpoints.close()
        batches.close()
        log.close()
    done = int(outcome.state.step)
    if outcome.stopped:
        return Run(done, None, resumed_from, outcome.stopped)
    last = outcome.state
    parameters = gather_to_host(last.average or last.parameters, frozen, keep=first_process)

    def write() -> None:
        write_model(workdir / MODEL, origin.spec, parameters, origin, origin.trained(_record(config, done)))
        write_training_images(workdir / MODEL, _training_images(source, trained_before))

    broadcast_from_process_0("the model", write)
    return Run(done, workdir / MODEL, resumed_from)


def _begin_folder(workdir: Path, kept: Mapping[str, Any] | None, config: ConfigDict, origin: Origin) -> None:
    """Writes the config and what checkpoints need to be models. A model of fewer steps moves to `model-STEPS`."""
    if kept is not None and (workdir / MODEL).exists():
        (workdir / MODEL).rename(workdir / f"{MODEL}-{kept['steps']}")
    if not (workdir / ORIGIN).exists():
        with atomic_directory(workdir / ORIGIN) as folder:
            write_description(folder, origin.spec, origin, origin.trained(_record(config, 0)))
    if kept != flat(config):
        write_config(workdir / CONFIG, config)


def _on_own_devices(config: ConfigDict, encoder: Encoder, folder: Path) -> Encoder:
    """The encoder that computes influence and features beforehand: whole, on this process's devices."""
    alone = jax.process_count() == 1
    if alone and encoder.mesh.shape["fsdp"] == 1:
        return encoder
    computes = config.data.cached_features or any(each.computes(config, folder) for each in active_inputs(config))
    # All processes read the model, or none does.
    if not on_any_process(computes):
        return encoder
    return starting_encoder(config, make_mesh(list(encoder.mesh.devices.flat) if alone else jax.local_devices()))


def _training_images(source: PairSource, before: TrainingImages | None) -> TrainingImages | None:
    """Those of the run and of the model that it started from; None for sources without files."""
    names, paths = getattr(source, "names", None), getattr(source, "paths", None)
    if names is None or paths is None:
        return None
    return training_images(names, map(Path, paths)) | before


def _record(config: ConfigDict, step: int) -> dict:
    keys = ("seed", "steps", "batch_size", "init.model", "train.vision", "train.text")
    leaves = flat(config)
    chosen = {key: leaves[key] for key in keys}
    chosen |= {key: value for key, value in leaves.items() if key.startswith(("losses.", "optimizer."))}
    return {"step": step, "config": chosen}
