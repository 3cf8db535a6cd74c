"""Ranking on devices: compute the scores of one gallery tile with all query tiles, count them and discard them.

Each device counts for its shard of the queries, without communication. Reductions are plain maxima and sums, which
every XLA backend vectorises; an arg-max is computed as the maximum of the indices at which the score is the maximum.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.similarity.statistics import KINDS, OTHER_ALTERED, OWN_ALTERED, OWN_ORIGINAL, ranks_before

# Work for a pair of tiles:
#   SKIP       none
#   POSITIVES  find the best own original of each query
#   FAST       count distractors, if no item of the tile belongs to a query's own group
#   GENERAL    count distractors in any tile
SKIP, POSITIVES, FAST, GENERAL = range(4)
# Group of queries that pad a tile. The group of gallery items that pad a tile is -1, so that the two never match.
PADDING = -2
# The fast path searches for a maximum in strips of gallery items; the general path takes some queries at a time. Tile
# sizes are multiples of both numbers.
_STRIP_ITEMS = 64
_GENERAL_QUERIES = 128
_OWN_KINDS = (OWN_ORIGINAL, OWN_ALTERED)
_ALTERED_KINDS = (OWN_ALTERED, OTHER_ALTERED)


class Queries(NamedTuple):
    """Embeddings and groups of query tiles."""

    embeddings: Float[Array, "tiles size width"]
    group: Int[Array, "tiles size"]


class GalleryTile(NamedTuple):
    """Tile of gallery items. `index` is the item's position in the gallery; `filled` is False for padding."""

    embeddings: Float[Array, "size width"]
    group: Int[Array, " size"]
    index: Int[Array, " size"]
    filled: Bool[Array, " size"]
    altered: Bool[Array, ""]


class Counts(NamedTuple):
    """Running counts of each query; see `RankStatistics`."""

    higher: Int[Array, "tiles size"]
    ties: Int[Array, "tiles size"]
    ties_after: Int[Array, "tiles size"]
    best_scores: Float[Array, "tiles 4 size"]
    best_indices: Int[Array, "tiles 4 size"]


class TileCounts(NamedTuple):
    """Counts of one gallery tile, whose items are either all altered or all unaltered."""

    higher: Int[Array, " size"]
    ties: Int[Array, " size"]
    ties_after: Int[Array, " size"]
    own_score: Float[Array, " size"]
    own_index: Int[Array, " size"]
    other_score: Float[Array, " size"]
    other_index: Int[Array, " size"]


def no_counts(tiles: int, size: int) -> Counts:
    """Return the counts before the first tile."""
    zero = jnp.zeros((tiles, size), jnp.int32)
    scores = jnp.full((tiles, 4, size), -jnp.inf, jnp.float32)
    return Counts(zero, zero, zero, scores, jnp.full((tiles, 4, size), -1, jnp.int32))


@functools.cache
def compiled_step(
    mesh: jax.sharding.Mesh,
) -> Callable[[Counts, Queries, GalleryTile, Int[Array, " tiles"]], Counts]:
    """Compile `step(counts, queries, tile, work) -> counts`.

    `work` is SKIP, POSITIVES, FAST or GENERAL for each query tile with this gallery tile. Query tiles are sharded over
    the devices of `mesh`, each tile on one device; the gallery tile is replicated.
    """
    sharded, replicated = PartitionSpec(mesh.axis_names), PartitionSpec()
    specs = {"in_specs": (sharded, sharded, replicated, sharded), "out_specs": sharded}
    return jax.jit(jax.shard_map(_step, mesh=mesh, **specs))


def _step(counts: Counts, queries: Queries, tile: GalleryTile, work: Int[Array, " tiles"]) -> Counts:
    return lax.map(lambda query_tile: _count_pair(*query_tile, tile), (work, counts, queries))


def tile_scores(
    queries: Float[Array, "queries width"], gallery: Float[Array, "gallery width"]
) -> Float[Array, "queries gallery"]:
    """Compute the scores of a query tile with a gallery tile, float32 at the highest precision."""
    return lax.dot_general(queries, gallery, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)


def _count_pair(work: Int[Array, ""], counts: Counts, queries: Queries, tile: GalleryTile) -> Counts:
    """Count one pair of tiles. Both paths share the product, so that all scores come from the same instructions."""

    def count():
        scores = tile_scores(queries.embeddings, tile.embeddings)
        fast_counts, has_ties = _count_fast(scores, counts, tile)
        count_general = functools.partial(_count_general, work == POSITIVES, scores, counts, queries, tile)
        tile_counts = lax.cond((work != FAST) | has_ties, count_general, lambda: fast_counts)
        return _add(counts, tile_counts, tile.altered)

    return lax.cond(work == SKIP, lambda: counts, count)


