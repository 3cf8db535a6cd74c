"""Products in float8 against NumPy with ml_dtypes and against Flax's, and the histories that their scales come from."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax.linen import fp8_ops

from rococo_jax.models.float8 import EXPONENTS, HISTORY, first_history, float8_product, renewed

pytestmark = pytest.mark.quick
FORMATS = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
LOWEST, LARGEST = -96, (8, 8, 15)
# Of x, kernel, cotangent: no magnitude is as large as this power of two.
BOUNDS = (2, -1, -9)


def history_of(*bounds: int) -> jax.Array:
    return jax.nn.one_hot(jnp.asarray(bounds) - LOWEST, EXPONENTS)


def drawn(dtype) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rows, a kernel and a cotangent; some beyond their bounds, some too small for float8 but for few digits."""
    random = np.random.default_rng(0)
    arrays = [random.normal(size=shape) * 2.0**bound / 3 for shape, bound in
              zip(((3, 5, 48), (48, 20), (3, 5, 20)), BOUNDS, strict=True)]  # fmt: skip
    for array in arrays:
        array[..., ::7] *= 2.0**-12
    x, kernel, cotangent = (jnp.asarray(array, kind) for array, kind in
                            zip(arrays, (dtype, jnp.float32, dtype), strict=True))  # fmt: skip
    return x.at[0, 0, 1].set(2.0 ** (BOUNDS[0] + 3)), kernel, cotangent


def rounded(array: jax.Array, number: int) -> np.ndarray:
    """What float8 leaves of an array, in float64."""
    scale = 2.0 ** (BOUNDS[number] - LARGEST[number])
    largest = float(ml_dtypes.finfo(FORMATS[number]).max)
    inside = np.clip(np.asarray(array, np.float32) / np.float32(scale), -largest, largest)
    return inside.astype(FORMATS[number]).astype(np.float64) * scale


def results(dtype) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    x, kernel, cotangent = operands = drawn(dtype)
    y, pull = jax.vjp(jax.jit(float8_product), x, kernel, history_of(*BOUNDS))
    return operands, (y, *pull(cotangent))


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 2e-6), (jnp.bfloat16, 2**-8)])
def test_a_product_and_its_gradients_are_those_of_numpy(dtype, tolerance):
    """Operands are the same numbers; sums are float32, and with bfloat16 their results are rounded once."""
    (x, kernel, cotangent), (y, to_x, to_kernel, _) = results(dtype)
    assert [each.dtype for each in (y, to_x, to_kernel)] == [dtype, dtype, jnp.float32]
    x8, kernel8, cotangent8 = (rounded(each, number) for number, each in enumerate((x, kernel, cotangent)))
    assert x8.max() == 448 * 2.0 ** (BOUNDS[0] - 8) < float(x.max()), "one is clipped"
    for found, expected in ((y, x8 @ kernel8), (to_x, cotangent8 @ kernel8.T)):
        np.testing.assert_allclose(np.asarray(found, np.float64), expected, atol=tolerance * np.abs(expected).max())
    expected = np.einsum("abi,abo->io", np.asarray(x, np.float64), np.asarray(cotangent, np.float64))
    np.testing.assert_allclose(to_kernel, expected, atol=2e-6 * np.abs(expected).max())


def test_a_product_and_the_gradient_of_its_rows_are_those_of_flax():
    (x, kernel, cotangent), (y, to_x, _, _) = results(jnp.float32)
    # Flax scales by the largest magnitude over that of the format: it is given those that make our scales.
    scales, histories = {}, {}
    for number, name in enumerate(("lhs", "rhs", "grad")):
        largest = float(ml_dtypes.finfo(FORMATS[number]).max) * 2.0 ** (BOUNDS[number] - LARGEST[number])
        scales[f"{name}_scale"], histories[f"{name}_amax_history"] = jnp.ones(1), jnp.full(4, largest)

    def product(x, kernel):
        return fp8_ops.fp8_scaled_dot_general(
            x, kernel, (((2,), (0,)), ((), ())), preferred_element_type=jnp.float32, **scales, **histories
        )

    expected, pull = jax.vjp(product, x, kernel)
    np.testing.assert_allclose(y, expected, atol=2e-6 * float(jnp.abs(expected).max()))
    gradient = pull(cotangent)[0]
    np.testing.assert_allclose(to_x, gradient, atol=2e-6 * float(jnp.abs(gradient).max()))


def exponents(history: jax.Array) -> list[int]:
    """The largest that counts, of each operand; `LOWEST` where none does."""
    return [int(np.flatnonzero(row).max(initial=0)) + LOWEST for row in np.asarray(history)]


def test_the_cotangent_of_a_history_tells_the_exponents_and_their_sum_the_largest():
    (x, kernel, cotangent), (_, _, _, seen) = results(jnp.bfloat16)
    assert exponents(seen) == [int(np.frexp(np.abs(np.asarray(each, np.float32)).max())[1])
                               for each in (x, kernel, cotangent)]  # fmt: skip
    parts = sum(jax.vjp(float8_product, rows, kernel, history_of(*BOUNDS))[1](of_rows)[2]
                for rows, of_rows in zip(x, cotangent, strict=True))  # fmt: skip
    assert exponents(parts) == exponents(seen)


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_zeros_and_numbers_that_are_not_finite_are_not_seen(value):
    x, kernel, cotangent = drawn(jnp.bfloat16)
    y, pull = jax.vjp(float8_product, jnp.full_like(x, value), kernel, history_of(*BOUNDS))
    assert exponents(pull(cotangent)[2])[0] == LOWEST
    assert np.isnan(np.asarray(y, np.float32)).all() == np.isnan(value), "one that is no number is not hidden"


def test_a_scale_follows_the_largest_magnitude_of_a_window_and_a_guess_counts_once():
    history, step = first_history(2)[0], jax.jit(renewed)
    assert exponents(history) == [6, 1, 0]
    history = step(history, history_of(3, -4, -20))
    assert exponents(history) == [3, -4, -20]
    history = step(history, history_of(5, -4, -30))
    for _ in range(HISTORY - 1):
        history = step(history, history_of(1, -4, -30))
    assert exponents(history) == [5, -4, -30]
    history = step(history, jnp.zeros_like(history).at[0].set(history_of(1)[0]))
    assert exponents(history) == [1, -4, -30]
    for _ in range(HISTORY + 1):
        history = step(history, jnp.zeros_like(history))
    assert exponents(history) == [1, -4, -30], "the last ones are not forgotten"
