"""Log-sum-exp over the rows and columns of `logit_scale * Q K^T`, sharded over a mesh, in blocks.

    row_i = log sum_{j : pair (i, j) counts} exp(logit_scale * q_i . k_j + logit_bias)
    column_j = the same sum over i

A pair counts where the masks of both items are True and, if ids are given, where the two ids differ: the sums hold
*negatives* only. The positive of a query is a product of two rows that lie on the same device, and
`rococo_jax.losses` adds it there. Leaving it out of the sum also keeps small losses exact:
`log(1 + exp(row_i - positive_i))` loses no digits where the model is right.

The gradient is our own (`jax.custom_vjp`), outside of `jax.shard_map`: forward and backward are two programs over the
shards, and between them live only the embeddings and one number for each row and column. `blockwise` has the two ways
in which queries meet keys on other devices; both give the same values and gradients.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from rococo_jax.errors import InputError
from rococo_jax.similarity.blockwise import (
    Items,
    LogSumExp,
    Reduction,
    Result,
    Scale,
    SoftplusSum,
    all_gather_backward,
    all_gather_forward,
    into_tiles,
    out_of_tiles,
    ring_backward,
    ring_forward,
)
from rococo_jax.similarity.other_ids import sum_of_other_ids

# Up to so many bytes a device, "auto" gathers: a block of logits, or the keys with their gradient.
GATHER_BYTES = 256 * 2**20
# A tile of logits: near the cache on CPU; elsewhere its product takes longer than its launch. Small beside a tower.
_TILE_BYTES = {"cpu": 4 * 2**20}
_TILE_BYTES_OF_ACCELERATORS = 32 * 2**20
_STRATEGIES = ("auto", "all_gather", "ring")

Sums = tuple[Float[Array, "queries"], Float[Array, "keys"] | None]


class Plan(NamedTuple):
    """The choices of a reduction that are made before it is compiled."""

    reduction: type[Reduction]
    mesh: Mesh | None
    gathers: bool
    tile_rows: int
    with_columns: bool

    @property
    def axes(self) -> tuple[str, ...]:
        return () if self.mesh is None else tuple(self.mesh.axis_names)

    def on_shards(self, function: Callable, sharded_in: tuple[bool, ...], sharded_out: tuple[bool, ...]) -> Callable:
        """Maps `function` over the shards of its arguments; True marks arrays sharded along their first axis."""
        if self.mesh is None:
            return function
        spec = {True: PartitionSpec(self.axes), False: PartitionSpec()}
        in_specs, out_specs = (tuple(spec[split] for split in which) for which in (sharded_in, sharded_out))
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sums(plan: Plan, queries: Items, keys: Items, scale: Scale) -> Sums:
    """Reduces every row and, if planned, every column. Masks are given; counts divide by the number of devices."""
    return _forward(plan, queries, keys, scale)[0]


@functools.partial(jax.jit, static_argnums=0)
def _forward(plan: Plan, queries: Items, keys: Items, scale: Scale) -> tuple[Sums, tuple]:
    def on_device(queries: Items, keys: Items, scale: Scale) -> Sums:
        strategy = all_gather_forward if plan.gathers else ring_forward
        tiled = into_tiles(queries, plan.tile_rows)
        rows, columns = strategy(plan.reduction, tiled, keys, scale, plan.axes, plan.with_columns)
        return out_of_tiles(rows, len(queries.mask)), columns

    results = plan.on_shards(on_device, (True, True, False), (True, True))(queries, keys, scale)
    return results, (queries, keys, scale, *results)


@functools.partial(jax.jit, static_argnums=0)
def _backward(plan: Plan, residuals: tuple, gradients: Sums) -> tuple[Items, Items, Scale]:
    def on_device(
        queries: Items, keys: Items, scale: Scale, rows: Result, columns: Result | None
    ) -> tuple[Array, Array, Scale]:
        strategy = all_gather_backward if plan.gathers else ring_backward
        tiled, tiled_rows = into_tiles(queries, plan.tile_rows), into_tiles(rows, plan.tile_rows)
        totals = strategy(plan.reduction, tiled, keys, scale, tiled_rows, columns, plan.axes)
        of_scale = Scale((tiled.embeddings * totals.queries).sum(), totals.logit_bias)
        if plan.axes:
            of_scale = jax.lax.psum(of_scale, plan.axes)
        of_queries = out_of_tiles(totals.queries, len(queries.mask))
        return scale.logit_scale * of_queries, scale.logit_scale * totals.keys, of_scale

    queries, keys, scale, row_values, column_values = residuals
    rows = Result(row_values, gradients[0])
    columns = Result(column_values, gradients[1]) if plan.with_columns else None
    gradient = plan.on_shards(on_device, (True, True, False, True, True), (True, True, False))
    of_queries, of_keys, of_scale = gradient(queries, keys, scale, rows, columns)
    return Items(of_queries), Items(of_keys), of_scale


sums.defvjp(_forward, _backward)


@dataclass(frozen=True)
class ShardedLogits:
    """Mesh, strategy and block size for reductions of the pairwise logits of sharded embeddings.

    None of them changes a result beyond float32 rounding. The batch is sharded over all axes of the mesh, Auto or
    Explicit; a batch that does not divide by the number of devices is padded and masked. Works inside and outside of
    `jax.jit`.

    Attributes:
        mesh: the devices; None for arrays on one device.
        strategy: "all_gather" holds all keys on every device, "ring" one block of them; "auto" gathers while that takes
            at most 256 MiB a device.
        block_rows: rows of logits computed at once; by default as many as fill 4 MiB on CPU and 32 MiB elsewhere.

    Raises:
        InputError: an unknown strategy, or a block without rows.
    """

    mesh: Mesh | None = None
    strategy: str = "auto"
    block_rows: int | None = None

    def __post_init__(self):
        if self.strategy not in _STRATEGIES:
            raise InputError("logits", "strategy", repr(self.strategy), "'auto', 'all_gather' or 'ring'")
        if self.block_rows is not None and self.block_rows < 1:
            raise InputError("logits", "block_rows", self.block_rows, "at least 1")

    def log_sum_exp(
        self,
        queries: Items,
        keys: Items,
        *,
        logit_scale: Float[Array, ""],
        logit_bias: Float[Array, ""] | None = None,
    ) -> Float[Array, "queries"]:
        """`log sum_j exp(logit_scale * q_i . k_j + logit_bias)` over the keys that count for query i.

        Args:
            queries, keys: sharded over the whole mesh along the first axis; used in float32. Ids: both or neither.
            logit_scale: `tau` itself, not its logarithm.
            logit_bias: added to every logit.

        Returns one number a query; -inf where no key counts, and for queries that do not count. Differentiable in
        embeddings, logit_scale and logit_bias.
        """
        return self._sums(LogSumExp, queries, keys, Scale(logit_scale, logit_bias), with_columns=False)[0]

    def log_sum_exp_both_ways(
        self,
        queries: Items,
        keys: Items,
        *,
        logit_scale: Float[Array, ""],
        logit_bias: Float[Array, ""] | None = None,
    ) -> tuple[Float[Array, "queries"], Float[Array, "keys"]]:
        """`log_sum_exp` of every row and of every column, from one pass over the logits. Arguments as there."""
        return self._sums(LogSumExp, queries, keys, Scale(logit_scale, logit_bias), with_columns=True)

    def softplus_sum(
        self,
        queries: Items,
        keys: Items,
        *,
        logit_scale: Float[Array, ""],
        logit_bias: Float[Array, ""] | None = None,
    ) -> Float[Array, "queries"]:
        """`sum_j log(1 + exp(logit_scale * q_i . k_j + logit_bias))`; 0 where no key counts. Arguments as above."""
        return self._sums(SoftplusSum, queries, keys, Scale(logit_scale, logit_bias), with_columns=False)[0]

    def sum_of_other_ids(self, items: Items) -> tuple[Float[Array, "items width"], Float[Array, "items"]]:
        """Return, for each item, the sum and the number of the embeddings with a different id.

        The sum over all pairs of different ids needs no pairwise products: it is the sum of all embeddings less the sum
        of those with the item's id. `items` must have ids; masked items are left out of sums and numbers.
        """
        count = len(items.embeddings)
        axes = () if self.mesh is None else tuple(self.mesh.axis_names)
        function = functools.partial(sum_of_other_ids, axes=axes)
        if self.mesh is not None:
            rows = PartitionSpec(axes)
            function = jax.shard_map(function, mesh=self.mesh, in_specs=rows, out_specs=rows)
        sums, numbers = function(*self._shard_items(items))
        return self._without_padding(sums, count), self._without_padding(numbers, count)

    def plan(self, reduction: type[Reduction], queries: int, keys: int, width: int, *, with_columns: bool) -> Plan:
        """Chooses strategy and tiles for so many queries and keys, counted over all devices."""
        devices = 1 if self.mesh is None else self.mesh.size
        queries = -(-queries // devices)
        gathered_bytes = 4 * keys * max(queries, 2 * width)
        small = self.strategy == "auto" and gathered_bytes <= GATHER_BYTES
        gathers = self.mesh is None or self.strategy == "all_gather" or small
        tile_keys = keys if gathers else -(-keys // devices)
        platform = jax.default_backend() if self.mesh is None else self.mesh.devices.flat[0].platform
        tile_bytes = _TILE_BYTES.get(platform, _TILE_BYTES_OF_ACCELERATORS)
        tile_rows = self.block_rows or max(1, tile_bytes // (4 * tile_keys))
        return Plan(reduction, self.mesh, gathers, min(tile_rows, queries), with_columns)

    def _sums(
        self, reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, *, with_columns: bool
    ) -> Sums:
        if (queries.ids is None) != (keys.ids is None):
            raise ValueError("ids of queries and keys: found one of them; wanted both or neither")
        (query_count, width), key_count = queries.embeddings.shape, len(keys.embeddings)
        plan = self.plan(reduction, query_count, key_count, width, with_columns=with_columns)
        scale = jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), scale)
        rows, columns = sums(plan, self._shard_items(queries), self._shard_items(keys), scale)
        return self._without_padding(rows, query_count), self._without_padding(
            columns, key_count
        ) if with_columns else None

    def _shard_items(self, items: Items) -> Items:
        """Converts to float32, zeroes masked items, pads to a multiple of the devices, and shards over them."""
        embeddings = jnp.asarray(items.embeddings, jnp.float32)
        ids = None if items.ids is None else jnp.asarray(items.ids)
        mask = jnp.ones(len(embeddings), bool) if items.mask is None else jnp.asarray(items.mask)
        padded = jax.tree.map(self._pad_and_shard, Items(embeddings, ids, mask))
        if items.mask is None:
            return padded
        return padded._replace(embeddings=jnp.where(padded.mask[:, None], padded.embeddings, 0.0))

    def _pad_and_shard(self, array: Array) -> Array:
        missing = 0 if self.mesh is None else -len(array) % self.mesh.size
        if missing:
            array = jnp.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
        return self._shard(array, PartitionSpec(self.mesh.axis_names)) if self.mesh is not None else array

    def _without_padding(self, results: Float[Array, "padded *width"], count: int) -> Float[Array, "items *width"]:
        """Drops the results of padding."""
        return results if len(results) == count else self._shard(results, PartitionSpec())[:count]

    def _shard(self, array: Array, spec: PartitionSpec) -> Array:
        sharding = NamedSharding(self.mesh, spec)
        explicit = AxisType.Explicit in self.mesh.axis_types
        return jax.reshard(array, sharding) if explicit else jax.lax.with_sharding_constraint(array, sharding)


ON_ONE_DEVICE = ShardedLogits()
