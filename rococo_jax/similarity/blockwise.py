"""Blockwise reduction of pairwise logits: a device's queries against all keys, one tile of logits at a time.

A tile is a matrix (rows, keys) of logits `z = logit_scale * q . k + logit_bias`, float32 products at the highest
precision. Larger matrices of logits are never stored. A reduction (`reductions`) turns each row and each column of
logits into one number, its result.

Every device gathers all keys once and sweeps over them; the states of a column are merged on the device that owns the
column. JAX differentiates this. Under `jax.checkpoint` the backward pass computes the logits of a tile again, so that a
step has four products per tile, and stores the states of the columns before each tile.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from rococo_jax.similarity.reductions import Reduction, State


class Items(NamedTuple):
    """Queries or keys of pairwise logits.

    Attributes:
        embeddings: unit vectors, one per row.
        ids: image id of each item; pairs of a query and a key with the same id are left out. None: no pair is.
        mask: False for items that are ignored, whatever their embedding contains (even NaN). None: all items count.
    """

    embeddings: Float[Array, "*tiles items width"]
    ids: Int[Array, "*tiles items"] | None = None
    mask: Bool[Array, "*tiles items"] | None = None


class Scale(NamedTuple):
    """`logit = logit_scale * cosine + logit_bias`."""

    logit_scale: Float[Array, ""]
    logit_bias: Float[Array, ""] | None


def into_tiles(items: PyTree[Array], tile_rows: int) -> PyTree[Array]:
    """Split the first axis of every array into (tiles, tile_rows); zeros (False) pad the last tile."""

    def split(array: Array) -> Array:
        missing = -array.shape[0] % tile_rows
        padded = jnp.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1)) if missing else array
        return padded.reshape(-1, tile_rows, *array.shape[1:])

    return jax.tree.map(split, items)


def out_of_tiles(tiled: Array, items: int) -> Array:
    """Invert `into_tiles` for one array."""
    return tiled.reshape(-1, *tiled.shape[2:])[:items]


def reduce_logits(
    reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...], with_columns: bool
) -> tuple[Float[Array, "tiles rows"], Float[Array, "keys"] | None]:
    """Compute the results of the rows (tiled like `queries`) and of this device's columns.

    Called inside `jax.shard_map`, or with no `axes`.
    """
    keys = _gather(keys, axes)

    @jax.checkpoint
    def add_tile(columns: State | None, queries: Items) -> tuple[State | None, Array]:
        logits = _logits(queries, keys, scale)
        rows = reduction.add(reduction.start(queries.mask.shape), logits, axis=1)
        if columns is not None:
            columns = reduction.add(columns, logits, axis=0)
        return columns, reduction.finish(rows)

    columns = _varying(reduction.start(keys.mask.shape), axes) if with_columns else None
    columns, rows = jax.lax.scan(add_tile, columns, queries)
    if columns is not None:
        columns = reduction.finish(_merge_at_owner(reduction, columns, axes))
    return rows, columns


def _logits(queries: Items, keys: Items, scale: Scale) -> Float[Array, "rows keys"]:
    logits = scale.logit_scale * _product(queries.embeddings, keys.embeddings)
    if scale.logit_bias is not None:
        logits += scale.logit_bias
    counted = queries.mask[:, None] & keys.mask[None, :]
    if queries.ids is not None:
        counted &= queries.ids[:, None] != keys.ids[None, :]
    return jnp.where(counted, logits, -jnp.inf)


def _product(queries: Array, keys: Array) -> Float[Array, "rows keys"]:
    highest = jax.lax.Precision.HIGHEST
    return jnp.einsum("rd,kd->rk", queries, keys, precision=highest, preferred_element_type=jnp.float32)


def _varying(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    """Mark constants as varying over devices, which the carry of a loop over device-local values has to be."""
    return jax.tree.map(lambda array: jax.lax.pcast(array, axes, to="varying"), tree) if axes else tree


def _gather(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    return jax.tree.map(lambda array: jax.lax.all_gather(array, axes, tiled=True), tree) if axes else tree


def _merge_at_owner(reduction: type[Reduction], columns: State, axes: tuple[str, ...]) -> State:
    """Send the states of the columns to their owners, who merge the states of all devices."""
    if not axes:
        return columns
    devices = jax.lax.axis_size(axes)
    by_owner = jax.tree.map(lambda array: array.reshape(devices, -1), columns)
    return reduction.merge(jax.tree.map(lambda array: jax.lax.all_to_all(array, axes, 0, 0), by_owner))
