"""Rank statistics from embeddings: scores `S = Q K^T` counted tile by tile, never held whole, never sorted.

Two passes. The first computes only the pairs of tiles in which queries can meet their own originals and keeps the best,
`s_pos`; it comes from the same tile product as every other score, so an equal caption ties exactly. The second counts
what scores higher than, or as high as, `s_pos`, and keeps the best score of each kind (see `RankStatistics`).

Products are float32 at the highest precision. Beside the embeddings, memory is the query side once and a few tiles.
"""

from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity.counting import (
    CAREFUL,
    PLAIN,
    POSITIVES,
    SKIP,
    Counts,
    GalleryTiles,
    Queries,
    compiled_step,
    no_counts,
    query_sharding,
)
from rococo_jax.similarity.groups import check_groups
from rococo_jax.similarity.statistics import RankStatistics
from rococo_jax.similarity.tiles import Rows, Tiles, cut_into_tiles, may_share_group, tile_shape

_NO_GROUP = -1


def rank_statistics(
    queries: Float[np.ndarray, "query_rows width"] | Float[Array, "query_rows width"],
    gallery: Float[np.ndarray, "gallery_rows gallery_width"] | Float[Array, "gallery_rows gallery_width"],
    *,
    query_group: Int[np.ndarray, "queries"],
    gallery_group: Int[np.ndarray, "gallery"],
    gallery_altered: Bool[np.ndarray, "gallery"],
    query_rows: Int[np.ndarray, "queries"] | None = None,
    gallery_rows: Int[np.ndarray, "gallery"] | None = None,
    mesh: jax.sharding.Mesh | None = None,
    tiles_per_step: int = 1,
    source: str = "embeddings",
) -> RankStatistics:
    """Ranks each query's best own original among all that is not its own original.

    The result has the same bits for any order of queries and gallery (indices, and what `published` makes of ties,
    follow the gallery's order), any `tiles_per_step`, and any number of devices of one kind.

    Args:
        queries: embeddings, in memory or a memory map. Scores are their dot products; hand in unit vectors for cosines.
        gallery: the same for the gallery.
        query_group: the group (image) of each query.
        gallery_group: the group of each gallery item; those of the query's group are its own.
        gallery_altered: True for altered captions and mixed images.
        query_rows: the row in `queries` of each query; all rows in order by default.
        gallery_rows: the row in `gallery` of each gallery item; all rows in order by default.
        mesh: queries are sharded over all its devices, the gallery is replicated; the first device alone by default.
        tiles_per_step: how many gallery tiles go to the devices at once.
        source: what to call the embeddings in an error.

    Raises:
        InputError: widths differ; an embedding is NaN, infinite or so large that a score would be; a query has no
            unaltered item of its group.
    """
    if queries.shape[1] != gallery.shape[1]:
        raise InputError(source, "width", f"{queries.shape[1]} and {gallery.shape[1]}", "embeddings of one width")
    check_groups(query_group, gallery_group, gallery_altered, source)
    mesh = make_mesh(jax.devices()[:1]) if mesh is None else mesh
    sizes = tile_shape(mesh.devices.flat[0].platform)
    query_table = Rows(np.asarray(queries), query_rows, source)
    gallery_table = Rows(np.asarray(gallery), gallery_rows, source)
    groups = np.unique(np.concatenate([query_group, gallery_group]), return_inverse=True)[1]
    query_group, gallery_group = groups[: len(query_group)], groups[len(query_group) :]

    query_tiles = cut_into_tiles(query_group, np.zeros(len(query_group), bool), sizes[0])
    gallery_tiles = cut_into_tiles(gallery_group, gallery_altered, sizes[1])
    positives, distractors = _needs(query_tiles, gallery_tiles)
    ranking = _Ranking(mesh, query_tiles, query_table, query_group)
    total = int(np.count_nonzero(positives) + np.count_nonzero(distractors))
    with progress("ranking", total, "tiles") as advance:
        for needs in (positives, distractors):
            wanted = np.flatnonzero(needs.any(axis=0))
            for tiles in _in_steps(wanted, tiles_per_step):
                block = _gallery_block(gallery_tiles, gallery_table, gallery_group, tiles, tiles_per_step)
                query_table.check_scores_with(gallery_table)
                ranking.advance(block, needs[:, tiles])
                advance(int(np.count_nonzero(needs[:, tiles])))
    return ranking.statistics(len(query_group))


