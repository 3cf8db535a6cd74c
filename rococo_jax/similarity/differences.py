"""Score differences between an item and its altered copy: does a query respond to what was altered?

Pair k consists of a right item `R_k` and a wrong item `W_k`, for example a caption and its altered caption. The query i
that belongs to the pair, for example the image of the caption, is its own query; queries of other groups are unrelated.
For every query j:

    d_j = s(Q_j, R_k) - s(Q_j, W_k)
    preference   [d_i > 0]                    the own query prefers the right item
    blind        mean over j of [d_j > 0]     an unrelated query prefers it as well
    grounding    mean over j of [d_i > d_j]   the own query prefers it by more than an unrelated query does

Ties count one half. A pair may be related to a second group (an image mixed from two), whose queries are left out.
Whatever depends on the items alone, `s(Q, R) + f(R)`, adds the same number to all differences of a pair and leaves
grounding unchanged. All four are definitions of this project [ours].

All d of a pair come from one product, `Q (R - W)`, in float32 at the highest precision and in tiles of one shape. This
is more exact than subtracting two scores, gives 0 for equal items, and gives the same bits for any order of queries,
any number of devices and any subset of pairs. In addition to the embeddings, memory is needed for one copy of the
queries and 2 KB per query.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity.counting import PADDING, tile_scores
from rococo_jax.similarity.ranks import EmbeddingTable, QueriesOnDevices, cut_into_tiles, tile_shape
from rococo_jax.similarity.statistics import Columns, same_group_pairs

# Number of pairs whose differences with all queries a device computes at a time.
_PAIRS = 512


@dataclasses.dataclass(frozen=True, eq=False)
class DifferenceStatistics(Columns):
    """Counts for each pair and each of its own queries, ordered by pair, then by query.

    Attributes:
        pair, query: indices of the pair and of its own query.
        difference: `d_i`.
        preferring: sum over the unrelated queries of 2 for d_j > 0 and 1 for d_j = 0.
        below: sum over the unrelated queries of 2 for d_j < d_i and 1 for d_j = d_i.
        unrelated: number of unrelated queries.
        pairs: number of pairs, including those without an own query, which have no entry.
    """

    pair: Int[np.ndarray, " entries"]
    query: Int[np.ndarray, " entries"]
    difference: Float[np.ndarray, " entries"]
    preferring: Int[np.ndarray, " entries"]
    below: Int[np.ndarray, " entries"]
    unrelated: Int[np.ndarray, " entries"]
    pairs: int

    shared_fields: ClassVar[tuple[str, ...]] = ("pairs",)

    @property
    def preference(self) -> Float[np.ndarray, " entries"]:
        """1 if the own query prefers the right item, one half if it prefers neither, else 0."""
        return ((self.difference > 0) + (self.difference >= 0).astype(float)) / 2

    @property
    def blind(self) -> Float[np.ndarray, " entries"]:
        """Share of unrelated queries that prefer the right item; NaN if there are none."""
        return self._share(self.preferring)

    @property
    def grounding(self) -> Float[np.ndarray, " entries"]:
        """Share of unrelated queries with a lower difference than the own query; NaN if there are none."""
        return self._share(self.below)

    @property
    def rank(self) -> Float[np.ndarray, " entries"]:
        """1 + the number of unrelated queries with a higher difference, and half of those with the same."""
        return 1 + self.unrelated - self.below / 2

    def _share(self, twice: Int[np.ndarray, " entries"]) -> Float[np.ndarray, " entries"]:
        with np.errstate(invalid="ignore"):
            return twice / (2.0 * self.unrelated)


def difference_statistics(
    queries: Float[np.ndarray, "query_rows width"] | Float[Array, "query_rows width"],
    right: Float[np.ndarray, "right_rows right_width"] | Float[Array, "right_rows right_width"],
    wrong: Float[np.ndarray, "wrong_rows wrong_width"] | Float[Array, "wrong_rows wrong_width"],
    *,
    query_group: Int[np.ndarray, " queries"],
    pair_group: Int[np.ndarray, " pairs"],
    second_group: Int[np.ndarray, " pairs"] | None = None,
    query_rows: Int[np.ndarray, " queries"] | None = None,
    right_rows: Int[np.ndarray, " pairs"] | None = None,
    wrong_rows: Int[np.ndarray, " pairs"] | None = None,
    mesh: jax.sharding.Mesh | None = None,
    source: str = "embeddings",
) -> DifferenceStatistics:
    """Count, for each pair, the unrelated queries that prefer its right item, and by less than its own query does.

    Args:
        queries: embeddings, in memory or a memory map. Scores are dot products; pass unit vectors for cosines.
        right, wrong: embeddings of the two items of each pair.
        query_group: the group (image) of each query.
        pair_group: the group of each pair. Queries of this group are the pair's own, the others are unrelated.
        second_group: a further group of each pair whose queries are left out; a group without queries for none.
        query_rows, right_rows, wrong_rows: the row of each query or pair in its table; all rows in order by default.
        mesh: queries are sharded over all its devices, pairs are replicated; only the first device by default.
        source: name of the embeddings in an error.

    Raises:
        InputError: widths differ, or an embedding is NaN, infinite or so large that a score overflows.
    """
    widths = [table.shape[1] for table in (queries, right, wrong)]
    if len(set(widths)) > 1:
        raise InputError(source, "width", " and ".join(map(str, widths)), "embeddings of one width")
    mesh = make_mesh(jax.devices()[:1]) if mesh is None else mesh
    query_group, pair_group, second_group = number_groups(query_group, pair_group, second_group)
    if not np.isin(pair_group, query_group).any():
        return count_pairs(query_group, pair_group, second_group, 1, None)
    query_table = EmbeddingTable(np.asarray(queries), query_rows, source)
    right_table = EmbeddingTable(np.asarray(right), right_rows, source)
    wrong_table = EmbeddingTable(np.asarray(wrong), wrong_rows, source)
    tile_queries, _ = tile_shape(mesh.devices.flat[0].platform)
    tiles = cut_into_tiles(query_group, np.zeros(len(query_group), bool), tile_queries)
    on_devices = QueriesOnDevices(mesh, tiles, query_table, query_group)
    step = compiled_count(mesh)
    position = on_devices.positions()

    def count(pairs: np.ndarray, own_queries: np.ndarray, related: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        items = right_table.take(pairs) - wrong_table.take(pairs)
        query_table.check_scores_with(right_table)
        query_table.check_scores_with(wrong_table)
        own_positions = position[own_queries].astype(np.int32)
        replicated = on_devices.replicate((items, own_positions, related.astype(np.int32)))
        return jax.device_get(step(on_devices.embedded, *replicated))

    return count_pairs(query_group, pair_group, second_group, _PAIRS, count)


def number_groups(
    query_group: Int[np.ndarray, " queries"],
    pair_group: Int[np.ndarray, " pairs"],
    second_group: Int[np.ndarray, " pairs"] | None,
) -> list[np.ndarray]:
    """Replace group ids by numbers from 0. Without second groups, the second group of a pair is its own group."""
    groups = [query_group, pair_group, pair_group if second_group is None else second_group]
    numbers = np.unique(np.concatenate(groups), return_inverse=True)[1]
    return np.split(numbers, np.cumsum([len(group) for group in groups[:-1]]))


def count_pairs(
    query_group: Int[np.ndarray, " queries"],
    pair_group: Int[np.ndarray, " pairs"],
    second_group: Int[np.ndarray, " pairs"],
    block_size: int,
    count: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None,
    precision: type = np.float32,
) -> DifferenceStatistics:
    """Collect the statistics of all pairs, `block_size` pairs at a time.

    A pair may have several own queries; they occupy slots 0, 1, ... of its column in a block.

    Args:
        query_group, pair_group, second_group: results of `number_groups`.
        block_size: pairs per call of `count`; copies of the last pair fill the last block.
        count: computes the numbers of one block,
            `count(pairs, own_queries, related) -> (own_differences, twice_below)`. `pairs` (block_size) are indices of
            pairs, `own_queries` (slots, block_size) their own queries, with any query in an empty slot, and `related`
            (2, block_size) their two groups. The results are d_i (slots, block_size), and `count_twice_below` with the
            threshold 0 and with each d_i (1 + slots, block_size).
        precision: dtype of the differences.
    """
    pair, query = same_group_pairs(pair_group, query_group)  # one entry for each pair and own query
    group_count = 1 + max(pair_group.max(initial=0), second_group.max(initial=0))
    group_sizes = np.bincount(query_group, minlength=group_count)
    own_counts = group_sizes[pair_group]
    second_counts = np.where(second_group != pair_group, group_sizes[second_group], 0)
    unrelated = (len(query_group) - own_counts - second_counts)[pair]
    first_entry = np.cumsum(own_counts) - own_counts
    slot = np.arange(len(pair)) - first_entry[pair]
    pairs_with_own = np.flatnonzero(own_counts)

    def block_of(pairs: np.ndarray) -> tuple[slice, tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
        """Return entries of the pairs, their slots and columns in the block, its padded pairs and their own queries."""
        entries = slice(first_entry[pairs[0]], first_entry[pairs[-1]] + own_counts[pairs[-1]])
        places = slot[entries], np.searchsorted(pairs, pair[entries])
        padded_pairs = np.pad(pairs, (0, block_size - len(pairs)), mode="edge")
        own_queries = np.zeros((own_counts.max(), block_size), int)
        own_queries[places] = query[entries]
        return entries, places, padded_pairs, own_queries

    difference = np.empty(len(pair), precision)
    preferring, below = np.empty(len(pair), int), np.empty(len(pair), int)
    with progress("comparing originals with altered items", len(pairs_with_own), "pairs") as advance:
        for start in range(0, len(pairs_with_own), block_size):
            pairs = pairs_with_own[start : start + block_size]
            entries, (row, column), padded_pairs, own_queries = block_of(pairs)
            related = np.stack([pair_group[padded_pairs], second_group[padded_pairs]])
            own_differences, twice_below = count(padded_pairs, own_queries, related)
            # -0.0 equals 0.0; adding 0 makes their bits the same.
            difference[entries] = own_differences[row, column] + 0
            # Above or equal to 0 is the complement of below 0, with ties counted half on either side.
            preferring[entries] = 2 * unrelated[entries] - twice_below[0, column]
            below[entries] = twice_below[1:][row, column]
            advance(len(pairs))
    return DifferenceStatistics(pair, query, difference, preferring, below, unrelated, len(pair_group))


def count_twice_below(
    differences: Float[np.ndarray, "queries size"] | Float[Array, "queries size"],
    threshold: Float[np.ndarray, " size"] | Float[Array, " size"],
    unrelated: Bool[np.ndarray, "queries size"] | Bool[Array, "queries size"],
) -> Int[np.ndarray, " size"] | Int[Array, " size"]:
    """Sum in each column, over the unrelated queries, 2 for a difference below the threshold and 1 for one equal to it.

    Works for arrays of NumPy and JAX. Integer sums do not depend on the order of the rows.
    """
    is_below = unrelated & (differences < threshold[None])
    is_not_above = unrelated & (differences <= threshold[None])
    return (is_below.astype(np.int32) + is_not_above.astype(np.int32)).sum(axis=0, dtype=np.int32)


def unrelated_mask(
    query_group: Int[np.ndarray, " queries"] | Int[Array, " queries"],
    related: Int[np.ndarray, "2 size"] | Int[Array, "2 size"],
) -> Bool[np.ndarray, "queries size"] | Bool[Array, "queries size"]:
    """Return, for each query (row) and pair (column), whether the query's group is neither of the pair's groups."""
    return (query_group[:, None] != related[:1]) & (query_group[:, None] != related[1:])


@functools.cache
def compiled_count(mesh: jax.sharding.Mesh) -> Callable[..., tuple[Array, Array]]:
    """Compile `step(queries, items, own_positions, related)`, the `count` of `count_pairs` over sharded queries.

    `items` are the differences R - W of the block's pairs, and `own_positions` are positions of the own queries in the
    concatenated tiles.
    """
    axes = mesh.axis_names

    def step(queries, items, own_positions, related):
        differences = lax.map(lambda tile: tile_scores(tile, items), queries.embeddings)  # (tiles, queries, pairs)
        rows = differences.reshape(-1, differences.shape[-1])  # this device's queries

        # d_i of own queries: each is on one device, the others contribute -inf to the maximum.
        local_row = own_positions - lax.axis_index(axes) * len(rows)
        is_local = (local_row >= 0) & (local_row < len(rows))
        local_differences = jnp.take_along_axis(rows, jnp.clip(local_row, 0, len(rows) - 1), axis=0)
        own_differences = lax.pmax(jnp.where(is_local, local_differences, -jnp.inf), axes)
        thresholds = jnp.concatenate([jnp.zeros_like(own_differences[:1]), own_differences])

        def count_tile(tile):
            tile_differences, query_group = tile
            unrelated = unrelated_mask(query_group, related) & (query_group != PADDING)[:, None]
            return lax.map(lambda threshold: count_twice_below(tile_differences, threshold, unrelated), thresholds)

        counts_of_tiles = lax.map(count_tile, (differences, queries.group))
        return own_differences, lax.psum(counts_of_tiles.sum(axis=0), axes)

    replicated = PartitionSpec()
    specs = (PartitionSpec(axes), replicated, replicated, replicated)
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=replicated))
