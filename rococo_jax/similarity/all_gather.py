"""Keys that are gathered once: fewer, larger products, for batches whose keys fit on every device beside the model.

The forward pass gathers the keys, sweeps over them, and merges what the devices know about each column on the device
that owns it. The backward pass gathers again (nothing gathered is kept in between) and scatters the sum of the keys'
gradients back to their owners.
"""

import jax
from jaxtyping import Array, PyTree

from rococo_jax.similarity.blockwise import Gradients, Items, Result, Scale, backward_sweep, forward_sweep
from rococo_jax.similarity.reductions import Reduction, State
from rococo_jax.similarity.ring import no_gradients, varying


def gathered_forward(
    reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...], with_columns: bool
) -> tuple[Array, Array | None]:
    """Results of the rows (tiled as `queries`) and of this device's columns. In `jax.shard_map`, or with no `axes`."""
    keys = _gather(keys, axes)
    rows = varying(reduction.start(queries.mask.shape), axes)
    columns = varying(reduction.start(keys.mask.shape), axes) if with_columns else None
    rows, columns = forward_sweep(reduction, queries, keys, scale, rows, columns)
    if columns is not None:
        columns = reduction.finish(_merge_at_owner(reduction, columns, axes))
    return reduction.finish(rows), columns


def gathered_backward(
    reduction: type[Reduction],
    queries: Items,
    keys: Items,
    scale: Scale,
    rows: Result,
    columns: Result | None,
    axes: tuple[str, ...],
) -> Gradients:
    """The gradients of this device's queries and keys. In `jax.shard_map`, or with no `axes`."""
    keys, columns = _gather((keys, columns), axes)
    start = no_gradients(queries, keys, scale, axes)
    sums = backward_sweep(reduction, queries, keys, scale, rows, columns, start)
    if axes:
        sums = sums._replace(keys=jax.lax.psum_scatter(sums.keys, axes, tiled=True))
    return sums


def _gather(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    return jax.tree.map(lambda array: jax.lax.all_gather(array, axes, tiled=True), tree) if axes else tree


def _merge_at_owner(reduction: type[Reduction], columns: State, axes: tuple[str, ...]) -> State:
    """Each device sends every owner the state of its columns; the owner merges what it receives."""
    if not axes:
        return columns
    devices = jax.lax.axis_size(axes)
    by_owner = jax.tree.map(lambda array: array.reshape(devices, -1), columns)
    return reduction.merge(jax.tree.map(lambda array: jax.lax.all_to_all(array, axes, 0, 0), by_owner))
