"""Pack images of any aspect ratio into arrays of one shape (SigLIP 2 NaFlex, arXiv 2502.14786).

An image is resized to a whole number of patches on both sides, at most n patches in all. Both sides have the same
scale, rounded up to whole patches; a bisection finds the largest scale that fits, as in `transformers`. The packed
array has (n + 1) p x p pixels, for patches of p x p:

    patches      row by row, one below the other, then zeros up to n patches
    grid size    the last patch: its first two pixels hold the numbers of rows and columns, as high and low byte in red
                 and green
"""

import math

import numpy as np
from jaxtyping import UInt8

# The bisection of the scale stops at this width.
_TOLERANCE = 1e-5
_LARGEST_SCALE = 100.0


def naflex_image_size(height: int, width: int, patch: int, max_patches: int) -> tuple[int, int]:
    """Return the height and width in pixels of an image resized to at most `max_patches` whole patches.

    >>> naflex_image_size(480, 640, patch=16, max_patches=256)
    (224, 288)
    """
    low, high = _TOLERANCE / 10, _LARGEST_SCALE

    def grid(scale: float) -> tuple[int, int]:
        return max(1, math.ceil(height * scale / patch)), max(1, math.ceil(width * scale / patch))

    while high - low >= _TOLERANCE:
        scale = (low + high) / 2
        low, high = (scale, high) if math.prod(grid(scale)) <= max_patches else (low, scale)
    rows, columns = grid(low)
    return rows * patch, columns * patch


def pack_patches(
    pixels: UInt8[np.ndarray, "height width 3"], patch: int, max_patches: int
) -> UInt8[np.ndarray, "rows patch 3"]:
    """Pack the patches of an image and the size of their grid; the image has whole patches."""
    rows, columns = pixels.shape[0] // patch, pixels.shape[1] // patch
    packed = np.zeros(((max_patches + 1) * patch, patch, 3), np.uint8)
    patches = pixels.reshape(rows, patch, columns, patch, 3).swapaxes(1, 2)
    packed[: rows * columns * patch] = patches.reshape(-1, patch, 3)
    packed[-patch, 0, :2] = divmod(rows, 256)
    packed[-patch, 1, :2] = divmod(columns, 256)
    return packed
