"""Log-sum-exp over the rows and columns of `logit_scale * Q K^T`, in blocks and sharded over a mesh.

    row_i = log sum_{j : pair (i, j) counts} exp(logit_scale * q_i . k_j + logit_bias)
    column_j = the same sum over i

A pair counts if the masks of both items are True and, with ids, if the two ids differ. The sums therefore contain
*negatives* only. The positive of a query is the product of two rows on the same device; `rococo_jax.losses` adds it.
Leaving it out of the sum keeps small losses exact: `log(1 + exp(row_i - positive_i))` loses no digits if the model is
right.

The gradient is defined here (`jax.custom_vjp`), outside `jax.shard_map`: forward and backward are two programs over the
shards, and only the embeddings and one number per row and column are stored between them. `blockwise` implements the
two strategies that compare queries with keys on other devices; both give the same values and gradients.
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
    Result,
    Scale,
    all_gather_backward,
    all_gather_forward,
    into_tiles,
    out_of_tiles,
    ring_backward,
    ring_forward,
)
from rococo_jax.similarity.other_ids import sum_of_other_ids
from rococo_jax.similarity.reductions import LogSumExp, Reduction, SoftplusSum

# The strategy "auto" gathers up to this many bytes per device: all keys with their gradient, or the device's logits.
GATHER_BYTES = 256 * 2**20
# Size of a tile of logits. On CPU it fits the cache; elsewhere its product takes longer than its launch.
_TILE_BYTES = {"cpu": 4 * 2**20}
_TILE_BYTES_OF_ACCELERATORS = 32 * 2**20
_STRATEGIES = ("auto", "all_gather", "ring")

Sums = tuple[Float[Array, "queries"], Float[Array, "keys"] | None]


class ReductionPlan(NamedTuple):
    """Static parameters of a compiled reduction."""

    reduction: type[Reduction]
    mesh: Mesh | None
    all_gather: bool
    tile_rows: int
    with_columns: bool

    @property
    def axes(self) -> tuple[str, ...]:
        return () if self.mesh is None else tuple(self.mesh.axis_names)

    def on_shards(self, function: Callable, sharded_in: tuple[bool, ...], sharded_out: tuple[bool, ...]) -> Callable:
        """Map `function` over the shards of its arguments; True marks arrays sharded along their first axis."""
        if self.mesh is None:
            return function
        rows, replicated = PartitionSpec(self.axes), PartitionSpec()
        in_specs = tuple(rows if is_sharded else replicated for is_sharded in sharded_in)
        out_specs = tuple(rows if is_sharded else replicated for is_sharded in sharded_out)
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sums(plan: ReductionPlan, queries: Items, keys: Items, scale: Scale) -> Sums:
    """Reduce every row and, with `plan.with_columns`, every column.

    Queries and keys have masks, and their numbers are multiples of the number of devices.
    """
    return _forward(plan, queries, keys, scale)[0]


@functools.partial(jax.jit, static_argnums=0)
def _forward(plan: ReductionPlan, queries: Items, keys: Items, scale: Scale) -> tuple[Sums, tuple]:
    def on_device(queries: Items, keys: Items, scale: Scale) -> Sums:
        strategy = all_gather_forward if plan.all_gather else ring_forward
        tiled = into_tiles(queries, plan.tile_rows)
        rows, columns = strategy(plan.reduction, tiled, keys, scale, plan.axes, plan.with_columns)
        return out_of_tiles(rows, len(queries.mask)), columns

    results = plan.on_shards(on_device, (True, True, False), (True, True))(queries, keys, scale)
    return results, (queries, keys, scale, *results)


@functools.partial(jax.jit, static_argnums=0)
def _backward(plan: ReductionPlan, residuals: tuple, gradients: Sums) -> tuple[Items, Items, Scale]:
    def on_device(
        queries: Items, keys: Items, scale: Scale, rows: Result, columns: Result | None
    ) -> tuple[Array, Array, Scale]:
        strategy = all_gather_backward if plan.all_gather else ring_backward
        tiled, tiled_rows = into_tiles(queries, plan.tile_rows), into_tiles(rows, plan.tile_rows)
        totals = strategy(plan.reduction, tiled, keys, scale, tiled_rows, columns, plan.axes)
        scale_gradient = Scale((tiled.embeddings * totals.queries).sum(), totals.logit_bias)
        if plan.axes:
            scale_gradient = jax.lax.psum(scale_gradient, plan.axes)
        query_sums = out_of_tiles(totals.queries, len(queries.mask))
        return scale.logit_scale * query_sums, scale.logit_scale * totals.keys, scale_gradient

    queries, keys, scale, row_values, column_values = residuals
    rows = Result(row_values, gradients[0])
    columns = Result(column_values, gradients[1]) if plan.with_columns else None
    gradient = plan.on_shards(on_device, (True, True, False, True, True), (True, True, False))
    query_gradient, key_gradient, scale_gradient = gradient(queries, keys, scale, rows, columns)
    return Items(query_gradient), Items(key_gradient), scale_gradient


sums.defvjp(_forward, _backward)


@dataclass(frozen=True)
class ShardedLogits:
    """Mesh, strategy and block size for reductions of the pairwise logits of sharded embeddings.

    They change results by float32 rounding only. The batch is sharded over all axes of the mesh, which may be Auto or
    Explicit. A batch whose size is not a multiple of the number of devices is padded and masked. The methods work
    inside and outside `jax.jit`.

    Attributes:
        mesh: the devices; None for arrays on one device.
        strategy: "all_gather" stores all keys on every device, "ring" one block of them; "auto" gathers if that takes
            at most 256 MiB per device.
        block_rows: rows of logits computed at a time; by default as many as fill 4 MiB on CPU and 32 MiB elsewhere.

    Raises:
        InputError: the strategy is unknown, or `block_rows` is below 1.
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
        """Compute `log sum_j exp(logit_scale * q_i . k_j + logit_bias)` over the keys that count for query i.

        Args:
            queries, keys: sharded over the whole mesh along the first axis; used in float32. Both or neither have ids.
            logit_scale: the factor of the products, not its logarithm.
            logit_bias: added to every logit.

        Returns:
            One number per query; -inf for masked queries and for queries without a key that counts. Differentiable with
            respect to embeddings, logit_scale and logit_bias.
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
        """Compute `log_sum_exp` of every row and of every column, from one pass over the logits."""
        return self._sums(LogSumExp, queries, keys, Scale(logit_scale, logit_bias), with_columns=True)

    def softplus_sum(
        self,
        queries: Items,
        keys: Items,
        *,
        logit_scale: Float[Array, ""],
        logit_bias: Float[Array, ""] | None = None,
    ) -> Float[Array, "queries"]:
        """Compute `sum_j log(1 + exp(logit_scale * q_i . k_j + logit_bias))`; 0 if no key counts."""
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

    def plan(
        self, reduction: type[Reduction], queries: int, keys: int, width: int, *, with_columns: bool
    ) -> ReductionPlan:
        """Choose strategy and tiles for these numbers of queries and keys of all devices."""
        devices = 1 if self.mesh is None else self.mesh.size
        device_queries = -(-queries // devices)
        device_keys = -(-keys // devices)
        gathered_bytes = 4 * keys * max(device_queries, 2 * width)
        is_small = self.strategy == "auto" and gathered_bytes <= GATHER_BYTES
        all_gather = self.mesh is None or self.strategy == "all_gather" or is_small
        tile_keys = keys if all_gather else device_keys
        platform = jax.default_backend() if self.mesh is None else self.mesh.devices.flat[0].platform
        tile_bytes = _TILE_BYTES.get(platform, _TILE_BYTES_OF_ACCELERATORS)
        tile_rows = self.block_rows or max(1, tile_bytes // (4 * tile_keys))
        return ReductionPlan(reduction, self.mesh, all_gather, min(tile_rows, device_queries), with_columns)

    def _sums(
        self, reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, *, with_columns: bool
    ) -> Sums:
        if (queries.ids is None) != (keys.ids is None):
            raise ValueError("ids of queries and keys: found one of them; wanted both or neither")
        (query_count, width), key_count = queries.embeddings.shape, len(keys.embeddings)
        plan = self.plan(reduction, query_count, key_count, width, with_columns=with_columns)
        scale = jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), scale)
        rows, columns = sums(plan, self._shard_items(queries), self._shard_items(keys), scale)
        rows = self._without_padding(rows, query_count)
        if with_columns:
            columns = self._without_padding(columns, key_count)
        return rows, columns

    def _shard_items(self, items: Items) -> Items:
        """Convert to float32, zero masked items, pad to a multiple of the number of devices, and shard over them."""
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
        """Drop the results of padding."""
        return results if len(results) == count else self._shard(results, PartitionSpec())[:count]

    def _shard(self, array: Array, spec: PartitionSpec) -> Array:
        sharding = NamedSharding(self.mesh, spec)
        explicit = AxisType.Explicit in self.mesh.axis_types
        return jax.reshard(array, sharding) if explicit else jax.lax.with_sharding_constraint(array, sharding)


ON_ONE_DEVICE = ShardedLogits()
