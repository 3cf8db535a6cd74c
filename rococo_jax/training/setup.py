"""Set up a run: open the data, load the model, build the step; and share these between the runs of a sweep.

A sweep trains many times from one model on one data set. Decoding images, altering captions and running the towers
takes longer than a short run on their features, so `RunCache` does it once for all runs with the same settings.
"""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.checkpoints.parameters import checkpoint_of, parameters_of
from rococo_jax.data.pair_source import PairSource
from rococo_jax.encoders import Encoder
from rococo_jax.models.fsdp import place_parameters
from rococo_jax.processes import barrier, broadcast_from_process_0, on_any_process
from rococo_jax.runtime import make_mesh, rows_of
from rococo_jax.storage import hash_json
from rococo_jax.training.config import flat, keys_of_features
from rococo_jax.training.freezing import split_parameters
from rococo_jax.training.init import starting_encoder
from rococo_jax.training.inputs import active_makers
from rococo_jax.training.inputs.batches import make_batches, open_source, text_length
from rococo_jax.training.inputs.feature_pool import Features
from rococo_jax.training.inputs.field_maker import FieldContext
from rococo_jax.training.optimizer import make_optimizer
from rococo_jax.training.program import step_flops
from rococo_jax.training.state import TrainingCheckpoints, TrainState, make_state, state_shapes
from rococo_jax.training.step import check_batch, make_step


class RunCache:
    """Cache of the latest data and starting model, and of a few sets of features.

    Args:
        features: number of sets of features to keep.
    """

    def __init__(self, features: int = 4):
        self._cache: dict[str, dict[Hashable, Any]] = {}
        self._capacity = {"features": features}

    def source(self, data: ConfigDict) -> PairSource:
        """Cached `open_source`."""
        return self._get("source", (data.images, data.captions, data.split), lambda: open_source(data))

    def encoder(self, config: ConfigDict, mesh: Mesh) -> Encoder:
        """Cached `starting_encoder`."""
        # New parameters, of a whole model or of residual heads, are drawn with the seed of the run.
        keys = {key: value for key, value in flat(config).items() if key.startswith(("init", "dtype", "seed"))}
        keys["kind"] = config.losses.contrastive.kind
        return self._get("encoder", (hash_json(keys), mesh), lambda: starting_encoder(config, mesh))

    def features(self, config: ConfigDict, make: Callable[[], Features]) -> Features:
        """Return the result of `make`, or the cached result for a config with the same features."""
        keys = keys_of_features(config)
        if config.init.model:
            # Only new towers depend on the seed; pools are the same for all seeds.
            del keys["seed"]
        return self._get("features", hash_json(keys), make)

    def _get(self, kind: str, key: Hashable, make: Callable[[], Any]) -> Any:
        entries = self._cache.setdefault(kind, {})
        if key in entries:
            value = entries.pop(key)
        else:
            # Drop the least recently used entry before making the next one, to save memory.
            while len(entries) >= self._capacity.get(kind, 1):
                del entries[next(iter(entries))]
            value = make()
        entries[key] = value  # the most recently used entry is the last one
        return value


class Setup:
    """Data, model and step of a run.

    Args:
        config: config of the run.
        folder: stores what is computed before the first step.
        mesh: the devices; all of them by default.
        run_cache: starting models, data and features of earlier runs of this process.

    Attributes:
        origin: the starting model without its parameters; the run adds its own training images.
        trained: initial values of the trained parameters; emptied once the state holds them.
        frozen: the other parameters.
        flops: FLOPs of a step on one device.
        file_hashes: hashes of the contents of the files that losses read, by name.
    """

    def __init__(self, config: ConfigDict, folder: Path, mesh: Mesh | None, run_cache: RunCache | None):
        check_batch(config, jax.device_count() if mesh is None else mesh.size)
        self.mesh = mesh = make_mesh(fsdp=config.fsdp) if mesh is None else mesh
        # Whether the state may reuse the buffers of `trained`, since no later run of this process starts from them.
        self._donate_parameters = run_cache is None
        self._is_averaged = config.ema > 0
        run_cache = RunCache() if run_cache is None else run_cache
        self.source = run_cache.source(config.data)
        encoder = run_cache.encoder(config, mesh)
        self.origin = checkpoint_of(encoder)._replace(parameters={})
        spec, tokens = encoder.spec, text_length(config.data.text_length, encoder)
        self.trained, frozen = split_parameters(parameters_of(encoder.model), spec, config.train)
        self.optimizer = make_optimizer(config.optimizer, config.steps, spec, self.trained)
        self.step = make_step(config, spec, encoder.preprocessing, self.optimizer, mesh)
        context = FieldContext(config, _local_encoder(config, encoder, folder), self.source, folder)
        self.batches = make_batches(context, run_cache.features, rows_of(mesh.local_devices, mesh, config.batch_size))
        barrier("the starting state")
        self.frozen = place_parameters(frozen, mesh)
        self.flops = step_flops(config, spec, tokens, encoder.preprocessing) / mesh.size
        self.file_hashes = broadcast_from_process_0("files of the losses", lambda: _file_hashes(context))

    def identity(self, images: str) -> dict[str, Any]:
        """Return what decides the result of the run besides its config, as JSON values.

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

    def begin_or_resume(self, checkpoints: TrainingCheckpoints) -> TrainState:
        """Restore the latest checkpoint and move the input to its step; without one, make the initial state."""
        latest = checkpoints.latest()
        if latest:
            like = state_shapes(self.trained, self.optimizer, self.mesh, averaged=self._is_averaged)
            self.trained.clear()
            state, input_state = checkpoints.restore(latest, like)
            self.batches.set_state(input_state)
            return state
        options = {"averaged": self._is_averaged, "donate": self._donate_parameters}
        state = make_state(self.trained, self.optimizer, self.mesh, **options)
        self.trained.clear()
        return state


def _file_hashes(context: FieldContext) -> dict[str, str]:
    """Return the hashes of the files from which the fields of active losses are made, by name."""
    hashes: dict[str, str] = {}
    for maker in active_makers(context.config.losses):
        hashes |= maker.file_hashes(context)
    return hashes


def _local_encoder(config: ConfigDict, encoder: Encoder, folder: Path) -> Encoder:
    """Return an encoder with complete parameters on this process's devices, to compute influence and features.

    It is `encoder` itself if nothing has to be computed, or if that has complete parameters on this process.
    """
    is_single_process = jax.process_count() == 1
    if is_single_process and encoder.mesh.shape["fsdp"] == 1:
        return encoder
    needs_encoder = config.data.cached_features or any(
        maker.needs_encoder(config, folder) for maker in active_makers(config.losses)
    )
    # Either all processes load the model, or none does.
    if not on_any_process(needs_encoder):
        return encoder
    devices = list(encoder.mesh.devices.flat) if is_single_process else jax.local_devices()
    return starting_encoder(config, make_mesh(devices))
