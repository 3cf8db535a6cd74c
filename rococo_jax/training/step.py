"""One step: embed, loss, gradients, update. A pure function of the state, the frozen parameters and the batch."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.checkpoints.parameters import build_model
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec
from rococo_jax.similarity import ShardedLogits
from rococo_jax.training.forward import Batch, Embedded, embed_batch
from rococo_jax.training.freezing import SIDES, join_parameters, stop_at_frozen
from rococo_jax.training.fsdp import make_blocks_whole, make_whole
from rococo_jax.training.grad_cache import Parameters, check_parts, loss_and_gradients
from rococo_jax.training.objective import loss_of
from rococo_jax.training.optimizer import clamp_logit_scale, make_schedule, moving_average
from rococo_jax.training.state import TrainState, sharding_of_tree
from rococo_jax.training.visual_negatives import check_groups, step_key, with_mixed

Metrics = Mapping[str, jax.Array]
Step = Callable[[TrainState, Mapping[str, jax.Array], Batch], tuple[TrainState, Metrics]]


def make_step(
    config: ConfigDict,
    spec: ModelSpec,
    preprocessing: Preprocessing | None,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
) -> Step:
    """The step as a jitted function; the state that goes in is used up.

    Raises:
        InputError: the batch cannot be split over the devices, its parts, or the groups of mixed images.
    """
    check_batch(config, mesh.size)
    tile_rows = config.similarities.tile_rows or None
    similarities = ShardedLogits(mesh, config.similarities.route, tile_rows)
    schedule = make_schedule(config.optimizer, config.steps)

    def step(state: TrainState, frozen: Mapping[str, jax.Array], batch: Batch) -> tuple[TrainState, Metrics]:
        def embed(trained: Parameters, rows: Batch) -> Embedded:
            parameters = make_whole(join_parameters(trained, frozen), mesh)
            model = build_model(spec, parameters, jnp.dtype(config.dtype))
            stop_at_frozen(model, config.train)
            make_blocks_whole(model, mesh)
            for side in SIDES:
                if hasattr(getattr(model, side), "blocks"):
                    getattr(model, side).blocks.rematerialise = config.remat
            return embed_batch(model, preprocessing, rows)

        if config.losses.vc.weight and "pixels" in batch:
            batch = with_mixed(batch, step_key(config.seed, state.step), config.losses.vc, mesh)

        def loss(embedded: Embedded, scales: Parameters, batch: Batch):
            return loss_of(embedded, scales, batch, config.losses, similarities)

        value, parts, gradients = loss_and_gradients(
            embed, loss, state.parameters, batch, parts=config.micro_batches, mesh=mesh
        )
        updates, moments = optimizer.update(gradients, state.moments, state.parameters)
        parameters = clamp_logit_scale(optax.apply_updates(state.parameters, updates))
        average = moving_average(state.average, parameters, config.ema) if state.average else {}
        metrics = {
            "loss": value,
            **parts,
            "gradient_norm": optax.global_norm(gradients),
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
            "logit_scale": jnp.exp(parameters["logit_scale"]),
        }
        return TrainState(state.step + 1, parameters, moments, average), metrics

    def placed(state: TrainState, frozen: Mapping[str, jax.Array], batch: Batch) -> tuple[TrainState, Metrics]:
        state, metrics = step(state, frozen, batch)
        # Said explicitly, so that a parameter never wanders from where a checkpoint looks for it.
        return jax.lax.with_sharding_constraint(state, sharding_of_tree(state, mesh)), metrics

    return jax.jit(placed, donate_argnums=0)


def check_batch(config: ConfigDict, devices: int) -> None:
    """Raises InputError unless `batch_size` splits over devices, parts and groups."""
    size = config.batch_size
    if size % devices:
        near = max(devices, size - size % devices)
        raise InputError("config", "batch_size", f"{size} on {devices} devices", f"a multiple of {devices}, as {near}")
    if not check_parts(size, config.micro_batches, devices):
        found = f"{config.micro_batches} parts of {size} images on {devices} devices"
        raise InputError("config", "micro_batches", found, f"a divisor of {size // devices}")
    if config.losses.vc.weight and not config.data.cached_features:
        check_groups(config, devices)
