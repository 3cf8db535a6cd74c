"""Mixup and CutMix of a batch with a permutation of itself, on device and over a mesh.

    mix    (Mixup: Zhang et al. 2018, arXiv 1710.09412)   ratio * x + (1 - ratio) * x[partners]
    patch  (CutMix: Yun et al. 2019, arXiv 1905.04899)    x with a box taken from x[partners];
           the box has the sides int(side * sqrt(1 - ratio)), a uniform centre, and is clipped at the border

`ratio` is the share of the image's own content. Clipping makes the true share of a patch larger. Every random choice
depends on the position of an image or on the number of a group, not on the size of the batch.

uint8 images are mixed in float32 as the published RoCOCO script does (pixels / 255, two products, one sum,
floor(255 v + 0.5)), with each operation rounded separately. A tenth of all pixel pairs at ratio 0.9 are exactly at a
half, so a fused multiply-add, which rounds once instead of twice, would change one pixel in a hundred by 1.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key, Num

from rococo_jax.errors import InputError
from rococo_jax.runtime import AXES

METHODS = ("mix", "patch")


class Mixed(NamedTuple):
    """A mixed batch with its random choices.

    Attributes:
        images: the mixed images in the dtype of the input.
        partners: index of the image that was mixed into each.
        boxes: rows x1 to x2 and columns y1 to y2 that come from the partner; zeros for `mix`.
        ratio: the true share of each image's own content, after clipping.
    """

    images: Num[Array, "batch height width channels"]
    partners: Int[Array, " batch"]
    boxes: Int[Array, "batch 4"]
    ratio: Float[Array, " batch"]


@dataclass(frozen=True)
class Mixing:
    """Settings of the mixing. No image is mixed with itself.

    Attributes:
        method: `mix` or `patch`.
        ratio: the share of own content, from 0 to 1.
        group: partners are in the same group of this many consecutive images. Devices with complete groups exchange
            nothing, and devices that share a group exchange its images; the result does not depend on their number.
            None: the complete batch is one group.
    """

    method: str = "mix"
    ratio: float = 0.9
    group: int | None = None

    def __post_init__(self):
        check_method(self.method)
        check_ratio(self.ratio)
        if self.group is not None and self.group < 2:
            raise InputError("mixing", "group", self.group, "at least two images to a group")


def check_method(method: str) -> None:
    """Raise InputError unless `method` is `mix` or `patch`."""
    if method not in METHODS:
        raise InputError("mixing", "method", repr(method), " or ".join(METHODS))


def check_ratio(ratio: float) -> None:
    """Raise InputError unless `ratio` is a number from 0 to 1."""
    if not (math.isfinite(ratio) and 0 <= ratio <= 1):
        raise InputError("mixing", "ratio", ratio, "a share of own content from 0 to 1")


def draw_partners(key: Key[Array, ""], count: int, group: int | None = None) -> Int[Array, " count"]:
    """A permutation of `count` images: a random cycle through each group of `group` consecutive ones.

    Raises InputError: fewer than two images, or a number that does not fill its groups.
    """
    size = count if group is None else group
    if count < 2 or size < 2:
        raise InputError("mixing", "images", f"{min(count, size)} in a batch or group", "at least two to mix")
    if count % size:
        raise InputError("mixing", "images", f"{count} in the batch", f"a multiple of the group size {size}")
    return _permute_groups(key, count // size, size)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _permute_groups(key: Array, groups: int, size: int) -> Array:
    def within(number: Array) -> Array:
        order = jax.random.permutation(jax.random.fold_in(key, number), size)
        return jnp.zeros_like(order).at[order].set(jnp.roll(order, -1))

    first = jnp.arange(groups) * size
    return (jax.vmap(within)(jnp.arange(groups)) + first[:, None]).reshape(groups * size)


@functools.partial(jax.jit, static_argnames=("height", "width"))
def draw_boxes(
    key: Key[Array, ""], ids: Int[Array, " batch"], ratio: Float[Array, " batch"], height: int, width: int
) -> Int[Array, "batch 4"]:
    """Return boxes (x1, y1, x2, y2) for the shares `ratio`, one for each id; x counts rows, y counts columns."""

    def centre(number: Int[Array, ""]) -> Int[Array, "2"]:
        row, column = jax.random.split(jax.random.fold_in(key, number))
        return jnp.stack([jax.random.randint(row, (), 0, height), jax.random.randint(column, (), 0, width)])

    sides = jnp.array([height, width])
    cut = jnp.floor(jnp.sqrt(1 - ratio)[:, None] * sides[None].astype(jnp.float32)).astype(jnp.int32)
    return clip_boxes(jax.vmap(centre)(ids), cut, sides)


def clip_boxes(
    centre: Int[Array, "batch 2"], cut: Int[Array, "batch 2"], sides: Int[Array, "2"]
) -> Int[Array, "batch 4"]:
    """Return boxes of the sides `cut` around the centres, clipped to images of the given sides."""
    low = jnp.clip(centre - cut // 2, 0, sides[None])
    high = jnp.clip(centre + cut // 2, 0, sides[None])
    return jnp.concatenate([low, high], axis=1)


def mix_batch(
    images: Num[Array, "batch height width channels"], key: Key[Array, ""], mixing: Mixing, mesh: Mesh | None = None
) -> Mixed:
    """Draw partners and boxes at random, and mix; the same key gives the same bytes.

    Args:
        images: the batch.
        key: decides partners and boxes.
        mixing: method, ratio and groups.
        mesh: split the batch over all axes of this mesh.

    Raises:
        InputError: this is a single image or not a batch of images, or the groups or the mesh cannot split it evenly.
    """
    count, height, width = _batch_shape(images)
    partner_key, _, box_key = jax.random.split(key, 3)
    partners = draw_partners(partner_key, count, mixing.group)
    boxes = jnp.zeros((count, 4), jnp.int32)
    if mixing.method == "patch":
        ratio = jnp.full(count, mixing.ratio, jnp.float32)
        boxes = draw_boxes(box_key, jnp.arange(count), ratio, height, width)
    return apply_mixing(images, partners, mixing.ratio, boxes, mixing.method, group=mixing.group, mesh=mesh)


def apply_mixing(
    images: Num[Array, "batch height width channels"],
    partners: Int[Array, " batch"],
    ratio: float,
    boxes: Int[Array, "batch 4"],
    method: str,
    *,
    group: int | None = None,
    mesh: Mesh | None = None,
) -> Mixed:
    """Mix with given partners and boxes.

    Args:
        images: the batch.
        partners: index of the partner of each image.
        ratio: the share of own content; `patch` ignores it and reports the share outside the boxes.
        boxes: box of each image for `patch`.
        method: `mix` or `patch`.
        group: partners are within groups of this many images; with a mesh, images are sent only within a group.
        mesh: split the batch over all axes of this mesh.

    Raises:
        InputError: an unknown method, a ratio outside [0, 1], or a batch that the mesh cannot split evenly.
    """
    check_method(method)
    check_ratio(ratio)
    count, height, width = _batch_shape(images)
    # 1 - ratio in double precision, as in the published script.
    share, rest = jnp.full(count, ratio, jnp.float32), jnp.full(count, 1 - ratio, jnp.float32)
    if method == "patch":
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        share = 1 - area.astype(jnp.float32) / (height * width)
    else:
        boxes = jnp.zeros_like(boxes)
    if mesh is None:
        return Mixed(_mix(images, partners, share, rest, boxes, method), partners, boxes, share)
    rows, size = count // mesh.size, group or count
    if count % mesh.size or (rows % size and (size % rows or count % size)):
        expected = f"a number that {mesh.size} devices share evenly, in groups of {size} that fill or divide a device"
        raise InputError("mixing", "images", f"{count} in the batch", expected)
    mixed = _mix_over_mesh(mesh, method, max(1, size // rows))(images, partners, share, rest, boxes)
    return Mixed(mixed, partners, boxes, share)


def _batch_shape(images: Any) -> tuple[int, int, int]:
    """Return (count, height, width) of a batch."""
    shape = getattr(images, "shape", None)
    if shape is None or len(shape) != 4:
        problem = type(images).__name__ if shape is None else f"shape {tuple(shape)}"
        raise InputError("mixing", "images", problem, "one array (batch, height, width, channels), all of one size")
    return shape[0], shape[1], shape[2]


@functools.partial(jax.jit, static_argnames="method")
def _mix(images: Array, partners: Array, share: Array, rest: Array, boxes: Array, method: str) -> Array:
    return _combine(images, images[partners], share, rest, boxes, method, partners[0] >> 31)


@functools.cache
def _mix_over_mesh(mesh: Mesh, method: str, span: int):
    """Return the jitted mixing over a mesh, where `span` neighbouring devices exchange the images of partners."""
    split = PartitionSpec(AXES)
    neighbours = None if span == mesh.size else np.arange(mesh.size).reshape(-1, span).tolist()

    def local(images: Array, partners: Array, share: Array, rest: Array, boxes: Array) -> Array:
        gallery = images
        if span > 1:
            gallery = jax.lax.all_gather(images, AXES, tiled=True, axis_index_groups=neighbours)
        first = jax.lax.axis_index(AXES) // span * len(gallery)
        return _combine(images, gallery[partners - first], share, rest, boxes, method, partners[0] >> 31)

    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(split,) * 5, out_specs=split))


def _combine(
    images: Array, partners: Array, share: Array, rest: Array, boxes: Array, method: str, zero: Array
) -> Array:
    """Mix images with their partners. `zero` is 0, which the compiler does not know; see `_rounded`."""
    if method == "patch":
        x1, y1, x2, y2 = (boxes[:, corner, None, None, None] for corner in range(4))
        rows = jnp.arange(images.shape[1])[None, :, None, None]
        columns = jnp.arange(images.shape[2])[None, None, :, None]
        return jnp.where((rows >= x1) & (rows < x2) & (columns >= y1) & (columns < y2), partners, images)
    share, rest = share[:, None, None, None], rest[:, None, None, None]
    if images.dtype != jnp.uint8:
        return (share * images.astype(jnp.float32) + rest * partners.astype(jnp.float32)).astype(images.dtype)
    rounded = functools.partial(_rounded, zero=zero)
    mixed = rounded(share * _to_unit(images)) + rounded(rest * _to_unit(partners))
    return (rounded(mixed * 255.0) + 0.5).astype(jnp.uint8)


def _to_unit(pixels: Array) -> Array:
    """Return pixels / 255 in float32, correctly rounded, without a division.

    Compilers replace a division by a constant by a product with its reciprocal, which rounds differently. As
    1/255 = 65793 / 2^24 * (1 + 2^-24 + ...), the quotient is between a half and one unit in the last place above
    65793 p / 2^24, which is exact in float32. So it rounds to the next float32 number.
    """
    below = (pixels.astype(jnp.int32) * 65793).astype(jnp.float32) * 2.0**-24
    bits = jax.lax.bitcast_convert_type(below, jnp.int32) + jnp.minimum(pixels, 1).astype(jnp.int32)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _rounded(product: Array, zero: Array) -> Array:
    """Return `product` after an exclusive or of its bits with 0, which prevents a fused multiply-add."""
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(product, jnp.int32) ^ zero, jnp.float32)


def is_negative(mixed: Mixed, ids: Int[Array, " batch"]) -> Bool[Array, " batch"]:
    """Return whether each mixed image is a negative of its image's caption (for the visual contrastive loss).

    An image that is mixed with itself, or without content of its partner, is the original, a false negative.
    """
    return (ids != ids[mixed.partners]) & (1 - mixed.ratio > 0)
