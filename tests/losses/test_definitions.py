"""The losses handle masks, small values, precision and shardings as documented."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rococo_jax import losses
from rococo_jax.errors import InputError
from rococo_jax.similarity import ShardedLogits

pytestmark = pytest.mark.quick  # the definitions hold however the programs are compiled
SCALE = jnp.float32(10)


def unit_vectors(seed, *shape):
    vectors = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), jnp.float32)


@pytest.mark.parametrize("name", ["semantic_contrastive", "visual_contrastive", "blind_preference"])
def test_a_masked_embedding_changes_neither_loss_nor_gradient(name):
    """Masked embeddings are NaN, which multiplication by 0 would not remove."""
    counted = jnp.arange(10).reshape(5, 2) % 3 > 0
    inputs = (unit_vectors(0, 5, 6), unit_vectors(1, 5, 6), unit_vectors(2, 5, 2, 6))
    mask = {"mixed_mask" if name == "visual_contrastive" else "altered_mask": counted}
    function = jax.value_and_grad(lambda inputs: getattr(losses, name)(*inputs, logit_scale=SCALE, **mask))
    value, gradients = function(inputs)
    filled = (*inputs[:2], jnp.where(counted[..., None], inputs[2], jnp.nan))
    filled_value, filled_gradients = function(filled)
    np.testing.assert_array_equal(filled_value, value)
    for found, right in zip(filled_gradients, gradients, strict=True):
        np.testing.assert_array_equal(found, right)
    assert value > 0 and (np.asarray(gradients[2])[~np.asarray(counted)] == 0).all()


@pytest.mark.parametrize("name", ["hard_negative", "semantic_contrastive", "blind_preference"])
def test_a_mask_of_true_changes_nothing(name):
    inputs = (unit_vectors(0, 5, 6), unit_vectors(1, 5, 6), unit_vectors(2, 5, 2, 6))
    mask = {"negative_mask" if name == "hard_negative" else "altered_mask": jnp.ones((5, 2), bool)}
    without, masked = (getattr(losses, name)(*inputs, logit_scale=SCALE, **more) for more in ({}, mask))
    np.testing.assert_allclose(masked, without, rtol=1e-6)


def test_a_batch_without_negatives_has_loss_and_gradient_0():
    images, texts = unit_vectors(0, 3, 4), unit_vectors(1, 3, 4)

    def loss(images):
        return losses.softmax_contrastive(images, texts, logit_scale=SCALE, ids=jnp.zeros(3, jnp.int32))

    value, gradient = jax.value_and_grad(loss)(images)
    assert value == 0 and (np.asarray(gradient) == 0).all()


def test_a_loss_near_zero_keeps_all_its_digits():
    """At 1e-9 the logarithm of a float32 sum near 1 is 0; ours is log(1 + 3 e^-20) within two float32 roundings."""
    loss = losses.softmax_contrastive(jnp.eye(4), jnp.eye(4), logit_scale=jnp.float32(20))
    np.testing.assert_allclose(loss, np.log1p(3 * np.exp(-20)), rtol=1e-6)
    altered = losses.semantic_contrastive(jnp.eye(4), jnp.eye(4), -jnp.eye(4)[:, None], logit_scale=jnp.float32(10))
    np.testing.assert_allclose(altered, np.log1p(3 * np.exp(-10) + np.exp(-20)), rtol=1e-6)


def test_bfloat16_embeddings_are_summed_in_float32_and_get_bfloat16_gradients():
    images, texts = unit_vectors(0, 6, 8).astype(jnp.bfloat16), unit_vectors(1, 6, 8).astype(jnp.bfloat16)
    function = jax.value_and_grad(lambda images, texts: losses.softmax_contrastive(images, texts, logit_scale=SCALE))
    value, gradient = function(images, texts)
    exact, exact_gradient = function(images.astype(jnp.float32), texts.astype(jnp.float32))
    assert value.dtype == jnp.float32 and value == exact
    assert gradient.dtype == jnp.bfloat16 and (gradient == exact_gradient.astype(jnp.bfloat16)).all()


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_sharded_embeddings_give_a_sharded_gradient_under_an_outer_jit(axis_type):
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "fsdp"), axis_types=(axis_type,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    pairs = unit_vectors(0, 16, 8), unit_vectors(1, 16, 8), unit_vectors(2, 16, 3, 8)
    arguments = {"ids": jnp.arange(16) // 2, "altered_mask": unit_vectors(3, 16, 3) > -0.5}

    def loss(embeddings, arguments, logits):
        images, texts, altered = embeddings
        altered_mask = arguments["altered_mask"]
        everywhere = {"logit_scale": SCALE, "logits": logits}
        return (
            losses.softmax_contrastive(
                images, texts, negative_texts=altered, negative_mask=altered_mask, ids=arguments["ids"], **everywhere
            )
            + losses.semantic_contrastive(images, texts, altered, altered_mask=altered_mask, **everywhere)
            + losses.visual_contrastive(images, texts, altered, mixed_mask=altered_mask, scope="local", **everywhere)
        )

    function = jax.value_and_grad(lambda logits, *rest: loss(*rest, logits), argnums=1)
    value, gradients = jax.jit(function, static_argnums=0)(ShardedLogits(), pairs, arguments)
    with jax.set_mesh(mesh):
        sharded = jax.device_put((pairs, arguments), sharding)
        sharded_value, sharded_gradients = jax.jit(function, static_argnums=0)(ShardedLogits(mesh), *sharded)
    np.testing.assert_allclose(sharded_value, value, rtol=2e-6)
    for found, right in zip(sharded_gradients, gradients, strict=True):
        assert found.sharding.is_equivalent_to(sharding, found.ndim)
        assert np.abs(np.asarray(found) - np.asarray(right)).max() < 2e-6 * np.abs(np.asarray(right)).max()


def test_an_unknown_scope_is_refused():
    embeddings = jnp.eye(2)
    with pytest.raises(InputError, match="loss: scope: found 'all'; wanted 'local' or 'global'"):
        losses.semantic_contrastive(embeddings, embeddings, embeddings[:, None], logit_scale=SCALE, scope="all")
