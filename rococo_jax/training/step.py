"""Training step: embed the batch, compute loss and gradients, update the parameters.

A step is a pure function of the state, the frozen parameters and the batch. `lower_step` needs shapes only, and accepts
any mesh that JAX can describe: a run on thousands of devices can be compiled on a laptop before it is started.

The total loss of a batch embeds what the active terms read, then adds the terms:

    L = sum over active terms of weight * value        a term without a weight counts once

The terms are `losses.terms.LossTerm`s; all values are means over the global batch. Each tower runs once, over all
images (or texts) of its rows. No row moves to another device here, and a micro-batch of rows can be embedded alone.
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
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from rococo_jax.checkpoints.parameters import build_model, parameters_of
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.losses import active_fields, active_terms
from rococo_jax.losses.terms import Embeddings, Field, FieldEmbeddings
from rococo_jax.models import DualEncoder, ModelSpec
from rococo_jax.models.attention import use_fused_attention
from rococo_jax.models.fsdp import gather_blocks_on_use, gather_parameters, partition_of_copies, partition_of_gathered
from rococo_jax.models.layers import set_remat
from rococo_jax.runtime import AXES
from rococo_jax.similarity import ShardedLogits
from rococo_jax.training.batch import COUNTS, Batch, Images, Texts, drop_patches, patches_per_image, pixel_shape
from rococo_jax.training.config_needs import cached_sides
from rococo_jax.training.freezing import join_parameters, set_gradient_stops, split_parameters
from rococo_jax.training.grad_cache import Parameters, divides_into_micro_batches, loss_and_gradients
from rococo_jax.training.inputs import active_makers, shapes_per_pair
from rococo_jax.training.optimizer import make_optimizer, make_schedule, moving_average
from rococo_jax.training.state import TrainState, sharding_of_tree

# Values of the terms before their weights, by name.
TermValues = Mapping[str, Float[Array, ""]]
# Unit vectors by name: "images", "texts" (b d), and each field (b *k d).
Vectors = dict[str, Array]
Metrics = Mapping[str, jax.Array]
Step = Callable[[TrainState, Mapping[str, jax.Array], Batch], tuple[TrainState, Metrics]]


def embed_batch(
    model: DualEncoder, preprocessing: Preprocessing | None, batch: Batch, fields: Sequence[Field]
) -> Vectors:
    """Compute unit vectors, float32, of the pairs (`images`, `texts`: b d) and of the fields by name (b *k d)."""
    images: dict[str, Images] = {"images": batch.images}
    texts: dict[str, Texts] = {"texts": batch.texts}
    for field in fields:
        side = images if field.tower == "vision" else texts
        side[field.name] = batch.fields[field.name]
    return {**_embed_images(model, preprocessing, images), **_embed_texts(model, texts)}


def _embed_images(model: DualEncoder, preprocessing: Preprocessing | None, images: Mapping[str, Images]) -> Vectors:
    if images["images"].features is not None:  # cached features of a frozen tower
        features, split = _concatenate_fields({name: each.features for name, each in images.items()}, item_ndim=2)
        return split(model.project_image(features))
    pixels, split = _concatenate_fields({name: each.pixels for name, each in images.items()}, item_ndim=4)
    patches = None
    if images["images"].patches is not None:
        patches, _ = _concatenate_fields({name: each.patches for name, each in images.items()}, item_ndim=2)
    return split(model.image_embeddings(preprocessing.normalise(pixels), patches))


def _embed_texts(model: DualEncoder, texts: Mapping[str, Texts]) -> Vectors:
    if texts["texts"].features is not None:  # cached features of a frozen tower
        features, split = _concatenate_fields({name: each.features for name, each in texts.items()}, item_ndim=2)
        return split(model.project_text(features))
    ids, split = _concatenate_fields({name: each.ids for name, each in texts.items()}, item_ndim=2)
    mask, _ = _concatenate_fields({name: each.mask for name, each in texts.items()}, item_ndim=2)
    return split(model.text_embeddings(ids, mask))


def _concatenate_fields(arrays: Mapping[str, Array], item_ndim: int) -> tuple[Array, Callable[[Array], Vectors]]:
    """Concatenate arrays of several fields into one list of items, pair by pair.

    An array has `item_ndim` axes if a pair has one item of the field, and one more, (pairs, k, ...), if it has k.

    Returns the items (pairs * all k, ...), and a function that splits their embeddings by field again.
    """
    with_item_axis = {name: array if array.ndim > item_ndim else array[:, None] for name, array in arrays.items()}
    concatenated = jnp.concatenate(list(with_item_axis.values()), axis=1)
    pairs, items_per_pair = concatenated.shape[:2]

    def split(vectors: Array) -> Vectors:
        vectors = vectors.reshape(pairs, items_per_pair, -1)
        by_field, start = {}, 0
        for name, array in with_item_axis.items():
            stop = start + array.shape[1]
            of_field = vectors[:, start:stop]
            has_one_item = arrays[name].ndim == item_ndim
            by_field[name] = of_field[:, 0] if has_one_item else of_field
            start = stop
        return by_field

    return concatenated.reshape(pairs * items_per_pair, *concatenated.shape[2:]), split


def total_loss(
    vectors: Vectors,
    scales: Mapping[str, Array],
    batch: Batch,
    losses: ConfigDict,
    logits: ShardedLogits,
) -> tuple[Float[Array, ""], TermValues]:
    """Compute the loss, and the values of its terms before their weights.

    Args:
        vectors: result of `embed_batch` for the global batch.
        scales: `logit_scale` as its logarithm, and `logit_bias` of models that have one.
        batch: source of the image ids and of the masks of the fields.
        losses: the section `losses` of the config.
        logits: mesh and block size of the pairwise logits.
    """
    embeddings = Embeddings(
        images=vectors["images"],
        texts=vectors["texts"],
        image_id=batch.image_id,
        logit_scale=jnp.exp(scales["logit_scale"]),
        logit_bias=scales.get("logit_bias"),
        fields={
            field.name: FieldEmbeddings(vectors[field.name], batch.valid[field.name]) for field in active_fields(losses)
        },
    )
    weighted_values, all_values = [], {}
    for term in active_terms(losses):
        settings = losses[term.name]
        value, values = term.function(embeddings, settings, logits)
        weighted_values.append(settings.weight * value if "weight" in term.keys else value)
        all_values |= values
    # Added in the order of `losses.TERMS`: a sum of floating-point numbers depends on the order.
    total = weighted_values[0]
    for value in weighted_values[1:]:
        total = total + value
    return total, all_values


def make_step(
    config: ConfigDict,
    spec: ModelSpec,
    preprocessing: Preprocessing | None,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
) -> Step:
    """Return the step as a jitted function. It donates its state: the state passed in cannot be used again.

    Raises InputError: the batch cannot be split over devices, micro-batches and groups of mixed images.
    """
    check_batch(config, mesh.size)
    patches_per_image(config, spec)  # raises for towers that cannot drop patches
    logits = ShardedLogits(mesh)
    schedule = make_schedule(config.optimizer, config.steps)
    fields = active_fields(config.losses)
    embed = make_embed(config, spec, preprocessing, mesh)

    def step(state: TrainState, frozen: Parameters, batch: Batch) -> tuple[TrainState, Metrics]:
        batch = add_on_device(batch, config, spec, state.step, mesh)
        # With FSDP, parameters outside the blocks are gathered here, once, and not again in every micro-batch.
        frozen = gather_parameters(frozen, mesh)
        value, terms, gradients = loss_and_gradients(
            lambda copies, rows: embed(copies, frozen, rows, fields),
            lambda vectors, scales: total_loss(vectors, scales, batch, config.losses, logits),
            state.parameters,
            batch.for_towers(fields),
            micro_batches=config.micro_batches,
            mesh=mesh,
            gradient_dtype=jnp.dtype(config.gradient_dtype),
        )
        updates, moments = optimizer.update(gradients, state.moments, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        average = state.average and moving_average(state.average, parameters, config.ema, state.step + 1)
        metrics = {
            "loss": value,
            **terms,
            "gradient_norm": optax.tree.norm(gradients),
            "parameter_norm": optax.tree.norm(parameters),
            "update_norm": optax.tree.norm(updates),
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
            "logit_scale": jnp.exp(parameters["logit_scale"]),
        }
        if batch.counts is not None:
            metrics[COUNTS] = jax.lax.with_sharding_constraint(
                batch.counts.sum(0), NamedSharding(mesh, PartitionSpec())
            )
        state = TrainState(state.step + 1, parameters, moments, average)
        # Explicit, so that the results have the shardings of a restored checkpoint.
        return jax.lax.with_sharding_constraint(state, sharding_of_tree(state, mesh)), metrics

    return jax.jit(step, donate_argnums=0)


def add_on_device(batch: Batch, config: ConfigDict, spec: ModelSpec, step: Int[Array, ""], mesh: Mesh) -> Batch:
    """Add the fields that are computed on the device, such as mixed images, and choose the patches to keep."""
    for maker in active_makers(config.losses):
        batch = maker.on_device(batch, config, step, mesh)
    return drop_patches(batch, config, spec, step, mesh)


def make_embed(
    config: ConfigDict, spec: ModelSpec, preprocessing: Preprocessing | None, mesh: Mesh
) -> Callable[[Parameters, Parameters, Batch, Sequence[Field]], Vectors]:
    """Return a function that embeds rows and fields of a batch, given copies of the trained and the frozen parameters.

    Every device embeds its own rows with its copy (`copy_parameters`), and no gradient leaves it.
    """

    def embed(copies: Parameters, frozen: Parameters, rows: Batch, fields: Sequence[Field]) -> Vectors:
        def on_device(copy: Parameters, frozen: Parameters, rows: Batch) -> Vectors:
            trained = {path: array.reshape(array.shape[1:]) for path, array in copy.items()}
            model = build_model(spec, join_parameters(trained, frozen), jnp.dtype(config.dtype))
            set_gradient_stops(model, config.train)
            gather_blocks_on_use(model, mesh, on_each_device=True)
            use_fused_attention(model, mesh, config.dtype)
            set_remat(model, config.remat, config.unroll)
            return embed_batch(model, preprocessing, rows, fields)

        partitions = (
            {path: partition_of_copies(path, array.shape[1:], mesh) for path, array in copies.items()},
            {path: partition_of_gathered(path, array.shape, mesh) for path, array in frozen.items()},
            PartitionSpec(AXES),
        )
        of_rows = PartitionSpec(AXES)
        embed_rows = jax.shard_map(on_device, mesh=mesh, in_specs=partitions, out_specs=of_rows, check_vma=False)
        return embed_rows(copies, frozen, rows)

    return embed


def check_batch(config: ConfigDict, devices: int) -> None:
    """Raise InputError unless the batch size and the number of devices can be divided as the config says."""
    size = config.batch_size
    if devices % config.fsdp:
        raise InputError("config", "fsdp", f"{config.fsdp} on {devices} devices", f"a divisor of {devices}")
    if size % devices:
        near = max(devices, size - size % devices)
        raise InputError("config", "batch_size", f"{size} on {devices} devices", f"a multiple of {devices}, as {near}")
    if not divides_into_micro_batches(size, config.micro_batches, devices):
        problem = f"{config.micro_batches} for {size} pairs on {devices} devices"
        raise InputError("config", "micro_batches", problem, f"a divisor of {size // devices}")
    for each in active_makers(config.losses):
        each.check_devices(config, devices)


def lower_step(
    config: ConfigDict, spec: ModelSpec, preprocessing: Preprocessing | None, mesh: Mesh, text_length: int
) -> jax.stages.Lowered:
    """Lower the step of `make_step` for a batch of the config's shapes; `.compile()` compiles it.

    Args:
        text_length: number of tokens to which every text is padded.

    Raises:
        InputError: see `make_step`.
    """
    parameters = jax.eval_shape(lambda: parameters_of(DualEncoder(spec, rngs=nnx.Rngs(0))))
    trained, frozen = jax.eval_shape(lambda every: split_parameters(every, spec, config.train), parameters)
    optimizer = make_optimizer(config.optimizer, config.steps, spec, trained)
    step = make_step(config, spec, preprocessing, optimizer, mesh)
    state = TrainState(
        jax.ShapeDtypeStruct((), jnp.int32),
        trained,
        jax.eval_shape(optimizer.init, trained),
        trained if config.ema else {},
    )
    batch = host_batch_shapes(config, spec, text_length, preprocessing)
    rows = NamedSharding(mesh, PartitionSpec(AXES))
    return step.lower(
        _with_shardings(state, sharding_of_tree(state, mesh)),
        _with_shardings(frozen, sharding_of_tree(frozen, mesh)),
        _with_shardings(batch, jax.tree.map(lambda _: rows, batch)),
    )


def host_batch_shapes(
    config: ConfigDict, spec: ModelSpec, text_length: int, preprocessing: Preprocessing | None = None
) -> Batch:
    """Return the shapes of a batch as `training.inputs` makes it on the host.

    Without `preprocessing`, images are squares of the tower's size.
    """
    cached = cached_sides(config)

    def zeros(item_shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.broadcast_to(np.zeros((), dtype), (config.batch_size, *item_shape))  # takes no memory

    def images(*items: int) -> Images:
        if "vision" in cached:
            return Images(features=zeros((*items, spec.vision.features), np.float32))
        return Images(zeros((*items, *pixel_shape(config, spec, preprocessing)), np.uint8))

    def texts(*items: int) -> Texts:
        if "text" in cached:
            return Texts(features=zeros((*items, spec.text.features), np.float32))
        return Texts(zeros((*items, text_length), np.int32), zeros((*items, text_length), np.bool_))

    batch = Batch(images(), texts(), zeros((), np.int32), {}, {})
    for field, items in shapes_per_pair(config).items():
        # Mixed images are made on the device, unless they are cached features.
        if cached or field.tower == "text":
            content = images(*items) if field.tower == "vision" else texts(*items)
            batch = batch.with_field(field, content, zeros(items, np.bool_))
    if not cached and any(each.resized_view(config) for each in active_makers(config.losses)):
        batch = dataclasses.replace(batch, images=dataclasses.replace(batch.images, resized=batch.images.pixels))
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), batch)


def _with_shardings(shapes: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings
    )
