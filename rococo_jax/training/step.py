"""One step: embed, loss, gradients, update. A pure function of the state, the frozen parameters and the batch.

`lower_step` lowers a step from shapes alone, on any mesh that JAX can name: a run of thousands of devices can be
compiled on a laptop before it is started.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int
from ml_collections import ConfigDict

from rococo_jax.checkpoints.parameters import build_model, parameters_of
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.losses import active_fields
from rococo_jax.losses.terms import Field
from rococo_jax.models import DualEncoder, ModelSpec
from rococo_jax.models.attention import use_fused_attention
from rococo_jax.models.fsdp import gather_blocks_on_use, gather_parameters
from rococo_jax.runtime import AXES
from rococo_jax.similarity import ShardedLogits
from rococo_jax.training.batch import Batch, Images, Texts, drop_patches, patches_per_image, pixel_shape
from rococo_jax.training.freezing import cached_sides, join_parameters, set_gradient_stops, split_parameters
from rococo_jax.training.grad_cache import Parameters, divides_into_micro_batches, loss_and_gradients
from rococo_jax.training.inputs import active_inputs, items_per_pair
from rococo_jax.training.objective import Vectors, embed_batch, total_loss
from rococo_jax.training.optimizer import make_optimizer, make_schedule, moving_average
from rococo_jax.training.state import TrainState, sharding_of_tree

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

    Raises InputError: the batch cannot be split over the devices, its parts, or the groups of mixed images.
    """
    check_batch(config, mesh.size)
    patches_per_image(config, spec)  # refuses towers that read whole images
    logits, schedule = ShardedLogits(mesh), make_schedule(config.optimizer, config.steps)
    fields, embed = active_fields(config.losses), make_embed(config, spec, preprocessing, mesh)

    def step(state: TrainState, frozen: Parameters, batch: Batch) -> tuple[TrainState, Metrics]:
        batch = add_on_device(batch, config, spec, state.step, mesh)
        value, terms, gradients = loss_and_gradients(
            lambda trained, rows: embed(trained, frozen, rows, fields),
            lambda vectors, scales: total_loss(vectors, scales, batch, config.losses, logits),
            state.parameters,
            batch.for_towers(fields),
            micro_batches=config.micro_batches,
            mesh=mesh,
        )
        updates, moments = optimizer.update(gradients, state.moments, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        average = state.average and moving_average(state.average, parameters, config.ema, state.step + 1)
        metrics = {
            "loss": value,
            **terms,
            "gradient_norm": optax.tree.norm(gradients),
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
            "logit_scale": jnp.exp(parameters["logit_scale"]),
        }
        state = TrainState(state.step + 1, parameters, moments, average)
        # Explicit, so that every parameter stays where a checkpoint is restored to.
        return jax.lax.with_sharding_constraint(state, sharding_of_tree(state, mesh)), metrics

    return jax.jit(step, donate_argnums=0)


def add_on_device(batch: Batch, config: ConfigDict, spec: ModelSpec, step: Int[Array, ""], mesh: Mesh) -> Batch:
    """The batch with the fields that the device makes, and the patches that the tower sees of every image."""
    for each in active_inputs(config.losses):
        batch = each.on_device(batch, config, step, mesh)
    return drop_patches(batch, config, spec, step, mesh)


def make_embed(
    config: ConfigDict, spec: ModelSpec, preprocessing: Preprocessing | None, mesh: Mesh
) -> Callable[[Parameters, Parameters, Batch, Sequence[Field]], Vectors]:
    """Embed rows and fields of a batch with the towers, from trained and frozen parameters."""

    def embed(trained: Parameters, frozen: Parameters, rows: Batch, fields: Sequence[Field]) -> Vectors:
        parameters = gather_parameters(join_parameters(trained, frozen), mesh)
        model = build_model(spec, parameters, jnp.dtype(config.dtype))
        set_gradient_stops(model, config.train)
        gather_blocks_on_use(model, mesh)
        use_fused_attention(model, mesh, config.dtype)
        for stack in model.stacks.values():
            stack.remat = config.remat
        return embed_batch(model, preprocessing, rows, fields)

    return embed


def check_batch(config: ConfigDict, devices: int) -> None:
    """Raises InputError unless `batch_size` splits over devices, parts and groups, and the devices over `fsdp`."""
    size = config.batch_size
    if devices % config.fsdp:
        raise InputError("config", "fsdp", f"{config.fsdp} on {devices} devices", f"a divisor of {devices}")
    if size % devices:
        near = max(devices, size - size % devices)
        raise InputError("config", "batch_size", f"{size} on {devices} devices", f"a multiple of {devices}, as {near}")
    if not divides_into_micro_batches(size, config.micro_batches, devices):
        found = f"{config.micro_batches} parts of {size} images on {devices} devices"
        raise InputError("config", "micro_batches", found, f"a divisor of {size // devices}")
    for each in active_inputs(config.losses):
        each.check_devices(config, devices)


def lower_step(
    config: ConfigDict, spec: ModelSpec, preprocessing: Preprocessing | None, mesh: Mesh, text_length: int
) -> jax.stages.Lowered:
    """The step that `make_step` makes, lowered for a batch of the config's shapes; `.compile()` compiles it.

    Args:
        text_length: tokens that every text is padded to.

    Raises:
        InputError: as `make_step`.
    """
    parameters = jax.eval_shape(lambda: parameters_of(DualEncoder(spec, rngs=nnx.Rngs(0))))
    trained, frozen = jax.eval_shape(lambda every: split_parameters(every, spec, config.train), parameters)
    optimizer = make_optimizer(config.optimizer, config.steps, spec, trained)
    step = make_step(config, spec, preprocessing, optimizer, mesh)
    average = trained if config.ema else {}
    moments = jax.eval_shape(optimizer.init, trained)
    state = TrainState(jax.ShapeDtypeStruct((), jnp.int32), trained, moments, average)
    batch = batch_shapes(config, spec, text_length, preprocessing)
    rows = NamedSharding(mesh, PartitionSpec(AXES))
    return step.lower(
        _placed(state, sharding_of_tree(state, mesh)),
        _placed(frozen, sharding_of_tree(frozen, mesh)),
        _placed(batch, jax.tree.map(lambda _: rows, batch)),
    )


def batch_shapes(
    config: ConfigDict,
    spec: ModelSpec,
    text_length: int,
    preprocessing: Preprocessing | None = None,
    *,
    for_towers: bool = False,
) -> Batch:
    """The shapes of a batch, as `training.inputs` makes it.

    Args:
        preprocessing: of the model; without it images are squares of the tower's size.
        for_towers: with what the step makes on the device, too.
    """
    cached = cached_sides(config)
    kept = patches_per_image(config, spec) if for_towers else None

    def array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.broadcast_to(np.zeros((), dtype), (config.batch_size, *shape))  # takes no memory

    def images(*items: int) -> Images:
        if "vision" in cached:
            return Images(features=array((*items, spec.vision.features), np.float32))
        patches = None if kept is None else array((*items, kept), np.int32)
        return Images(array((*items, *pixel_shape(config, spec, preprocessing)), np.uint8), patches=patches)

    def texts(*items: int) -> Texts:
        if "text" in cached:
            return Texts(features=array((*items, spec.text.features), np.float32))
        shape = (*items, text_length)
        return Texts(array(shape, np.int32), array(shape, np.bool_))

    batch = Batch(images(), texts(), array((), np.int32), {}, {})
    if not cached and any(each.resized_view(config) for each in active_inputs(config.losses)):
        batch = dataclasses.replace(batch, images=Images(images().pixels, resized=images().pixels))
    for field, items in items_per_pair(config).items():
        if cached or for_towers or field.tower == "text":  # images are mixed in the step
            made = images(*items) if field.tower == "vision" else texts(*items)
            batch = batch.with_field(field, made, array(items, np.bool_))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batch)


def _placed(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), tree, shardings
    )
