"""A training run in its working folder. The same call begins it, resumes it, or returns where it is done.

WORKDIR/config.json          the resolved config; another config is refused
WORKDIR/metrics.jsonl        one line a logged step
WORKDIR/evaluations.jsonl    one line an evaluation
WORKDIR/tensorboard/         the same curves
WORKDIR/checkpoints/         the last few states, and the best
WORKDIR/influence.jsonl      influence of the captions' words, for the SC loss
WORKDIR/model/               at the end: a model directory
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.checkpoints.model_directory import write_model
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.data.pair_source import PairSource
from rococo_jax.data.training_images import TrainingImages, training_images, write_training_images
from rococo_jax.encoders import Encoder
from rococo_jax.processes import broadcast_from_process_0
from rococo_jax.runtime import barrier, make_mesh
from rococo_jax.training.config import flat, refuse_other_config, write_config
from rococo_jax.training.freezing import join_parameters, split_parameters, with_teacher
from rococo_jax.training.init import trained_encoder
from rococo_jax.training.inputs import make_input, text_length
from rococo_jax.training.inputs.loss_input import Making
from rococo_jax.training.loop import run_loop
from rococo_jax.training.optimizer import make_optimizer
from rococo_jax.training.run_cache import RunCache
from rococo_jax.training.run_log import RunLog
from rococo_jax.training.state import TrainingCheckpoints, TrainState, make_state, place_parameters
from rococo_jax.training.step import check_batch, make_step, reads_teacher
from rococo_jax.training.throughput import step_flops

CONFIG, MODEL, CHECKPOINTS = "config.json", "model", "checkpoints"

EvaluateModel = Callable[[Encoder], Mapping[str, float]]


class Run(NamedTuple):
    """How a call ended: the step reached, the model directory where the run is done, and the step it resumed from."""

    step: int
    model: Path | None
    resumed_from: int


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
    """Trains until `config.steps`, or until SIGTERM.

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
    workdir, first_process = Path(workdir), jax.process_index() == 0
    kept = workdir / CONFIG
    if kept.exists():
        refuse_other_config(kept, config)
    if (workdir / MODEL).exists():
        return Run(config.steps, workdir / MODEL, config.steps)
    mesh = make_mesh(fsdp=config.fsdp) if mesh is None else mesh
    check_batch(config, mesh.size)
    run_cache = RunCache() if run_cache is None else run_cache
    source = run_cache.source(config)
    # Influence and features are computed beforehand by every process on its own devices.
    encoder = run_cache.encoder(config, make_mesh(jax.local_devices()) if jax.process_count() > 1 else mesh)
    trained, frozen = split_parameters(parameters_of(encoder.model), encoder.spec, config.train)
    optimizer = make_optimizer(config.optimizer, config.steps, encoder.spec, trained)
    step = make_step(config, encoder.spec, encoder.preprocessing, optimizer, mesh)
    workdir.mkdir(parents=True, exist_ok=True)
    batches = make_input(Making(config, encoder, source, influence_folder or workdir), run_cache.features)
    barrier("the starting state")
    state = make_state(trained, optimizer, mesh, averaged=config.ema > 0)
    frozen = place_parameters(frozen, mesh)
    # Copies: the step uses up the state that it is given.
    start = jax.tree.map(jax.numpy.copy, place_parameters(trained, mesh)) if reads_teacher(config) else {}
    if first_process and not kept.exists():
        write_config(kept, config)
    run = {"init": encoder.provenance.get("weights_sha256"), "spec": encoder.spec.to_json()}
    checkpoints = TrainingCheckpoints(workdir / CHECKPOINTS, config.checkpoint.keep, run)
    resumed_from = checkpoints.latest() or 0
    if resumed_from:
        state, input_state = checkpoints.restore(resumed_from, state)
        batches.set_state(input_state)
    log = RunLog(workdir if first_process else None, resumed_from, tensorboard=config.log.tensorboard)

    def whole_parameters(state: TrainState, keep: bool = True) -> dict:
        trained = gather_to_host(state.average or state.parameters, keep=keep)
        return join_parameters(trained, gather_to_host(frozen, keep=keep))

    def current(state: TrainState) -> Encoder:
        return trained_encoder(encoder, whole_parameters(state), _record(config, int(state.step)))

    flops = step_flops(config, encoder.spec, text_length(config, encoder)) / mesh.size
    callback = None if evaluate is None else lambda state: evaluate(current(state))
    try:
        outcome = run_loop(
            config,
            step,
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
        return Run(done, None, resumed_from)
    parameters = whole_parameters(outcome.state, keep=first_process)

    def write() -> None:
        provenance = {"trained": _record(config, done), "started_from": encoder.provenance}
        write_model(workdir / MODEL, encoder.spec, parameters, encoder, provenance)
        write_training_images(workdir / MODEL, _training_images(source, encoder))

    broadcast_from_process_0("the model", write)
    return Run(done, workdir / MODEL, resumed_from)


def gather_to_host(parameters: Mapping[str, jax.Array], *, keep: bool = True) -> dict[str, np.ndarray]:
    """Gathers parameters that are sharded over devices and processes, one after another. All processes must call it.

    Args:
        keep: False where this process only takes part; it gets nothing.
    """
    gathered = {}
    for path in sorted(parameters):
        array = parameters[path]
        local = array.is_fully_addressable or array.is_fully_replicated
        if not local or keep:
            whole = jax.device_get(array) if local else multihost_utils.process_allgather(array, tiled=True)
            if keep:
                gathered[path] = whole
    return gathered


def _training_images(source: PairSource, encoder: Encoder) -> TrainingImages | None:
    """Those of the run and of the model that it started from; None for sources without files."""
    names, paths = getattr(source, "names", None), getattr(source, "paths", None)
    if names is None or paths is None:
        return None
    return training_images(names, map(Path, paths)) | encoder.training_images


def _record(config: ConfigDict, step: int) -> dict:
    keys = ("seed", "steps", "batch_size", "init.model", "train.vision", "train.text")
    leaves = flat(config)
    chosen = {key: leaves[key] for key in keys}
    chosen |= {key: value for key, value in leaves.items() if key.startswith(("losses.", "optimizer."))}
    return {"step": step, "config": chosen}
