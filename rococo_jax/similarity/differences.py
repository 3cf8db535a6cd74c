"""Does a query look at what was changed? Differences between the scores of an item and its altered copy.

For pair k of a right item `R_k` and a wrong one `W_k`, and every query j:

    d_j = s(Q_j, R_k) - s(Q_j, W_k)
    preference   [d_i > 0]                    the own query i, which shows R_k, prefers it
    blind        mean over j of [d_j > 0]     so does a wrong query j, which does not
    grounding    mean over j of [d_i > d_j]   the own query prefers it by more than a wrong one

Ties count one half. Wrong queries are those of other groups than the pair's; a pair may be shown in a second group (an
image mixed from two). What depends on the items alone, `s(Q, R) + f(R)`, adds the same to all differences of a pair and
leaves grounding as it is. All four are this project's own (docs/grounding.md).

Scores are float32 products at the highest precision in the tiles of `ranks`, so results have the same bits for any
order, number of devices and share of the pairs. Memory beside the embeddings: the query side once and a few tiles.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity.counting import GalleryTiles
from rococo_jax.similarity.difference_counting import (
    COUNT,
    COUNT_OTHERS,
    PairTile,
    QueryTiles,
    compiled_first_step,
    compiled_second_step,
    tiles_kept,
)
from rococo_jax.similarity.ranks import QueriesOnDevices, Ranking, Rows, cut_into_tiles, tile_shape
from rococo_jax.similarity.statistics import Columns, same_group_pairs

NOT_SHOWN = -1


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

    @classmethod
    def concatenate(cls, parts: Sequence["DifferenceStatistics"]) -> "DifferenceStatistics":
        """The statistics of runs of pairs, one after the other."""
        ends = np.cumsum([part.pairs for part in parts]).tolist()
        numbered = [
            dataclasses.replace(part, pair=part.pair + end - part.pairs, pairs=ends[-1])
            for part, end in zip(parts, ends, strict=True)
        ]
        return super().concatenate(numbered)


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
        also_shown_in: a second group whose queries are neither; a group of no query (`NOT_SHOWN`) for none.
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
    second = np.full(len(pair_group), NOT_SHOWN) if also_shown_in is None else also_shown_in
    query_group, pair_group, second = number_groups(query_group, pair_group, second)
    own = OwnQueries(pair_group, second, query_group)
    if not len(own.pair):
        return own.statistics(np.empty(0, np.float32), np.empty(0, int), np.empty(0, int))
    table = Rows(np.asarray(queries), query_rows, source)
    sides = Rows(np.asarray(right), right_rows, source), Rows(np.asarray(wrong), wrong_rows, source)
    rows, columns = tile_shape(mesh.devices.flat[0].platform)
    query_tiles = cut_into_tiles(query_group, np.zeros(len(query_group), bool), rows)
    counting = PairCounting(QueriesOnDevices(mesh, query_tiles, table, query_group), own)
    # Pairs of near groups share tiles, so that few query tiles hold own queries of a tile of pairs.
    order = np.flatnonzero(own.of_pair)
    order = order[np.argsort(pair_group[order], kind="stable")]
    with progress("differences", len(order), "pairs") as advance:
        for start in range(0, len(order), columns):
            pairs = order[start : start + columns]
            padded = np.pad(pairs, (0, columns - len(pairs)), mode="edge")
            items = items_of_pairs(np.stack([side.take(padded) for side in sides]))
            for side in sides:
                table.check_scores_with(side)
            counting.count(items, pairs)
            advance(len(pairs))
    return counting.statistics()


def number_groups(query_group: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Numbers the groups of queries from 0; `NOT_SHOWN` stands for groups that no query has."""
    known = np.unique(query_group)
    places = [np.minimum(np.searchsorted(known, group), max(len(known) - 1, 0)) for group in (query_group, *others)]
    return [
        np.where(known[place] == group, place, NOT_SHOWN) if len(known) else np.full(len(group), NOT_SHOWN)
        for place, group in zip(places, (query_group, *others), strict=True)
    ]


def items_of_pairs(embeddings: Float[np.ndarray, "2 size width"]) -> GalleryTiles:
    """Right and wrong items of pairs that are not ranked."""
    size = embeddings.shape[1]
    none = np.zeros((2, size), np.int32)
    return GalleryTiles(embeddings, none, none, np.ones((2, size), bool), np.zeros(2, bool))


