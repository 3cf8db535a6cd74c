"""The pieces of a block: affine maps, layer norm, activations. Parameters and their gradients are float32
(`products`); `dtype` is the compute's.

quick_gelu(x) = x sigmoid(1.702 x)                                       (CLIP)
gelu(x)       = x Phi(x)                                                 (Hendrycks and Gimpel, arXiv 1606.08415)
gelu_tanh(x)  = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))            (SigLIP)
layer_norm(x) = (x - mean) / sqrt(variance + eps) * scale + bias         (Ba et al., arXiv 1607.06450)
batch_norm(x) = the same, with stored statistics of each channel         (Ioffe and Szegedy, 1502.03167)
"""

import functools
from collections.abc import Callable

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
    in a step with full rematerialisation, and 7 times so (`experiments/gpu_step.py`).
    """

    def rounded(x: Array) -> Array:
        return narrow(x.astype(jnp.float32)).astype(x.dtype)

    def backward(x: Array, cotangent: Array) -> tuple[Array]:
        _, pull = jax.vjp(narrow, x.astype(jnp.float32))
        return (pull(cotangent.astype(jnp.float32))[0].astype(x.dtype),)

    in_float32 = jax.custom_vjp(rounded)
    in_float32.defvjp(lambda x: (rounded(x), x), backward)
    return lambda x: function(x) if x.dtype == jnp.float32 else in_float32(x)


_gelu_tanh = functools.partial(jax.nn.gelu, approximate=True)
ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "quick_gelu": _in_one_kernel(_quick_gelu, _quick_gelu),
    # Phi by erfc in float32, as JAX has it, to the bit; erfc has branches, which the compiler makes two kernels of.
    "gelu": _in_one_kernel(functools.partial(jax.nn.gelu, approximate=False), _gelu_by_erf),
    "gelu_tanh": _in_one_kernel(_gelu_tanh, _gelu_tanh),
    "silu": _in_one_kernel(jax.nn.silu, jax.nn.silu),
    "relu": jax.nn.relu,
}


def along_last_axis(vector: Float[Array, " d"], like: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """`vector` in a shape that broadcasts against `like` without changing rank."""
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)


class Linear(nnx.Module):
    """`x @ kernel + bias`, computed and returned in `dtype`."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, dtype: DTypeLike, rngs: nnx.Rngs):
        self.dtype = dtype
        self.kernel = nnx.Param(jax.nn.initializers.lecun_normal()(rngs.params(), (inputs, outputs), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(outputs, jnp.float32)) if bias else None

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        return self.columns(0, None)(x)

    def columns(self, start: int, stop: int | None) -> Callable[[Float[Array, "... inputs"]], Array]:
        """The same map into the outputs `start` to `stop` only."""
        kernel = self.kernel[:, start:stop]
        bias = None if self.bias is None else self.bias[start:stop]

        def apply(x: Array) -> Array:
            y = product(x, kernel, self.dtype)
            return y if bias is None else add_to_rows(y, bias)

        return apply


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
    """Layer norm whose backward pass keeps `x` in its dtype, and of a narrower one than float32 the mean and the factor
    of each row; what JAX derives keeps three arrays of the size of `x` in float32.
    """
    return _layer_norm_forward(x, scale, bias, eps)[0]


def _layer_norm_forward(x: Array, scale: Array, bias: Array, eps: float) -> tuple[Array, tuple[Array, ...]]:
    mean, factor = checkpoint_name(_moments(x, eps), "norm")
    normed = (x.astype(jnp.float32) - mean) * factor
    # A model in float32 computes them again: another fusion would move the last bits of its gradients.
    moments = () if x.dtype == jnp.float32 else (mean, factor)
    return normed * along_last_axis(scale, normed) + along_last_axis(bias, normed), (x, scale, *moments)


def _moments(x: Array, eps: float) -> tuple[Array, Array]:
    """The mean of each row and the factor that gives what is left a variance of 1."""
    x = x.astype(jnp.float32)
    mean = x.mean(-1, keepdims=True)
    return mean, jax.lax.rsqrt(jnp.square(x - mean).mean(-1, keepdims=True) + eps)


def _layer_norm_backward(eps: float, residuals: tuple[Array, ...], cotangent: Array) -> tuple[Array, Array, Array]:
    """dx = factor (c - mean(c) - normed mean(c normed)), with c the cotangent times the scale."""
    x, scale, *moments = residuals
    mean, factor = moments or _moments(x, eps)
    normed = (x.astype(jnp.float32) - mean) * factor
    scaled = cotangent * along_last_axis(scale, cotangent)
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
        return x.astype(jnp.float32) * along_last_axis(factor, x) + along_last_axis(shift, x)
