"""Log-sum-exp over the rows and columns of `logit_scale * Q K^T`, in blocks and sharded over a mesh.

    row_i = log sum_{j : pair (i, j) counts} exp(logit_scale * q_i . k_j + logit_bias)
    column_j = the same sum over i

A pair counts if the masks of both items are True and, with ids, if the two ids differ. The sums therefore contain
*negatives* only. The positive of a query is the product of two rows on the same device; `rococo_jax.losses` adds it.
Leaving it out of the sum keeps small losses exact: `log(1 + exp(row_i - positive_i))` loses no digits if the model is
right.

Every device stores all keys and their gradient, 2 x keys x width x 4 bytes: 134 MB for 32,768 pairs of 512 numbers.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from rococo_jax.errors import InputError
from rococo_jax.similarity.blockwise import Items, Scale, into_tiles, out_of_tiles, reduce_logits
from rococo_jax.similarity.other_ids import sum_of_other_ids
from rococo_jax.similarity.reductions import LogSumExp, Reduction, SoftplusSum

# Size of a tile of logits. On CPU it fits the cache; elsewhere its product takes longer than its launch.
_TILE_BYTES = {"cpu": 4 * 2**20}
_TILE_BYTES_OF_ACCELERATORS = 32 * 2**20

Sums = tuple[Float[Array, "queries"], Float[Array, "keys"] | None]


class ReductionPlan(NamedTuple):
    """Static parameters of a compiled reduction."""

    reduction: type[Reduction]
    mesh: Mesh | None
    tile_rows: int
    with_columns: bool


@functools.partial(jax.jit, static_argnums=0)
def sums(plan: ReductionPlan, queries: Items, keys: Items, scale: Scale) -> Sums:
    """Reduce every row and, with `plan.with_columns`, every column.

    Queries and keys have masks, and their numbers are multiples of the number of devices.
    """
    axes = () if plan.mesh is None else tuple(plan.mesh.axis_names)

    def on_device(queries: Items, keys: Items, scale: Scale) -> Sums:
        tiled = into_tiles(queries, plan.tile_rows)
        rows, columns = reduce_logits(plan.reduction, tiled, keys, scale, axes, plan.with_columns)
        return out_of_tiles(rows, len(queries.mask)), columns

    if plan.mesh is not None:
        rows, replicated = PartitionSpec(axes), PartitionSpec()
        on_device = jax.shard_map(on_device, mesh=plan.mesh, in_specs=(rows, rows, replicated), out_specs=rows)
    return on_device(queries, keys, scale)


@dataclass(frozen=True)
class ShardedLogits:
    """Mesh and block size for reductions of the pairwise logits of sharded embeddings.

    They change results by float32 rounding only. The batch is sharded over all axes of the mesh, which may be Auto or
    Explicit. A batch whose size is not a multiple of the number of devices is padded and masked. The methods work
    inside and outside `jax.jit`.

    Attributes:
        mesh: the devices; None for arrays on one device.
        block_rows: rows of logits computed at a time; by default as many as fill 4 MiB on CPU and 32 MiB elsewhere.

    Raises:
        InputError: `block_rows` is below 1.
    """

    mesh: Mesh | None = None
    block_rows: int | None = None

    def __post_init__(self):
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

    def tile_rows(self, queries: int, keys: int) -> int:
        """Return the rows of logits that a device computes at a time, for these numbers of queries and keys of all."""
        devices = 1 if self.mesh is None else self.mesh.size
        platform = jax.default_backend() if self.mesh is None else self.mesh.devices.flat[0].platform
        tile_bytes = _TILE_BYTES.get(platform, _TILE_BYTES_OF_ACCELERATORS)
        return min(self.block_rows or max(1, tile_bytes // (4 * keys)), -(-queries // devices))

    def _sums(
        self, reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, *, with_columns: bool
    ) -> Sums:
        if (queries.ids is None) != (keys.ids is None):
            raise ValueError("ids of queries and keys: found one of them; wanted both or neither")
        query_count, key_count = len(queries.embeddings), len(keys.embeddings)
        plan = ReductionPlan(reduction, self.mesh, self.tile_rows(query_count, key_count), with_columns)
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
