"""Log-sum-exp over the rows and columns of `logit_scale * Q K^T`, in blocks and sharded over a mesh.

    row_i = log sum_{j : pair (i, j) counts} exp(logit_scale * q_i . k_j + logit_bias)
    column_j = the same sum over i

A pair counts if the masks of both are True and, with ids, if the two ids differ. The sums therefore contain
*negatives* only. The positive of a query is the product of two rows on the same device; `rococo_jax.losses` adds it.
Leaving it out of the sum keeps small losses exact: `log(1 + exp(row_i - positive_i))` loses no digits if the model is
right.

Every device gathers all keys once and computes the logits of its queries in tiles (rows, all keys), float32 products at
the highest precision; a larger matrix of logits is never stored. JAX differentiates this. Under `jax.checkpoint` the
backward pass computes the logits of a tile again, so that a step has four products per tile. Every device stores all
keys and their gradient, 2 x keys x width x 4 bytes: 134 MB for 32,768 pairs of 512 numbers; and the states of the
columns before each tile.

`sum_of_other_ids` sums the embeddings whose id differs from an item's own id, for every item of a sharded batch:

    sum_i = sum over all j of e_j  -  sum over j with id_j = id_i of e_j

The second sum may need rows of any device, but it treats every column of the embeddings alike. So the devices exchange
rows for columns (all-to-all): each receives all rows of its share of the columns, subtracts the sums of equal ids, and
returns the results to the owners of the rows. A device never holds more than its share of the embeddings, and only the
ids are gathered.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.errors import InputError

# Size of a tile of logits. On CPU it fits the cache; elsewhere its product takes longer than its launch.
_TILE_BYTES = {"cpu": 4 * 2**20}
_TILE_BYTES_OF_ACCELERATORS = 32 * 2**20
# Highest logit so far, and the sum of exponentials relative to it (Milakov and Gimelshein, arXiv 1805.02867).
_State = tuple[Float[Array, " items"], Float[Array, " items"]]
_Scale = tuple[Float[Array, ""], Float[Array, ""] | None]
_ReduceRows = Callable[[Float[Array, "rows keys"]], Float[Array, " rows"]]


def sum_of_other_ids(
    embeddings: Float[Array, "items width"],
    ids: Int[Array, " items"],
    mask: Bool[Array, " items"],
    axes: tuple[str, ...],
) -> tuple[Float[Array, "items width"], Float[Array, " items"]]:
    """Return, for each row, the sum and the number of the unmasked rows with another id, over all devices.

    Args:
        embeddings: 0 where the mask is False.
        axes: mesh axes that share the rows; this is called inside `jax.shard_map`, or with no axes.
    """
    all_ids, all_mask = (jax.lax.all_gather(array, axes, tiled=True) if axes else array for array in (ids, mask))
    rows = len(all_ids)
    sorted_ids = jnp.sort(all_ids)
    # Rows of equal ids form a group; its number is the first position of the id among the sorted ids.
    own_group = jnp.searchsorted(sorted_ids, ids, method="sort")
    all_groups = jnp.searchsorted(sorted_ids, all_ids, method="sort")

    columns = _rows_to_columns(embeddings, axes)
    group_sums = jax.ops.segment_sum(columns, all_groups, num_segments=rows)
    other_sums = columns.sum(0, keepdims=True) - group_sums[all_groups]

    all_ones = all_mask.astype(jnp.float32)
    group_counts = jax.ops.segment_sum(all_ones, all_groups, num_segments=rows)
    other_counts = all_ones.sum() - group_counts[own_group]
    return _columns_to_rows(other_sums, axes)[:, : embeddings.shape[1]], other_counts


def _rows_to_columns(
    embeddings: Float[Array, "own_rows width"], axes: tuple[str, ...]
) -> Float[Array, "all_rows own_columns"]:
    """Exchange rows for columns; the width is padded with zeros to a multiple of the number of devices."""
    if not axes:
        return embeddings
    padding = -embeddings.shape[1] % jax.lax.axis_size(axes)
    padded = jnp.pad(embeddings, ((0, 0), (0, padding)))
    return jax.lax.all_to_all(padded, axes, split_axis=1, concat_axis=0, tiled=True)


def _columns_to_rows(
    columns: Float[Array, "all_rows own_columns"], axes: tuple[str, ...]
) -> Float[Array, "own_rows padded_width"]:
    """Invert `_rows_to_columns`, except for its padding."""
    if not axes:
        return columns
    return jax.lax.all_to_all(columns, axes, split_axis=0, concat_axis=1, tiled=True)


class PairwiseSide(NamedTuple):
    """Queries or keys of pairwise logits.

    Attributes:
        embeddings: unit vectors, one per row.
        ids: image id of each row; pairs of a query and a key with the same id are left out. None: no pair is.
        mask: False for rows that are ignored, whatever their embedding contains (even NaN). None: all rows count.
    """

    embeddings: Float[Array, "*tiles rows width"]
    ids: Int[Array, "*tiles rows"] | None = None
    mask: Bool[Array, "*tiles rows"] | None = None


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
        queries: PairwiseSide,
        keys: PairwiseSide,
        *,
        logit_scale: Float[Array, ""],
        logit_bias: Float[Array, ""] | None = None,
    ) -> Float[Array, " queries"]:
        """Compute `log sum_j exp(logit_scale * q_i . k_j + logit_bias)` over the keys that count for query i.

        Args:
            queries, keys: sharded over the whole mesh along the first axis; used in float32. Both or neither have ids.
            logit_scale: the factor of the products, not its logarithm.
            logit_bias: added to every logit.

        Returns:
            One number per query; -inf for masked queries and for queries without a key that counts. Differentiable with
            respect to embeddings, logit_scale and logit_bias.
        """
        return self._reduce(_log_sum_exp, queries, keys, (logit_scale, logit_bias), with_columns=False)[0]

    def log_sum_exp_both_ways(
        self,
        queries: PairwiseSide,
        keys: PairwiseSide,
        *,
        logit_scale: Float[Array, ""],
        logit_bias: Float[Array, ""] | None = None,
    ) -> tuple[Float[Array, " queries"], Float[Array, " keys"]]:
        """Compute `log_sum_exp` of every row and of every column, from one pass over the logits."""
        return self._reduce(_log_sum_exp, queries, keys, (logit_scale, logit_bias), with_columns=True)

    def softplus_sum(
        self,
        queries: PairwiseSide,
        keys: PairwiseSide,
        *,
        logit_scale: Float[Array, ""],
        logit_bias: Float[Array, ""] | None = None,
    ) -> Float[Array, " queries"]:
        """Compute `sum_j log(1 + exp(logit_scale * q_i . k_j + logit_bias))`; 0 if no key counts."""
        return self._reduce(_softplus_sum, queries, keys, (logit_scale, logit_bias), with_columns=False)[0]

    def sum_of_other_ids(self, items: PairwiseSide) -> tuple[Float[Array, "items width"], Float[Array, " items"]]:
        """Return, for each item, the sum and the number of the embeddings with a different id.

        The sum over all pairs of different ids needs no pairwise products: it is the sum of all embeddings less the sum
        of those with the item's id. `items` must have ids; masked items are left out of sums and numbers.
        """
        count = len(items.embeddings)
        function = functools.partial(sum_of_other_ids, axes=self._axes)
        sums, numbers = self._shard_map(function, self._rows)(*self._prepare(items))
        return self._without_padding(sums, count), self._without_padding(numbers, count)

    def tile_rows(self, queries: int, keys: int) -> int:
        """Return the rows of logits that a device computes at a time, for these numbers of queries and keys of all."""
        devices = 1 if self.mesh is None else self.mesh.size
        platform = jax.default_backend() if self.mesh is None else self.mesh.devices.flat[0].platform
        tile_bytes = _TILE_BYTES.get(platform, _TILE_BYTES_OF_ACCELERATORS)
        return min(self.block_rows or max(1, tile_bytes // (4 * keys)), -(-queries // devices))

    @property
    def _axes(self) -> tuple[str, ...]:
        return () if self.mesh is None else tuple(self.mesh.axis_names)

    @property
    def _rows(self) -> PartitionSpec:
        return PartitionSpec(self._axes)

    @functools.partial(jax.jit, static_argnums=(0, 1), static_argnames="with_columns")
    def _reduce(
        self,
        reduce_rows: _ReduceRows,
        queries: PairwiseSide,
        keys: PairwiseSide,
        scale: _Scale,
        *,
        with_columns: bool,
    ) -> tuple[Float[Array, " queries"], Float[Array, " keys"] | None]:
        """Reduce every row and, `with_columns`, compute the log-sum-exp of every column."""
        if (queries.ids is None) != (keys.ids is None):
            raise ValueError("ids of queries and keys: found one of them; wanted both or neither")
        query_count, key_count = len(queries.embeddings), len(keys.embeddings)
        function = functools.partial(
            _reduce_on_device,
            reduce_rows=reduce_rows,
            with_columns=with_columns,
            tile_rows=self.tile_rows(query_count, key_count),
            axes=self._axes,
        )
        scale = jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), scale)
        function = self._shard_map(function, (self._rows, self._rows, PartitionSpec()))
        rows, columns = function(self._prepare(queries), self._prepare(keys), scale)
        columns = self._without_padding(columns, key_count) if with_columns else None
        return self._without_padding(rows, query_count), columns

    def _shard_map(self, function: Callable[..., Any], in_specs: Any) -> Callable[..., Any]:
        if self.mesh is None:
            return function
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=self._rows)

    def _prepare(self, side: PairwiseSide) -> PairwiseSide:
        """Convert to float32, zero masked rows, pad to a multiple of the number of devices, and shard over them."""
        embeddings = jnp.asarray(side.embeddings, jnp.float32)
        ids = None if side.ids is None else jnp.asarray(side.ids)
        mask = jnp.ones(len(embeddings), bool) if side.mask is None else jnp.asarray(side.mask)
        padded = jax.tree.map(self._pad_and_shard, PairwiseSide(embeddings, ids, mask))
        if side.mask is None:
            return padded
        return padded._replace(embeddings=jnp.where(padded.mask[:, None], padded.embeddings, 0.0))

    def _pad_and_shard(self, array: Array) -> Array:
        if self.mesh is None:
            return array
        return self._shard(_pad_rows(array, self.mesh.size), self._rows)

    def _without_padding(self, results: Float[Array, " padded *width"], count: int) -> Float[Array, " items *width"]:
        """Drop the results of padding."""
        return results if len(results) == count else self._shard(results, PartitionSpec())[:count]

    def _shard(self, array: Array, spec: PartitionSpec) -> Array:
        sharding = NamedSharding(self.mesh, spec)
        explicit = AxisType.Explicit in self.mesh.axis_types
        return jax.reshard(array, sharding) if explicit else jax.lax.with_sharding_constraint(array, sharding)


ON_ONE_DEVICE = ShardedLogits()


def _reduce_on_device(
    queries: PairwiseSide,
    keys: PairwiseSide,
    scale: _Scale,
    *,
    reduce_rows: _ReduceRows,
    with_columns: bool,
    tile_rows: int,
    axes: tuple[str, ...],
) -> tuple[Float[Array, " queries"], Float[Array, " keys"] | None]:
    """Compute the results of this device's rows and columns. Called inside `jax.shard_map`, or with no `axes`."""
    keys = jax.tree.map(lambda array: jax.lax.all_gather(array, axes, tiled=True), keys) if axes else keys

    @jax.checkpoint
    def add_tile(columns: _State | None, tile: PairwiseSide) -> tuple[_State | None, Float[Array, "rows"]]:
        logits = _logits(tile, keys, scale)
        return columns and _add(columns, logits, axis=0), reduce_rows(logits)

    tiles = jax.tree.map(lambda array: _pad_rows(array, tile_rows).reshape(-1, tile_rows, *array.shape[1:]), queries)
    start = _empty(len(keys.mask)) if with_columns else None
    if axes:  # the carry of a loop over values of a device is marked as varying over devices
        start = jax.tree.map(lambda array: jax.lax.pcast(array, axes, to="varying"), start)
    columns, rows = jax.lax.scan(add_tile, start, tiles)
    return rows.reshape(-1)[: len(queries.mask)], columns and _merge_at_owner(_finish(columns), axes)


