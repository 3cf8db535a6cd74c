"""The two strategies by which queries on one device meet the keys of all devices.

all_gather   Every device gathers all keys once and sweeps over them; what the devices know of each column is merged on
             the device that owns it. The backward pass gathers again, so that nothing gathered is kept in between, and
             scatters the sum of the keys' gradients to their owners. Fewer and larger products; all keys must fit.
ring         At each of `devices` steps, a device sweeps its queries over the block of keys that it holds and passes the
             block on; after the last step every block is back. In the forward pass the block carries the state of its
             columns, in the backward pass their results and the gradient of its keys. A device holds a constant number
             of blocks, however many devices there are (as ring attention, Liu et al., arXiv 2310.01889).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from rococo_jax.similarity.blockwise import (
    Gradients,
    Items,
    Reduction,
    Result,
    Scale,
    State,
    backward_sweep,
    forward_sweep,
)


def all_gather_forward(
    reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...], with_columns: bool
) -> tuple[Array, Array | None]:
    """Results of the rows (tiled as `queries`) and of this device's columns. In `jax.shard_map`, or with no `axes`."""
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
    """The gradients of this device's queries and keys. In `jax.shard_map`, or with no `axes`."""
    keys, columns = _gather((keys, columns), axes)
    start = _no_gradients(queries, keys, scale, axes)
    sums = backward_sweep(reduction, queries, keys, scale, rows, columns, start)
    if axes:
        sums = sums._replace(keys=jax.lax.psum_scatter(sums.keys, axes, tiled=True))
    return sums


def ring_forward(
    reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...], with_columns: bool
) -> tuple[Array, Array | None]:
    """Results of the rows (tiled as `queries`) and of this device's columns. Called inside `jax.shard_map`."""
    rows = _varying(reduction.start(queries.mask.shape), axes)
    columns = _varying(reduction.start(keys.mask.shape), axes) if with_columns else None

    def step(_: Array, carry: tuple) -> tuple:
        rows, keys, columns = carry
        rows, columns = forward_sweep(reduction, queries, keys, scale, rows, columns)
        return rows, *_pass_on((keys, columns), axes)

    rows, _, columns = jax.lax.fori_loop(0, jax.lax.axis_size(axes), step, (rows, keys, columns))
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
    """The gradients of this device's queries and keys. Called inside `jax.shard_map`."""
    start = _no_gradients(queries, keys, scale, axes)

    def step(_: Array, carry: tuple) -> tuple:
        keys, columns, sums = carry
        sums = backward_sweep(reduction, queries, keys, scale, rows, columns, sums)
        keys, columns, key_sums = _pass_on((keys, columns, sums.keys), axes)
        return keys, columns, sums._replace(keys=key_sums)

    *_, sums = jax.lax.fori_loop(0, jax.lax.axis_size(axes), step, (keys, columns, start))
    return sums


def _no_gradients(queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...]) -> Gradients:
    """Sums before the first tile."""
    bias = None if scale.logit_bias is None else jnp.zeros((), jnp.float32)
    shapes = queries.embeddings.shape, keys.embeddings.shape
    return _varying(Gradients(*(jnp.zeros(shape, jnp.float32) for shape in shapes), bias), axes)


def _varying(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    """Marks constants as different on each device, as the carry of a loop over device-local values has to be."""
    return jax.tree.map(lambda array: jax.lax.pcast(array, axes, to="varying"), tree) if axes else tree


def _pass_on(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    devices = jax.lax.axis_size(axes)
    to_next = [(device, (device + 1) % devices) for device in range(devices)]
    return jax.tree.map(lambda array: jax.lax.ppermute(array, axes, to_next), tree)


def _gather(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    return jax.tree.map(lambda array: jax.lax.all_gather(array, axes, tiled=True), tree) if axes else tree


def _merge_at_owner(reduction: type[Reduction], columns: State, axes: tuple[str, ...]) -> State:
    """Each device sends every owner the state of its columns; the owner merges what it receives."""
    if not axes:
        return columns
    devices = jax.lax.axis_size(axes)
    by_owner = jax.tree.map(lambda array: array.reshape(devices, -1), columns)
    return reduction.merge(jax.tree.map(lambda array: jax.lax.all_to_all(array, axes, 0, 0), by_owner))
