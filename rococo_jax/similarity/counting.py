"""The device side of ranking: one gallery tile against all query tiles, scores counted and dropped.

Everything here is per shard of queries and needs no communication. Reductions are plain maxima and sums, because those
are what every XLA backend vectorises; an arg-max is a maximum of indices where the score is the maximum.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.similarity.statistics import OTHER, OTHER_ALTERED, OWN, OWN_ALTERED

# What a pair of tiles needs.
SKIP, POSITIVES, PLAIN, CAREFUL = range(4)
_STRIP = 64


class Queries(NamedTuple):
    """Query tiles: embeddings and groups."""

    embeddings: Float[Array, "tiles size width"]
    group: Int[Array, "tiles size"]


class GalleryTiles(NamedTuple):
    """Gallery tiles of one step. `index` is the item's place in the gallery as given; `filled` False does not count."""

    embeddings: Float[Array, "step size width"]
    group: Int[Array, "step size"]
    index: Int[Array, "step size"]
    filled: Bool[Array, "step size"]
    altered: Bool[Array, "step"]


class Counts(NamedTuple):
    """What is known of each query so far; see `RankStatistics`."""

    higher: Int[Array, "tiles size"]
    ties: Int[Array, "tiles size"]
    ties_after: Int[Array, "tiles size"]
    best_scores: Float[Array, "tiles 4 size"]
    best_indices: Int[Array, "tiles 4 size"]


def no_counts(tiles: int, size: int) -> Counts:
    """Before anything was seen."""
    zero = jnp.zeros((tiles, size), jnp.int32)
    scores = jnp.full((tiles, 4, size), -jnp.inf, jnp.float32)
    return Counts(zero, zero, zero, scores, jnp.full((tiles, 4, size), -1, jnp.int32))


@functools.cache
def compiled_step(
    mesh: jax.sharding.Mesh,
) -> Callable[[Counts, Queries, GalleryTiles, Int[Array, "tiles step"]], Counts]:
    """`step(counts, queries, gallery, needs) -> counts`, jitted.

    `needs` has one of SKIP, POSITIVES, PLAIN, CAREFUL for each query tile and gallery tile of the step. Queries are
    sharded over all devices of `mesh`, a tile never over two; the gallery is replicated.
    """
    sharded, replicated = PartitionSpec(mesh.axis_names), PartitionSpec()
    specs = {"in_specs": (sharded, sharded, replicated, sharded), "out_specs": sharded}
    return jax.jit(jax.shard_map(_step, mesh=mesh, **specs))


def query_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Whole query tiles over all devices."""
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def _step(counts: Counts, queries: Queries, gallery: GalleryTiles, needs: Int[Array, "tiles step"]) -> Counts:
    def one_gallery_tile(counts, tile_and_needs):
        tile, needs = tile_and_needs

        def one_pair(_, pair):
            return None, _visit(*pair, tile)

        return lax.scan(one_pair, None, (needs, counts, queries))[1], None

    return lax.scan(one_gallery_tile, counts, (gallery, needs.T))[0]


def _scores(
    queries: Float[Array, "queries width"], gallery: Float[Array, "gallery width"]
) -> Float[Array, "queries gallery"]:
    return lax.dot_general(queries, gallery, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)


def _visit(need: Int[Array, ""], counts: Counts, queries: Queries, tile: GalleryTiles) -> Counts:
    """One pair of tiles. There is one product for both passes, so that all scores come from the same instructions."""

    def look():
        scores = _scores(queries.embeddings, tile.embeddings)
        find = functools.partial(_find_positives, scores, counts, queries, tile)
        count = functools.partial(_count_distractors, need, scores, counts, queries, tile)
        return lax.cond(need == POSITIVES, find, count)

    return lax.cond(need == SKIP, lambda: counts, look)


def _find_positives(
    scores: Float[Array, "queries gallery"], counts: Counts, queries: Queries, tile: GalleryTiles
) -> Counts:
    """The best own original of each query."""
    own = (queries.group[:, None] == tile.group[None, :]) & tile.filled[None, :]
    return _raise_best(counts, OWN, *_best_of(scores, own, tile.index))


def _count_distractors(
    need: Int[Array, ""],
    scores: Float[Array, "queries gallery"],
    counts: Counts,
    queries: Queries,
    tile: GalleryTiles,
) -> Counts:
    """Everything but the own originals: plainly where nothing but other groups can be met and nothing ties."""
    plain, something_ties = _count_plainly(scores, counts, tile)
    careful = functools.partial(_count_carefully, scores, counts, queries, tile)
    return lax.cond((need == CAREFUL) | something_ties, careful, lambda: plain)


def _count_plainly(
    scores: Float[Array, "queries gallery"], counts: Counts, tile: GalleryTiles
) -> tuple[Counts, Bool[Array, ""]]:
    """The common case, in two sweeps over the scores: every item is a distractor of every query and nothing ties.

    Also returns whether something ties with a positive, or for the first place in different strips of the tile.
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

    counted = counts._replace(higher=counts.higher + higher)
    something_ties = jnp.any(higher != not_lower) | jnp.any(_count(has_best) > 1)
    return _raise_best_of_strangers(counted, tile.altered, best, index), something_ties


