"""Add snow, fog, frost or spatter to an image.

Constants per severity: Hendrycks & Dietterich 2019 (arXiv 1903.12261), from their public code. Flakes and
their motion, and drops, are in pixels, whatever the size of the image; fog is drawn on the next power of two above the
longer side, so its clouds grow with the image.

The reference overlays photographs of frosted glass for frost. Here [ours] the texture is drawn instead: a field with
the photographs' 1/f^2 spectrum and ridges for needles, with the means and deviations of the five photographs that the
published code draws from. Frosted images therefore differ from the published ones; the shares of frost and image do
not.

Spatter is water (severities 1 to 3) or mud (4 and 5) on the lens. Water drops are shaded by a chain of 8-bit filters
(edges, distance to the nearest edge, histogram equalisation, emboss), computed in the same integers as the reference so
that thresholds fall on the same side.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt8

from rococo_jax.perturb.images.corruptions.primitives import (
    crop_of_zoom,
    gaussian,
    motion_blur,
    motion_offsets,
    ordered_sum,
    rounded_product,
    to_bytes,
    zoom_lines,
    zoom_taps,
)

# mean and deviation of the flakes, zoom, threshold, radius and deviation of their motion, share of the image kept
SNOW = (
    (0.1, 0.3, 3.0, 0.5, 10, 4.0, 0.8),
    (0.2, 0.3, 2.0, 0.5, 12, 4.0, 0.7),
    (0.55, 0.3, 4.0, 0.9, 12, 8.0, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8.0, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12.0, 0.55),
)
FOG = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))  # amount, decay of the roughness
FROST = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))  # share of the image, share of the frost

# Mean red, green, blue and one deviation of the reference's first five panes of frost, of which two are the same file.
# The sixth, the darkest, is never drawn there: `randint(5)` chooses from a list of six.
TINTS = (
    (78.0, 149.0, 166.0, 19.0),
    (201.0, 205.0, 214.0, 21.0),
    (201.0, 205.0, 214.0, 21.0),
    (138.0, 153.0, 165.0, 28.0),
    (112.0, 123.0, 135.0, 42.0),
)

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
SnowDraws = tuple[Float[Array, "rows columns"], Int[Array, "taps 2"]]
FractalDraws = tuple[Float[Array, "3 _ _"], ...]


def draw_snow(key: Key[Array, ""], height: int, width: int, severity: int) -> SnowDraws:
    """Draw standard normals for the visible part of the flakes before zooming, and the steps of their motion."""
    zoom, radius = SNOW[severity - 1][2], SNOW[severity - 1][4]
    flakes_key, angle_key = jax.random.split(key)
    flakes = jax.random.normal(flakes_key, (crop_of_zoom(height, zoom)[1], crop_of_zoom(width, zoom)[1]))
    angle = jax.random.uniform(angle_key, (), minval=-135.0, maxval=-45.0)
    return flakes, motion_offsets(angle, 2 * radius + 1)


def snow(image: Image, severity: int, draws: SnowDraws) -> Image:
    """Add falling flakes, and the same flakes rotated by 180 degrees, to a whitened image."""
    mean, deviation, zoom, threshold, _, sigma, share = SNOW[severity - 1]
    flakes, offsets = draws
    height, width, _ = image.shape
    flakes = mean + deviation * flakes
    flakes = zoom_lines(flakes, *zoom_taps(flakes.shape[0], zoom, height))
    flakes = zoom_lines(flakes.T, *zoom_taps(flakes.shape[1], zoom, width)).T
    # In bytes before the blur and after it, as ImageMagick has them in the published code.
    flakes = jnp.floor(255 * jnp.clip(jnp.where(flakes < threshold, 0, flakes), 0, 1))
    flakes = jnp.floor(motion_blur(flakes[..., None], offsets, sigma))
    image = image.astype(jnp.float32)
    gray = image @ jnp.array([0.299, 0.587, 0.114])
    whitened = jnp.maximum(image, (gray * 1.5 + 127.5)[..., None])
    return to_bytes(share * image + (1 - share) * whitened + flakes + flakes[::-1, ::-1])


def draw_fog(key: Key[Array, ""], height: int, width: int, severity: int) -> FractalDraws:
    """Draw uniform numbers in [-1, 1) for each level of the fractal."""
    return draw_fractal(key, max(height, width))


def fog(image: Image, severity: int, draws: FractalDraws) -> Image:
    """Add a fractal cloud from 0 to `amount`, and dim so that the brightest value stays in range."""
    amount, decay = FOG[severity - 1]
    height, width, _ = image.shape
    cloud = diamond_square(draws, wibble=100.0, decay=decay)
    cloud = (cloud - cloud.min()) / (cloud.max() - cloud.min())
    image = image.astype(jnp.float32) / 255
    brightest = image.max()
    foggy = image + amount * cloud[:height, :width, None]
    return to_bytes(foggy * brightest / (brightest + amount) * 255)


def draw_fractal(key: Key[Array, ""], side: int) -> FractalDraws:
    """Uniform numbers in [-1, 1) for squares and both kinds of diamonds, for each doubling up to `side`."""
    levels = int(np.ceil(np.log2(side)))
    ends = np.cumsum([3 * 4**level for level in range(levels)])
    # One draw, split: a draw for each level would be compiled for each.
    pieces = jnp.split(jax.random.uniform(key, (int(ends[-1]),), minval=-1.0, maxval=1.0), ends[:-1])
    return tuple(piece.reshape(3, 2**level, 2**level) for level, piece in enumerate(pieces))


def diamond_square(draws: FractalDraws, wibble: float, decay: float) -> Float[Array, "side side"]:
    """A periodic height map by midpoint displacement (Fournier, Fussell & Carpenter 1982), from a single corner at 0.

    Each level moves every midpoint by `wibble` squared times its draw (squared as in the reference), and divides
    `wibble` by `decay`.
    """
    grid = jnp.zeros((1, 1), jnp.float32)
    for squares, tops, sides in draws:
        size = grid.shape[0]
        scale = wibble * wibble
        # Rounded, or one core would draw other numbers than four; see `rounded_product`.
        moves = [rounded_product(scale, draw) for draw in (squares, tops, sides)]
        around = grid + jnp.roll(grid, -1, axis=0)
        middle = (around + jnp.roll(around, -1, axis=1)) / 4 + moves[0]
        top = (middle + jnp.roll(middle, 1, axis=0) + grid + jnp.roll(grid, -1, axis=1)) / 4 + moves[1]
        side = (middle + jnp.roll(middle, 1, axis=1) + grid + jnp.roll(grid, -1, axis=0)) / 4 + moves[2]
        upper, lower = jnp.stack([grid, top], axis=-1), jnp.stack([side, middle], axis=-1)
        # A barrier after each level: fused into one expression, each level would be recomputed for the next.
        grid = jax.lax.optimization_barrier(jnp.stack([upper, lower], axis=1).reshape(2 * size, 2 * size))
        wibble /= decay
    return grid


def draw_frost(key: Key[Array, ""], height: int, width: int, severity: int) -> Float[Array, "height width 3"]:
    """Draw a frosted pane, 0 to 255, in one of the tints: equal power in every octave, half folded into ridges."""
    ground_key, needle_key, tint_key = jax.random.split(key, 3)
    ground, needles = (
        _standard(diamond_square(draw_fractal(part, max(height, width)), wibble=1.0, decay=1.0)[:height, :width])
        for part in (ground_key, needle_key)
    )
    pane = _standard(ground - _standard(jnp.abs(needles)))
    tint = jnp.array(TINTS)[jax.random.randint(tint_key, (), 0, len(TINTS))]
    return jnp.clip(tint[None, None, :3] + tint[3] * pane[..., None], 0, 255)


def _standard(field: Float[Array, "height width"]) -> Float[Array, "height width"]:
    field = field - ordered_sum(field) / field.size
    return field / jnp.sqrt(ordered_sum(rounded_product(field, field)) / field.size)


def frost(image: Image, severity: int, pane: Float[Array, "height width 3"]) -> Image:
    """Blend the image with a frosted pane."""
    image_share, frost_share = FROST[severity - 1]
    return to_bytes(image_share * image.astype(jnp.float32) + frost_share * pane)


def draw_spatter(key: Key[Array, ""], height: int, width: int, severity: int) -> Float[Array, "height width"]:
    """Draw a standard normal number for each pixel."""
    return jax.random.normal(key, (height, width))


def spatter(image: Image, severity: int, thickness: Float[Array, "height width"]) -> Image:
    """Overlay drops of water or mud."""
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
    """Return the brightness of each drop, from 0 to 1: liquid times the embossed distance from its edge."""
    distance = _distance(_edges(liquid))
    # The mean of nine distances, truncated to whole pixels, in fixed point: a constant 20 stays 20.
    levels = _sum_of_nine(distance) // (9 * 65536)
    shading = _filter(_equalise(levels), _EMBOSS)
    shading = (2 * _sum_of_nine(jnp.clip(shading, 0, 255)) + 9) // 18
    shine = (liquid * shading).astype(jnp.float32)
    return shine / jnp.maximum(shine.max(), 1)


def _neighbours(plane: Plane, border: str):
    """Return `at(row, column)`, which shifts the plane so that each pixel gets its neighbour at that offset."""
    height, width = plane.shape
    padded = jnp.pad(plane, 1, mode=border)
    return lambda row, column: padded[1 + row : 1 + row + height, 1 + column : 1 + column + width]


def _filter(plane: Plane, kernel: np.ndarray) -> Plane:
    at = _neighbours(plane, "reflect")
    return sum(int(kernel[row + 1, column + 1]) * at(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1))


def _sum_of_nine(plane: Plane) -> Plane:
    return _filter(plane, np.ones((3, 3), int))


def _edges(plane: Plane) -> Bool[Array, "height width"]:
    """Return Canny's edges (1986): ridges of the Sobel gradient |dx| + |dy| above 50 that connect to one above 150."""
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
    weak = ridge & (strength > 50)

    def grow(state: tuple[Array, Array]) -> tuple[Array, Array]:
        edges = state[0]
        around = _neighbours(edges.astype(jnp.int8), "constant")
        reached = sum(around(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)) > 0
        grown = weak & reached
        return grown, (grown != edges).any()

    strong = weak & (strength > 150)
    return jax.lax.while_loop(lambda state: state[1], grow, (strong, strong.any()))[0]


