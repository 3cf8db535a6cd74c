"""CLIP's ResNet tower: what it promises beyond parity (which tests/checkpoints/test_open_clip.py shows)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rococo_jax.checkpoints.parameters import build_model, parameter_shapes, parameters_of
from rococo_jax.models.resnet import Bottleneck
from tests.models.test_towers import RESNET, model_of
from tests.support.random_inputs import random_pixels

pytestmark = pytest.mark.quick


def test_batch_norm_statistics_are_stored_and_receive_no_gradient():
    statistics = {path for path in parameter_shapes(RESNET) if path.endswith((".mean", ".variance"))}
    # Three norms in the stem, four in the first block of each stage, three in the stack of the third stage.
    assert len(statistics) == 2 * (3 + 4 * 4 + 3)
    assert statistics < parameters_of(model_of(RESNET)).keys()
    graph, state = nnx.split(Bottleneck(6, 4, 16, first=True, average=True, dtype=jnp.float32, rngs=nnx.Rngs(0)))
    maps = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 6, 6)), jnp.float32)
    gradients = jax.jit(jax.grad(lambda state: jnp.square(nnx.merge(graph, state)(maps)).sum()))(state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(gradients)):
        assert (float(jnp.abs(leaf).max()) > 0) == (path[-1].key not in ("mean", "variance")), path


def test_positions_of_attention_pooling_are_interpolated_for_another_image_size():
    model = model_of(RESNET)
    vision = dataclasses.replace(RESNET.vision, image_size=96, position_grid=2)
    larger = build_model(dataclasses.replace(RESNET, vision=vision), parameters_of(model))
    cells = jax.ShapeDtypeStruct((1, 96, 96, 3), jnp.float32)
    assert nnx.eval_shape(lambda model, pixels: model.vision.tokens(pixels), larger, cells).shape == (1, 10, 256)
    with pytest.raises(ValueError, match="64 x 64 for a tower of 96 x 96"):
        larger.image_features(jnp.asarray(random_pixels(64, 1)))
