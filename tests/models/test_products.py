"""Gradients of parameters of narrow towers: every sum over rows, and so over devices, is taken in float32.

A CPU's compiler widens bfloat16 by itself, so these tests read the program before a compiler has it, or turn off what
the compiler may widen. The number of rows is a prime that no other size of these towers is a multiple of.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rococo_jax.checkpoints.parameters import build_model, parameter_shapes
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec
from rococo_jax.models.products import add_to_rows, convolution, multiply_rows, product, repeat_on_rows
from rococo_jax.models.spec import ConvNextSpec, EfficientNetSpec, MbConvSpec, ResNetSpec
from rococo_jax.runtime import AXES, make_mesh
from tests.support.random_inputs import random_texts
from tests.support.tiny import drawn_parameters

pytestmark = pytest.mark.quick
ROWS = 29
VIT = VisionSpec(
    image_size=32, patch_size=8, width=24, layers=2, heads=3, mlp_width=40, activation="gelu", norm_eps=1e-5,
    class_token=True, patch_bias=True, norm_before_blocks=True, layer_scale=True, pooling="cls+mean",
)  # fmt: skip
IMAGES = {
    "vit": VIT,
    "attention": dataclasses.replace(VIT, class_token=False, pooling="attention"),
    "cross": dataclasses.replace(VIT, pooling="cross", pooling_width=18),
    "stem": dataclasses.replace(VIT, patch_size=16, stem_width=20, pooling="mean"),
    "convnext": ConvNextSpec(64, (8, 8, 16, 16), (1, 2, 1, 1), 1e-6),
    "efficientnet": EfficientNetSpec(
        image_size=64, stem_width=8, widths=(8, 16), stage_layers=(1, 2), kernel_sizes=(3, 3), strides=(1, 2),
        expansions=(1, 4), centred=(False, True), squeeze=0.25, activation="silu", norm_eps=1e-3, pooling="mean",
    ),
    "resnet": ResNetSpec(image_size=64, width=8, stage_layers=(1, 1, 2, 1), heads=4),
    "vitamin": dataclasses.replace(
        VIT, patch_size=16, class_token=False, pooling="mean", gated_mlp=True, mlp_norms=True,
        mbconv=MbConvSpec(8, (8, 12), (1, 2)),
    ),
}  # fmt: skip
GPT = TextSpec(
    vocabulary_size=99, context_length=16, width=32, layers=2, heads=4, mlp_width=48, activation="quick_gelu",
    norm_eps=1e-5, attention="causal", norm_after_blocks=False, pooling="first_eos", eos_id=98,
)  # fmt: skip
TEXTS = {
    "causal": GPT,
    "bert": dataclasses.replace(GPT, attention="masked", norm_after_blocks=True, pooling="mean", token_types=2),
    "appended": dataclasses.replace(GPT, pooling="appended", pad_id=0),
}
SPECS = {name: ModelSpec(spec, None, HeadSpec("linear", 16)) for name, spec in IMAGES.items()}
SPECS |= {name: ModelSpec(None, spec, text_head=HeadSpec("linear", 16)) for name, spec in TEXTS.items()}


@functools.cache
def inputs_of(spec: ModelSpec, rows: int):
    if spec.vision is None:
        return random_texts(11, 99, 98, count=rows)
    return (np.random.default_rng(0).normal(size=(rows, spec.vision.image_size, spec.vision.image_size, 3)),)


def loss(parameters, inputs, spec: ModelSpec, dtype: str):
    model = build_model(spec, parameters, dtype)
    embed = model.text_embeddings if spec.vision is None else model.image_embeddings
    weights = np.random.default_rng(1).normal(size=16).astype(np.float32)
    return (embed(*inputs) @ weights).mean()


def sums_over_rows(jaxpr, rows: int):
    """(primitive, dtype of its result) of everything below `jaxpr` that adds up over an axis of `rows`."""
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from sums_over_rows(inner, rows)
        name, shape = equation.primitive.name, equation.invars[0].aval.shape if equation.invars else ()
        if name == "reduce_sum":
            summed = [shape[axis] for axis in equation.params["axes"]]
        elif name == "dot_general":
            summed = [shape[axis] for axis in equation.params["dimension_numbers"][0][0]]
        elif name == "conv_general_dilated":
            summed = [shape[equation.params["dimension_numbers"].lhs_spec[1]]]
            summed += [shape[0]] if equation.params["batch_group_count"] > 1 else []
        elif name == "scatter-add":
            summed = equation.invars[2].aval.shape[:1]
        else:
            continue
        if any(size % rows == 0 for size in summed):
            yield name, str(equation.outvars[0].aval.dtype)


@pytest.mark.parametrize("name", SPECS)
def test_no_gradient_of_a_parameter_is_summed_over_rows_in_bfloat16(name):
    spec = SPECS[name]
    shapes = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in parameter_shapes(spec).items()}
    inputs = jax.tree.map(jnp.asarray, inputs_of(spec, ROWS))
    program = jax.make_jaxpr(jax.grad(loss), static_argnums=(2, 3))(shapes, inputs, spec, "bfloat16")
    sums = list(sums_over_rows(program.jaxpr, ROWS))
    # Blocks are one loop with one sum for each parameter; statistics and what precedes the repeating have none.
    assert len(sums) > len(shapes) // 2
    assert not [primitive for primitive, dtype in sums if dtype != "float32"]


@pytest.mark.parametrize("name", ["vit", "stem", "bert"])
def test_bfloat16_gradients_do_not_depend_on_the_number_of_devices(name):
    """But for values that lie between two of bfloat16, which a float32 sum in another order may round to the other: up
    to 8e-4 of the largest element here, where sums in bfloat16 give 2e-2 to 9e-2.
    """
    spec, rows = SPECS[name], 16
    parameters, inputs = drawn_parameters(spec), jax.tree.map(jnp.asarray, inputs_of(spec, rows))

    def gradients(devices: int):
        mesh = make_mesh(jax.devices()[:devices])
        placed = jax.device_put(inputs, NamedSharding(mesh, PartitionSpec(AXES)))
        # The compiler may leave out roundings where it fuses, and fuses a shard otherwise than a whole batch.
        exact = {"xla_allow_excess_precision": False}
        compute = jax.jit(jax.grad(loss), static_argnums=(2, 3), compiler_options=exact)
        return jax.device_get(compute(jax.device_put(parameters, NamedSharding(mesh, PartitionSpec())), placed, spec,
                                      "bfloat16"))  # fmt: skip

    expected = gradients(1)
    for path, gradient in gradients(8).items():
        scale = max(np.abs(expected[path]).max(), 1e-8)
        np.testing.assert_allclose(gradient, expected[path], rtol=0, atol=1e-3 * scale, err_msg=path)


@pytest.mark.parametrize("shape", [(3200, 8), (64, 50, 8)])
def test_sums_over_many_rows_keep_their_digits(shape):
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


@pytest.mark.parametrize("stride, groups", [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_a_narrow_convolution_has_the_gradients_of_its_rounded_inputs(stride, groups):
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
