"""A run before its first step: data, model and step on their devices; and what runs of one process share of these.

A sweep trains many times from one model on one data set. Decoding images, altering captions and running the towers
takes longer than a short run on their features; `RunCache` does it once for all runs with the same settings of it.
"""

import dataclasses
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.data.pair_source import PairSource
from rococo_jax.encoders import Encoder
from rococo_jax.models.fsdp import place_parameters
from rococo_jax.processes import barrier, broadcast_from_process_0, on_any_process
from rococo_jax.runtime import make_mesh, rows_of
from rococo_jax.storage import hash_json
from rococo_jax.training.config import flat, keys_of_features
from rococo_jax.training.freezing import split_parameters
from rococo_jax.training.init import Origin, starting_encoder
from rococo_jax.training.inputs import active_inputs
from rococo_jax.training.inputs.batches import make_input, open_source, text_length
from rococo_jax.training.inputs.feature_pool import Features
from rococo_jax.training.inputs.loss_input import InputContext
from rococo_jax.training.loop import Input
from rococo_jax.training.optimizer import make_optimizer
from rococo_jax.training.program import step_flops
from rococo_jax.training.state import TrainingCheckpoints, TrainState, make_state, state_shapes
from rococo_jax.training.step import Step, check_batch, make_step


class RunCache:
    """Keeps the last data and the last starting model, and a few sets of features."""

    def __init__(self, features: int = 4):
        self._kept: dict[str, dict[Hashable, Any]] = {}
        self._most = {"features": features}

    def source(self, data: ConfigDict) -> PairSource:
        """Open the source of pairs once, as `open_source`."""
        return self._get("source", (data.images, data.captions, data.split), lambda: open_source(data))

    def encoder(self, config: ConfigDict, mesh: Mesh) -> Encoder:
        """Load the starting encoder once, as `starting_encoder`."""
        # Random parameters, of a whole model or of residual heads, come from the run's seed.
        keys = {key: value for key, value in flat(config).items() if key.startswith(("init", "dtype", "seed"))}
        keys["kind"] = config.losses.contrastive.kind
        return self._get("encoder", (hash_json(keys), mesh), lambda: starting_encoder(config, mesh))

    def features(self, config: ConfigDict, make: Callable[[], Features]) -> Features:
        """The result of `make`, or an earlier one for a config with the same features."""
        keys = keys_of_features(config)
        if config.init.model:
            # Only new towers depend on the seed; pools are the same for all seeds.
            del keys["seed"]
        return self._get("features", hash_json(keys), make)

    def _get(self, kind: str, key: Hashable, make: Callable[[], Any]) -> Any:
        kept = self._kept.setdefault(kind, {})
        made = kept.pop(key) if key in kept else None
        while made is None and len(kept) >= self._most.get(kind, 1):
            # Dropped before the next is made, to save memory; the least recently used first.
            del kept[next(iter(kept))]
        kept[key] = make() if made is None else made
        return kept[key]


@dataclasses.dataclass
class Setup:
    """Data, model and step of a run.

    Attributes:
        trained: the starting parameters that are trained; emptied once they are the state's.
        frozen: the others.
        owns_model: whether no later run of this process starts from the same parameters.
        flops: operations of a step on one device.
        file_hashes: of the contents of the files that losses read, by name.
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
    flops: float
    file_hashes: dict[str, str]

    def identity(self, images: str) -> dict[str, Any]:
        """All that decides the result of the run beside its config, by contents, as JSON values.

        Args:
            images: hash of the contents of the training images.
        """
        origin = self.origin
        return {
            "init": origin.provenance.get("weights_sha256"),
            "spec": origin.spec.to_json(),
            "preprocessing": origin.preprocessing.hash(),
            "tokenizer": origin.tokenizer.hash(),
            "images": images,
            **self.file_hashes,
        }

    def begin_or_resume(self, checkpoints: TrainingCheckpoints, *, averaged: bool) -> TrainState:
        """The state of the last checkpoint, where the input then stands, too; or that of step 0."""
        latest = checkpoints.latest()
        if latest:
            like = state_shapes(self.trained, self.optimizer, self.mesh, averaged=averaged)
            self.trained.clear()
            state, input_state = checkpoints.restore(latest, like)
            self.batches.set_state(input_state)
            return state
        state = make_state(self.trained, self.optimizer, self.mesh, averaged=averaged, donate=self.owns_model)
        self.trained.clear()
        return state


def set_up(config: ConfigDict, folder: Path, mesh: Mesh | None, run_cache: RunCache | None) -> Setup:
    """Opens data and model. What is computed of them beforehand is kept in `folder`."""
    check_batch(config, jax.device_count() if mesh is None else mesh.size)
    mesh = make_mesh(fsdp=config.fsdp) if mesh is None else mesh
    owns_model, run_cache = run_cache is None, RunCache() if run_cache is None else run_cache
    source = run_cache.source(config.data)
    encoder = run_cache.encoder(config, mesh)
    spec, tokens = encoder.spec, text_length(config.data.text_length, encoder)
    trained, frozen = split_parameters(parameters_of(encoder.model), spec, config.train)
    optimizer = make_optimizer(config.optimizer, config.steps, spec, trained)
    step = make_step(config, spec, encoder.preprocessing, optimizer, mesh)
    context = InputContext(config, _on_own_devices(config, encoder, folder), source, folder)
    batches = make_input(context, run_cache.features, rows_of(mesh.local_devices, mesh, config.batch_size))
    barrier("the starting state")
    frozen = place_parameters(frozen, mesh)
    flops = step_flops(config, spec, tokens, encoder.preprocessing) / mesh.size
    file_hashes = broadcast_from_process_0("files of the losses", lambda: _file_hashes(context))
    return Setup(
        mesh,
        source,
        Origin.of(encoder),
        trained,
        frozen,
        owns_model,
        optimizer,
        step,
        batches,
        flops,
        file_hashes,
    )


def _file_hashes(context: InputContext) -> dict[str, str]:
    hashes: dict[str, str] = {}
    for each in active_inputs(context.config.losses):
        hashes |= each.file_hashes(context)
    return hashes


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
