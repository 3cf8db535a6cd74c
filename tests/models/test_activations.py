"""Activations and their derivatives against their formulas in float64, in both dtypes of the towers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.models.layers import ACTIVATIONS


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x * 0.5**0.5)


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _tanh_gelu(x: float) -> float:
    return x / 2 * (1 + math.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))


FORMULAS = {
    "quick_gelu": lambda x: x * _logistic(1.702 * x),
    "gelu": lambda x: x * _normal(x),
    "gelu_tanh": _tanh_gelu,
    "silu": lambda x: x * _logistic(x),
    "relu": lambda x: max(x, 0.0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2.0**-8)])
def test_an_activation_and_its_derivative_are_those_of_the_formula(name, dtype, tolerance):
    x = jnp.asarray(np.linspace(-9, 9, 361) + 0.013, dtype)
    cotangent = jnp.asarray(np.random.default_rng(0).uniform(0.5, 2, len(x)), dtype)
    value, backward = jax.vjp(ACTIVATIONS[name], x)
    (gradient,) = backward(cotangent)
    assert value.dtype == gradient.dtype == x.dtype
    exact, formula, step = np.asarray(x, np.float64), FORMULAS[name], 1e-5
    wanted = np.array([formula(each) for each in exact])
    slope = np.array([(formula(each + step) - formula(each - step)) / (2 * step) for each in exact])
    np.testing.assert_allclose(np.asarray(value, np.float64), wanted, rtol=tolerance, atol=2e-6)
    wanted = slope * np.asarray(cotangent, np.float64)
    # Where 1 + tanh cancels, float32 is off by as much (JAX's own formula).
    np.testing.assert_allclose(np.asarray(gradient, np.float64), wanted, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("name", ["quick_gelu", "gelu", "gelu_tanh", "silu"])
def test_in_bfloat16_the_backward_pass_keeps_the_input_alone(name):
    x = jax.ShapeDtypeStruct((4, 8), jnp.bfloat16)
    _, backward = jax.eval_shape(lambda x: jax.vjp(ACTIVATIONS[name], x), x)
    assert [(kept.shape, kept.dtype) for kept in jax.tree.leaves(backward)] == [(x.shape, x.dtype)]
