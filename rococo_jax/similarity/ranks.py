"""Rank statistics from embeddings: scores `S = Q K^T` counted tile by tile, never sorted.

Two passes. The first computes only the pairs of tiles in which queries can meet their own originals and keeps the best,
`s_pos`; it comes from the same tile product as every other score, so an equal caption ties exactly. The second counts
what scores higher than, or as high as, `s_pos`, and keeps the best score of each kind (see `RankStatistics`).

Products are float32 at the highest precision. Beside the embeddings, memory is the query side once and a few tiles.

A float32 product has the same bits wherever in the operands its row and column are, as long as the operands have the
same shape, and other bits for other shapes. So every product is one tile of one shape for each kind of device; the last
tile, and small inputs, are padded. Scores, and with them exact ties between captions that occur twice, then do not
depend on how much is ranked, in which order, or on how many devices.

Items are sorted by group first, so that the few pairs of tiles in which a query can meet its own items lie near the
diagonal, and altered items have tiles of their own; all other pairs take a cheaper path.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Shaped

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
from rococo_jax.similarity.statistics import RankStatistics, check_groups

# Queries and gallery items of a tile. On CPU a tile of scores (2 MiB) stays in the cache between product and counting.
_TILE_SHAPES = {"cpu": (512, 1024)}
_TILE_SHAPE_OF_ACCELERATORS = (2048, 8192)
# Scores are sums of products: no partial sum can leave float32 while the product of the norms stays below this.
_LARGEST_SCORE = 1e38
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
    """Ranks each query's best own original among all gallery items but its own originals.

    The result has the same bits for any order of queries and gallery (indices, and what `published` makes of ties,
    follow the gallery's order), any `tiles_per_step`, and any number of devices of one kind.

    Args:
        queries: embeddings, in memory or a memory map. Scores are their dot products; give unit vectors for cosines.
        gallery: the same for the gallery.
        query_group: the group (image) of each query.
        gallery_group: the group of each gallery item; those of the query's group are its own.
        gallery_altered: True for altered captions and mixed images.
        query_rows: the row in `queries` of each query; all rows in order by default.
        gallery_rows: the row in `gallery` of each gallery item; all rows in order by default.
        mesh: queries are sharded over all its devices, the gallery is replicated; the first device alone by default.
        tiles_per_step: how many gallery tiles go to the devices at once.
        source: their name in an error.

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
                ranking.count(block, needs[:, tiles])
                advance(int(np.count_nonzero(needs[:, tiles])))
    return ranking.statistics(len(query_group))


def tile_shape(platform: str) -> tuple[int, int]:
    """Queries and gallery items of a tile on `cpu`, `gpu` or `tpu`."""
    return _TILE_SHAPES.get(platform, _TILE_SHAPE_OF_ACCELERATORS)


@dataclass(frozen=True, eq=False)
class Tiles:
    """Queries or gallery items, sorted by group and cut into tiles.

    Attributes:
        items: the item at each place; copies of the last item pad the last tile of a run.
        filled: False for padding.
        altered: whether the tile's items are altered; a tile never has both kinds.
        first_group, last_group: the lowest and highest group in each tile.
    """

    items: Int[np.ndarray, "tiles size"]
    filled: Bool[np.ndarray, "tiles size"]
    altered: Bool[np.ndarray, "tiles"]
    first_group: Int[np.ndarray, "tiles"]
    last_group: Int[np.ndarray, "tiles"]

    def __len__(self) -> int:
        return len(self.items)


def cut_into_tiles(group: Int[np.ndarray, "items"], altered: Bool[np.ndarray, "items"], size: int) -> Tiles:
    """Sorts items by (altered, group) and cuts each of the two runs into tiles of `size`."""
    runs = []
    for kind in (False, True):
        of_kind = np.flatnonzero(altered == kind)
        if len(of_kind):
            run = of_kind[np.argsort(group[of_kind], kind="stable")]
            missing = -len(run) % size
            filled = np.arange(len(run) + missing) < len(run)
            runs.append((np.pad(run, (0, missing), mode="edge"), filled, np.full(len(filled) // size, kind)))
    items, filled = (np.concatenate([run[part] for run in runs]).reshape(-1, size) for part in (0, 1))
    return Tiles(
        items=items,
        filled=filled,
        altered=np.concatenate([run[2] for run in runs]),
        first_group=group[items[:, 0]],
        last_group=group[items[:, -1]],
    )


def may_share_group(queries: Tiles, gallery: Tiles) -> Bool[np.ndarray, "query_tiles gallery_tiles"]:
    """Pairs of tiles that can hold a query and an item of its group: their ranges of groups overlap."""
    starts_before_end = queries.first_group[:, None] <= gallery.last_group
    ends_after_start = queries.last_group[:, None] >= gallery.first_group
    return starts_before_end & ends_after_start


class Rows:
    """Rows of a table of embeddings (all in order by default), read a tile at a time as float32 and checked."""

    def __init__(self, table: Float[np.ndarray, "rows width"], rows: Int[np.ndarray, "items"] | None, source: str):
        self.table, self.rows, self.source = table, rows, source
        self.largest_norm = 0.0

    def __len__(self) -> int:
        return len(self.table) if self.rows is None else len(self.rows)

    def take(self, items: Shaped[np.ndarray, "*tile"]) -> Float[np.ndarray, "*tile width"]:
        """The embeddings of some items. Raises InputError where one is NaN, infinite, or too large for a
        float32 score.
        """
        taken = self.table[items if self.rows is None else self.rows[items]].astype(np.float32, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            norm = np.sqrt(np.einsum("...e,...e->...", taken, taken).max(initial=0.0))
        if not np.isfinite(norm):
            large = np.isfinite(taken).all()
            raise InputError(
                self.source, "embeddings", "huge values" if large else "NaN or infinite values", "unit vectors"
            )
        self.largest_norm = max(self.largest_norm, float(norm))
        return taken

    def check_scores_with(self, other: "Rows") -> None:
        """Raises InputError where a score between rows taken so far could overflow."""
        if self.largest_norm * other.largest_norm > _LARGEST_SCORE:
            found = f"vectors of length {self.largest_norm:.3g} and {other.largest_norm:.3g}"
            raise InputError(self.source, "embeddings", found, "unit vectors")


def _needs(queries: Tiles, gallery: Tiles) -> tuple[np.ndarray, np.ndarray]:
    """What to do with each pair of tiles in the first and in the second pass."""
    own = may_share_group(queries, gallery)
    positives = np.where(own & ~gallery.altered, POSITIVES, SKIP)
    distractors = np.where(own | ~gallery.filled.all(axis=1), CAREFUL, PLAIN)
    return positives.astype(np.int32), distractors.astype(np.int32)


def _in_steps(tiles: np.ndarray, at_once: int) -> Iterator[np.ndarray]:
    for start in range(0, len(tiles), at_once):
        yield tiles[start : start + at_once]


def _gallery_block(tiles: Tiles, table: Rows, group: np.ndarray, which: np.ndarray, at_once: int) -> GalleryTiles:
    """Reads some tiles of the gallery; the last block is padded with tiles that are skipped."""
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
    """Queries and counts on the devices."""

    def __init__(self, mesh: jax.sharding.Mesh, tiles: Tiles, table: Rows, group: np.ndarray):
        self.mesh, self.tiles = mesh, tiles
        self.sharding = query_sharding(mesh)
        self.tile_count = len(tiles) + -len(tiles) % mesh.size
        # Copies of the last tile make the number a multiple of the devices; they are skipped.
        which = np.minimum(np.arange(self.tile_count), len(tiles) - 1)
        items, width = tiles.items[which], table.table.shape[1]
        self.queries = Queries(
            embeddings=self._shard((*items.shape, width), lambda part: table.take(items[part[0]])),
            group=self._shard(items.shape, lambda part: group[items[part]].astype(np.int32)),
        )
        self.counts = jax.tree.map(
            lambda array: self._shard(array.shape, array.__getitem__), _as_numpy(no_counts(*items.shape))
        )
        self.step = compiled_step(mesh)

    def _shard(self, shape: tuple[int, ...], part) -> jax.Array:
        return jax.make_array_from_callback(shape, self.sharding, part)

    def count(self, block: GalleryTiles, needs: np.ndarray) -> None:
        """Counts a block. The host reads the next meanwhile; the devices hold one at a time, to keep memory small."""
        all_needs = np.full((self.tile_count, len(block.altered)), SKIP, np.int32)
        all_needs[: len(needs), : needs.shape[1]] = needs
        block = jax.device_put(block, NamedSharding(self.mesh, PartitionSpec()))
        jax.block_until_ready(self.counts)
        self.counts = self.step(self.counts, self.queries, block, self._shard(all_needs.shape, all_needs.__getitem__))

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
            # -0.0 equals 0.0 and may be found in its place; adding 0 makes their bits the same.
            best_scores=back.best_scores + np.float32(0),
            best_indices=back.best_indices.astype(np.int64),
        )


def _as_numpy(counts: Counts) -> Counts:
    return jax.tree.map(np.asarray, counts)


def _flat(part: np.ndarray) -> np.ndarray:
    """Reshapes (tiles, size) and (tiles, kinds, size) to (queries,) and (queries, kinds)."""
    return part.reshape(-1) if part.ndim == 2 else part.transpose(0, 2, 1).reshape(-1, part.shape[1])