def _count_fast(
    scores: Float[Array, "queries gallery"], counts: Counts, tile: GalleryTile
) -> tuple[TileCounts, Bool[Array, ""]]:
    """Count in two sweeps over the scores. Correct if every item is a distractor of every query and there are no ties.

    Also returns whether there are ties: with a positive, or between the best items of two strips. Then the counts must
    come from `_count_general`.
    """
    positive = counts.best_scores[OWN_ORIGINAL][:, None]
    # Both counts in one sweep, packed into the two halves of an integer.
    assert tile.index.size < 2**15
    is_higher = (scores > positive).astype(jnp.int32)
    is_not_lower = (scores >= positive).astype(jnp.int32)
    packed = jnp.sum((is_higher << 16) + is_not_lower, axis=1)
    higher, not_lower = packed >> 16, packed & 0xFFFF

    # Index of the maximum: first its strip, from the maxima of the strips, then its position in that strip.
    strips = scores.reshape(len(scores), -1, _STRIP_ITEMS)
    strip_best = strips.max(axis=2)
    best = strip_best.max(axis=1)
    strip_has_best = strip_best == best[:, None]
    strip = jnp.argmax(strip_has_best, axis=1)
    strip_scores = jnp.take_along_axis(strips, strip[:, None, None], axis=1)[:, 0]
    strip_indices = tile.index.reshape(-1, _STRIP_ITEMS)[strip]
    index = jnp.max(jnp.where(strip_scores == best[:, None], strip_indices, -1), axis=1)

    no_count = jnp.zeros_like(higher)
    tile_counts = TileCounts(
        higher=higher,
        ties=no_count,
        ties_after=no_count,
        own_score=jnp.full_like(best, -jnp.inf),
        own_index=no_count - 1,
        other_score=best,
        other_index=index,
    )
    ties_with_positive = jnp.any(higher != not_lower)
    ties_for_best = jnp.any(_count(strip_has_best) > 1)
    return tile_counts, ties_with_positive | ties_for_best


def _count_general(
    only_positives: Bool[Array, ""],
    scores: Float[Array, "queries gallery"],
    counts: Counts,
    queries: Queries,
    tile: GalleryTile,
) -> TileCounts:
    """Count in any tile: with own items, ties and padding. With `only_positives`, count no distractors.

    The masks are as large as the scores, so a few queries are counted at a time to save memory.
    """

    def count(scores, group, positive, positive_index):
        is_own = (group[:, None] == tile.group[None, :]) & tile.filled[None, :]
        is_other = tile.filled[None, :] & ~is_own
        is_distractor = (is_other | (is_own & tile.altered)) & ~only_positives
        is_tie = is_distractor & (scores == positive[:, None])
        own_score, own_index = _best_of(scores, is_own, tile.index)
        other_score, other_index = _best_of(scores, is_other, tile.index)
        return TileCounts(
            higher=_count(is_distractor & (scores > positive[:, None])),
            ties=_count(is_tie),
            ties_after=_count(is_tie & (tile.index[None, :] > positive_index[:, None])),
            own_score=own_score,
            own_index=own_index,
            other_score=other_score,
            other_index=other_index,
        )

    by_query = (scores, queries.group, counts.best_scores[OWN_ORIGINAL], counts.best_indices[OWN_ORIGINAL])
    chunks = [array.reshape(-1, _GENERAL_QUERIES, *array.shape[1:]) for array in by_query]
    counts_of_chunks = lax.map(lambda chunk: count(*chunk), chunks)
    return jax.tree.map(lambda array: array.reshape(-1), counts_of_chunks)


def _count(mask: Bool[Array, "queries gallery"]) -> Int[Array, " queries"]:
    return jnp.sum(mask, axis=1, dtype=jnp.int32)


def _best_of(
    scores: Float[Array, "queries gallery"], mask: Bool[Array, "queries gallery"], index: Int[Array, " gallery"]
) -> tuple[Float[Array, " queries"], Int[Array, " queries"]]:
    """Return the best score under the mask and the highest index with that score; -inf and -1 if the mask is empty."""
    best = jnp.max(jnp.where(mask, scores, -jnp.inf), axis=1)
    return best, jnp.max(jnp.where(mask & (scores == best[:, None]), index[None, :], -1), axis=1)


def _add(counts: Counts, tile_counts: TileCounts, is_altered_tile: Bool[Array, ""]) -> Counts:
    """Add the counts of a tile.

    The result does not depend on the order of tiles: it consists of integer sums and of maxima of (score, index). Nor
    does it matter that both passes see the own originals.
    """
    kinds = jnp.arange(len(KINDS))
    is_own = jnp.isin(kinds, jnp.array(_OWN_KINDS))[:, None]
    is_altered = jnp.isin(kinds, jnp.array(_ALTERED_KINDS))[:, None]
    # Best score and index of the tile for each kind (kinds, queries); -inf for the kinds that the tile does not have.
    score = jnp.where(is_own, tile_counts.own_score[None, :], tile_counts.other_score[None, :])
    score = jnp.where(is_altered == is_altered_tile, score, -jnp.inf)
    index = jnp.where(is_own, tile_counts.own_index[None, :], tile_counts.other_index[None, :])
    is_better = ranks_before(score, index, counts.best_scores, counts.best_indices)
    return Counts(
        higher=counts.higher + tile_counts.higher,
        ties=counts.ties + tile_counts.ties,
        ties_after=counts.ties_after + tile_counts.ties_after,
        best_scores=jnp.where(is_better, score, counts.best_scores),
        best_indices=jnp.where(is_better, index, counts.best_indices),
    )
