"""Spatter: water (severities 1 to 3) or mud (4 and 5) on the lens.

Constants per severity: Hendrycks & Dietterich 2019 (arXiv 1903.12261), as their public code lists them; sizes are in
pixels. Water drops get their shading from a chain of 8-bit filters (edges, distance to the nearest edge, histogram
equalisation, emboss), which is followed in the same integers so that thresholds fall on the same side.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt8

from rococo_jax.perturb.images.corruptions.draws import normal
from rococo_jax.perturb.images.corruptions.filters import gaussian, to_bytes

# mean and deviation of the liquid, smoothing, threshold, strength of the water or smoothing of the mud
SPATTER = (
    (0.65, 0.3, 4.0, 0.69, 0.6),
    (0.65, 0.3, 3.0, 0.68, 0.6),
    (0.65, 0.3, 2.0, 0.68, 0.5),
    (0.65, 0.3, 1.0, 0.65, 1.5),
    (0.67, 0.4, 1.0, 0.65, 1.5),
)
MUD_FROM = 4
WATER_COLOUR = (175 / 255, 238 / 255, 238 / 255)
MUD_COLOUR = (63.0, 42.0, 20.0)

# Distances in 1/65536 pixel: straight, diagonal and knight's moves of 1, 1.4 and 2.1969; cut at 20 pixels.
_STRAIGHT, _DIAGONAL, _KNIGHT, _FARTHEST = 65536, 91750, 143976, 20
_MOVES = [
    (row, column, {1: _STRAIGHT, 2: _DIAGONAL, 5: _KNIGHT}[row**2 + column**2])
    for row in range(-2, 3)
    for column in range(-2, 3)
    if row**2 + column**2 in (1, 2, 5)
]
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])

Image = UInt8[Array, "height width 3"]
Plane = Int[Array, "height width"]


def draw_spatter(key: Key[Array, ""], height: int, width: int, severity: int) -> Float[Array, "height width"]:
    """A standard normal for each pixel."""
    return normal(key, (height, width))


def spatter(image: Image, severity: int, thickness: Float[Array, "height width"]) -> Image:
    """Lays drops of water or mud over the image."""
    mean, deviation, smoothing, threshold, last = SPATTER[severity - 1]
    liquid = gaussian((mean + deviation * thickness)[..., None], smoothing)
    liquid = jnp.where(liquid < threshold, 0, liquid)
    pixels = image.astype(jnp.float32)
    if severity < MUD_FROM:
        drops = _shade((liquid[..., 0] * 255).astype(jnp.int32))
        return to_bytes(pixels + 255 * last * drops[..., None] * jnp.array(WATER_COLOUR)[None, None])
    mud = gaussian((liquid > threshold).astype(jnp.float32), last)
    mud = jnp.where(mud < 0.8, 0, mud)
    return to_bytes(pixels * (1 - mud) + mud * jnp.array(MUD_COLOUR)[None, None])


def _shade(liquid: Plane) -> Float[Array, "height width"]:
    """How bright each drop shines, from 0 to 1: liquid times the embossed distance from its edge."""
    distance = _distance(_edges(liquid))
    # The mean of nine distances, cut to whole pixels; all in fixed point, so a flat 20 stays 20.
    levels = _sum_of_nine(distance) // (9 * 65536)
    shading = _filter(_equalise(levels), _EMBOSS)
    shading = (2 * _sum_of_nine(jnp.clip(shading, 0, 255)) + 9) // 18
    shine = (liquid * shading).astype(jnp.float32)
    return shine / jnp.maximum(shine.max(), 1)


def _neighbours(plane: Plane, border: str, reach: int = 1):
    """`at(row, column)`: the plane moved so that each pixel sees its neighbour at that offset."""
    height, width = plane.shape
    fill = {} if border != "constant" else {"constant_values": 0}
    padded = jnp.pad(plane, reach, mode=border, **fill)
    return lambda row, column: padded[reach + row : reach + row + height, reach + column : reach + column + width]


def _filter(plane: Plane, kernel: np.ndarray) -> Plane:
    at = _neighbours(plane, "reflect")
    return sum(int(kernel[row + 1, column + 1]) * at(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1))


def _sum_of_nine(plane: Plane) -> Plane:
    return _filter(plane, np.ones((3, 3), int))


def _edges(plane: Plane, low: int = 50, high: int = 150) -> Bool[Array, "height width"]:
    """Canny's edges (1986): ridges of the Sobel gradient |dx| + |dy| above `low` that connect to one above `high`."""
    at = _neighbours(plane, "edge")
    across = (at(-1, 1) + 2 * at(0, 1) + at(1, 1)) - (at(-1, -1) + 2 * at(0, -1) + at(1, -1))
    down = (at(1, -1) + 2 * at(1, 0) + at(1, 1)) - (at(-1, -1) + 2 * at(-1, 0) + at(-1, 1))
    strength = jnp.abs(across) + jnp.abs(down)
    near = _neighbours(strength, "constant")
    # Tangents of 22.5 and 67.5 degrees in units of 1/32768.
    flat = jnp.abs(across) * 13573
    steep = flat + (jnp.abs(across) << 16)
    height = jnp.abs(down) << 15
    horizontal = (strength > near(0, -1)) & (strength >= near(0, 1))
    vertical = (strength > near(-1, 0)) & (strength >= near(1, 0))
    falling = (strength > near(-1, -1)) & (strength > near(1, 1))
    rising = (strength > near(-1, 1)) & (strength > near(1, -1))
    diagonal = jnp.where((across ^ down) < 0, rising, falling)
    ridge = jnp.where(height < flat, horizontal, jnp.where(height > steep, vertical, diagonal))
    weak = ridge & (strength > low)

    def grow(state: tuple[Array, Array]) -> tuple[Array, Array]:
        edges = state[0]
        around = _neighbours(edges.astype(jnp.int8), "constant")
        reached = sum(around(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)) > 0
        grown = weak & reached
        return grown, (grown != edges).any()

    strong = weak & (strength > high)
    return jax.lax.while_loop(lambda state: state[1], grow, (strong, strong.any()))[0]


def _distance(edges: Bool[Array, "height width"]) -> Plane:
    """Chamfer distance to the nearest edge in 1/65536 pixel (Borgefors 1986, 5 x 5), no more than 20 pixels."""
    farthest = _FARTHEST * 65536
    height, width = edges.shape

    def relax(_: Array, distance: Array) -> Array:
        padded = jnp.pad(distance, 2, constant_values=farthest)
        for row, column, cost in _MOVES:
            moved = padded[2 + row : 2 + row + height, 2 + column : 2 + column + width]
            distance = jnp.minimum(distance, moved + cost)
        return distance

    return jax.lax.fori_loop(0, _FARTHEST, relax, jnp.where(edges, 0, farthest))


def _equalise(levels: Plane) -> Plane:
    """Histogram equalisation of whole numbers from 0 to 20 onto 0 to 255."""
    count = jnp.stack([(levels == level).sum() for level in range(_FARTHEST + 1)])
    total, lowest = levels.size, jnp.argmax(count > 0)
    after = jnp.cumsum(jnp.where(jnp.arange(_FARTHEST + 1) > lowest, count, 0))
    scale = 255.0 / jnp.maximum(total - count[lowest], 1).astype(jnp.float32)
    table = jnp.round(after.astype(jnp.float32) * scale).astype(jnp.int32)
    return jnp.where(count[lowest] == total, lowest.astype(jnp.int32), table[levels])
