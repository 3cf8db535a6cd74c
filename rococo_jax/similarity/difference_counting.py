"""Differences on devices: scores of a tile of pairs with all query tiles, subtracted and counted at once.

A first step takes the own queries' differences from the few query tiles that hold them, and keeps those scores; a
second counts over all query tiles, with the scores kept. Each device counts over its shard of the queries, without
communication; the host adds up the devices. Products have the shape of the ranking's tiles, so that equal embeddings
have equal scores, bit for bit, and differences tie exactly.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.similarity.counting import PADDING, Counts, GalleryTiles, Queries, count_scores, tile_scores

# What to do with a query tile and a tile of pairs: nothing; count all queries; leave out those that show the item.
# SKIP is that of the ranking.
SKIP, COUNT, COUNT_OTHERS = range(3)
# Scores that are kept between the two steps, on each device; those of one tile at least.
_KEPT_BYTES = 2**26


class PairTile(NamedTuple):
    """A tile of pairs.

    Attributes:
        shown_in: groups of the queries that show the item, which are not counted; -1 for none.
        own_tile, own_row: the query tile and the row in it of each query whose own item it is; -1 for none.
    """

    shown_in: Int[Array, "2 size"]
    own_tile: Int[Array, "owns size"]
    own_row: Int[Array, "owns size"]


class PairCounts(NamedTuple):
    """Counts of each pair over the wrong queries; a tie counts 1, everything else 2.

    Attributes:
        preferring: queries that prefer the right item, d_j > 0.
        below: for each own query the others whose difference is lower, d_j < d_i.
    """

    preferring: Int[Array, "size"]
    below: Int[Array, "owns size"]


class QueryTiles(NamedTuple):
    """Query tiles, sharded over devices, and what the second step needs of each.

    Attributes:
        queries: embeddings and groups; the group of padding is `PADDING`.
        needs: SKIP, COUNT or COUNT_OTHERS.
        kept: the place of its scores among those that its device kept, -1 for none.
        ranks: counts of the ranking so far, None where nothing is ranked.
        rank_needs: what the ranking needs of the tile with the right and with the wrong items.
    """

    queries: Queries
    needs: Int[Array, "tiles"]
    kept: Int[Array, "tiles"]
    ranks: Counts | None = None
    rank_needs: Int[Array, "tiles 2"] | None = None


Scores = Float[Array, "kept 2 queries size"]


def tiles_kept(rows: int, columns: int) -> int:
    """The number of tiles of scores that a device stores."""
    return max(1, _KEPT_BYTES // (2 * 4 * rows * columns))


@functools.cache
def compiled_first_step(
    mesh: jax.sharding.Mesh,
) -> Callable[
    [Queries, Int[Array, "tiles"], Int[Array, "near"], GalleryTiles, PairTile],
    tuple[Float[Array, "devices owns size"], Scores],
]:
    """Compiles `step(queries, numbers, near, items, pairs) -> own, scores`.

    `d_i` of each own query, -inf on other devices; and the scores of the first of the near tiles with both items. Query
    tiles are sharded over all devices of `mesh`, a tile never over two; `numbers` counts them over all devices. `near`
    are, for each device, the places among its own of tiles that may hold own queries, -1 for none. `items` are a tile
    of right items and one of wrong items; they and `pairs` are replicated.
    """
    sharded, replicated = PartitionSpec(mesh.axis_names), PartitionSpec()
    step, specs = functools.partial(_first_step, mesh.axis_names), (sharded, sharded, sharded, replicated, replicated)
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=sharded))


@functools.cache
def compiled_second_step(
    mesh: jax.sharding.Mesh,
) -> Callable[
    [QueryTiles, Scores, GalleryTiles, PairTile, Float[Array, "owns size"]], tuple[Counts | None, PairCounts]
]:
    """Compiles `step(tiles, kept, items, pairs, own) -> ranks, counts`: of each device, stacked on the first axis."""
    sharded, step = PartitionSpec(mesh.axis_names), functools.partial(_second_step, mesh.axis_names)
    specs = (sharded, sharded, *[PartitionSpec()] * 3)
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=sharded))


def _first_step(
    axes: tuple[str, ...],
    queries: Queries,
    numbers: Int[Array, "tiles"],
    near: Int[Array, "near"],
    items: GalleryTiles,
    pairs: PairTile,
) -> tuple[Float[Array, "1 owns size"], Scores]:
    rows, columns = queries.group.shape[1], pairs.shown_in.shape[1]
    varying = functools.partial(lax.pcast, axis_name=axes, to="varying")

    def find(own: Array, place: Array) -> tuple[Array, Array]:
        def with_tile():
            tile = jax.tree.map(lambda part: part[place], queries)
            scores = jnp.stack(_scores_of_both(tile, items))
            return jnp.maximum(own, _own_differences(scores, numbers[place], pairs)), scores

        return lax.cond(place < 0, lambda: (own, varying(jnp.zeros((2, rows, columns), jnp.float32))), with_tile)

    stored = tiles_kept(rows, columns)
    own = varying(jnp.full(pairs.own_tile.shape, -jnp.inf, jnp.float32))
    own, scores = lax.scan(find, own, near[:stored])
    own, _ = lax.scan(lambda own, place: (find(own, place)[0], None), own, near[stored:])
    return own[None], scores


def _second_step(
    axes: tuple[str, ...],
    tiles: QueryTiles,
    kept: Scores,
    items: GalleryTiles,
    pairs: PairTile,
    own: Float[Array, "owns size"],
) -> tuple[Counts | None, PairCounts]:
    def one_tile(counts, tile):
        def count():
            scores = lax.cond(
                tile.kept >= 0,
                lambda: (kept[tile.kept, 0], kept[tile.kept, 1]),
                lambda: _scores_of_both(tile.queries, items),
            )
            added = _add_tile(counts, tile.needs, scores, tile.queries.group, pairs.shown_in, own)
            return added, _ranked(tile, scores, items)

        return lax.cond(tile.needs == SKIP, lambda: (counts, tile.ranks), count)

    nothing = lax.pcast(_no_pair_counts(*own.shape), axes, to="varying")
    counts, ranks = lax.scan(one_tile, nothing, tiles)
    return ranks, jax.tree.map(lambda part: part[None], counts)


def _scores_of_both(
    queries: Queries, items: GalleryTiles
) -> tuple[Float[Array, "queries size"], Float[Array, "queries size"]]:
    """Scores with right and wrong items.

    One product waits for the other: merged into a larger one, they would come from other instructions than a tile's.
    """
    right = tile_scores(queries.embeddings, items.embeddings[0])
    embeddings, right = lax.optimization_barrier((queries.embeddings, right))
    return right, tile_scores(embeddings, items.embeddings[1])


def _ranked(
    tile: QueryTiles, scores: tuple[Float[Array, "queries size"], Float[Array, "queries size"]], items: GalleryTiles
) -> Counts | None:
    """The counts of the ranking with the scores of both tiles."""
    ranks = tile.ranks
    for side in range(0 if ranks is None else 2):
        need, of_side = tile.rank_needs[side], jax.tree.map(lambda part, side=side: part[side], items)
        counted = functools.partial(count_scores, need, scores[side], ranks, tile.queries, of_side)
        ranks = lax.cond(need == SKIP, lambda ranks=ranks: ranks, counted)
    return ranks


def _no_pair_counts(owns: int, size: int) -> PairCounts:
    """Counts before the first query."""
    return PairCounts(jnp.zeros(size, jnp.int32), jnp.zeros((owns, size), jnp.int32))


def _own_differences(
    scores: Float[Array, "2 queries size"], number: Int[Array, ""], pairs: PairTile
) -> Float[Array, "owns size"]:
    """`d_i` of own queries that are in the tile of this number; -inf of all others."""
    here = pairs.own_tile == number
    rows = jnp.where(here, pairs.own_row, 0)
    right, wrong = (jnp.take_along_axis(scores[side], rows, axis=0) for side in (0, 1))
    return jnp.where(here, right - wrong, -jnp.inf)


def _add_tile(
    counts: PairCounts,
    need: Int[Array, ""],
    scores: tuple[Float[Array, "queries size"], Float[Array, "queries size"]],
    group: Int[Array, "queries"],
    shown_in: Int[Array, "2 size"],
    own: Float[Array, "owns size"],
) -> PairCounts:
    """Adds the differences of a tile of queries. Each branch subtracts, so that no differences are written."""

    def masked():
        group_of_row = group[:, None]
        others = (group_of_row != shown_in[:1]) & (group_of_row != shown_in[1:]) & (group_of_row != PADDING)
        return _count(scores[0] - scores[1], own, others)

    of_tile = lax.cond(need == COUNT_OTHERS, masked, lambda: _count(scores[0] - scores[1], own, None))
    return jax.tree.map(jnp.add, counts, of_tile)


def _count(
    differences: Float[Array, "queries size"], own: Float[Array, "owns size"], others: Bool[Array, "_ _"] | None
) -> PairCounts:
    # Both counts in one sweep: a tile has fewer than 2^14 queries.
    both = _twice(differences > 0, differences >= 0) << 16
    both += _twice(own[:1] > differences, own[:1] >= differences)
    packed = _summed(both, others)
    further = lax.map(
        lambda each: _summed(_twice(each[None] > differences, each[None] >= differences), others), own[1:]
    )
    return PairCounts(packed >> 16, jnp.concatenate([packed[None] & 0xFFFF, further]))


def _twice(above: Bool[Array, "queries size"], level: Bool[Array, "queries size"]) -> Int[Array, "queries size"]:
    """A tie counts 1, more counts 2."""
    return above.astype(jnp.int32) + level.astype(jnp.int32)


def _summed(counts: Int[Array, "queries size"], others: Bool[Array, "_ _"] | None) -> Int[Array, "size"]:
    return jnp.sum(counts if others is None else jnp.where(others, counts, 0), axis=0)
