"""Blockwise reduction of pairwise logits: a device's queries against one block of keys, one tile of logits at a time.

A tile is a matrix (rows, keys) of logits `z = logit_scale * q . k + logit_bias`, float32 products at the highest
precision. Larger matrices of logits are never stored. A reduction (`reductions`) turns each row and each column of
logits into one number, its result. The forward sweep computes one product per tile. The backward sweep recomputes the
tile and adds two products:

    W = dL/dz,    dL/dq = logit_scale * W k,    dL/dk = logit_scale * W^T q,
    dL/dlogit_scale = sum q . (W k),            dL/dlogit_bias = sum W

Gradients of embeddings are accumulated without the factor `logit_scale`, so that the gradient of `logit_scale` needs no
further product.

Two strategies compare the queries of one device with the keys of all devices:

all_gather   Every device gathers all keys once and sweeps over them. The states of a column are merged on the device
             that owns the column. The backward pass gathers again, so that no gathered array is stored in between, and
             scatters the sum of the keys' gradients to their owners. Fewer and larger products; all keys must fit.
ring         In each of `devices` steps, a device sweeps its queries over its current block of keys, then sends one half
             of the block to each neighbour. After the last step every block is back at its owner. The state of the
             columns travels with the block in the forward pass; their results and the gradient of the keys travel with
             it in the backward pass. A device stores a constant number of blocks, whatever the number of devices (as
             ring attention, Liu et al., arXiv 2310.01889).
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


class Result(NamedTuple):
    """Result of the forward sweep for each row (or column), and the gradient of the loss with respect to it."""

    value: Float[Array, "*tiles items"]
    gradient: Float[Array, "*tiles items"]


class Gradients(NamedTuple):
    """Running sums of the backward sweep, without the factor `logit_scale`."""

    queries: Float[Array, "tiles rows width"]
    keys: Float[Array, "keys width"]
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


def forward_sweep(
    reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, rows: State, columns: State | None
) -> tuple[State, State | None]:
    """Add the logits of all tiles to the state of the rows and, if it is not None, to the state of the columns.

    The state of the rows is tiled like the queries.
    """

    def tile(index: Array, states: tuple[State, State | None]) -> tuple[State, State | None]:
        rows, columns = states
        logits = _logits(_take(queries, index), keys, scale)
        tile_rows = reduction.add(_take(rows, index), logits, axis=1)
        rows = _update(rows, index, tile_rows)
        if columns is not None:
            columns = reduction.add(columns, logits, axis=0)
        return rows, columns

    return jax.lax.fori_loop(0, queries.embeddings.shape[0], tile, (rows, columns))


def backward_sweep(
    reduction: type[Reduction],
    queries: Items,
    keys: Items,
    scale: Scale,
    rows: Result,
    columns: Result | None,
    gradients: Gradients,
) -> Gradients:
    """Add the contributions of all tiles to the gradients."""

    def tile(index: Array, sums: Gradients) -> Gradients:
        query, row = _take(queries, index), _take(rows, index)
        logits = _logits(query, keys, scale)
        # Gradient of the loss with respect to the logits of the tile.
        weights = reduction.derivative(logits, row.value[:, None]) * row.gradient[:, None]
        if columns is not None:
            weights += reduction.derivative(logits, columns.value[None, :]) * columns.gradient[None, :]
        query_sums = sums.queries[index] + _product("rk,kd->rd", weights, keys.embeddings)
        key_sums = sums.keys + _product("rk,rd->kd", weights, query.embeddings)
        bias_sum = None if sums.logit_bias is None else sums.logit_bias + weights.sum()
        return Gradients(_update(sums.queries, index, query_sums), key_sums, bias_sum)

    return jax.lax.fori_loop(0, queries.embeddings.shape[0], tile, gradients)


def _logits(queries: Items, keys: Items, scale: Scale) -> Float[Array, "rows keys"]:
    logits = scale.logit_scale * _product("rd,kd->rk", queries.embeddings, keys.embeddings)
    if scale.logit_bias is not None:
        logits += scale.logit_bias
    counted = queries.mask[:, None] & keys.mask[None, :]
    if queries.ids is not None:
        counted &= queries.ids[:, None] != keys.ids[None, :]
    return jnp.where(counted, logits, -jnp.inf)


def _product(subscripts: str, left: Array, right: Array) -> Array:
    return jnp.einsum(subscripts, left, right, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def _take(tiled: PyTree[Array], index: Array) -> PyTree[Array]:
    return jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), tiled)


def _update(tiled: PyTree[Array], index: Array, tile: PyTree[Array]) -> PyTree[Array]:
    return jax.tree.map(lambda array, new: jax.lax.dynamic_update_index_in_dim(array, new, index, 0), tiled, tile)


def all_gather_forward(
    reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...], with_columns: bool
) -> tuple[Array, Array | None]:
    """Compute the results of the rows (tiled like `queries`) and of this device's columns, with all keys gathered.

    Called inside `jax.shard_map`, or with no `axes`.
    """
    keys = _gather(keys, axes)
    rows = _varying(reduction.start(queries.mask.shape), axes)
    columns = _varying(reduction.start(keys.mask.shape), axes) if with_columns else None
    rows, columns = forward_sweep(reduction, queries, keys, scale, rows, columns)
    if columns is not None:
        columns = reduction.finish(_merge_at_owner(reduction, columns, axes))
    return reduction.finish(rows), columns


def all_gather_backward(
    reduction: type[Reduction],
    queries: Items,
    keys: Items,
    scale: Scale,
    rows: Result,
    columns: Result | None,
    axes: tuple[str, ...],
) -> Gradients:
    """Compute the gradients of this device's queries and keys, with all keys gathered.

    Called inside `jax.shard_map`, or with no `axes`.
    """
    keys, columns = _gather((keys, columns), axes)
    start = _no_gradients(queries, keys, scale, axes)
    sums = backward_sweep(reduction, queries, keys, scale, rows, columns, start)
    if axes:
        sums = sums._replace(keys=jax.lax.psum_scatter(sums.keys, axes, tiled=True))
    return sums


def ring_forward(
    reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...], with_columns: bool
) -> tuple[Array, Array | None]:
    """Compute the results of the rows (tiled like `queries`) and of this device's columns, passing keys along a ring.

    Called inside `jax.shard_map`.
    """
    rows = _varying(reduction.start(queries.mask.shape), axes)
    columns = _varying(reduction.start(keys.mask.shape), axes) if with_columns else None
    devices = jax.lax.axis_size(axes)

    def step(_: Array, carry: tuple) -> tuple:
        rows, keys, columns = carry
        rows, columns = forward_sweep(reduction, queries, keys, scale, rows, columns)
        return rows, *_rotate((keys, columns), axes)

    rows, _, columns = jax.lax.fori_loop(0, devices, step, (rows, keys, columns))
    return reduction.finish(rows), None if columns is None else reduction.finish(columns)


def ring_backward(
    reduction: type[Reduction],
    queries: Items,
    keys: Items,
    scale: Scale,
    rows: Result,
    columns: Result | None,
    axes: tuple[str, ...],
) -> Gradients:
    """Compute the gradients of this device's queries and keys, passing keys along a ring.

    Called inside `jax.shard_map`.
    """
    start = _no_gradients(queries, keys, scale, axes)

    def step(_: Array, carry: tuple) -> tuple:
        keys, columns, sums = carry
        sums = backward_sweep(reduction, queries, keys, scale, rows, columns, sums)
        keys, columns, key_sums = _rotate((keys, columns, sums.keys), axes)
        return keys, columns, sums._replace(keys=key_sums)

    *_, sums = jax.lax.fori_loop(0, jax.lax.axis_size(axes), step, (keys, columns, start))
    return sums


def _no_gradients(queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...]) -> Gradients:
    """Return the sums before the first tile."""
    query_sums = jnp.zeros(queries.embeddings.shape, jnp.float32)
    key_sums = jnp.zeros(keys.embeddings.shape, jnp.float32)
    bias_sum = None if scale.logit_bias is None else jnp.zeros((), jnp.float32)
    return _varying(Gradients(query_sums, key_sums, bias_sum), axes)


def _varying(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    """Mark constants as varying over devices, which the carry of a loop over device-local values has to be."""
    return jax.tree.map(lambda array: jax.lax.pcast(array, axes, to="varying"), tree) if axes else tree


def _rotate(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    """Send the first half of a block to the next device of the ring, and the second half to the previous one.

    Links work in both directions at a time, so that a hop takes half the time of one with the whole block.
    """
    devices = jax.lax.axis_size(axes)
    to_next = [(device, (device + 1) % devices) for device in range(devices)]
    to_previous = [(target, source) for source, target in to_next]

    def rotate(array: Array) -> Array:
        half = len(array) // 2
        if half == 0:
            return jax.lax.ppermute(array, axes, to_next)
        first = jax.lax.ppermute(array[:half], axes, to_next)
        second = jax.lax.ppermute(array[half:], axes, to_previous)
        return jnp.concatenate([first, second])

    return jax.tree.map(rotate, tree)


def _gather(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    return jax.tree.map(lambda array: jax.lax.all_gather(array, axes, tiled=True), tree) if axes else tree


def _merge_at_owner(reduction: type[Reduction], columns: State, axes: tuple[str, ...]) -> State:
    """Send the states of the columns to their owners, who merge the states of all devices."""
    if not axes:
        return columns
    devices = jax.lax.axis_size(axes)
    by_owner = jax.tree.map(lambda array: array.reshape(devices, -1), columns)
    return reduction.merge(jax.tree.map(lambda array: jax.lax.all_to_all(array, axes, 0, 0), by_owner))
