"""Maps of rows by parameters. Parameters are float32, rows are computed in `dtype`, gradients of parameters in float32.

What JAX derives sums in the dtype of the compute: in bfloat16 the gradient of a bias loses digits in the sum over rows,
and that of a matrix is rounded before it is summed over devices. Here a parameter comes in as it is kept and is rounded
inside, so that its gradient leaves the sum over rows in float32, and is summed over devices so.

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
# Of a convolution: strides, zeros before and after each axis, groups of channels.
_Padding = tuple[tuple[int, int], tuple[int, int]]


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
    return x + _aligned(parameter, x) if x.dtype == jnp.float32 else _add_to_rows(x, parameter)


@jax.custom_vjp
def _add_to_rows(x: Array, parameter: Array) -> Array:
    return x + _aligned(parameter, x)


_add_to_rows.defvjp(
    lambda x, parameter: (_add_to_rows(x, parameter), parameter),
    lambda parameter, cotangent: (cotangent, _sum_of_rows(cotangent.astype(jnp.float32), parameter)),
)


def multiply_rows(x: Float[Array, "..."], parameter: Float[Array, "..."]) -> Float[Array, "..."]:
    """`x * parameter` in the dtype of `x`, with axes as in `add_to_rows`."""
    return x * _aligned(parameter, x) if x.dtype == jnp.float32 else _multiply_rows(x, parameter)


@jax.custom_vjp
def _multiply_rows(x: Array, parameter: Array) -> Array:
    return x * _aligned(parameter, x)


def _multiply_rows_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, parameter = residuals
    products = cotangent.astype(jnp.float32) * x.astype(jnp.float32)
    return cotangent * _aligned(parameter, x), _sum_of_rows(products, parameter)


_multiply_rows.defvjp(lambda x, parameter: (_multiply_rows(x, parameter), (x, parameter)), _multiply_rows_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def repeat_on_rows(parameter: Float[Array, "..."], rows: int, dtype: DTypeLike) -> Float[Array, "rows ..."]:
    """`parameter` once for every row, in `dtype`."""
    return jnp.broadcast_to(parameter.astype(dtype)[None], (rows, *parameter.shape))


repeat_on_rows.defvjp(
    lambda parameter, rows, dtype: (repeat_on_rows(parameter, rows, dtype), parameter),
    lambda rows, dtype, parameter, cotangent: (_sum_of_rows(cotangent.astype(jnp.float32), parameter),),
)


def _aligned(parameter: Array, x: Array) -> Array:
    return parameter.astype(x.dtype).reshape((1,) * (x.ndim - parameter.ndim) + parameter.shape)


def _sum_of_rows(wide: Array, parameter: Array) -> Array:
    return wide.sum(tuple(range(wide.ndim - parameter.ndim))).astype(parameter.dtype)


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
    if jnp.dtype(dtype) == jnp.float32:
        return _convolved(x.astype(dtype), kernel, stride, padding, groups)
    return _convolution(x.astype(dtype), kernel, stride, padding, groups)


def _convolved(x: Array, kernel: Array, stride: int, padding: _Padding, groups: int, precision=None) -> Array:
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(stride, stride),
        padding=padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
        precision=_precision_of_convolutions(x.dtype) if precision is None else precision,
    )


def _precision_of_convolutions(dtype: DTypeLike) -> jax.lax.Precision:
    precision = precision_of(dtype)
    return precision if isinstance(precision, jax.lax.Precision) else _HIGHEST


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _convolution(x: Array, kernel: Array, stride: int, padding: _Padding, groups: int) -> Array:
    return _convolved(x, kernel.astype(x.dtype), stride, padding, groups)


def _convolution_backward(
    stride: int, padding: _Padding, groups: int, residuals: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    """The kernel's gradient is that of float32 maps: every value of a narrower dtype is one of float32 and of what an
    accelerator rounds it to by default, so the products are the same, and their sum is float32.
    """
    x, kernel = residuals
    _, pull_x = jax.vjp(lambda x: _convolved(x, kernel.astype(x.dtype), stride, padding, groups), x)

    def of_kernel(kernel: Array) -> Array:
        wide = x.astype(jnp.float32)
        return _convolved(wide, kernel, stride, padding, groups, jax.lax.Precision.DEFAULT)

    _, pull_kernel = jax.vjp(of_kernel, kernel)
    return pull_x(cotangent)[0], pull_kernel(cotangent.astype(jnp.float32))[0]


_convolution.defvjp(lambda x, kernel, *options: (_convolution(x, kernel, *options), (x, kernel)), _convolution_backward)
