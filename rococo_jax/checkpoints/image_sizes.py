"""The image size of a checkpoint without a configuration, from its patches and its stored positions.

A tower that drops the pixels after its last whole patch has the same positions at several image sizes: 27 x 27 patches
of 14 pixels are those of 378 and of 384 pixels. The size then comes from a table of published models, or the caller
has to give it.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from rococo_jax.checkpoints.parameters import missing_choice
from rococo_jax.errors import InputError

# Sizes that image-text models and self-supervised towers are published at.
_USUAL = (112, 160, 192, 224, 240, 256, 280, 288, 320, 336, 384, 400, 448, 480, 512, 518, 560, 576, 640, 672, 768, 896)


class PublishedSizes(NamedTuple):
    """Image sizes of a library's published models by (patch size, patches of a side), and where they are listed."""

    sizes: Mapping[tuple[int, int], int]
    listed: str


# SigLIP and SigLIP 2 So400m/14. The sizes of all other models that are listed there are multiples of the patch.
BIG_VISION_SIZES = PublishedSizes({(14, 27): 384}, "VANITY_NAMES of big_vision's two_towers.py")
# ViT-H-14-378 and its like.
OPEN_CLIP_SIZES = PublishedSizes({(14, 27): 378}, "open_clip's model_configs")


def image_size_of(
    source: object, field: str, patch: int, positions: int, published: PublishedSizes | None, requested: int | None
) -> tuple[int, str]:
    """Return the image size of a tower with square patches, and how it is known.

    Args:
        source, field: of errors; the field is the tensor of the positions.
        positions: how many patches have one.
        requested: the size that the caller wants the model to be used at.

    Raises InputError where the positions are no square, or belong to several sizes and the caller has not said which.
    """
    grid = math.isqrt(positions)
    if grid < 1 or grid**2 != positions:
        raise InputError(source, field, f"{positions} positions of patches", "a square number of them")
    if published is not None and (patch, grid) in published.sizes:
        return published.sizes[patch, grid], f"{grid} x {grid} patches of {patch} pixels in {published.listed}"
    exact, how = patch * grid, f"{grid} x {grid} positions of patches of {patch} pixels"
    if exact in _USUAL:
        return exact, how
    if requested is not None and requested // patch == grid:
        return requested, "the argument image_size"
    usual = [size for size in _USUAL if size // patch == grid]
    if usual and requested is None:
        sizes = " or ".join(map(str, [exact, *usual]))
        found = f"{grid} x {grid} positions of patches of {patch} pixels, which images of {sizes} pixels have alike"
        raise missing_choice(source, "image_size", found, "the side in pixels of the images that it was trained with")
    return exact, how
