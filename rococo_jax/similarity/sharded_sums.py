"""Sums over rows and columns of logits as one differentiable function of sharded arrays.

The gradient is our own (`jax.custom_vjp`), on the outside of `jax.shard_map`: forward and backward are two programs
over the shards, and between them live only the embeddings and one number for each row and column.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from rococo_jax.similarity.all_gather import gathered_backward, gathered_forward
from rococo_jax.similarity.blockwise import Items, Result, Scale, into_tiles, out_of_tiles
from rococo_jax.similarity.reductions import Reduction
from rococo_jax.similarity.ring import ring_backward, ring_forward

Sums = tuple[Float[Array, "queries"], Float[Array, "keys"] | None]


class Plan(NamedTuple):
    """All that is known about the sums before they are compiled."""

    reduction: type[Reduction]
    mesh: Mesh | None
    gathers: bool
    tile_rows: int
    with_columns: bool

    @property
    def axes(self) -> tuple[str, ...]:
        return () if self.mesh is None else tuple(self.mesh.axis_names)

    def on_shards(self, function: Callable, sharded_in: tuple[bool, ...], sharded_out: tuple[bool, ...]) -> Callable:
        """`function` as a function of whole arrays, of which those marked are sharded along their first axis."""
        if self.mesh is None:
            return function
        spec = {True: PartitionSpec(self.axes), False: PartitionSpec()}
        in_specs, out_specs = (tuple(spec[split] for split in which) for which in (sharded_in, sharded_out))
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sums(plan: Plan, queries: Items, keys: Items, scale: Scale) -> Sums:
    """The reduction of every row and, if planned, of every column. Masks are given; counts divide by the devices."""
    return _forward(plan, queries, keys, scale)[0]


@functools.partial(jax.jit, static_argnums=0)
def _forward(plan: Plan, queries: Items, keys: Items, scale: Scale) -> tuple[Sums, tuple]:
    def on_device(queries: Items, keys: Items, scale: Scale) -> Sums:
        route = gathered_forward if plan.gathers else ring_forward
        tiled = into_tiles(queries, plan.tile_rows)
        rows, columns = route(plan.reduction, tiled, keys, scale, plan.axes, plan.with_columns)
        return out_of_tiles(rows, len(queries.mask)), columns

    results = plan.on_shards(on_device, (True, True, False), (True, True))(queries, keys, scale)
    return results, (queries, keys, scale, *results)


@functools.partial(jax.jit, static_argnums=0)
def _backward(plan: Plan, kept: tuple, gradients: Sums) -> tuple[Items, Items, Scale]:
    def on_device(
        queries: Items, keys: Items, scale: Scale, rows: Result, columns: Result | None
    ) -> tuple[Array, Array, Scale]:
        route = gathered_backward if plan.gathers else ring_backward
        tiled, tiled_rows = into_tiles(queries, plan.tile_rows), into_tiles(rows, plan.tile_rows)
        totals = route(plan.reduction, tiled, keys, scale, tiled_rows, columns, plan.axes)
        of_scale = Scale((tiled.embeddings * totals.queries).sum(), totals.logit_bias)
        if plan.axes:
            of_scale = jax.lax.psum(of_scale, plan.axes)
        of_queries = out_of_tiles(totals.queries, len(queries.mask))
        return scale.logit_scale * of_queries, scale.logit_scale * totals.keys, of_scale

    queries, keys, scale, row_values, column_values = kept
    rows = Result(row_values, gradients[0])
    columns = Result(column_values, gradients[1]) if plan.with_columns else None
    whole = plan.on_shards(on_device, (True, True, False, True, True), (True, True, False))
    of_queries, of_keys, of_scale = whole(queries, keys, scale, rows, columns)
    return Items(of_queries), Items(of_keys), of_scale


sums.defvjp(_forward, _backward)
