"""Contrast, brightness, saturation, elastic warping, pixelation and JPEG.

Constants per severity: Hendrycks & Dietterich 2019 (arXiv 1903.12261), as their public code lists them. Elastic warping
follows the image's size, pixelation is relative to it; the others do not depend on it.
"""

import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
from jaxtyping import Array, Float, Int, Key, UInt8

from rococo_jax.data.pictures import decode_image
from rococo_jax.perturb.images.corruptions.primitives import gaussian, to_bytes

CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)
BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)
SATURATE = ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))  # saturation times the first plus the second
ELASTIC = (12.5, 16.25, 21.25, 25.0, 30.0)
PIXELATE = (0.6, 0.5, 0.4, 0.3, 0.25)
JPEG = (25, 18, 15, 10, 7)

Image = UInt8[Array, "height width 3"]


def contrast(image: Image, severity: int, draws: None) -> Image:
    """Scale every channel's distance from its mean over the image."""
    rows = image.astype(jnp.int32).sum(axis=1)  # exact; the sum of all might overflow
    mean = (rows.astype(jnp.float32) / image.shape[1]).mean(axis=0)[None, None]
    return to_bytes((image.astype(jnp.float32) - mean) * CONTRAST[severity - 1] + mean)


def brightness(image: Image, severity: int, draws: None) -> Image:
    """Add to the value of (hue, saturation, value): scale all channels by new value / value; black becomes gray."""
    image = image.astype(jnp.float32)
    value = image.max(axis=-1, keepdims=True)
    brighter = jnp.minimum(value + 255 * BRIGHTNESS[severity - 1], 255)
    return to_bytes(jnp.where(value == 0, brighter, image * (brighter / jnp.maximum(value, 1))))


def saturate(image: Image, severity: int, draws: None) -> Image:
    """Scale the saturation of (hue, saturation, value).

    A channel is value * (1 - saturation * k), k in [0, 1] depending on the hue alone, so its distance from the value is
    proportional to the saturation. Gray has no hue and is treated as red, as in the reference.
    """
    times, plus = SATURATE[severity - 1]
    image = image.astype(jnp.float32)
    value, least = image.max(axis=-1, keepdims=True), image.min(axis=-1, keepdims=True)
    spread = value - least
    saturation = spread / jnp.maximum(value, 1)
    saturated = jnp.clip(saturation * times + plus, 0, 1)
    reddish = jnp.array([0.0, 1.0, 1.0])[None, None]
    share = jnp.where(spread == 0, reddish, (value - image) / jnp.maximum(spread, 1))
    return to_bytes(value - value * saturated * share)


def draw_elastic(key: Key[Array, ""], height: int, width: int, severity: int) -> Float[Array, "2 height width"]:
    """Displacements in pixels (down, across) before smoothing: uniform within 0.5 % of the height, times alpha."""
    reach = height * 0.005
    return jax.random.uniform(key, (2, height, width), minval=-reach, maxval=reach)


def elastic_transform(image: Image, severity: int, field: Float[Array, "2 height width"]) -> Image:
    """Sample the image (linearly, mirrored at its border) at positions moved by a smooth random field."""
    height, width, _ = image.shape
    smooth = functools.partial(gaussian, sigma=(height * 0.01, width * 0.01), truncate=3.0, border="symmetric")
    moved = smooth(field.transpose(1, 2, 0)) * ELASTIC[severity - 1]
    row = jnp.arange(height, dtype=jnp.float32)[:, None] + moved[..., 0]
    column = jnp.arange(width, dtype=jnp.float32)[None] + moved[..., 1]
    top, left = jnp.floor(row), jnp.floor(column)
    down, across = (row - top)[..., None], (column - left)[..., None]
    pixels = image.reshape(-1, 3)

    def at(rows: Array, columns: Array) -> Array:
        place = _mirror(rows, height) * width + _mirror(columns, width)
        return pixels[place].astype(jnp.float32)

    top, left = top.astype(jnp.int32), left.astype(jnp.int32)
    upper = at(top, left) * (1 - across) + at(top, left + 1) * across
    lower = at(top + 1, left) * (1 - across) + at(top + 1, left + 1) * across
    return to_bytes(upper * (1 - down) + lower * down)


def _mirror(index: Array, side: int) -> Array:
    """Mirror indices beyond the border, border line included (no further out than one side)."""
    index = jnp.where(index < 0, -1 - index, index)
    return jnp.clip(jnp.where(index >= side, 2 * side - 1 - index, index), 0, side - 1)


def pixelate(image: Image, severity: int, draws: None) -> Image:
    """Shrink by box averages and enlarge by repetition, in Pillow's fixed-point arithmetic."""
    height, width, _ = image.shape
    small_height, small_width = int(height * PIXELATE[severity - 1]), int(width * PIXELATE[severity - 1])
    small = image.astype(jnp.int32)
    if small_width != width:
        small = _shrink(small.transpose(1, 0, 2), small_width).transpose(1, 0, 2)
    if small_height != height:
        small = _shrink(small, small_height)
    small = small.astype(jnp.uint8)
    return small[_nearest_lines(small_height, height)][:, _nearest_lines(small_width, width)]


def _nearest_lines(small: int, size: int) -> Int[np.ndarray, " size"]:
    """The source line of each line when `small` lines are enlarged to `size`.

    Pillow adds step after step in double precision; where a position is a whole number but for rounding, only the same
    sum falls on the same side.
    """
    steps = np.full(size, small / size)
    steps[0] *= 0.5
    return np.minimum(np.cumsum(steps).astype(int), small - 1)


def _shrink(image: Int[Array, "lines rest channels"], size: int) -> Int[Array, "size rest channels"]:
    """Box averages down the first axis: 22-bit fixed-point weights, rounded, as Pillow resizes 8-bit images."""
    first, weights = _box_weights(image.shape[0], size)
    total = jnp.full((size, *image.shape[1:]), 1 << 21, jnp.int32)
    for tap in range(weights.shape[1]):
        lines = np.minimum(first + tap, image.shape[0] - 1)
        total += image[lines] * weights[:, tap, None, None]
    return jnp.clip(total >> 22, 0, 255)


@functools.cache
def _box_weights(side: int, size: int) -> tuple[Int[np.ndarray, " size"], Int[np.ndarray, "size taps"]]:
    """First source line and fixed-point weights for each line of a box-filtered axis."""
    scale = side / size
    reach = max(scale, 1.0) * 0.5
    centre = (np.arange(size) + 0.5) * scale
    first = np.maximum((centre - reach + 0.5).astype(int), 0)
    last = np.minimum((centre + reach + 0.5).astype(int), side)
    place = np.arange((last - first).max())
    distance = (place + first[:, None] - centre[:, None] + 0.5) / max(scale, 1.0)
    weights = ((distance > -0.5) & (distance <= 0.5) & (first[:, None] + place < last[:, None])).astype(float)
    weights /= weights.sum(axis=1, keepdims=True)
    return first, (weights * (1 << 22) + 0.5).astype(np.int32)


def jpeg_compression(image: UInt8[np.ndarray, "height width 3"], severity: int) -> UInt8[np.ndarray, "height width 3"]:
    """JPEG at a low quality, by Pillow, on the host."""
    buffer = io.BytesIO()
    PIL.Image.fromarray(image).save(buffer, "JPEG", quality=JPEG[severity - 1])
    return np.asarray(decode_image(buffer.getvalue(), "JPEG"))
