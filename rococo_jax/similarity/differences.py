"""Does a query look at what was changed? Differences between the scores of an item and its altered copy.

For pair k of a right item `R_k` and a wrong one `W_k`, and every query j:

    d_j = s(Q_j, R_k) - s(Q_j, W_k)
    preference   [d_i > 0]                    the own query i, which shows R_k, prefers it
    blind        mean over j of [d_j > 0]     so does a wrong query j, which does not
    grounding    mean over j of [d_i > d_j]   the own query prefers it by more than a wrong one

Ties count one half. Wrong queries are those of other groups than the pair's; a pair may be shown in a second group (an
image mixed from two). What depends on the items alone, `s(Q, R) + f(R)`, adds the same to all differences of a pair and
leaves grounding as it is. All four are this project's own (docs/explanation/grounding.md).

All d of a pair are one product, `Q (R - W)`, float32 at the highest precision in tiles of one shape: nearer to the real
difference than two scores, 0 where the items are equal, and the same bits for any order, number of devices and share
of the pairs. Memory beside the embeddings: the query side once, and 2 KB a query.
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
from rococo_jax.similarity.ranks import QueriesOnDevices, Rows, cut_into_tiles, tile_shape
from rococo_jax.similarity.statistics import Columns, same_group_pairs

# Pairs whose differences with all queries a device holds at once.
_PAIRS = 512


@dataclasses.dataclass(frozen=True, eq=False)
class DifferenceStatistics(Columns):
    """One entry for each pair and each of its own queries, ordered by pair, then by query.

    Attributes:
        pair, query: which pair, and which of its own queries.
        difference: `d_i`.
        preferring: over the wrong queries, 2 for each with d_j > 0 and 1 for each with d_j = 0.
        below: over the wrong queries, 2 for each with d_j < d_i and 1 for each with d_j = d_i.
        wrong: how many wrong queries there are.
        pairs: how many pairs there are; those without an own query have no entry.
    """

    pair: Int[np.ndarray, " entries"]
    query: Int[np.ndarray, " entries"]
    difference: Float[np.ndarray, " entries"]
    preferring: Int[np.ndarray, " entries"]
    below: Int[np.ndarray, " entries"]
    wrong: Int[np.ndarray, " entries"]
    pairs: int

    of_all: ClassVar[tuple[str, ...]] = ("pairs",)

    @property
    def preference(self) -> Float[np.ndarray, " entries"]:
        """1 where the own query prefers the right item, one half where it prefers neither."""
        return ((self.difference > 0) + (self.difference >= 0).astype(float)) / 2

    @property
    def blind(self) -> Float[np.ndarray, " entries"]:
        """The share of wrong queries that prefer the right item; NaN where there are none."""
        return self._share(self.preferring)

    @property
    def grounding(self) -> Float[np.ndarray, " entries"]:
        """The share of wrong queries whose difference is lower than the own query's; NaN where there are none."""
        return self._share(self.below)

    @property
    def rank(self) -> Float[np.ndarray, " entries"]:
        """1 + the wrong queries whose difference is higher, and half of those whose is the same."""
        return 1 + self.wrong - self.below / 2

    def _share(self, twice: Int[np.ndarray, " entries"]) -> Float[np.ndarray, " entries"]:
        with np.errstate(invalid="ignore"):
            return twice / (2.0 * self.wrong)


