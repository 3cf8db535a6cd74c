"""Weather: snow, fog and frost.

Constants per severity: Hendrycks & Dietterich 2019 (arXiv 1903.12261), as their public code lists them. Flakes and
their motion are in pixels, whatever the size of the image; fog is drawn on the next power of two above the longer side,
so its clouds grow with the image.

Frost in the reference is laid over from photographs of frosted glass. Here the texture is drawn instead: a field with
the photographs' 1/f^2 spectrum and ridges for needles, in five tints with their measured means and deviations. Its
pictures therefore differ from the published ones; how much is laid over, and how the image shows through, does not.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt8

from rococo_jax.perturb.images.corruptions.draws import normal, uniform
from rococo_jax.perturb.images.corruptions.filters import (
    crop_of_zoom,
    motion_blur,
    motion_offsets,
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

# Mean red, green, blue and one deviation of six frosted panes; the reference has the second of them twice.
TINTS = (
    (78.0, 149.0, 166.0, 19.0),
    (201.0, 205.0, 214.0, 21.0),
    (201.0, 205.0, 214.0, 21.0),
    (138.0, 153.0, 165.0, 28.0),
    (112.0, 123.0, 135.0, 42.0),
    (71.0, 95.0, 105.0, 41.0),
)

Image = UInt8[Array, "height width 3"]
SnowDraws = tuple[Float[Array, "rows columns"], Int[Array, "taps 2"]]
FractalDraws = tuple[Float[Array, "3 _ _"], ...]


def draw_snow(key: Key[Array, ""], height: int, width: int, severity: int) -> SnowDraws:
    """Standard normals for the part of the flakes that is zoomed into view, and the steps of their fall."""
    zoom, radius = SNOW[severity - 1][2], SNOW[severity - 1][4]
    flakes_key, angle_key = jax.random.split(key)
    flakes = normal(flakes_key, (crop_of_zoom(height, zoom)[1], crop_of_zoom(width, zoom)[1]))
    angle = jax.random.uniform(angle_key, (), minval=-135.0, maxval=-45.0)
    return flakes, motion_offsets(angle, 2 * radius + 1)


def snow(image: Image, severity: int, draws: SnowDraws) -> Image:
    """Falling flakes, and the same turned by half a circle, over a whitened image."""
    mean, deviation, zoom, threshold, _, sigma, kept = SNOW[severity - 1]
    flakes, offsets = draws
    height, width, _ = image.shape
    flakes = mean + deviation * flakes
    flakes = zoom_lines(flakes, *zoom_taps(flakes.shape[0], zoom))
    flakes = zoom_lines(flakes.T, *zoom_taps(flakes.shape[1], zoom)).T
    flakes = jnp.clip(jnp.where(flakes < threshold, 0, flakes), 0, 1)
    flakes = motion_blur(flakes[..., None], offsets, sigma)
    flakes = jnp.round(flakes * 255)[:height, :width]
    image = image.astype(jnp.float32)
    gray = image @ jnp.array([0.299, 0.587, 0.114])
    whitened = jnp.maximum(image, (gray * 1.5 + 127.5)[..., None])
    return to_bytes(kept * image + (1 - kept) * whitened + flakes + flakes[::-1, ::-1])


def draw_fog(key: Key[Array, ""], height: int, width: int, severity: int) -> FractalDraws:
    """Uniform numbers in [-1, 1) for each level of the fractal."""
    return draw_fractal(key, max(height, width))


def fog(image: Image, severity: int, draws: FractalDraws) -> Image:
    """Adds a fractal cloud from 0 to `amount`, and dims so that the brightest value stays in range."""
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
    # One draw cut into pieces: a draw for each level would be compiled for each.
    pieces = jnp.split(uniform(key, (int(ends[-1]),), -1.0, 1.0), ends[:-1])
    return tuple(piece.reshape(3, 2**level, 2**level) for level, piece in enumerate(pieces))


def diamond_square(draws: FractalDraws, wibble: float, decay: float) -> Float[Array, "side side"]:
    """A periodic height map by midpoint displacement (Fournier, Fussell & Carpenter 1982), from a single corner at 0.

    Each level moves every midpoint by `wibble` squared times its draw; `wibble` is divided by `decay` from level to
    level. The square is the reference's.
    """
    grid = jnp.zeros((1, 1), jnp.float32)
    for squares, tops, sides in draws:
        size = grid.shape[0]
        scale = wibble * wibble
        around = grid + jnp.roll(grid, -1, axis=0)
        middle = (around + jnp.roll(around, -1, axis=1)) / 4 + scale * squares
        top = (middle + jnp.roll(middle, 1, axis=0) + grid + jnp.roll(grid, -1, axis=1)) / 4 + scale * tops
        side = (middle + jnp.roll(middle, 1, axis=1) + grid + jnp.roll(grid, -1, axis=0)) / 4 + scale * sides
        upper, lower = jnp.stack([grid, top], axis=-1), jnp.stack([side, middle], axis=-1)
        # One level at a time: compiled as one expression, each level would be computed again for the next.
        grid = jax.lax.optimization_barrier(jnp.stack([upper, lower], axis=1).reshape(2 * size, 2 * size))
        wibble /= decay
    return grid


def draw_frost(key: Key[Array, ""], height: int, width: int, severity: int) -> Float[Array, "height width 3"]:
    """A frosted pane, 0 to 255: equal power in every octave, half of it folded into ridges, in one of the tints."""
    ground_key, needle_key, tint_key = jax.random.split(key, 3)
    ground, needles = (
        _standard(diamond_square(draw_fractal(part, max(height, width)), wibble=1.0, decay=1.0)[:height, :width])
        for part in (ground_key, needle_key)
    )
    pane = _standard(ground - _standard(jnp.abs(needles)))
    tint = jnp.array(TINTS)[jax.random.randint(tint_key, (), 0, len(TINTS))]
    return jnp.clip(tint[None, None, :3] + tint[3] * pane[..., None], 0, 255)


def _standard(field: Float[Array, "height width"]) -> Float[Array, "height width"]:
    return (field - field.mean()) / field.std()


def frost(image: Image, severity: int, pane: Float[Array, "height width 3"]) -> Image:
    """The image through a frosted pane."""
    image_share, frost_share = FROST[severity - 1]
    return to_bytes(image_share * image.astype(jnp.float32) + frost_share * pane)
