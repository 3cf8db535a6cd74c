"""CLIP's ResNet tower: what it promises beyond parity (which tests/checkpoints/test_open_clip.py shows)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rococo_jax.checkpoints.parameters import build_model, parameter_shapes, parameters_of
from rococo_jax.errors import InputError
from rococo_jax.models import HeadSpec, ModelSpec, ResNetSpec
from rococo_jax.models.resnet import Bottleneck
from tests.support.random_inputs import random_pixels
from tests.support.tiny import drawn_parameters

pytestmark = pytest.mark.quick
VISION = ResNetSpec(image_size=64, width=8, stage_layers=(1, 1, 3, 1), heads=4)
SPEC = ModelSpec(VISION, None, HeadSpec("linear", 16, bias=True))


@functools.lru_cache
def model_of(spec, dtype="float32"):
    return build_model(spec, drawn_parameters(spec), dtype)


def test_statistics_are_stored_but_no_gradient_reaches_them():
    statistics = {path for path in parameter_shapes(SPEC) if path.endswith((".mean", ".variance"))}
    # Three norms in the stem, four in the first block of each stage, three in the stack of the third stage.
    assert len(statistics) == 2 * (3 + 4 * 4 + 3)
    assert statistics < parameters_of(model_of(SPEC)).keys()
    graph, state = nnx.split(Bottleneck(6, 4, 16, first=True, average=True, dtype=jnp.float32, rngs=nnx.Rngs(0)))
    maps = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 6, 6)), jnp.float32)
    gradients = jax.jit(jax.grad(lambda state: jnp.square(nnx.merge(graph, state)(maps)).sum()))(state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(gradients)):
        assert (float(jnp.abs(leaf).max()) > 0) == (path[-1].key not in ("mean", "variance")), path


def test_bfloat16_compute_keeps_vectors_close():
    pixels = random_pixels(64)
    embed = nnx.jit(lambda model, pixels: model.image_embeddings(pixels))
    exact, fast = (np.asarray(embed(model_of(SPEC, dtype), pixels)) for dtype in ("float32", "bfloat16"))
    # bfloat16 keeps 8 bits: relative errors of 0.4 % an operation.
    assert (exact * fast).sum(1).min() > 0.995
    assert np.abs(exact - fast).max() > 1e-5


def test_another_image_size_interpolates_the_positions_of_the_pooling():
    model = model_of(SPEC)
    vision = dataclasses.replace(VISION, image_size=96, position_grid=2)
    larger = build_model(dataclasses.replace(SPEC, vision=vision), parameters_of(model))
    cells = jax.ShapeDtypeStruct((1, 96, 96, 3), jnp.float32)
    assert nnx.eval_shape(lambda model, pixels: model.vision.tokens(pixels), larger, cells).shape == (1, 10, 256)
    with pytest.raises(ValueError, match="64 x 64 for a tower of 96 x 96"):
        larger.image_features(jnp.asarray(random_pixels(64, 1)))


def test_a_spec_survives_json_beside_that_of_a_transformer():
    assert ModelSpec.from_json(SPEC.to_json()) == SPEC
    broken = SPEC.to_json()
    for value in ([1, 2, 3], [1, 2, 3, "4"], "1234", [0, 1, 1, 1]):
        broken["vision"]["stage_layers"] = value
        with pytest.raises(InputError, match="stage_layers"):
            ModelSpec.from_json(broken)