def _logits(queries: PairwiseSide, keys: PairwiseSide, scale: _Scale) -> Float[Array, "rows keys"]:
    """Compute the logits of a tile; those of ignored pairs are -inf."""
    logit_scale, logit_bias = scale
    highest = jax.lax.Precision.HIGHEST
    products = jnp.einsum(
        "rd,kd->rk", queries.embeddings, keys.embeddings, precision=highest, preferred_element_type=jnp.float32
    )
    logits = logit_scale * products
    if logit_bias is not None:
        logits += logit_bias
    counted = queries.mask[:, None] & keys.mask[None, :]
    if queries.ids is not None:
        counted &= queries.ids[:, None] != keys.ids[None, :]
    return jnp.where(counted, logits, -jnp.inf)


def _softplus_sum(logits: Float[Array, "rows keys"]) -> Float[Array, " rows"]:
    return jax.nn.softplus(logits).sum(axis=1)


def _log_sum_exp(logits: Float[Array, "rows keys"]) -> Float[Array, " rows"]:
    return _finish(_add(_empty(len(logits)), logits, axis=1))


def _empty(count: int) -> _State:
    return jnp.full(count, -jnp.inf, jnp.float32), jnp.zeros(count, jnp.float32)


def _add(state: _State, logits: Float[Array, "rows columns"], axis: int) -> _State:
    """Return the state after adding more logits, reduced over `axis`."""
    highest, total = state
    # The result does not depend on the shift, so it needs no gradient.
    raised = jax.lax.stop_gradient(jnp.maximum(highest, logits.max(axis)))
    shift = jnp.where(raised == -jnp.inf, 0.0, raised)  # -inf less -inf would be NaN
    return raised, total * jnp.exp(highest - shift) + jnp.exp(logits - jnp.expand_dims(shift, axis)).sum(axis)


def _finish(state: _State) -> Float[Array, " items"]:
    """Return the log-sum-exp; -inf, without a gradient, if no logit counts."""
    highest, total = state
    return highest + jnp.log(jnp.where(total > 0, total, 1.0))


def _merge_at_owner(columns: Float[Array, " keys"], axes: tuple[str, ...]) -> Float[Array, " own_keys"]:
    """Send each column's log-sum-exp over this device's rows to its owner, who merges those of all devices."""
    if not axes:
        return columns
    by_owner = columns.reshape(jax.lax.axis_size(axes), -1)
    return _log_sum_exp(jax.lax.all_to_all(by_owner, axes, 0, 0).T)


def _pad_rows(array: Array, multiple: int) -> Array:
    """Pad the first axis with zeros (False) to a multiple of a number."""
    return jnp.pad(array, [(0, -len(array) % multiple)] + [(0, 0)] * (array.ndim - 1))