class OwnQueries:
    """The own queries of each pair: entries by pair, and what is left out.

    Args:
        group, second: the groups of each pair, `NOT_SHOWN` for none.
        query_group: the group of each query, small whole numbers.
    """

    def __init__(
        self,
        group: Int[np.ndarray, " pairs"],
        second: Int[np.ndarray, " pairs"],
        query_group: Int[np.ndarray, " queries"],
    ):
        self.group, self.second, self.query_group = group, second, query_group
        self.pair, self.query = same_group_pairs(group, query_group)
        self.of_pair = np.bincount(self.pair, minlength=len(group))
        self.first = np.cumsum(self.of_pair) - self.of_pair
        self.slots = int(self.of_pair.max(initial=1))
        sizes = np.bincount(query_group, minlength=1 + max(second.max(initial=0), 0))
        shown_too = np.where((second >= 0) & (second != group), sizes[second], 0)
        self.wrong = len(query_group) - self.of_pair - shown_too

    def entries(self, pairs: Int[np.ndarray, " some"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Entries of some pairs, each with the place of its pair among them, and its own among the pair's."""
        counts = self.of_pair[pairs]
        column = np.repeat(np.arange(len(pairs)), counts)
        slot = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.first[pairs][column] + slot, column, slot

    def statistics(self, difference: np.ndarray, preferring: np.ndarray, below: np.ndarray) -> DifferenceStatistics:
        """The statistics of all entries."""
        wrong = self.wrong[self.pair]
        return DifferenceStatistics(self.pair, self.query, difference, preferring, below, wrong, len(self.group))


class PairCounting:
    """Counts pairs a tile at a time, and ranks the queries among their items in the same visit where that is asked for.

    Args:
        queries: on the devices.
        own: the pairs, in the queries' numbering of groups.
        ranking: also counts for it; its tiles are then those of the pairs' items.
    """

    def __init__(self, queries: QueriesOnDevices, own: OwnQueries, ranking: Ranking | None = None):
        self.queries, self.own, self.ranking = queries, own, ranking
        self.tile, self.row = np.divmod(queries.place()[own.query], queries.tiles.items.shape[1])
        self.difference = np.empty(len(own.pair), np.float32)
        self.preferring, self.below = np.empty(len(own.pair), int), np.empty(len(own.pair), int)
        self.first_step, self.second_step = compiled_first_step(queries.mesh), compiled_second_step(queries.mesh)
        self.numbers = queries.of_tiles(np.arange(len(queries.tiles)))

    def count(
        self, items: GalleryTiles, pairs: Int[np.ndarray, " some"], needs: Int[np.ndarray, "tiles 2"] | None = None
    ) -> None:
        """Takes `d_i` of a tile of pairs, then counts all queries.

        Args:
            items: a tile of right and one of wrong items; padding after the pairs.
            pairs: which pairs they are.
            needs: what the ranking needs of each query tile with each of the two.
        """
        tile, (entry, column, slot) = self._tile(items, pairs)
        items, on_devices = self.queries.replicate((items, tile))
        near, kept_place = self._near(self.tile[entry], items.embeddings.shape[1])
        differences, scores = self.first_step(self.queries.tiles_of_queries, self.numbers, near, items, on_devices)
        # -0.0 equals 0.0; adding 0 makes their bits the same.
        self.difference[entry] = np.asarray(differences).max(axis=0)[slot, column] + np.float32(0)
        # Slots without a query compare with -inf, and are not read.
        own = np.full(tile.own_tile.shape, -np.inf, np.float32)
        own[slot, column] = self.difference[entry]
        tiles = self._query_tiles(self._needs(tile), kept_place, needs)
        ranks, counts = self.second_step(tiles, scores, items, on_devices, self.queries.replicate(own))
        if self.ranking is not None and ranks is not None:
            self.ranking.counts = ranks
        preferring, below = (np.asarray(part).sum(axis=0) for part in counts)
        self.preferring[entry], self.below[entry] = preferring[column], below[slot, column]

    def statistics(self) -> DifferenceStatistics:
        """The statistics of all entries."""
        return self.own.statistics(self.difference, self.preferring, self.below)

    def _tile(self, items: GalleryTiles, pairs: np.ndarray) -> tuple[PairTile, tuple[np.ndarray, ...]]:
        size = items.embeddings.shape[1]
        entry, column, slot = self.own.entries(pairs)
        own = np.full((2, self.own.slots, size), -1, np.int32)
        own[:, slot, column] = self.tile[entry], self.row[entry]
        shown_in = np.stack([self.own.group[pairs], self.own.second[pairs]]).astype(np.int32)
        padded = np.pad(shown_in, ((0, 0), (0, size - len(pairs))), mode="edge")
        return PairTile(padded, *own), (entry, column, slot)

    def _near(self, tiles: Int[np.ndarray, " entries"], columns: int) -> tuple[Array, Int[np.ndarray, "tiles"]]:
        """The tiles that hold own queries, by their places on each device; and the places of their stored scores.

        Their number is rounded up to a power of two, so that few programs are compiled.
        """
        queries, devices = self.queries, self.queries.mesh.size
        of_device = queries.tile_count // devices
        tiles = np.unique(tiles)
        slot = np.arange(len(tiles)) - np.searchsorted(tiles // of_device, tiles // of_device)
        slots = 1 << int(slot.max(initial=0)).bit_length()
        near = np.full((devices, slots), -1, np.int32)
        near[tiles // of_device, slot] = tiles % of_device
        place = np.full(len(queries.tiles), -1)
        place[tiles] = np.where(slot < tiles_kept(queries.tiles.items.shape[1], columns), slot, -1)
        near = near.reshape(-1)
        return queries.shard(near.shape, near.__getitem__), place

    def _query_tiles(self, needs: np.ndarray, stored_at: np.ndarray, rank_needs: np.ndarray | None) -> QueryTiles:
        queries, of_tiles = self.queries.tiles_of_queries, self.queries.of_tiles
        if self.ranking is None or rank_needs is None:
            return QueryTiles(queries, of_tiles(needs), of_tiles(stored_at))
        return QueryTiles(queries, of_tiles(needs), of_tiles(stored_at), self.ranking.counts, of_tiles(rank_needs))

    def _needs(self, tile: PairTile) -> np.ndarray:
        """The query tiles that may hold queries that are not counted: those of the pairs' groups, and padding."""
        tiles, (first, second) = self.queries.tiles, tile.shown_in
        near = (tiles.first_group <= first.max()) & (tiles.last_group >= first.min())
        near |= ~tiles.filled.all(axis=1) | (second != NOT_SHOWN).any()
        return np.where(near, COUNT_OTHERS, COUNT)
