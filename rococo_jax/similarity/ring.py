"""Keys that travel: every device sees one block at a time, and the block carries what belongs to its columns.

At each of `devices` steps a device sweeps its queries over the block it holds and passes the block on; after the last
step every block is home again. In the forward pass the block carries the state of its columns, in the backward pass
their results and the gradient of its keys. So a device holds a constant number of blocks, however many devices there
are. The way of ring attention (Liu et al., arXiv 2310.01889) for a loss whose columns matter as much as its rows.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from rococo_jax.similarity.blockwise import Gradients, Items, Result, Scale, backward_sweep, forward_sweep
from rococo_jax.similarity.reductions import Reduction


def ring_forward(
    reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...], with_columns: bool
) -> tuple[Array, Array | None]:
    """Results of the rows (tiled as `queries`) and of this device's columns. Called inside `jax.shard_map`."""
    rows = varying(reduction.start(queries.mask.shape), axes)
    columns = varying(reduction.start(keys.mask.shape), axes) if with_columns else None

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
    start = no_gradients(queries, keys, scale, axes)

    def step(_: Array, carry: tuple) -> tuple:
        keys, columns, sums = carry
        sums = backward_sweep(reduction, queries, keys, scale, rows, columns, sums)
        keys, columns, key_sums = _pass_on((keys, columns, sums.keys), axes)
        return keys, columns, sums._replace(keys=key_sums)

    *_, sums = jax.lax.fori_loop(0, jax.lax.axis_size(axes), step, (keys, columns, start))
    return sums


def no_gradients(queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...]) -> Gradients:
    """Sums before the first tile."""
    bias = None if scale.logit_bias is None else jnp.zeros((), jnp.float32)
    shapes = queries.embeddings.shape, keys.embeddings.shape
    return varying(Gradients(*(jnp.zeros(shape, jnp.float32) for shape in shapes), bias), axes)


def varying(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    """Marks constants as different on each device, as the carry of a loop over device-local values has to be."""
    return jax.tree.map(lambda array: jax.lax.pcast(array, axes, to="varying"), tree) if axes else tree


def _pass_on(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    devices = jax.lax.axis_size(axes)
    to_next = [(device, (device + 1) % devices) for device in range(devices)]
    return jax.tree.map(lambda array: jax.lax.ppermute(array, axes, to_next), tree)
