"""Building blocks of all towers: affine maps, norms, activations, and stacks of equal blocks.

Parameters and their gradients are float32 (`products`); `dtype` is that of the computation.

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
    """Return an activation that applies `function` in float32, and `narrow` to narrower dtypes.

    `narrow` is computed in float32 and rounded once. Its backward pass stores only `x` and computes the derivative in
    the kernel that uses it. JAX's own derivative stores several factors: compiled for an H100 with full
    rematerialisation, an activation then moves 12 times the bytes of its hidden channels, and 7 times this way.
    """

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def rounded(x: Array) -> Array:
        return narrow(x.astype(jnp.float32)).astype(x.dtype)

    return lambda x: function(x) if x.dtype == jnp.float32 else rounded(x)


_gelu_tanh = functools.partial(jax.nn.gelu, approximate=True)
ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "quick_gelu": _in_one_kernel(_quick_gelu, _quick_gelu),
    # In float32 equal to JAX's, bit by bit, by erfc. The narrow form uses erf: the branches of erfc take two kernels.
    "gelu": _in_one_kernel(functools.partial(jax.nn.gelu, approximate=False), _gelu_by_erf),
    "gelu_tanh": _in_one_kernel(_gelu_tanh, _gelu_tanh),
    "silu": _in_one_kernel(jax.nn.silu, jax.nn.silu),
    "relu": jax.nn.relu,
}


def draw_normal(key: Array, shape: tuple[int, ...], stddev: float) -> Float[Array, "..."]:
    """Draw initial values from a normal distribution, float32.

    Without the barrier, XLA merges `stddev` with a factor of the distribution where it compiles both together, and the
    last bits depend on that.
    """
    return jax.lax.optimization_barrier(jax.random.normal(key, shape, jnp.float32)) * stddev


class Linear(nnx.Module):
    """Affine map, `x @ kernel + bias`, computed and returned in `dtype`."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, dtype: DTypeLike, rngs: nnx.Rngs):
        self.dtype = dtype
        self.kernel = nnx.Param(jax.nn.initializers.lecun_normal()(rngs.params(), (inputs, outputs), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(outputs, jnp.float32)) if bias else None

    def __call__(self, x: Float[Array, "... inputs"], columns: slice = slice(None)) -> Float[Array, "... outputs"]:
        """Apply the map, or its part that computes the outputs in `columns`."""
        y = product(x, self.kernel[:, columns], self.dtype)
        return y if self.bias is None else add_to_rows(y, self.bias[columns])


class LayerNorm(nnx.Module):
    """Layer norm over the last axis, with statistics and result in float32 for any input."""

    def __init__(self, width: int, eps: float):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width, jnp.float32))

    def __call__(self, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        return _layer_norm(x, self.scale[...], self.bias[...], self.eps)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer_norm(x: Array, scale: Array, bias: Array, eps: float) -> Float[Array, "... width"]:
    """Compute a layer norm whose backward pass stores `x` in its dtype, and mean and factor of each row.

    JAX's own derivative stores three float32 arrays of the size of `x`; under `jax.checkpoint` its program moves 4 %
    more bytes per step.
    """
    return _layer_norm_forward(x, scale, bias, eps)[0]


def _layer_norm_forward(x: Array, scale: Array, bias: Array, eps: float) -> tuple[Array, tuple[Array, ...]]:
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    factor = jax.lax.rsqrt(jnp.square(wide - mean).mean(-1, keepdims=True) + eps)
    mean, factor = checkpoint_name((mean, factor), "norm")
    normalised = (wide - mean) * factor
    result = normalised * jnp.broadcast_to(scale, x.shape) + jnp.broadcast_to(bias, x.shape)
    return result, (x, scale, mean, factor)


def _layer_norm_backward(eps: float, residuals: tuple[Array, ...], cotangent: Array) -> tuple[Array, Array, Array]:
    """Compute dx = factor (c - mean(c) - n mean(c n)), with n the normalised x and c the cotangent times the scale."""
    x, scale, mean, factor = residuals
    normalised = (x.astype(jnp.float32) - mean) * factor
    c = cotangent * jnp.broadcast_to(scale, x.shape)
    centred = c - c.mean(-1, keepdims=True) - normalised * (c * normalised).mean(-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    return (factor * centred).astype(x.dtype), (cotangent * normalised).sum(rows), cotangent.sum(rows)


_layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


class FrozenBatchNorm(nnx.Module):
    """Batch norm with stored statistics, in float32 for any input.

    The statistics are not parameters and get no gradient, in training either. So the results of a tower depend neither
    on the batch size nor on the number of devices.
    """

    def __init__(self, width: int):
        self.eps = 1e-5
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width, jnp.float32))
        self.mean = nnx.BatchStat(jnp.zeros(width, jnp.float32))
        self.variance = nnx.BatchStat(jnp.ones(width, jnp.float32))

    def __call__(self, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        mean, variance = jax.lax.stop_gradient((self.mean[...], self.variance[...]))
        factor = self.scale[...] * jax.lax.rsqrt(variance + self.eps)
        shift = self.bias[...] - mean * factor
        return x.astype(jnp.float32) * jnp.broadcast_to(factor, x.shape) + jnp.broadcast_to(shift, x.shape)


# Activations of a block that are stored for the backward pass, in addition to the block's input; the others are
# recomputed. "none" (no rematerialisation) stores all, "dots" the products with parameters, "full" none of them.
# Products have names, which `checkpoint_name` sets where they are computed; "norm" is the statistic of a norm.
REMAT_POLICIES = {
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.save_only_these_names("norm", "qkv", "out", "up", "convolution"),
    "full": jax.checkpoint_policies.save_only_these_names("norm"),
}


class Stack(nnx.Module):
    """Stack of `layers` equal blocks, built by `make` and run by one loop, so that depth costs no compile time.

    A block maps an array to one of the same shape. Every parameter has a leading layer axis.

    Attributes:
        remat: what the backward pass recomputes, a key of `REMAT_POLICIES`.
        unroll: whether every block is compiled by itself. A loop writes and reads the activations of all blocks as one
            array; without it fewer bytes cross memory, and compilation takes several times as long.
        prepare_layer: applied to the parameters of a block just before the block runs; FSDP gathers them there.
    """

    def __init__(self, layers: int, make: Callable[[nnx.Rngs], nnx.Module], *, rngs: nnx.Rngs):
        self.layers, self.remat, self.unroll = layers, "none", False
        self.prepare_layer: Callable[[Any], Any] | None = None

        @nnx.split_rngs(splits=layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(rngs: nnx.Rngs) -> nnx.Module:
            return make(rngs)

        self.block = stacked(rngs)

    def __call__(self, x: Array) -> Array:
        graph, parameters = nnx.split(self.block)
        return self.scan(lambda x, layer: (self.block_of(graph, layer)(x), None), x, parameters)

    def block_of(self, graph: Any, layer: Any) -> nnx.Module:
        """Rebuild a block from its graph and its parameters, which are prepared first."""
        return nnx.merge(graph, layer if self.prepare_layer is None else self.prepare_layer(layer))

    def scan(self, step: Callable[[Array, Any], tuple[Array, None]], x: Array, parameters: Any) -> Array:
        """Apply `step(x, layer)` layer by layer, rematerialised as `remat` says."""
        if self.remat != "none":
            # `prevent_cse` is not needed in loops: the bodies of forward and backward loop are compiled separately.
            step = jax.checkpoint(step, policy=REMAT_POLICIES[self.remat], prevent_cse=self.unroll)
        return jax.lax.scan(step, x, parameters, unroll=self.unroll)[0]


def stacks_of(model: nnx.Module) -> list[Stack]:
    """Return all stacks of a model: those of transformers, of stages of convolutions, and of a matching head."""
    return [module for _, module in nnx.iter_modules(model) if isinstance(module, Stack)]


def set_remat(model: nnx.Module, remat: str, unroll: bool = False) -> None:
    """Set what the backward pass of the model's blocks recomputes, a key of `REMAT_POLICIES`, and `Stack.unroll`."""
    for _, module in nnx.iter_modules(model):
        if hasattr(module, "remat"):
            module.remat = remat
    for stack in stacks_of(model):
        stack.unroll = unroll
