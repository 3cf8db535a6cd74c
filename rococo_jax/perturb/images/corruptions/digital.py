"""Change contrast, brightness or saturation; warp, pixelate or compress an image.

Constants per severity: Hendrycks & Dietterich 2019 (arXiv 1903.12261), from their public code. Elastic warping
and pixelation follow the image's size; the others do not depend on it.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt8

from rococo_jax.data.pictures import decode_image, image_bytes
from rococo_jax.perturb.images.corruptions.primitives import gaussian, rounded_product, to_bytes

CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)
BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)
SATURATE = ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))  # saturation times the first plus the second
# Displacement, deviation of the filter and shifts of the affine map. The published code multiplies them by 244 pixels
# for images of 224 (where 224 was meant), and by 360 in its script for 299 pixels; here they follow the shorter side.
ELASTIC = ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
_ELASTIC_UNIT = 244 / 224
PIXELATE = (0.6, 0.5, 0.4, 0.3, 0.25)
JPEG = (25, 18, 15, 10, 7)

Image = UInt8[Array, "height width 3"]
ElasticDraws = tuple[Float[Array, "3 2"], Float[Array, "2 height width"]]


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


def draw_elastic(key: Key[Array, ""], height: int, width: int, severity: int) -> ElasticDraws:
    """Draw uniform numbers in [-1, 1): shifts of three points (across, down), and a field (down, across) of pixels."""
    points_key, field_key = jax.random.split(key)
    points = jax.random.uniform(points_key, (3, 2), minval=-1.0, maxval=1.0)
    return points, jax.random.uniform(field_key, (2, height, width), minval=-1.0, maxval=1.0)


def elastic_transform(image: Image, severity: int, draws: ElasticDraws) -> Image:
    """Distort by a random affine map, then move every pixel by a smooth random field.

    Both steps sample linearly, from an image that is mirrored at its border: without its last line in the first step,
    with it in the second.
    """
    height, width, _ = image.shape
    points, field = draws
    unit = _ELASTIC_UNIT * min(height, width)
    alpha, sigma, reach = (unit * each for each in ELASTIC[severity - 1])
    row, column = _affine_positions(points * np.float32(reach), height, width)
    warped = _sample(image.astype(jnp.float32), row, column, _mirror_without_border)
    shift = gaussian(field.transpose(1, 2, 0), sigma, truncate=3.0, border="symmetric") * np.float32(alpha)
    row = jnp.arange(height, dtype=jnp.float32)[:, None] + shift[..., 0]
    column = jnp.arange(width, dtype=jnp.float32)[None] + shift[..., 1]
    return to_bytes(_sample(warped, row, column, _mirror))


def _affine_positions(
    shifts: Float[Array, "3 2"], height: int, width: int
) -> tuple[Float[Array, "height width"], Float[Array, "height width"]]:
    """Return the row and column that each pixel is taken from, by the affine map that shifts three points.

    The points are corners of a square in the middle, two thirds of the shorter side: lower right, upper right, upper
    left.
    """
    half = min(height, width) // 3
    left, top = width // 2 - half, height // 2 - half
    lower_right, upper_right, upper_left = shifts
    # The map's matrix is ((1 + xx, xy), (yx, 1 + yy)) around the upper left corner.
    xx, yx = (upper_right - upper_left) / np.float32(2 * half)
    xy, yy = (lower_right - upper_right) / np.float32(2 * half)
    determinant = (1 + xx) * (1 + yy) - xy * yx
    across = jnp.arange(width, dtype=jnp.float32)[None] - (left + upper_left[0])
    down = jnp.arange(height, dtype=jnp.float32)[:, None] - (top + upper_left[1])
    # Rounded, or a fused sum would sample elsewhere; see `rounded_product`.
    column = rounded_product((1 + yy) / determinant, across) - rounded_product(xy / determinant, down) + left
    row = rounded_product((1 + xx) / determinant, down) - rounded_product(yx / determinant, across) + top
    return row, column


def _sample(
    image: Float[Array, "height width 3"],
    row: Float[Array, "height width"],
    column: Float[Array, "height width"],
    mirror: Callable[[Array, int], Array],
) -> Float[Array, "height width 3"]:
    """Interpolate linearly at positions in pixels; `mirror` brings indices into a side."""
    height, width, _ = image.shape
    top, left = jnp.floor(row), jnp.floor(column)
    down, across = (row - top)[..., None], (column - left)[..., None]
    pixels = image.reshape(-1, 3)

    def at(rows: Array, columns: Array) -> Array:
        return pixels[mirror(rows, height) * width + mirror(columns, width)]

    top, left = top.astype(jnp.int32), left.astype(jnp.int32)
    upper = at(top, left) * (1 - across) + at(top, left + 1) * across
    lower = at(top + 1, left) * (1 - across) + at(top + 1, left + 1) * across
    return upper * (1 - down) + lower * down


def _mirror(index: Array, side: int) -> Array:
    """Mirror indices beyond the border, border line included (no further out than one side)."""
    index = jnp.where(index < 0, -1 - index, index)
    return jnp.clip(jnp.where(index >= side, 2 * side - 1 - index, index), 0, side - 1)


def _mirror_without_border(index: Array, side: int) -> Array:
    """Mirror indices beyond the border, border line not repeated, however far out."""
    index = jnp.abs(index) % (2 * side - 2)
    return jnp.minimum(index, 2 * side - 2 - index)


def pixelate(image: Image, severity: int, draws: None) -> Image:
    """Shrink and enlarge by box averages, in Pillow's fixed-point arithmetic."""
    height, width, _ = image.shape
    small_height, small_width = int(height * PIXELATE[severity - 1]), int(width * PIXELATE[severity - 1])
    small = image.astype(jnp.int32)
    if small_width != width:
        small = _shrink(small.transpose(1, 0, 2), small_width).transpose(1, 0, 2)
    if small_height != height:
        small = _shrink(small, small_height)
    small = small.astype(jnp.uint8)
    return small[_repeated_lines(small_height, height)][:, _repeated_lines(small_width, width)]


def _repeated_lines(small: int, size: int) -> Int[np.ndarray, " size"]:
    """Return the source line of each line when `small` lines are enlarged to `size` by a box filter."""
    return ((np.arange(size) + 0.5) * (small / size)).astype(int)


def _shrink(image: Int[Array, "lines rest channels"], size: int) -> Int[Array, "size rest channels"]:
    """Average boxes along the first axis with rounded 22-bit fixed-point weights, as Pillow resizes 8-bit images."""
    first, weights = _box_weights(image.shape[0], size)
    total = jnp.full((size, *image.shape[1:]), 1 << 21, jnp.int32)
    for tap in range(weights.shape[1]):
        lines = np.minimum(first + tap, image.shape[0] - 1)
        total += image[lines] * weights[:, tap, None, None]
    return jnp.clip(total >> 22, 0, 255)


@functools.cache
def _box_weights(side: int, size: int) -> tuple[Int[np.ndarray, " size"], Int[np.ndarray, "size taps"]]:
    """Return the first source line and the fixed-point weights of each line of a box-filtered axis."""
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
    """Compress to JPEG at a low quality, by Pillow on the host."""
    return np.asarray(decode_image(image_bytes(image, "JPEG", quality=JPEG[severity - 1]), "JPEG"))
