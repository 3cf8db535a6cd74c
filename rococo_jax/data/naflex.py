"""Strips: images that keep their shape, as patches in an array of one shape (SigLIP 2 NaFlex, arXiv 2502.14786).

The size of an image is a whole number of patches on both sides, at most so many in all, by one scale for both sides,
each rounded up: the largest scale that a bisection finds, as `transformers` does it. A strip is (n + 1) p x p pixels:

    patches    row by row, one below the other, then zeros up to n patches
    the grid   the last patch: its first two pixels are the rows and the columns, as (high, low) byte in red and green
"""

import math

import numpy as np
from jaxtyping import UInt8

# Of the scale, where the bisection ends.
_STEP = 1e-5
_LARGEST_SCALE = 100.0


def naflex_image_size(height: int, width: int, patch: int, most: int) -> tuple[int, int]:
    """Height and width in pixels of an image that is resized to at most so many whole patches.

    >>> naflex_image_size(480, 640, patch=16, most=256)
    (224, 288)
    """
    low, high = _STEP / 10, _LARGEST_SCALE

    def grid(scale: float) -> tuple[int, int]:
        return max(1, math.ceil(height * scale / patch)), max(1, math.ceil(width * scale / patch))

    while high - low >= _STEP:
        scale = (low + high) / 2
        low, high = (scale, high) if math.prod(grid(scale)) <= most else (low, scale)
    rows, columns = grid(low)
    return rows * patch, columns * patch


def pack_patches(
    pixels: UInt8[np.ndarray, "height width 3"], patch: int, most: int
) -> UInt8[np.ndarray, "rows patch 3"]:
    """The strip of an image of whole patches."""
    rows, columns = pixels.shape[0] // patch, pixels.shape[1] // patch
    strip = np.zeros(((most + 1) * patch, patch, 3), np.uint8)
    patches = pixels.reshape(rows, patch, columns, patch, 3).swapaxes(1, 2)
    strip[: rows * columns * patch] = patches.reshape(-1, patch, 3)
    strip[-patch, 0, :2], strip[-patch, 1, :2] = divmod(rows, 256), divmod(columns, 256)
    return strip