def _distance(edges: Bool[Array, "height width"]) -> Plane:
    """Return the chamfer distance to the nearest edge in 1/65536 pixel (Borgefors 1986, 5 x 5), at most 20 pixels."""
    farthest = _FARTHEST * 65536
    height, width = edges.shape

    def relax(_: Array, distance: Array) -> Array:
        padded = jnp.pad(distance, 2, constant_values=farthest)
        for row, column, cost in _MOVES:
            shifted = padded[2 + row : 2 + row + height, 2 + column : 2 + column + width]
            distance = jnp.minimum(distance, shifted + cost)
        return distance

    return jax.lax.fori_loop(0, _FARTHEST, relax, jnp.where(edges, 0, farthest))


def _equalise(levels: Plane) -> Plane:
    """Equalise the histogram of whole numbers from 0 to 20 onto 0 to 255."""
    count = jnp.stack([(levels == level).sum() for level in range(_FARTHEST + 1)])
    total, lowest = levels.size, jnp.argmax(count > 0)
    after = jnp.cumsum(jnp.where(jnp.arange(_FARTHEST + 1) > lowest, count, 0))
    scale = 255.0 / jnp.maximum(total - count[lowest], 1).astype(jnp.float32)
    table = jnp.round(after.astype(jnp.float32) * scale).astype(jnp.int32)
    return jnp.where(count[lowest] == total, lowest.astype(jnp.int32), table[levels])
