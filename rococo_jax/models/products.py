"""Maps of rows by parameters. Parameters are float32, rows are computed in `dtype`, gradients of parameters in float32.

What JAX derives sums in the dtype of the compute: in bfloat16 the gradient of a bias loses digits in the sum over rows,
and that of a matrix is rounded before it is summed over devices. Here a parameter comes in as it is kept and is rounded
inside, after it is repeated on the rows, so that its gradient leaves the sum over rows in float32, and is summed over
devices so.

Rows in float32 take what JAX derives, which is the same.
"""

import contextlib
import contextvars
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

# How float32 is multiplied: at a precision, which means what the platform makes of it, or by an algorithm.
Products = jax.lax.Precision | jax.lax.DotAlgorithmPreset
_HIGHEST = jax.lax.Precision.HIGHEST
_float32_products: contextvars.ContextVar[Products] = contextvars.ContextVar("float32_products", default=_HIGHEST)
# Of a convolution: zeros before and after each axis; and with the stride, groups of channels and precision.
_Padding = tuple[tuple[int, int], tuple[int, int]]
_Options = tuple[int, _Padding, int, jax.lax.Precision]


def precision_of(dtype: DTypeLike) -> Products:
    """Full float32 products where float32 was asked for (accelerators round them down otherwise), but for
    `float32_products`.
    """
    return _float32_products.get() if jnp.dtype(dtype) == jnp.float32 else jax.lax.Precision.DEFAULT


@contextlib.contextmanager
def float32_products(precision: Products) -> Iterator[None]:
    """Traces float32 products in the block at this precision; convolutions, which take no algorithm, in full then."""
    token = _float32_products.set(precision)
    try:
        yield
    finally:
        _float32_products.reset(token)


def product(
    x: Float[Array, "... inputs"], kernel: Float[Array, "inputs outputs"], dtype: DTypeLike
) -> Float[Array, "... outputs"]:
    """`x @ kernel` in `dtype`."""
    if jnp.dtype(dtype) == jnp.float32:
        return jnp.dot(x.astype(dtype), kernel, precision=precision_of(dtype))
    return _product(x.astype(dtype), kernel)


@jax.custom_vjp
def _product(x: Array, kernel: Array) -> Array:
    return jnp.dot(x, kernel.astype(x.dtype))


def _product_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    rounded = kernel.astype(x.dtype)
    return jnp.dot(x, rounded), (x, rounded)


def _product_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, rounded = residuals
    return jax.lax.dot_general(cotangent, rounded, (((x.ndim - 1,), (1,)), ((), ()))), gradient_of_kernel(x, cotangent)


def gradient_of_kernel(x: Float[Array, "... inputs"], cotangent: Float[Array, "... outputs"]) -> Float[Array, "i o"]:
    """The sum over rows of `x` by the gradient of a product, in float32 whatever they are."""
    rows = tuple(range(x.ndim - 1))
    return jax.lax.dot_general(x, cotangent, ((rows, rows), ((), ())), preferred_element_type=jnp.float32)


_product.defvjp(_product_forward, _product_backward)


def add_to_rows(x: Float[Array, "..."], parameter: Float[Array, "..."]) -> Float[Array, "..."]:
    """`x + parameter` in the dtype of `x`. The axes of `parameter` are the last ones of `x`; the others are of rows."""
    return x + jnp.broadcast_to(parameter, x.shape).astype(x.dtype)


@functools.partial(jax.checkpoint, prevent_cse=False)
def multiply_rows(x: Float[Array, "..."], parameter: Float[Array, "..."]) -> Float[Array, "..."]:
    """`x * parameter` in float32, rounded once to the dtype of `x`, with axes as in `add_to_rows`."""
    return (x.astype(jnp.float32) * jnp.broadcast_to(parameter, x.shape)).astype(x.dtype)


def repeat_on_rows(parameter: Float[Array, "..."], rows: int, dtype: DTypeLike) -> Float[Array, "rows ..."]:
    """`parameter` once for every row, in `dtype`."""
    return jnp.broadcast_to(parameter.astype(jnp.float32), (rows, *parameter.shape)).astype(dtype)


def convolution(
    x: Float[Array, "b h w inputs"],
    kernel: Float[Array, "kh kw inputs_of_group outputs"],
    dtype: DTypeLike,
    *,
    stride: int = 1,
    padding: _Padding,
    groups: int = 1,
) -> Float[Array, "b h2 w2 outputs"]:
    """The convolution of maps, channels last, in `dtype`; `padding` are the zeros around each axis."""
    options = (stride, padding, groups, _precision_of_convolutions(dtype))
    derived = _convolved if jnp.dtype(dtype) == jnp.float32 else _convolution
    return derived(x.astype(dtype), kernel, options)


def _precision_of_convolutions(dtype: DTypeLike) -> jax.lax.Precision:
    precision = precision_of(dtype)
    return precision if isinstance(precision, jax.lax.Precision) else _HIGHEST


def _convolved(x: Array, kernel: Array, options: _Options) -> Array:
    stride, padding, groups, precision = options
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(stride, stride),
        padding=padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
        precision=precision,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolution(x: Array, kernel: Array, options: _Options) -> Array:
    return _convolved(x, kernel.astype(x.dtype), options)


def _convolution_backward(options: _Options, residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    """The kernel's gradient is that of float32 maps: every value of a narrower dtype is one of float32 and of what an
    accelerator rounds it to by default, so the products are the same, and their sum is float32.
    """
    x, kernel = residuals
    _, pull_x = jax.vjp(lambda x: _convolved(x, kernel.astype(x.dtype), options), x)
    _, pull_kernel = jax.vjp(lambda kernel: _convolved(x.astype(jnp.float32), kernel, options), kernel)
    return pull_x(cotangent)[0], pull_kernel(cotangent.astype(jnp.float32))[0]


_convolution.defvjp(lambda x, kernel, options: (_convolution(x, kernel, options), (x, kernel)), _convolution_backward)