def _needs(queries: Tiles, gallery: Tiles) -> tuple[np.ndarray, np.ndarray]:
    """What each pair of tiles needs in the first and in the second pass."""
    own = may_share_group(queries, gallery)
    positives = np.where(own & ~gallery.altered, POSITIVES, SKIP)
    distractors = np.where(own | ~gallery.filled.all(axis=1), CAREFUL, PLAIN)
    return positives.astype(np.int32), distractors.astype(np.int32)


def _in_steps(tiles: np.ndarray, at_once: int) -> Iterator[np.ndarray]:
    for start in range(0, len(tiles), at_once):
        yield tiles[start : start + at_once]


def _gallery_block(tiles: Tiles, table: Rows, group: np.ndarray, which: np.ndarray, at_once: int) -> GalleryTiles:
    """Some tiles of the gallery; the last block is filled up with tiles that are skipped."""
    which = np.pad(which, (0, at_once - len(which)), mode="edge")
    items, filled = tiles.items[which], tiles.filled[which]
    return GalleryTiles(
        embeddings=table.take(items),
        group=np.where(filled, group[items], _NO_GROUP).astype(np.int32),
        index=items.astype(np.int32),
        filled=filled,
        altered=tiles.altered[which],
    )


class _Ranking:
    """The query side on the devices, and the counts as they grow."""

    def __init__(self, mesh: jax.sharding.Mesh, tiles: Tiles, table: Rows, group: np.ndarray):
        self.mesh, self.tiles = mesh, tiles
        self.sharding = query_sharding(mesh)
        self.count = len(tiles) + -len(tiles) % mesh.size
        # Tiles that only make the number whole for the devices repeat the last one, and are skipped.
        which = np.minimum(np.arange(self.count), len(tiles) - 1)
        items, width = tiles.items[which], table.table.shape[1]
        self.queries = Queries(
            embeddings=self._shard((*items.shape, width), lambda part: table.take(items[part[0]])),
            group=self._shard(items.shape, lambda part: group[items[part]].astype(np.int32)),
        )
        self.counts = jax.tree.map(
            lambda whole: self._shard(whole.shape, whole.__getitem__), _as_numpy(no_counts(*items.shape))
        )
        self.step = compiled_step(mesh)

    def _shard(self, shape: tuple[int, ...], part) -> jax.Array:
        return jax.make_array_from_callback(shape, self.sharding, part)

    def advance(self, block: GalleryTiles, needs: np.ndarray) -> None:
        """Counts a block. The next may be taken out meanwhile, but one at a time is on the devices: memory is small."""
        whole = np.full((self.count, len(block.altered)), SKIP, np.int32)
        whole[: len(needs), : needs.shape[1]] = needs
        block = jax.device_put(block, NamedSharding(self.mesh, PartitionSpec()))
        jax.block_until_ready(self.counts)
        self.counts = self.step(self.counts, self.queries, block, self._shard(whole.shape, whole.__getitem__))

    def statistics(self, queries: int) -> RankStatistics:
        counts = _as_numpy(jax.device_put(self.counts, NamedSharding(self.mesh, PartitionSpec())))
        place = np.empty(queries, np.int64)
        filled = self.tiles.filled
        place[self.tiles.items[filled]] = np.flatnonzero(filled)
        back = Counts(*(_flat(part)[place] for part in counts))
        return RankStatistics(
            higher=back.higher.astype(np.int64),
            ties=back.ties.astype(np.int64),
            ties_after=back.ties_after.astype(np.int64),
            # Adding 0 makes -0.0, which equals 0.0 and so may stand in its place, the same bits.
            best_scores=back.best_scores + np.float32(0),
            best_indices=back.best_indices.astype(np.int64),
        )


def _as_numpy(counts: Counts) -> Counts:
    return jax.tree.map(np.asarray, counts)


def _flat(part: np.ndarray) -> np.ndarray:
    """(tiles, size) and (tiles, kinds, size) by query: (queries,) and (queries, kinds)."""
    return part.reshape(-1) if part.ndim == 2 else part.transpose(0, 2, 1).reshape(-1, part.shape[1])
