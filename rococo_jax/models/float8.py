"""Products in float8 with delayed scaling (Micikevicius et al., arXiv 2209.05433), for training in bfloat16.

    x8 = e4m3(x / sx)      w8 = e4m3(w / sw)      g8 = e5m2(g / sg)          larger ones at the largest number
    y = x8 w8 (sx sw)      dx = g8 w8' (sg sw)    dw = x' g                  dw as in `products`: summed in float32

(The sum of dw is over rows, and cuBLAS takes float8 only with the summed axis last: two more transposed copies would
cost more than the product gains, `experiments/gpu_step.py`.)

A scale is known before its operand: 2^(e - 8) for e4m3 and 2^(e - 15) for e5m2, where no magnitude of the last
`HISTORY` steps reaches 2^e, so that one may grow 1.75 times before it is clipped. Powers of two scale without rounding.

A history holds for x, w and g how many more steps each exponent counts; its cotangent has ones at the exponents that
were seen. Sums over micro-batches and over parts of a kernel so keep their maximum, in any order.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from rococo_jax.models.products import gradient_of_kernel

# Steps as Transformer Engine has them by default.
HISTORY = 1024
_LOWEST, EXPONENTS = -96, 128
# The exponent of the largest power of two.
_LARGEST = {jnp.float8_e4m3fn: 8, jnp.float8_e5m2: 15}
# Before the first step: normed activations, weights, gradients of a mean over a batch (e5m2 then reaches from 2^-31 to
# 1.75). Forgotten after one step, whose rate is 0 with a warmup.
_FIRST = (6, 1, 0)

History = Float[Array, "*layers 3 exponents"]


def first_history(layers: int) -> History:
    """The histories of a stack of blocks before the first step."""
    places = jnp.asarray(_FIRST) - _LOWEST
    return jnp.tile(jax.nn.one_hot(places, EXPONENTS, dtype=jnp.float32), (layers, 1, 1))


def renewed(history: History, seen: History) -> History:
    """The history after a step that saw these exponents; one that saw none (zeros alone) forgets nothing at last."""
    later = jnp.where(seen > 0, float(HISTORY), jnp.maximum(history - 1, 0))
    return jnp.where((later > 0).any(-1, keepdims=True), later, history)


@jax.custom_vjp
def float8_product(
    x: Float[Array, "... inputs"], kernel: Float[Array, "inputs outputs"], history: History
) -> Float[Array, "... outputs"]:
    """`x @ kernel` in the dtype of `x`, with the scales that follow from `history`."""
    return _forward(x, kernel, history)[0]


def _forward(x: Array, kernel: Array, history: History) -> tuple[Array, tuple[Array, ...]]:
    x8, of_x = _rounded(x, history[0], jnp.float8_e4m3fn)
    kernel8, of_kernel = _rounded(kernel, history[1], jnp.float8_e4m3fn)
    y = jnp.dot(x8, kernel8, preferred_element_type=x.dtype) * _power(of_x + of_kernel, x.dtype)
    return y, (x, kernel8, of_kernel, history[2], jnp.stack([_seen(x), _seen(kernel)]))


def _backward(residuals: tuple[Array, ...], cotangent: Array) -> tuple[Array, Array, Array]:
    x, kernel8, of_kernel, history, seen = residuals
    cotangent8, of_cotangent = _rounded(cotangent, history, jnp.float8_e5m2)
    # At this precision cuBLAS adds in float32 throughout; at the default it may keep fewer digits, as forward.
    to_x = jax.lax.dot_general(
        cotangent8, kernel8, (((x.ndim - 1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=x.dtype,
    )  # fmt: skip
    to_x = to_x * _power(of_cotangent + of_kernel, x.dtype)
    return to_x, gradient_of_kernel(x, cotangent), jnp.concatenate([seen, _seen(cotangent)[None]])


float8_product.defvjp(_forward, _backward)


def _rounded(x: Array, history: Float[Array, " exponents"], dtype: DTypeLike) -> tuple[Array, Int[Array, ""]]:
    """`x` in float8, and the exponent of its scale."""
    exponent = jnp.max(jnp.where(history > 0, jnp.arange(EXPONENTS), 0)) + (_LOWEST - _LARGEST[dtype])
    largest = jnp.finfo(dtype).max.astype(x.dtype)
    return jnp.clip(x * _power(-exponent, x.dtype), -largest, largest).astype(dtype), exponent


def _power(exponent: Int[Array, ""], dtype: DTypeLike) -> Float[Array, ""]:
    return jnp.ldexp(jnp.float32(1), exponent).astype(dtype)


def _seen(x: Array) -> Float[Array, " exponents"]:
    """1 at the least exponent whose power exceeds all magnitudes; zeros alone where they are all 0, or not finite."""
    largest = jnp.abs(x).max().astype(jnp.float32)
    place = jnp.clip(jnp.frexp(largest)[1] - _LOWEST, 0, EXPONENTS - 1)
    return jax.nn.one_hot(jnp.where((largest > 0) & jnp.isfinite(largest), place, -1), EXPONENTS)
