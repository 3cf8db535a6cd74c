"""Test that gradients of towers of a narrow dtype are summed over rows and devices in float32.

The compiler for CPUs widens bfloat16 by itself, so these tests turn that off. tests/training/test_bfloat16_gradients.py
checks that no program of a whole step has another sum.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rococo_jax.checkpoints.parameters import build_model
from rococo_jax.models import HeadSpec, ModelSpec
from rococo_jax.models.products import add_to_rows, convolution, multiply_rows, product, repeat_on_rows
from rococo_jax.runtime import AXES, make_mesh
from tests.models.test_towers import BERT, VISION
from tests.support.random_inputs import random_pixels, random_texts
from tests.support.tiny import drawn_parameters

pytestmark = pytest.mark.quick
ROWS, HEAD = 16, HeadSpec("linear", 16)
STEM = dataclasses.replace(VISION, image_size=32, patch_size=16, stem_width=20, pooling="mean")
TOWERS = {
    "vit": (ModelSpec(VISION, None, HEAD), (random_pixels(30, ROWS),)),
    "stem": (ModelSpec(STEM, None, HEAD), (random_pixels(32, ROWS),)),
    "bert": (ModelSpec(None, BERT, text_head=HEAD), random_texts(11, 99, 98, count=ROWS)),
}


# On some processors (seen on an AMD EPYC, in tests alone) the convolution of the stem is rounded otherwise for a shard
# than for a whole batch, and gradients differ by up to 1e-4 of the largest element.
@pytest.mark.parametrize(
    "tower", ["vit", pytest.param("bert", marks=pytest.mark.slow), pytest.param("stem", marks=pytest.mark.thorough)]
)
def test_bfloat16_gradients_do_not_depend_on_the_number_of_devices(tower):
    """But for the order of float32 sums over rows: up to 5e-7 of the largest element here, where sums in bfloat16 give
    2e-2 to 9e-2. A row is rounded to bfloat16 at the same places, whatever the number of rows beside it.
    """
    spec, inputs = TOWERS[tower]
    weights = np.random.default_rng(1).normal(size=16).astype(np.float32)

    def loss(parameters, inputs):
        model = build_model(spec, parameters, "bfloat16")
        embed = model.text_embeddings if spec.vision is None else model.image_embeddings
        return (embed(*inputs) @ weights).mean()

    def gradients(devices: int):
        placed = functools.partial(NamedSharding, make_mesh(jax.devices()[:devices]))
        arguments = jax.device_put(
            (drawn_parameters(spec), inputs), (placed(PartitionSpec()), placed(PartitionSpec(AXES)))
        )
        # The compiler may leave out roundings where it fuses, and fuses a shard otherwise than a whole batch. So do the
        # kernels of YNNPACK: they leave out those inside of a fusion, such as that of logits before their softmax.
        exact = {"xla_allow_excess_precision": False, "xla_cpu_experimental_ynn_fusion_type": ""}
        return jax.device_get(jax.jit(jax.grad(loss), compiler_options=exact)(*arguments))

    expected = gradients(1)
    for path, gradient in gradients(8).items():
        scale = max(np.abs(expected[path]).max(), 1e-8)
        np.testing.assert_allclose(gradient, expected[path], rtol=0, atol=1e-5 * scale, err_msg=path)


@pytest.mark.parametrize("shape", [(3200, 8), (64, 50, 8)])
def test_gradients_that_sum_over_rows_are_summed_in_float32(shape):
    random = np.random.default_rng(0)
    rows, cotangent = (jnp.asarray(0.2 + random.normal(size=shape), jnp.bfloat16) for _ in range(2))
    wide, wide_cotangent = (np.asarray(array, np.float64).reshape(-1, 8) for array in (rows, cotangent))
    cases = {
        "add": (add_to_rows, (8,), wide_cotangent.sum(0)),
        "multiply": (multiply_rows, (8,), (wide * wide_cotangent).sum(0)),
        "product": (lambda x, kernel: product(x, kernel, x.dtype), (8, 8), wide.T @ wide_cotangent),
        "repeat": (
            lambda x, token: repeat_on_rows(token, len(x), x.dtype), shape[1:],
            wide_cotangent.reshape(shape).sum(0),
        ),
    }  # fmt: skip
    for name, (function, of_parameter, expected) in cases.items():
        parameter = jnp.asarray(random.normal(size=of_parameter), jnp.float32)
        _, pull = jax.vjp(functools.partial(function, rows), parameter)
        found = pull(cotangent)[0]
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize(
    "stride, groups", [(2, 4), *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((1, 1), (2, 1), (1, 4)))]
)
def test_a_bfloat16_convolution_matches_float32_on_rounded_inputs(stride, groups):
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(5, 9, 9, 4)), jnp.bfloat16)
    kernel = jnp.asarray(random.normal(size=(3, 3, 4 // groups, 8)), jnp.float32)
    options = {"stride": stride, "padding": ((1, 1), (0, 1)), "groups": groups}
    y, pull = jax.vjp(lambda x, kernel: convolution(x, kernel, jnp.bfloat16, **options), x, kernel)
    cotangent = jnp.asarray(random.normal(size=y.shape), jnp.bfloat16)
    rounded = kernel.astype(jnp.bfloat16).astype(jnp.float32)
    wide, pull_wide = jax.vjp(lambda x, kernel: convolution(x, kernel, jnp.float32, **options),
                              x.astype(jnp.float32), rounded)  # fmt: skip
    np.testing.assert_array_equal(y, wide.astype(jnp.bfloat16))
    (to_x, to_kernel), (wide_x, wide_kernel) = pull(cotangent), pull_wide(cotangent.astype(jnp.float32))
    np.testing.assert_allclose(to_kernel, wide_kernel, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(to_x.astype(jnp.float32), wide_x, rtol=2**-8, atol=1e-2)
    assert to_x.dtype == jnp.bfloat16
    assert to_kernel.dtype == jnp.float32
