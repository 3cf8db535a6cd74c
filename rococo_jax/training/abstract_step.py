"""A training step from shapes alone: lowered, to be compiled, without a parameter being made.

Any mesh of devices that JAX can name will do, the virtual ones of a laptop included, so that a run of thousands of
devices can be looked at before it is paid for.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.models import DualEncoder, ModelSpec
from rococo_jax.runtime import AXES
from rococo_jax.training.freezing import split_parameters
from rococo_jax.training.optimizer import make_optimizer
from rococo_jax.training.state import TrainState, sharding_of_tree
from rococo_jax.training.step import make_step


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
    batch = batch_shapes(config, spec, text_length)
    rows = NamedSharding(mesh, PartitionSpec(AXES))
    return step.lower(
        _placed(state, sharding_of_tree(state, mesh)),
        _placed(frozen, sharding_of_tree(frozen, mesh)),
        _placed(batch, jax.tree.map(lambda _: rows, batch)),
    )


def batch_shapes(config: ConfigDict, spec: ModelSpec, text_length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays of a global batch, as `data.training_batches` or (cached features) `training.features` make it."""
    rows, losses = config.batch_size, config.losses
    altered = losses.sc.count if losses.sc.weight else 0
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {"image_id": ((rows,), jnp.int32)}

    def texts(name: str, *more: int) -> None:
        shapes[f"{name}ids"] = (rows, *more, text_length), jnp.int32
        shapes[f"{name}text_mask"] = (rows, *more, text_length), jnp.bool_
        if name:
            shapes[f"{name}valid"] = (rows, *more), jnp.bool_

    if config.data.cached_features:
        shapes["image_features"] = (rows, spec.vision.features), jnp.float32
        shapes["text_features"] = (rows, spec.text.features), jnp.float32
        if altered:
            shapes["altered_features"] = (rows, altered, spec.text.features), jnp.float32
            shapes["altered_valid"] = (rows, altered), jnp.bool_
        if losses.vc.weight:
            shapes["mixed_features"] = (rows, 1, spec.vision.features), jnp.float32
            shapes["mixed_valid"] = (rows, 1), jnp.bool_
    else:
        pixels = (rows, spec.vision.image_size, spec.vision.image_size, 3), jnp.uint8
        shapes["pixels"] = pixels
        if losses.vc.weight and "squashed" in losses.vc.views:
            shapes["squashed"] = pixels
        texts("")
        if altered:
            texts("altered_", altered)
        if losses.hard_positives.weight:
            texts("positive_")
            texts("negative_", losses.hard_positives.count)
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in shapes.items()}


def _placed(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), tree, shardings
    )
