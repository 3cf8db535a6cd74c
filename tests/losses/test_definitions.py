"""The losses handle masks, small values, precision and shardings as documented."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from rococo_jax import losses
from rococo_jax.losses import Embeddings, FieldEmbeddings
from rococo_jax.similarity import ShardedLogits
from tests.support.cases import further

pytestmark = pytest.mark.quick  # the definitions hold however the programs are compiled
SCALE = jnp.float32(10)
GLOBAL, LOCAL = ConfigDict({"scope": "global"}), ConfigDict({"scope": "local"})


def unit_vectors(seed, *shape):
    vectors = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), jnp.float32)


def pairs(images, texts, scale=SCALE, ids=None, **fields) -> Embeddings:
    """Return the input of the losses; without `ids` the pairs have different images."""
    ids = jnp.arange(len(images)) if ids is None else ids
    return Embeddings(images, texts, ids, scale, fields={name: FieldEmbeddings(*each) for name, each in fields.items()})


@pytest.mark.parametrize(
    "name", further(["semantic_contrastive", "visual_contrastive", "blind_preference"], ["semantic_contrastive"])
)
def test_a_masked_embedding_changes_neither_the_loss_nor_the_gradients(name):
    """Masked embeddings are NaN, which multiplication by 0 would not remove."""
    counted = jnp.arange(10).reshape(5, 2) % 3 > 0
    inputs = (unit_vectors(0, 5, 6), unit_vectors(1, 5, 6), unit_vectors(2, 5, 2, 6))

    def loss(inputs):
        images, texts, extra = inputs
        return getattr(losses, name)(pairs(images, texts, altered=(extra, counted), mixed=(extra, counted)), GLOBAL)[0]

    function = jax.value_and_grad(loss)
    value, gradients = function(inputs)
    filled = (*inputs[:2], jnp.where(counted[..., None], inputs[2], jnp.nan))
    filled_value, filled_gradients = function(filled)
    np.testing.assert_array_equal(filled_value, value)
    for found, right in zip(filled_gradients, gradients, strict=True):
        np.testing.assert_array_equal(found, right)
    assert value > 0 and (np.asarray(gradients[2])[~np.asarray(counted)] == 0).all()


def test_a_batch_without_negatives_has_zero_loss_and_zero_gradient():
    images, texts = unit_vectors(0, 3, 4), unit_vectors(1, 3, 4)

    def loss(images):
        return losses.softmax_contrastive(pairs(images, texts, ids=jnp.zeros(3, jnp.int32)))

    value, gradient = jax.value_and_grad(loss)(images)
    assert value == 0 and (np.asarray(gradient) == 0).all()


def test_a_loss_near_zero_keeps_all_its_digits():
    """At 1e-9 the logarithm of a float32 sum near 1 is 0; ours is log(1 + 3 e^-20) within two float32 roundings."""
    loss = losses.softmax_contrastive(pairs(jnp.eye(4), jnp.eye(4), jnp.float32(20)))
    np.testing.assert_allclose(loss, np.log1p(3 * np.exp(-20)), rtol=1e-6)
    altered = -jnp.eye(4)[:, None], jnp.ones((4, 1), bool)
    loss, _ = losses.semantic_contrastive(pairs(jnp.eye(4), jnp.eye(4), altered=altered), GLOBAL)
    np.testing.assert_allclose(loss, np.log1p(3 * np.exp(-10) + np.exp(-20)), rtol=1e-6)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_sharded_embeddings_give_a_sharded_gradient_under_an_outer_jit(axis_type):
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "fsdp"), axis_types=(axis_type,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    sides = unit_vectors(0, 16, 8), unit_vectors(1, 16, 8), unit_vectors(2, 16, 3, 8)
    arguments = {"ids": jnp.arange(16) // 2, "mask": unit_vectors(3, 16, 3) > -0.5}

    def loss(sides, arguments, logits):
        images, texts, extra = sides
        field = (extra, arguments["mask"])
        batch = pairs(images, texts, ids=arguments["ids"], altered=field, mixed=field)
        return (
            losses.softmax_contrastive(batch, logits, batch.fields["altered"])
            + losses.semantic_contrastive(batch, GLOBAL, logits)[0]
            + losses.visual_contrastive(batch, LOCAL, logits)[0]
        )

    function = jax.value_and_grad(lambda logits, *rest: loss(*rest, logits), argnums=1)
    value, gradients = jax.jit(function, static_argnums=0)(ShardedLogits(), sides, arguments)
    with jax.set_mesh(mesh):
        sharded = jax.device_put((sides, arguments), sharding)
        sharded_value, sharded_gradients = jax.jit(function, static_argnums=0)(ShardedLogits(mesh), *sharded)
    np.testing.assert_allclose(sharded_value, value, rtol=2e-6)
    for found, right in zip(sharded_gradients, gradients, strict=True):
        assert found.sharding.is_equivalent_to(sharding, found.ndim)
        assert np.abs(np.asarray(found) - np.asarray(right)).max() < 2e-6 * np.abs(np.asarray(right)).max()
