"""The image size of a checkpoint without a configuration, from its patches and its stored positions.

A tower ignores pixels after its last complete patch, so that several image sizes have the same positions: 27 x 27
patches of 14 pixels fit 378 and 384 pixels. The size then comes from a table of published models, or the caller has to
give it.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from rococo_jax.checkpoints.parameters import missing_choice
from rococo_jax.errors import InputError

# Image sizes of published image-text models and self-supervised towers.
_USUAL = (112, 160, 192, 224, 240, 256, 280, 288, 320, 336, 384, 400, 448, 480, 512, 518, 560, 576, 640, 672, 768, 896)


class PublishedSizes(NamedTuple):
    """Image sizes of a library's published models by (patch size, patches per side), and where they are listed."""

    sizes: Mapping[tuple[int, int], int]
    listed: str


# SigLIP and SigLIP 2 So400m/14. The sizes of all other models in that list are multiples of the patch.
BIG_VISION_SIZES = PublishedSizes({(14, 27): 384}, "VANITY_NAMES of big_vision's two_towers.py")
# ViT-H-14-378 and others with its image tower.
OPEN_CLIP_SIZES = PublishedSizes({(14, 27): 378}, "open_clip's model_configs")


def image_size_of(
    source: object, field: str, patch: int, positions: int, published: PublishedSizes, requested: int | None
) -> tuple[int, str]:
    """Return the image size of a tower with square patches, and how it is known.

    Args:
        source, field: for errors; the field is the tensor of the positions.
        patch: side of a patch in pixels.
        positions: number of patches that have a position.
        published: sizes of published models.
        requested: the size that the caller chose.

    Raises InputError if the positions form no square, or fit several sizes and the caller has not chosen one.
    """
    grid = math.isqrt(positions)
    if grid < 1 or grid**2 != positions:
        raise InputError(source, field, f"{positions} positions of patches", "a square number of them")
    if (patch, grid) in published.sizes:
        return published.sizes[patch, grid], f"{grid} x {grid} patches of {patch} pixels in {published.listed}"
    exact = patch * grid
    how = f"{grid} x {grid} positions of patches of {patch} pixels"
    if exact in _USUAL:
        return exact, how
    if requested is not None and requested // patch == grid:
        return requested, "the argument image_size"
    usual = [size for size in _USUAL if size // patch == grid]
    if usual and requested is None:
        sizes = " or ".join(map(str, [exact, *usual]))
        problem = f"{how}, which fit images of {sizes} pixels"
        raise missing_choice(source, "image_size", problem, "the side in pixels of the images that it was trained with")
    return exact, how
