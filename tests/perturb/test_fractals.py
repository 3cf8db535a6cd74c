"""Fog and frost in floats, before they are rounded to bytes: those of NumPy, which rounds each product and each sum.

A compiler may fuse a product and a sum, and add in any order; both depend on the number of threads and devices.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.perturb.images.corruptions.primitives import ordered_sum
from rococo_jax.perturb.images.corruptions.weather import (
    FOG,
    _standard,
    diamond_square,
    draw_fog,
    draw_fractal,
    draw_frost,
    fog,
    frost,
)
from rococo_jax.runtime import AXES, make_mesh

SIDE, KEYS = 64, 24
drawn = jax.jit(partial(draw_fractal, side=SIDE))


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Rounded to float32 and to a whole number of 2 ** -22."""
    return np.round((left * right) * np.float32(2**22)) * np.float32(2**-22)


def plain_fractal(draws: list[np.ndarray], wibble: float, decay: float) -> np.ndarray:
    """The field level by level, corner by corner."""
    grid, quarter = np.zeros((1, 1), np.float32), np.float32(0.25)
    for squares, tops, sides in draws:
        size, scale = len(grid), np.float32(wibble * wibble)
        finer = np.zeros((2 * size, 2 * size), np.float32)
        finer[::2, ::2] = grid
        right, below = np.roll(grid, -1, 1), np.roll(grid, -1, 0)
        finer[1::2, 1::2] = middle = ((grid + below) + np.roll(grid + below, -1, 1)) * quarter + product(scale, squares)
        finer[::2, 1::2] = (((middle + np.roll(middle, 1, 0)) + grid) + right) * quarter + product(scale, tops)
        finer[1::2, ::2] = (((middle + np.roll(middle, 1, 1)) + grid) + below) * quarter + product(scale, sides)
        grid, wibble = finer, wibble / decay
    return grid


def by_halves(values: np.ndarray) -> np.float32:
    values = values.reshape(-1)
    while len(values) > 1:
        values = values[: len(values) // 2] + values[len(values) // 2 :]
    return values[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "devices", [pytest.param(1, marks=pytest.mark.thorough), pytest.param(3, marks=pytest.mark.thorough), 8]
)
@pytest.mark.parametrize(("wibble", "decay"), [(100.0, FOG[4][1]), pytest.param(1.0, 1.0, marks=pytest.mark.thorough)])
def test_fractals_match_numpy_exactly_on_any_number_of_devices(wibble, decay, devices):
    mesh = make_mesh(jax.devices()[:devices])
    split = jax.sharding.PartitionSpec(AXES)

    def several(keys):
        return jax.lax.map(lambda key: diamond_square(draw_fractal(key, SIDE), wibble, decay), keys)

    keys = jax.random.split(jax.random.key(5), KEYS)
    fields = np.asarray(jax.jit(jax.shard_map(several, mesh=mesh, in_specs=split, out_specs=split))(keys))
    for key, field in list(zip(keys, fields, strict=True))[:: KEYS // 3]:
        draws = jax.tree.map(np.asarray, drawn(key))
        np.testing.assert_array_equal(field, plain_fractal(draws, wibble, decay))


@pytest.mark.slow
def test_the_program_sums_only_by_halves():
    field = np.random.default_rng(0).normal(300, 5, (SIDE, SIDE)).astype(np.float32)
    assert jax.jit(ordered_sum)(field) == by_halves(field)
    assert jax.jit(ordered_sum)(jnp.arange(7.0)) == 21
    np.testing.assert_allclose(jax.jit(_standard)(field), (field - field.mean()) / field.std(), atol=1e-4)
    key = jax.random.key(0)
    for draw, kind in ((draw_fog, fog), (draw_frost, frost)):
        drawing = partial(draw, height=SIDE, width=SIDE, severity=3)
        image = jnp.zeros((SIDE, SIDE, 3), jnp.uint8)
        corrupting = jax.make_jaxpr(partial(kind, image, 3))(jax.eval_shape(drawing, key))
        programs = jax.make_jaxpr(drawing)(key), corrupting
        assert not any("reduce_sum" in str(program) or "dot_general" in str(program) for program in programs)
