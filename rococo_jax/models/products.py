"""Arithmetic of rows with parameters: computed in `dtype`, with parameters and their gradients in float32.

JAX's own derivatives sum in the dtype of the computation: in bfloat16, the gradient of a bias loses digits in the sum
over rows, and the gradient of a matrix is rounded before it is summed over devices. The functions here take a float32
parameter and round it inside, after broadcasting it to the rows. Its gradient is then summed over rows and over devices
in float32.

In float32 both are the same, and JAX's own derivatives are used.
"""

import contextlib
import contextvars
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float

# Method of float32 products: a precision, whose meaning depends on the platform, or an algorithm.
Products = jax.lax.Precision | jax.lax.DotAlgorithmPreset
_HIGHEST = jax.lax.Precision.HIGHEST
_float32_products: contextvars.ContextVar[Products] = contextvars.ContextVar("float32_products", default=_HIGHEST)
# Padding of a convolution: zeros before and after each axis.
_Padding = tuple[tuple[int, int], tuple[int, int]]
# Stride, padding, groups of channels and precision of a convolution.
_Options = tuple[int, _Padding, int, jax.lax.Precision]


def precision_of(dtype: DTypeLike) -> Products:
    """Return the precision of products in `dtype`: full precision for float32, unless `float32_products` changes it.

    By default, accelerators round the factors of float32 products.
    """
    return _float32_products.get() if jnp.dtype(dtype) == jnp.float32 else jax.lax.Precision.DEFAULT


@contextlib.contextmanager
def float32_products(precision: Products) -> Iterator[None]:
    """Trace the float32 products in this block at another precision.

    Convolutions do not support algorithms; they stay at full precision then.
    """
    token = _float32_products.set(precision)
    try:
        yield
    finally:
        _float32_products.reset(token)


def product(
    x: Float[Array, "... inputs"], kernel: Float[Array, "inputs outputs"], dtype: DTypeLike
) -> Float[Array, "... outputs"]:
    """Compute `x @ kernel` in `dtype`."""
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
    """Compute the gradient of a kernel from the rows and the cotangent of its product, in float32 for any dtype."""
    rows = tuple(range(x.ndim - 1))
    return jax.lax.dot_general(x, cotangent, ((rows, rows), ((), ())), preferred_element_type=jnp.float32)


_product.defvjp(_product_forward, _product_backward)


def add_to_rows(x: Float[Array, "..."], parameter: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute `x + parameter` in the dtype of `x`; the axes of `parameter` are the last ones of `x`."""
    return x + jnp.broadcast_to(parameter, x.shape).astype(x.dtype)


@functools.partial(jax.checkpoint, prevent_cse=False)
def multiply_rows(x: Float[Array, "..."], parameter: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute `x * parameter` in float32, rounded once to the dtype of `x`, with axes as in `add_to_rows`."""
    return (x.astype(jnp.float32) * jnp.broadcast_to(parameter, x.shape)).astype(x.dtype)


def repeat_on_rows(parameter: Float[Array, "..."], rows: int, dtype: DTypeLike) -> Float[Array, "rows ..."]:
    """Repeat `parameter` for every row, in `dtype`."""
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
    """Compute a convolution of maps, channels last, in `dtype`."""
    options = (stride, padding, groups, _precision_of_convolutions(dtype))
    convolve = _convolve if jnp.dtype(dtype) == jnp.float32 else _convolve_narrow
    return checkpoint_name(convolve(x.astype(dtype), kernel, options), "convolution")


def _precision_of_convolutions(dtype: DTypeLike) -> jax.lax.Precision:
    precision = precision_of(dtype)
    return precision if isinstance(precision, jax.lax.Precision) else _HIGHEST


def _convolve(x: Array, kernel: Array, options: _Options) -> Array:
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
def _convolve_narrow(x: Array, kernel: Array, options: _Options) -> Array:
    return _convolve(x, kernel.astype(x.dtype), options)


def _convolve_narrow_backward(
    options: _Options, residuals: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    """Compute the gradients, that of the kernel from maps converted to float32.

    The conversion is exact, and so are the roundings by which accelerators multiply float32 by default. So the products
    are those of the narrow dtype, and their sum is float32.
    """
    x, kernel = residuals
    _, backward_x = jax.vjp(lambda x: _convolve(x, kernel.astype(x.dtype), options), x)
    _, backward_kernel = jax.vjp(lambda kernel: _convolve(x.astype(jnp.float32), kernel, options), kernel)
    return backward_x(cotangent)[0], backward_kernel(cotangent.astype(jnp.float32))[0]


def _convolve_narrow_forward(x: Array, kernel: Array, options: _Options) -> tuple[Array, tuple[Array, Array]]:
    return _convolve_narrow(x, kernel, options), (x, kernel)


_convolve_narrow.defvjp(_convolve_narrow_forward, _convolve_narrow_backward)
