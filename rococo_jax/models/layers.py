"""Affine maps, norms and activations of a block, and stacks of blocks alike. Parameters and their gradients are
float32 (`products`); `dtype` is the compute's.

quick_gelu(x) = x sigmoid(1.702 x)                                       (CLIP)
gelu(x)       = x Phi(x)                                                 (Hendrycks and Gimpel, arXiv 1606.08415)
gelu_tanh(x)  = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))            (SigLIP)
layer_norm(x) = (x - mean) / sqrt(variance + eps) * scale + bias         (Ba et al., arXiv 1607.06450)
batch_norm(x) = the same, with stored statistics of each channel         (Ioffe and Szegedy, 1502.03167)
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.products import add_to_rows, product
from rococo_jax.models.spec import Activation


def _quick_gelu(x: Array) -> Array:
    return x * jax.nn.sigmoid(jnp.asarray(1.702, x.dtype) * x)


def _gelu_by_erf(x: Array) -> Array:
    return x * (0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5))


def _in_one_kernel(function: Callable[[Array], Array], narrow: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`function`; in less than float32 `narrow`, computed in float32 and rounded once.

    The backward pass of `narrow` keeps `x` alone and computes the derivative in the kernel that uses it. What JAX
    derives keeps the derivative's factors; on a GPU the activation of a block then moves 12 times its hidden channels
    in a step with full rematerialisation, and 7 times so (compiled for an H100).
    """

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def rounded(x: Array) -> Array:
        return narrow(x.astype(jnp.float32)).astype(x.dtype)

    return lambda x: function(x) if x.dtype == jnp.float32 else rounded(x)


_gelu_tanh = functools.partial(jax.nn.gelu, approximate=True)
ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "quick_gelu": _in_one_kernel(_quick_gelu, _quick_gelu),
    # Phi by erfc in float32, as JAX has it, to the bit; erfc has branches, which the compiler makes two kernels of.
    "gelu": _in_one_kernel(functools.partial(jax.nn.gelu, approximate=False), _gelu_by_erf),
    "gelu_tanh": _in_one_kernel(_gelu_tanh, _gelu_tanh),
    "silu": _in_one_kernel(jax.nn.silu, jax.nn.silu),
    "relu": jax.nn.relu,
}


class Linear(nnx.Module):
    """`x @ kernel + bias`, computed and returned in `dtype`."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, dtype: DTypeLike, rngs: nnx.Rngs):
        self.dtype = dtype
        self.kernel = nnx.Param(jax.nn.initializers.lecun_normal()(rngs.params(), (inputs, outputs), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(outputs, jnp.float32)) if bias else None

    def __call__(self, x: Float[Array, "... inputs"], columns: slice = slice(None)) -> Float[Array, "... outputs"]:
        """The map, or that into some of the outputs only."""
        y = product(x, self.kernel[:, columns], self.dtype)
        return y if self.bias is None else add_to_rows(y, self.bias[columns])


class LayerNorm(nnx.Module):
    """Layer norm over the last axis: statistics and result in float32, whatever comes in."""

    def __init__(self, width: int, eps: float):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width, jnp.float32))

    def __call__(self, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        return _layer_norm(x, self.scale[...], self.bias[...], self.eps)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer_norm(x: Array, scale: Array, bias: Array, eps: float) -> Float[Array, "... width"]:
    """Layer norm whose backward pass keeps `x` in its dtype, and the mean and the factor of each row.

    What JAX derives keeps three arrays of the size of `x` in float32; under `jax.checkpoint` its program moves 4 %
    more bytes in a step.
    """
    return _layer_norm_forward(x, scale, bias, eps)[0]


def _layer_norm_forward(x: Array, scale: Array, bias: Array, eps: float) -> tuple[Array, tuple[Array, ...]]:
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    factor = jax.lax.rsqrt(jnp.square(wide - mean).mean(-1, keepdims=True) + eps)
    mean, factor = checkpoint_name((mean, factor), "norm")
    normed = (wide - mean) * factor
    scaled = normed * jnp.broadcast_to(scale, x.shape)
    return scaled + jnp.broadcast_to(bias, x.shape), (x, scale, mean, factor)


def _layer_norm_backward(eps: float, residuals: tuple[Array, ...], cotangent: Array) -> tuple[Array, Array, Array]:
    """dx = factor (c - mean(c) - normed mean(c normed)), with c the cotangent times the scale."""
    x, scale, mean, factor = residuals
    normed = (x.astype(jnp.float32) - mean) * factor
    scaled = cotangent * jnp.broadcast_to(scale, x.shape)
    to_normed = scaled - scaled.mean(-1, keepdims=True) - normed * (scaled * normed).mean(-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    return (factor * to_normed).astype(x.dtype), (cotangent * normed).sum(rows), cotangent.sum(rows)


_layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


class FrozenBatchNorm(nnx.Module):
    """Batch norm by stored statistics, float32 whatever comes in.

    They are statistics in training too, not parameters, and no gradient reaches them: neither the batch size nor the
    number of devices changes what a tower computes.
    """

    def __init__(self, width: int, eps: float = 1e-5):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width, jnp.float32))
        self.mean = nnx.BatchStat(jnp.zeros(width, jnp.float32))
        self.variance = nnx.BatchStat(jnp.ones(width, jnp.float32))

    def __call__(self, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        mean, variance = jax.lax.stop_gradient((self.mean[...], self.variance[...]))
        factor = self.scale[...] * jax.lax.rsqrt(variance + self.eps)
        shift = self.bias[...] - mean * factor
        return x.astype(jnp.float32) * jnp.broadcast_to(factor, x.shape) + jnp.broadcast_to(shift, x.shape)


class Stack(nnx.Module):
    """`layers` blocks from `make`, each from an array to one of the same shape, run by one scan, so that depth costs no
    compile time. Every parameter has a leading layer axis.
    """

    def __init__(self, layers: int, make: Callable[[nnx.Rngs], nnx.Module], *, rngs: nnx.Rngs):
        @nnx.split_rngs(splits=layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(rngs: nnx.Rngs) -> nnx.Module:
            return make(rngs)

        self.block = stacked(rngs)

    def __call__(self, x: Array) -> Array:
        graph, parameters = nnx.split(self.block)

        def step(x: Array, layer: Any) -> tuple[Array, None]:
            return nnx.merge(graph, layer)(x), None

        return jax.lax.scan(step, x, parameters)[0]