def _count_carefully(
    scores: Float[Array, "queries gallery"], counts: Counts, queries: Queries, tile: GalleryTiles
) -> Counts:
    """The general case: own items, ties, and places that only fill up."""
    positive, positive_index = counts.best_scores[OWN][:, None], counts.best_indices[OWN][:, None]
    own = queries.group[:, None] == tile.group[None, :]
    filled = tile.filled[None, :]
    distractor = filled & (tile.altered | ~own)
    tie = distractor & (scores == positive)
    counted = counts._replace(
        higher=counts.higher + _count(distractor & (scores > positive)),
        ties=counts.ties + _count(tie),
        ties_after=counts.ties_after + _count(tie & (tile.index[None, :] > positive_index)),
    )
    counted = _raise_best(counted, OWN_ALTERED, *_best_of(scores, filled & own & tile.altered, tile.index))
    return _raise_best_of_strangers(counted, tile.altered, *_best_of(scores, filled & ~own, tile.index))


def _count(mask: Bool[Array, "queries gallery"]) -> Int[Array, "queries"]:
    return jnp.sum(mask, axis=1, dtype=jnp.int32)


def _best_of(
    scores: Float[Array, "queries gallery"], mask: Bool[Array, "queries gallery"], index: Int[Array, "gallery"]
) -> tuple[Float[Array, "queries"], Int[Array, "queries"]]:
    """The best score under the mask and the highest index that has it; -inf and -1 where the mask is empty."""
    best = jnp.max(jnp.where(mask, scores, -jnp.inf), axis=1)
    return best, jnp.max(jnp.where(mask & (scores == best[:, None]), index[None, :], -1), axis=1)


def _raise_best_of_strangers(counts: Counts, altered: Bool[Array, ""], score, index) -> Counts:
    """Raises OTHER_ALTERED or OTHER, whichever the tile holds."""
    nothing = jnp.full_like(score, -jnp.inf)
    counts = _raise_best(counts, OTHER_ALTERED, jnp.where(altered, score, nothing), index)
    return _raise_best(counts, OTHER, jnp.where(altered, nothing, score), index)


def _raise_best(counts: Counts, kind: int, score: Float[Array, "queries"], index: Int[Array, "queries"]) -> Counts:
    """Merges a tile's best of a kind. Comparing (score, index) pairs makes the order of tiles irrelevant."""
    old_score, old_index = counts.best_scores[kind], counts.best_indices[kind]
    better = (score > old_score) | ((score == old_score) & (score > -jnp.inf) & (index > old_index))
    return counts._replace(
        best_scores=counts.best_scores.at[kind].set(jnp.where(better, score, old_score)),
        best_indices=counts.best_indices.at[kind].set(jnp.where(better, index, old_index)),
    )
