"""What mixing draws: who meets whom, how much of each, and which box. All from a key, on device.

Every draw is folded with an id or a group number, so it depends on neither the size of the batch nor on a place in it.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from rococo_jax.errors import InputError


def draw_partners(
    key: Key[Array, ""], count: int, *, group: int | None = None, derangement: bool = True, first_group: int = 0
) -> Int[Array, " count"]:
    """A permutation of `count` images that stays within groups of `group` consecutive ones.

    With `derangement` a random cycle through each group (uniform among the cycles, which leave nobody in place),
    without it a uniform permutation.

    Raises:
        InputError: fewer than two images, or a number that does not fill its groups.
    """
    size = count if group is None else group
    if count < 2 or size < 2:
        raise InputError("mixing", "images", f"{min(count, size)} in a batch or group", "at least two to mix")
    if count % size:
        raise InputError("mixing", "images", f"{count} in the batch", f"a multiple of the group size {size}")
    return _permute_groups(key, jnp.int32(first_group), count // size, size, derangement)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _permute_groups(key: Array, first_group: Array, groups: int, size: int, derangement: bool) -> Array:
    def within(number: Array) -> Array:
        order = jax.random.permutation(jax.random.fold_in(key, number), size)
        return jnp.zeros_like(order).at[order].set(jnp.roll(order, -1)) if derangement else order

    first = jnp.arange(groups) * size
    return (jax.vmap(within)(first_group + jnp.arange(groups)) + first[:, None]).reshape(groups * size)


def draw_ratios(
    key: Key[Array, ""], ids: Int[Array, " batch"], alpha: float, *, own_first: bool = False
) -> Float[Array, " batch"]:
    """Shares from Beta(alpha, alpha), one for each id; `own_first` folds them to a half and above."""
    ratio = _beta(key, ids, jnp.float32(alpha))
    return jnp.maximum(ratio, 1 - ratio) if own_first else ratio


@jax.jit
def _beta(key: Array, ids: Array, alpha: Array) -> Array:
    return jax.vmap(lambda number: jax.random.beta(jax.random.fold_in(key, number), alpha, alpha))(ids)


@functools.partial(jax.jit, static_argnames=("height", "width"))
def draw_boxes(
    key: Key[Array, ""], ids: Int[Array, " batch"], ratio: Float[Array, " batch"], height: int, width: int
) -> Int[Array, "batch 4"]:
    """Boxes (x1, y1, x2, y2) for the shares `ratio`, one for each id; x runs down the rows, y along the columns."""

    def centre(number: Int[Array, ""]) -> Int[Array, "2"]:
        row, column = jax.random.split(jax.random.fold_in(key, number))
        return jnp.stack([jax.random.randint(row, (), 0, height), jax.random.randint(column, (), 0, width)])

    sides = jnp.array([height, width])
    cut = jnp.floor(jnp.sqrt(1 - ratio)[:, None] * sides[None].astype(jnp.float32)).astype(jnp.int32)
    return clip_boxes(jax.vmap(centre)(ids), cut, sides)


def clip_boxes(
    centre: Int[Array, "batch 2"], cut: Int[Array, "batch 2"], sides: Int[Array, "2"]
) -> Int[Array, "batch 4"]:
    """Boxes of the sides `cut` around the centres, clipped to images of the given sides."""
    low = jnp.clip(centre - cut // 2, 0, sides[None])
    high = jnp.clip(centre + cut // 2, 0, sides[None])
    return jnp.concatenate([low, high], axis=1)
