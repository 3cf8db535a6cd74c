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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Shaped

from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity.counting import (
    CAREFUL,
    PADDING,
    PLAIN,
    POSITIVES,
    SKIP,
    Counts,
    GalleryTile,
    Queries,
    compiled_step,
    no_counts,
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
    source: str = "embeddings",
) -> RankStatistics:
    """Ranks each query's best own original among all gallery items but its own originals.

    The result has the same bits for any order of queries and gallery (indices, and what `published` makes of ties,
    follow the gallery's order), and any number of devices of one kind.

    Args:
        queries: embeddings, in memory or a memory map. Scores are their dot products; give unit vectors for cosines.
        gallery: the same for the gallery.
        query_group: the group (image) of each query.
        gallery_group: the group of each gallery item; those of the query's group are its own.
        gallery_altered: True for altered captions and mixed images.
        query_rows: the row in `queries` of each query; all rows in order by default.
        gallery_rows: the row in `gallery` of each gallery item; all rows in order by default.
        mesh: queries are sharded over all its devices, the gallery is replicated; the first device alone by default.
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
    positives, distractors = _tile_needs(query_tiles, gallery_tiles)
    on_devices, step = QueriesOnDevices(mesh, query_tiles, query_table, query_group), compiled_step(mesh)
    none = jax.tree.map(np.asarray, no_counts(*on_devices.embedded.group.shape))
    counts = jax.tree.map(lambda array: on_devices.shard(array.shape, array.__getitem__), none)
    total = int(np.count_nonzero(positives) + np.count_nonzero(distractors))
    with progress("ranking", total, "tiles") as advance:
        for needs in (positives, distractors):
            for tile in np.flatnonzero(needs.any(axis=0)).tolist():
                block = _gallery_tile(gallery_tiles, gallery_table, gallery_group, tile)
                query_table.check_scores_with(gallery_table)
                # The host reads a tile while the devices count the last; they hold one at a time, to keep memory small.
                jax.block_until_ready(counts)
                need = on_devices.of_tiles(needs[:, tile])
                counts = step(counts, on_devices.embedded, on_devices.replicate(block), need)
                advance(int(np.count_nonzero(needs[:, tile])))
    counts, place = jax.tree.map(np.asarray, on_devices.replicate(counts)), on_devices.place()
    in_order = Counts(*(_flat(part)[place] for part in counts))
    return RankStatistics(
        higher=in_order.higher.astype(np.int64),
        ties=in_order.ties.astype(np.int64),
        ties_after=in_order.ties_after.astype(np.int64),
        # -0.0 equals 0.0 and may be found in its place; adding 0 makes their bits the same.
        best_scores=in_order.best_scores + np.float32(0),
        best_indices=in_order.best_indices.astype(np.int64),
    )


def tile_shape(platform: str) -> tuple[int, int]:
    """Numbers of queries and of gallery items in a tile, by platform: `cpu`, `gpu` or `tpu`."""
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
        run = np.flatnonzero(altered == kind)
        run = run[np.argsort(group[run], kind="stable")]
        if len(run):
            missing = -len(run) % size
            filled = np.arange(len(run) + missing) < len(run)
            runs.append((np.pad(run, (0, missing), mode="edge"), filled, np.full(len(filled) // size, kind)))
    items, filled = (np.concatenate([run[part] for run in runs]).reshape(-1, size) for part in (0, 1))
    return Tiles(
        items=items,
        filled=filled,
        altered=np.concatenate([run[2] for run in runs]),
        first_group=group[items].min(axis=1),
        last_group=group[items].max(axis=1),
    )


class Rows:
    """Rows of a table of embeddings (all in order by default), read a tile at a time as float32 and checked."""

    def __init__(self, table: Float[np.ndarray, "rows width"], rows: Int[np.ndarray, "items"] | None, source: str):
        self.table, self.rows, self.source = table, rows, source
        self.largest_norm = 0.0

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


def _tile_needs(queries: Tiles, gallery: Tiles) -> tuple[np.ndarray, np.ndarray]:
    """The needs of each pair of tiles in the first and in the second pass: `SKIP`, `POSITIVES`, `PLAIN`, `CAREFUL`.

    Tiles can hold a query and an item of its group where their ranges of groups overlap.
    """
    own = queries.first_group[:, None] <= gallery.last_group
    own &= queries.last_group[:, None] >= gallery.first_group
    positives = np.where(own & ~gallery.altered, POSITIVES, SKIP)
    distractors = np.where(own | ~gallery.filled.all(axis=1), CAREFUL, PLAIN)
    return positives.astype(np.int32), distractors.astype(np.int32)


def _gallery_tile(tiles: Tiles, table: Rows, group: np.ndarray, tile: int) -> GalleryTile:
    """Reads a tile of the gallery."""
    items, filled = tiles.items[tile], tiles.filled[tile]
    return GalleryTile(
        embeddings=table.take(items),
        group=np.where(filled, group[items], _NO_GROUP).astype(np.int32),
        index=items.astype(np.int32),
        filled=filled,
        altered=tiles.altered[tile],
    )


class QueriesOnDevices:
    """Query tiles, sharded over the devices; tiles of padding make their number a multiple of the devices.

    Args:
        mesh: a tile is never over two of its devices.
        tiles: the queries.
        table: their embeddings.
        group: the group of each query, not negative.
    """

    def __init__(self, mesh: jax.sharding.Mesh, tiles: Tiles, table: Rows, group: Int[np.ndarray, "queries"]):
        self.mesh, self.tiles = mesh, tiles
        self.sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self.tile_count = len(tiles) + -len(tiles) % mesh.size
        which = np.minimum(np.arange(self.tile_count), len(tiles) - 1)
        items, width = tiles.items[which], table.table.shape[1]
        groups = np.full(items.shape, PADDING, np.int32)
        groups[: len(tiles)] = np.where(tiles.filled, group[tiles.items], PADDING)
        self.embedded = Queries(
            embeddings=self.shard((*items.shape, width), lambda part: table.take(items[part[0]])),
            group=self.shard(groups.shape, groups.__getitem__),
        )

    def shard(self, shape: tuple[int, ...], part: Callable[[tuple[slice, ...]], np.ndarray]) -> jax.Array:
        """An array whose first axis is over the devices."""
        return jax.make_array_from_callback(shape, self.sharding, part)

    def of_tiles(self, values: Int[np.ndarray, "tiles"]) -> jax.Array:
        """A value of each tile, and 0 (`SKIP`) of those of padding."""
        padded = np.pad(values, (0, self.tile_count - len(values)))
        return self.shard(padded.shape, padded.__getitem__)

    def replicate(self, tree: Any) -> Any:
        """Copy arrays whole to all devices."""
        return jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec()))

    def place(self) -> Int[np.ndarray, "queries"]:
        """The place of each query in the tiles, one tile after the other."""
        place = np.empty(np.count_nonzero(self.tiles.filled), np.int64)
        place[self.tiles.items[self.tiles.filled]] = np.flatnonzero(self.tiles.filled)
        return place


def _flat(part: np.ndarray) -> np.ndarray:
    """Reshapes (tiles, size) and (tiles, kinds, size) to (queries,) and (queries, kinds)."""
    return part.reshape(-1) if part.ndim == 2 else part.transpose(0, 2, 1).reshape(-1, part.shape[1])
