"""Blur an image: defocus, glass, motion, zoom and Gaussian.

Constants per severity: Hendrycks & Dietterich 2019 (arXiv 1903.12261), from their public code. Radii and
distances are in pixels, whatever the size of the image: relative to the image, a blur is weaker on a larger one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt8

from rococo_jax.perturb.images.corruptions.primitives import (
    correlate,
    crop_of_zoom,
    gaussian,
    motion_blur,
    motion_offsets,
    to_bytes,
    zoom_lines,
    zoom_taps,
)

GAUSSIAN = (1.0, 2.0, 3.0, 4.0, 6.0)  # standard deviation
GLASS = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))  # standard deviation, reach, rounds
DEFOCUS = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))  # radius of the disk, standard deviation of its edge
MOTION = ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0))  # radius, standard deviation
ZOOM = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))  # end (exclusive) and step from 1

Image = UInt8[Array, "height width 3"]


def gaussian_blur(image: Image, severity: int, draws: None) -> Image:
    """Apply a Gaussian filter."""
    return to_bytes(gaussian(image.astype(jnp.float32), GAUSSIAN[severity - 1]))


def defocus_blur(image: Image, severity: int, draws: None) -> Image:
    """Apply a disk filter with a soft edge."""
    return to_bytes(correlate(image.astype(jnp.float32), _disk(*DEFOCUS[severity - 1])))


@functools.cache
def _disk(radius: int, edge: float) -> Float[np.ndarray, "taps taps"]:
    """Return a disk of pixels within `radius`, smoothed by a 3 x 3 or 5 x 5 Gaussian that mirrors at the border."""
    reach, taps = (8, 3) if radius <= 8 else (radius, 5)
    across = np.arange(-reach, reach + 1) ** 2
    disk = (across[:, None] + across[None] <= radius**2).astype(np.float64)
    disk /= disk.sum()
    weights = np.exp(-0.5 * (np.arange(-(taps // 2), taps // 2 + 1) / edge) ** 2)
    weights /= weights.sum()
    for axis in range(2):
        padded = np.pad(disk, [(taps // 2, taps // 2) if a == axis else (0, 0) for a in range(2)], mode="reflect")
        shifted = [np.take(padded, np.arange(len(disk)) + tap, axis=axis) for tap in range(taps)]
        disk = sum(weight * part for weight, part in zip(weights, shifted, strict=True))
    return disk


def draw_glass(key: Key[Array, ""], height: int, width: int, severity: int) -> Int[Array, "rounds height width 2"]:
    """Draw for each round and pixel the offset (rows, columns) of its new content, from -reach to reach - 1."""
    _, reach, rounds = GLASS[severity - 1]
    words = jax.random.bits(key, (rounds, height, width))
    both = jnp.stack([words >> np.uint32(16), words & np.uint32(0xFFFF)], axis=-1).astype(jnp.int32)
    return ((both * (2 * reach)) >> 16) - reach


def glass_blur(image: Image, severity: int, offsets: Int[Array, "rounds height width 2"]) -> Image:
    """Copy pixels from near ones, between two Gaussian filters.

    The reference visits the pixels from last to first to swap each with a near one, but swaps views of one array: the
    pixel gets the other's content and the other keeps it. That content may itself have been replaced before, so every
    pixel starts a chain through visited pixels; here all chains are followed at once.
    """
    sigma, reach, _ = GLASS[severity - 1]
    image = (gaussian(image.astype(jnp.float32), sigma)).astype(jnp.uint8)
    height, width, _ = image.shape
    source = jnp.arange(height * width)
    for near in offsets:
        source = source[_follow_walk(near, reach)]
    shuffled = image.reshape(-1, 3)[source].reshape(image.shape)
    return to_bytes(gaussian(shuffled.astype(jnp.float32), sigma))


def _follow_walk(near: Int[Array, "height width 2"], reach: int) -> Int[Array, " pixels"]:
    """Return for each pixel the index, before the round, of the pixel whose content it gets."""
    height, width, _ = near.shape
    row, column = jnp.arange(height)[:, None], jnp.arange(width)[None]

    def visited(row: Array, column: Array) -> Array:
        return (row > reach) & (row <= height - reach) & (column > reach) & (column <= width - reach)

    index = row * width + column
    other_row, other_column = row + near[..., 0], column + near[..., 1]
    other = jnp.where(visited(row, column), other_row * width + other_column, index)
    # Pixels are visited from last to first, so a later visited pixel already has its new content.
    continues = ((other > index) & visited(other_row, other_column)).reshape(-1)
    other = other.reshape(-1)

    def follow(state: tuple[Array, Array]) -> tuple[Array, Array]:
        other, continues = state
        return jnp.where(continues, other[other], other), continues & continues[other]

    return jax.lax.while_loop(lambda state: state[1].any(), follow, (other, continues))[0]


def draw_motion(key: Key[Array, ""], height: int, width: int, severity: int) -> Int[Array, "taps 2"]:
    """Draw the steps along a direction within 45 degrees of the horizontal."""
    angle = jax.random.uniform(key, (), minval=-45.0, maxval=45.0)
    return motion_offsets(angle, 2 * MOTION[severity - 1][0] + 1)


def motion_blurred(image: Image, severity: int, offsets: Int[Array, "taps 2"]) -> Image:
    """Blur by camera motion."""
    return to_bytes(motion_blur(image.astype(jnp.float32), offsets, MOTION[severity - 1][1]))


def zoom_blur(image: Image, severity: int, draws: None) -> Image:
    """Return the mean of the image and of its centre at several zooms, each trimmed to the middle."""
    height, width, channels = image.shape
    image = image.astype(jnp.float32)
    end, step = ZOOM[severity - 1]
    zooms = np.arange(1, end, step)
    total = image
    for zoom in zooms:
        top, rows = crop_of_zoom(height, zoom)
        left, columns = crop_of_zoom(width, zoom)
        down, across = zoom_taps(rows, zoom, height), zoom_taps(columns, zoom, width)
        layer = zoom_lines(image[top : top + rows].reshape(rows, -1), *down).reshape(height, width, channels)
        lines, weights = across[0] + left, across[1].astype(np.float32)
        total += layer[:, lines[:, 0]] * weights[None, :, :1] + layer[:, lines[:, 1]] * weights[None, :, 1:]
    return to_bytes(total / (len(zooms) + 1))
