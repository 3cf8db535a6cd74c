"""Ranking on devices: scores of one gallery tile with all query tiles, counted at once and not kept.

Each device counts for its shard of the queries, without communication. Reductions are plain maxima and sums, which
every XLA backend vectorises; an arg-max is a maximum of indices where the score is the maximum.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.similarity.statistics import KINDS, OTHER_ALTERED, OWN, OWN_ALTERED, ranks_before

# What to do with a pair of tiles: nothing; find positives; count, knowing that no item is the query's own; count all.
SKIP, POSITIVES, PLAIN, CAREFUL = range(4)
# Group of queries that pad a tile; that of gallery items is -1.
PADDING = -2
# Gallery items of a strip, and queries at a time in the careful path; tile sizes are multiples of both.
_STRIP, _QUERIES_AT_ONCE = 64, 128
_OWN, _ALTERED = (OWN, OWN_ALTERED), (OWN_ALTERED, OTHER_ALTERED)


class Queries(NamedTuple):
    """Query tiles: embeddings and groups."""

    embeddings: Float[Array, "tiles size width"]
    group: Int[Array, "tiles size"]


class GalleryTile(NamedTuple):
    """A gallery tile. `index` is the item's place in the gallery as given; `filled` is False for padding."""

    embeddings: Float[Array, "size width"]
    group: Int[Array, "size"]
    index: Int[Array, "size"]
    filled: Bool[Array, "size"]
    altered: Bool[Array, ""]


class Counts(NamedTuple):
    """Counts of each query so far; see `RankStatistics`."""

    higher: Int[Array, "tiles size"]
    ties: Int[Array, "tiles size"]
    ties_after: Int[Array, "tiles size"]
    best_scores: Float[Array, "tiles 4 size"]
    best_indices: Int[Array, "tiles 4 size"]


class TileCounts(NamedTuple):
    """Counts of one gallery tile, whose items are all altered or all unaltered."""

    higher: Int[Array, "size"]
    ties: Int[Array, "size"]
    ties_after: Int[Array, "size"]
    own_score: Float[Array, "size"]
    own_index: Int[Array, "size"]
    other_score: Float[Array, "size"]
    other_index: Int[Array, "size"]


def no_counts(tiles: int, size: int) -> Counts:
    """Counts before the first tile."""
    zero = jnp.zeros((tiles, size), jnp.int32)
    scores = jnp.full((tiles, 4, size), -jnp.inf, jnp.float32)
    return Counts(zero, zero, zero, scores, jnp.full((tiles, 4, size), -1, jnp.int32))


@functools.cache
def compiled_step(
    mesh: jax.sharding.Mesh,
) -> Callable[[Counts, Queries, GalleryTile, Int[Array, "tiles"]], Counts]:
    """Compiles `step(counts, queries, tile, needs) -> counts`.

    `needs` has one of SKIP, POSITIVES, PLAIN, CAREFUL for each query tile with this gallery tile. Queries are sharded
    over all devices of `mesh`, a tile never over two; the gallery tile is replicated.
    """
    sharded, replicated = PartitionSpec(mesh.axis_names), PartitionSpec()
    specs = {"in_specs": (sharded, sharded, replicated, sharded), "out_specs": sharded}
    return jax.jit(jax.shard_map(_step, mesh=mesh, **specs))


def _step(counts: Counts, queries: Queries, tile: GalleryTile, needs: Int[Array, "tiles"]) -> Counts:
    return lax.map(lambda pair: _count_pair(*pair, tile), (needs, counts, queries))


def tile_scores(
    queries: Float[Array, "queries width"], gallery: Float[Array, "gallery width"]
) -> Float[Array, "queries gallery"]:
    """Scores of a query tile with a gallery tile, float32 at the highest precision."""
    return lax.dot_general(queries, gallery, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)


def _count_pair(need: Int[Array, ""], counts: Counts, queries: Queries, tile: GalleryTile) -> Counts:
    """Counts one pair of tiles. Both passes share the product, so that all scores come from the same instructions."""

    def count():
        scores = tile_scores(queries.embeddings, tile.embeddings)
        plain, ties = _count_plain(scores, counts, tile)
        careful = functools.partial(_count_careful, need == POSITIVES, scores, counts, queries, tile)
        return _add(counts, lax.cond((need != PLAIN) | ties, careful, lambda: plain), tile.altered)

    return lax.cond(need == SKIP, lambda: counts, count)