def difference_statistics(
    queries: Float[np.ndarray, "query_rows width"] | Float[Array, "query_rows width"],
    right: Float[np.ndarray, "right_rows right_width"] | Float[Array, "right_rows right_width"],
    wrong: Float[np.ndarray, "wrong_rows wrong_width"] | Float[Array, "wrong_rows wrong_width"],
    *,
    query_group: Int[np.ndarray, "queries"],
    pair_group: Int[np.ndarray, "pairs"],
    also_shown_in: Int[np.ndarray, "pairs"] | None = None,
    query_rows: Int[np.ndarray, "queries"] | None = None,
    right_rows: Int[np.ndarray, "pairs"] | None = None,
    wrong_rows: Int[np.ndarray, "pairs"] | None = None,
    mesh: jax.sharding.Mesh | None = None,
    source: str = "embeddings",
) -> DifferenceStatistics:
    """Counts, for each pair, the queries that prefer its right item, and those that do so less than its own.

    Args:
        queries: embeddings, in memory or a memory map. Scores are their dot products; give unit vectors for cosines.
        right, wrong: the same for the two items of each pair.
        query_group: the group (image) of each query.
        pair_group: the group of each pair. Queries of it are the pair's own, all others are wrong ones.
        also_shown_in: a second group whose queries are neither; a group of no query for none.
        query_rows, right_rows, wrong_rows: the row of each query or pair in its table; all rows in order by default.
        mesh: queries are sharded over all its devices, pairs are replicated; the first device alone by default.
        source: their name in an error.

    Raises:
        InputError: widths differ, or an embedding is NaN, infinite or so large that a score would be.
    """
    widths = [table.shape[1] for table in (queries, right, wrong)]
    if len(set(widths)) > 1:
        raise InputError(source, "width", " and ".join(map(str, widths)), "embeddings of one width")
    mesh = make_mesh(jax.devices()[:1]) if mesh is None else mesh
    query_group, pair_group, second = number_groups(query_group, pair_group, also_shown_in)
    if not np.isin(pair_group, query_group).any():
        return count_pairs(query_group, pair_group, second, 1, None)
    table = Rows(np.asarray(queries), query_rows, source)
    sides = Rows(np.asarray(right), right_rows, source), Rows(np.asarray(wrong), wrong_rows, source)
    tiles = cut_into_tiles(query_group, np.zeros(len(query_group), bool), tile_shape(mesh.devices.flat[0].platform)[0])
    on_devices, step = QueriesOnDevices(mesh, tiles, table, query_group), compiled_count(mesh)
    place = on_devices.place()

    def count(pairs: np.ndarray, own: np.ndarray, shown_in: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        items = np.subtract(*(side.take(pairs) for side in sides))
        for side in sides:
            table.check_scores_with(side)
        groups = (place[own].astype(np.int32), shown_in.astype(np.int32))
        return jax.device_get(step(on_devices.embedded, *on_devices.replicate((items, *groups))))

    return count_pairs(query_group, pair_group, second, _PAIRS, count)


def number_groups(
    query_group: Int[np.ndarray, "queries"],
    pair_group: Int[np.ndarray, "pairs"],
    also_shown_in: Int[np.ndarray, "pairs"] | None,
) -> list[np.ndarray]:
    """Numbers all groups from 0. A pair without a second group has its own twice."""
    groups = [query_group, pair_group, pair_group if also_shown_in is None else also_shown_in]
    numbers = np.unique(np.concatenate(groups), return_inverse=True)[1]
    return np.split(numbers, np.cumsum([len(group) for group in groups[:-1]]))


def count_pairs(
    query_group: Int[np.ndarray, "queries"],
    pair_group: Int[np.ndarray, "pairs"],
    second: Int[np.ndarray, "pairs"],
    size: int,
    count: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None,
    precision: type = np.float32,
) -> DifferenceStatistics:
    """Counts `size` pairs at a time.

    Args:
        query_group, pair_group, second: as `number_groups` gives them.
        size: pairs at a time; copies of the last one fill the last block.
        count: `count(pairs, own, shown_in) -> d_i, twice_below`: own queries (slots x size, any query in an empty
            slot) and the two groups (2 x size) of each pair to its d_i (slots x size), and to the counts of
            `twice_below` with 0 and with each d_i (1 + slots x size).
        precision: of the differences.
    """
    pair, query = same_group_pairs(pair_group, query_group)
    sizes = np.bincount(query_group, minlength=1 + max(pair_group.max(initial=0), second.max(initial=0)))
    owns = sizes[pair_group]
    wrong = (len(query_group) - owns - np.where(second != pair_group, sizes[second], 0))[pair]
    first = np.cumsum(owns) - owns
    slot, with_own = np.arange(len(pair)) - first[pair], np.flatnonzero(owns)
    difference = np.empty(len(pair), precision)
    preferring, below = np.empty(len(pair), int), np.empty(len(pair), int)
    with progress("differences", len(with_own), "pairs") as advance:
        for start in range(0, len(with_own), size):
            pairs = with_own[start : start + size]
            entries = slice(first[pairs[0]], first[pairs[-1]] + owns[pairs[-1]])
            at = slot[entries], np.searchsorted(pairs, pair[entries])
            padded = np.pad(pairs, (0, size - len(pairs)), mode="edge")
            own = np.zeros((owns.max(), size), int)
            own[at] = query[entries]
            differences, lower = count(padded, own, np.stack([pair_group[padded], second[padded]]))
            # -0.0 equals 0.0; adding 0 makes their bits the same.
            difference[entries] = differences[at] + 0
            preferring[entries] = 2 * wrong[entries] - lower[0, at[1]]
            below[entries] = lower[1:][at]
            advance(len(pairs))
    return DifferenceStatistics(pair, query, difference, preferring, below, wrong, len(pair_group))


def twice_below(
    differences: Float[np.ndarray, "queries size"] | Float[Array, "queries size"],
    threshold: Float[np.ndarray, "size"] | Float[Array, "size"],
    others: Bool[np.ndarray, "queries size"] | Bool[Array, "queries size"],
) -> Int[np.ndarray, "size"] | Int[Array, "size"]:
    """In each column, over the others, 2 for each difference below its threshold and 1 for each equal to it.

    For arrays of NumPy or JAX. Integer sums do not depend on the order of the rows.
    """
    below, level = (others & less for less in (differences < threshold[None], differences <= threshold[None]))
    return (below.astype(np.int32) + level.astype(np.int32)).sum(axis=0, dtype=np.int32)


def are_others(
    group: Int[np.ndarray, "queries"] | Int[Array, "queries"],
    shown_in: Int[np.ndarray, "2 size"] | Int[Array, "2 size"],
) -> Bool[np.ndarray, "queries size"] | Bool[Array, "queries size"]:
    """Whether the group of each query, in a row, is neither of the two of each pair, in a column."""
    return (group[:, None] != shown_in[:1]) & (group[:, None] != shown_in[1:])


@functools.cache
def compiled_count(mesh: jax.sharding.Mesh) -> Callable[..., tuple[Array, Array]]:
    """Compiles `step(queries, items, own, shown_in)`, the `count` of `count_pairs` over sharded queries."""
    axes = mesh.axis_names

    def step(queries, items, own, shown_in):
        differences = lax.map(lambda tile: tile_scores(tile, items), queries.embeddings)
        rows = differences.reshape(-1, differences.shape[-1])
        place = own - lax.axis_index(axes) * len(rows)
        own_rows = jnp.take_along_axis(rows, jnp.clip(place, 0, len(rows) - 1), axis=0)
        of_own = lax.pmax(jnp.where((place >= 0) & (place < len(rows)), own_rows, -jnp.inf), axes)
        thresholds = jnp.concatenate([jnp.zeros_like(of_own[:1]), of_own])

        def count_tile(tile):
            others = are_others(tile[1], shown_in) & (tile[1] != PADDING)[:, None]
            return lax.map(lambda threshold: twice_below(tile[0], threshold, others), thresholds)

        return of_own, lax.psum(lax.map(count_tile, (differences, queries.group)).sum(axis=0), axes)

    replicated = PartitionSpec()
    specs = (PartitionSpec(axes), replicated, replicated, replicated)
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=replicated))
