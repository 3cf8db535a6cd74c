"""Compare activations and their derivatives with torch in float64, in both dtypes of the towers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.models.layers import ACTIVATIONS

torch = pytest.importorskip("torch")
functional = torch.nn.functional

THEIRS = {
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "relu": functional.relu,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), pytest.param("bfloat16", 2.0**-8, marks=pytest.mark.slow)]
)
def test_activations_and_their_derivatives_match_torch(name, dtype, tolerance):
    x = jnp.asarray(np.linspace(-9, 9, 361) + 0.013, dtype)
    cotangent = jnp.asarray(np.random.default_rng(0).uniform(0.5, 2, len(x)), dtype)
    value, backward = jax.vjp(ACTIVATIONS[name], x)
    (gradient,) = backward(cotangent)
    assert value.dtype == gradient.dtype == x.dtype
    exact = torch.tensor(np.float64(x), requires_grad=True)
    wanted = THEIRS[name](exact)
    (slope,) = torch.autograd.grad(wanted, exact, torch.tensor(np.float64(cotangent)))
    np.testing.assert_allclose(np.float64(value), wanted.detach(), rtol=tolerance, atol=2e-6)
    # Where 1 + tanh cancels, float32 is off by as much (JAX's own formula).
    np.testing.assert_allclose(np.float64(gradient), slope, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("name", ["quick_gelu", "gelu", "gelu_tanh", "silu"])
def test_the_backward_pass_of_bfloat16_activations_stores_only_their_input(name):
    x = jax.ShapeDtypeStruct((4, 8), jnp.bfloat16)
    _, backward = jax.eval_shape(lambda x: jax.vjp(ACTIVATIONS[name], x), x)
    assert [(kept.shape, kept.dtype) for kept in jax.tree.leaves(backward)] == [(x.shape, x.dtype)]
