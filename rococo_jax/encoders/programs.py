"""The compiled programs of an encoder: pure functions of the split module and rows, over the devices of a mesh."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders.device_steps import on_active_devices
from rococo_jax.encoders.inputs import pad_rows
from rococo_jax.models.fsdp import merge_gathered
from rococo_jax.models.products import float32_products
from rococo_jax.runtime import AXES

_PROJECTED_ROWS = 256


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def image_features(mesh, graph, preprocessing: Preprocessing | None, products, state, active, images) -> jax.Array:
    """Pooled features of the image tower. Static: mesh, graph, preprocessing and precision of float32 products."""

    def encode(state, images) -> jax.Array:
        with float32_products(products):
            return merge_gathered(graph, state).image_features(_normalised(images, preprocessing))

    return on_active_devices(mesh, encode, state, active, images)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def image_tokens(mesh, graph, preprocessing: Preprocessing | None, products, state, active, images) -> jax.Array:
    """What the image tower gives before pooling."""

    def encode(state, images) -> jax.Array:
        with float32_products(products):
            return merge_gathered(graph, state).vision.tokens(_normalised(images, preprocessing))

    return on_active_devices(mesh, encode, state, active, images)


def _normalised(images: jax.Array, preprocessing: Preprocessing | None) -> jax.Array:
    return preprocessing.normalise(images) if images.dtype == jnp.uint8 else images.astype(jnp.float32)


@partial(jax.jit, static_argnums=(0, 1, 2))
def text_features(mesh, graph, products, state, active, ids, mask) -> jax.Array:
    """Pooled features of the text tower."""

    def encode(state, ids, mask) -> jax.Array:
        with float32_products(products):
            return merge_gathered(graph, state).text_features(ids, mask)

    return on_active_devices(mesh, encode, state, active, ids, mask)


@partial(jax.jit, static_argnums=(0, 1))
def projected(graph, method: str, state, features) -> jax.Array:
    """Unit vectors from features, by a method of the module."""
    model = merge_gathered(graph, state)
    vectors = getattr(model, method)(features)
    if model.sharded_over is None:
        return vectors
    return jax.lax.with_sharding_constraint(vectors, NamedSharding(model.sharded_over, PartitionSpec()))


def project(mesh: Mesh, graph, state, method: str, features: np.ndarray) -> np.ndarray:
    """`projected` of any number of rows, in units of a fixed number for each device."""
    rows, sharding = _PROJECTED_ROWS * mesh.size, NamedSharding(mesh, PartitionSpec(AXES))
    outputs = []
    for start in range(0, len(features), rows):
        part = features[start : start + rows]
        padded = pad_rows(part, rows)
        placed = jax.make_array_from_callback(padded.shape, sharding, padded.__getitem__)
        outputs.append(np.asarray(projected(graph, method, state, placed))[: len(part)])
    return np.concatenate(outputs)