def _count_plain(
    scores: Float[Array, "queries gallery"], counts: Counts, tile: GalleryTile
) -> tuple[TileCounts, Bool[Array, ""]]:
    """Counts in two sweeps over the scores, where every item is a distractor of every query and nothing ties.

    Also returns whether something ties, with a positive or for the first place in different strips of the tile; then
    `_count_careful` has to count.
    """
    positive = counts.best_scores[OWN][:, None]
    # Both counts in one sweep: a tile has fewer than 2^15 items.
    above, level = (scores > positive).astype(jnp.int32), (scores >= positive).astype(jnp.int32)
    packed = jnp.sum((above << 16) + level, axis=1)
    higher, not_lower = packed >> 16, packed & 0xFFFF

    # The place of the maximum: its strip from the maxima of strips, then the place within that strip.
    strips = scores.reshape(len(scores), -1, _STRIP)
    best_of_strip = strips.max(axis=2)
    best = best_of_strip.max(axis=1)
    has_best = best_of_strip == best[:, None]
    strip = jnp.argmax(has_best, axis=1)
    inside = jnp.take_along_axis(strips, strip[:, None, None], axis=1)[:, 0]
    index = jnp.max(jnp.where(inside == best[:, None], tile.index.reshape(-1, _STRIP)[strip], -1), axis=1)

    zero, no_score = jnp.zeros_like(higher), jnp.full_like(best, -jnp.inf)
    of_tile = TileCounts(higher, zero, zero, no_score, zero - 1, best, index)
    return of_tile, jnp.any(higher != not_lower) | jnp.any(_count(has_best) > 1)


def _count_careful(
    only_positives: Bool[Array, ""],
    scores: Float[Array, "queries gallery"],
    counts: Counts,
    queries: Queries,
    tile: GalleryTile,
) -> TileCounts:
    """Counts in general: with own items, ties and padding. The first pass counts no distractors.

    It is rarely needed, and takes masks as large as the scores: some queries at a time, to keep memory small.
    """

    def count(scores, group, positive, positive_index):
        own = (group[:, None] == tile.group[None, :]) & tile.filled[None, :]
        other = tile.filled[None, :] & ~own
        distractor = (other | (own & tile.altered)) & ~only_positives
        tie = distractor & (scores == positive[:, None])
        return TileCounts(
            _count(distractor & (scores > positive[:, None])),
            _count(tie),
            _count(tie & (tile.index[None, :] > positive_index[:, None])),
            *_best_of(scores, own, tile.index),
            *_best_of(scores, other, tile.index),
        )

    of_queries = (scores, queries.group, counts.best_scores[OWN], counts.best_indices[OWN])
    chunks = [part.reshape(-1, _QUERIES_AT_ONCE, *part.shape[1:]) for part in of_queries]
    of_chunks = lax.map(lambda chunk: count(*chunk), chunks)
    return jax.tree.map(lambda part: part.reshape(-1), of_chunks)


def _count(mask: Bool[Array, "queries gallery"]) -> Int[Array, "queries"]:
    return jnp.sum(mask, axis=1, dtype=jnp.int32)


def _best_of(
    scores: Float[Array, "queries gallery"], mask: Bool[Array, "queries gallery"], index: Int[Array, "gallery"]
) -> tuple[Float[Array, "queries"], Int[Array, "queries"]]:
    """The best score under the mask and the highest index that has it; -inf and -1 where the mask is empty."""
    best = jnp.max(jnp.where(mask, scores, -jnp.inf), axis=1)
    return best, jnp.max(jnp.where(mask & (scores == best[:, None]), index[None, :], -1), axis=1)


def _add(counts: Counts, of_tile: TileCounts, altered: Bool[Array, ""]) -> Counts:
    """Adds a tile. Integer sums and maxima of (score, index) pairs do not depend on the order of tiles.

    Nor do the maxima change when both passes see the own originals.
    """
    is_own, is_altered = (jnp.isin(jnp.arange(len(KINDS)), jnp.array(kinds))[:, None] for kinds in (_OWN, _ALTERED))
    score = jnp.where(is_own, of_tile.own_score[None, :], of_tile.other_score[None, :])
    score = jnp.where(is_altered == altered, score, -jnp.inf)
    index = jnp.where(is_own, of_tile.own_index[None, :], of_tile.other_index[None, :])
    old_score, old_index = counts.best_scores, counts.best_indices
    better = ranks_before(score, index, old_score, old_index)
    return Counts(
        higher=counts.higher + of_tile.higher,
        ties=counts.ties + of_tile.ties,
        ties_after=counts.ties_after + of_tile.ties_after,
        best_scores=jnp.where(better, score, old_score),
        best_indices=jnp.where(better, index, old_index),
    )
