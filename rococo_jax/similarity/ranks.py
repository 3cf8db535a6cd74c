"""Rank statistics from embeddings: the scores `S = Q K^T` are counted tile by tile and never sorted.

There are two passes. The first computes only the pairs of tiles that can contain a query and its own originals, and
finds `s_pos`, the best score of an own original. It comes from the same tile product as every other score, so that an
equal caption ties exactly. The second pass counts scores above and equal to `s_pos`, and finds the best score of each
kind (see `RankStatistics`).

Products are float32 at the highest precision. In addition to the embeddings, memory is needed for one copy of the
queries and a few tiles.

The bits of a float32 product depend on the shapes of its operands, but not on the position of its row and column in
them. So every product is a tile, of one shape per kind of device; the last tile and small inputs are padded. Scores,
and with them exact ties between captions that occur twice, therefore depend neither on the number of items nor on
their order or the number of devices.

Items are sorted by group first, and altered items have separate tiles. Then the few pairs of tiles that can contain a
query and its own items are near the diagonal, and all other pairs take a faster path.
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
    FAST,
    GENERAL,
    PADDING,
    POSITIVES,
    SKIP,
    Counts,
    GalleryTile,
    Queries,
    compiled_step,
    no_counts,
)
from rococo_jax.similarity.statistics import RankStatistics, check_groups

# Numbers of queries and gallery items in a tile. On CPU its scores (2 MiB) stay in the cache until they are counted.
_TILE_SHAPES = {"cpu": (512, 1024)}
_TILE_SHAPE_OF_ACCELERATORS = (2048, 8192)
# Upper limit for the product of the norms, so that no partial sum of a score overflows float32.
_LARGEST_SCORE = 1e38
_NO_GROUP = -1


def rank_statistics(
    queries: Float[np.ndarray, "query_rows width"] | Float[Array, "query_rows width"],
    gallery: Float[np.ndarray, "gallery_rows gallery_width"] | Float[Array, "gallery_rows gallery_width"],
    *,
    query_group: Int[np.ndarray, " queries"],
    gallery_group: Int[np.ndarray, " gallery"],
    gallery_altered: Bool[np.ndarray, " gallery"],
    query_rows: Int[np.ndarray, " queries"] | None = None,
    gallery_rows: Int[np.ndarray, " gallery"] | None = None,
    mesh: jax.sharding.Mesh | None = None,
    source: str = "embeddings",
) -> RankStatistics:
    """Rank each query's best own original among all gallery items except its other own originals.

    The result has the same bits for any order of queries and gallery and any number of devices of one kind. (Indices,
    and how `published` breaks ties, follow the order of the gallery.)

    Args:
        queries: embeddings, in memory or a memory map. Scores are dot products; pass unit vectors for cosines.
        gallery: embeddings of the gallery.
        query_group: the group (image) of each query.
        gallery_group: the group of each gallery item; items of the query's group are its own.
        gallery_altered: True for altered captions and mixed images.
        query_rows: the row in `queries` of each query; all rows in order by default.
        gallery_rows: the row in `gallery` of each gallery item; all rows in order by default.
        mesh: queries are sharded over all its devices, the gallery is replicated; only the first device by default.
        source: name of the embeddings in an error.

    Raises:
        InputError: widths differ; an embedding is NaN, infinite or so large that a score overflows; a query has no
            unaltered item of its group.
    """
    if queries.shape[1] != gallery.shape[1]:
        raise InputError(source, "width", f"{queries.shape[1]} and {gallery.shape[1]}", "embeddings of one width")
    check_groups(query_group, gallery_group, gallery_altered, source)
    mesh = make_mesh(jax.devices()[:1]) if mesh is None else mesh
    tile_queries, tile_items = tile_shape(mesh.devices.flat[0].platform)
    query_table = EmbeddingTable(np.asarray(queries), query_rows, source)
    gallery_table = EmbeddingTable(np.asarray(gallery), gallery_rows, source)
    groups = np.unique(np.concatenate([query_group, gallery_group]), return_inverse=True)[1]
    query_group, gallery_group = groups[: len(query_group)], groups[len(query_group) :]

    query_tiles = cut_into_tiles(query_group, np.zeros(len(query_group), bool), tile_queries)
    gallery_tiles = cut_into_tiles(gallery_group, gallery_altered, tile_items)
    first_pass, second_pass = _work_of_passes(query_tiles, gallery_tiles)
    on_devices = QueriesOnDevices(mesh, query_tiles, query_table, query_group)
    step = compiled_step(mesh)
    initial_counts = jax.tree.map(np.asarray, no_counts(*on_devices.embedded.group.shape))
    counts = jax.tree.map(lambda array: on_devices.shard(array.shape, array.__getitem__), initial_counts)
    total = int(np.count_nonzero(first_pass) + np.count_nonzero(second_pass))
    description = f"ranking {len(query_group):,} queries against {len(gallery_group):,} items"
    with progress(description, total, "blocks") as advance:
        for work in (first_pass, second_pass):
            for tile in np.flatnonzero(work.any(axis=0)).tolist():
                gallery_tile = _gallery_tile(gallery_tiles, gallery_table, gallery_group, tile)
                query_table.check_scores_with(gallery_table)
                # The host reads a tile while the devices count the previous one. They store one at a time.
                jax.block_until_ready(counts)
                tile_work = on_devices.shard_by_tile(work[:, tile])
                counts = step(counts, on_devices.embedded, on_devices.replicate(gallery_tile), tile_work)
                advance(int(np.count_nonzero(work[:, tile])))
    host_counts = jax.tree.map(np.asarray, on_devices.replicate(counts))
    position = on_devices.positions()
    in_order = Counts(*(_flat(array)[position] for array in host_counts))
    return RankStatistics(
        higher=in_order.higher.astype(np.int64),
        ties=in_order.ties.astype(np.int64),
        ties_after=in_order.ties_after.astype(np.int64),
        # The maximum of -0.0 and 0.0 may be either; adding 0 makes their bits the same.
        best_scores=in_order.best_scores + np.float32(0),
        best_indices=in_order.best_indices.astype(np.int64),
    )


def tile_shape(platform: str) -> tuple[int, int]:
    """Return the numbers of queries and gallery items in a tile for a platform: `cpu`, `gpu` or `tpu`."""
    return _TILE_SHAPES.get(platform, _TILE_SHAPE_OF_ACCELERATORS)


@dataclass(frozen=True, eq=False)
class Tiles:
    """Queries or gallery items, sorted by group and cut into tiles.

    Attributes:
        items: index of the item at each position; copies of the last item pad the last tile of a kind.
        filled: False for padding.
        altered: whether the items of a tile are altered; a tile has items of one kind only.
        first_group, last_group: the lowest and highest group in each tile.
    """

    items: Int[np.ndarray, "tiles size"]
    filled: Bool[np.ndarray, "tiles size"]
    altered: Bool[np.ndarray, " tiles"]
    first_group: Int[np.ndarray, " tiles"]
    last_group: Int[np.ndarray, " tiles"]

    def __len__(self) -> int:
        return len(self.items)


def cut_into_tiles(group: Int[np.ndarray, " items"], altered: Bool[np.ndarray, " items"], size: int) -> Tiles:
    """Sort unaltered and altered items by group, and cut each of the two lists into tiles of `size`."""
    items_of_kinds, filled_of_kinds, altered_tiles = [], [], []
    for is_altered in (False, True):
        items = np.flatnonzero(altered == is_altered)
        items = items[np.argsort(group[items], kind="stable")]
        if len(items):
            padding = -len(items) % size
            items_of_kinds.append(np.pad(items, (0, padding), mode="edge"))
            filled_of_kinds.append(np.arange(len(items) + padding) < len(items))
            altered_tiles.append(np.full((len(items) + padding) // size, is_altered))
    items = np.concatenate(items_of_kinds).reshape(-1, size)
    return Tiles(
        items=items,
        filled=np.concatenate(filled_of_kinds).reshape(-1, size),
        altered=np.concatenate(altered_tiles),
        first_group=group[items].min(axis=1),
        last_group=group[items].max(axis=1),
    )


class EmbeddingTable:
    """Rows of a table of embeddings (all in order by default), read tile by tile as float32 and checked."""

    def __init__(self, table: Float[np.ndarray, "rows width"], rows: Int[np.ndarray, " items"] | None, source: str):
        self.table, self.rows, self.source = table, rows, source
        self.largest_norm = 0.0

    def take(self, items: Shaped[np.ndarray, "*tile"]) -> Float[np.ndarray, "*tile width"]:
        """Read the embeddings of items. Raises InputError: one is NaN, infinite, or too large for a float32 score."""
        embeddings = self.table[items if self.rows is None else self.rows[items]].astype(np.float32, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            norm = np.sqrt(np.einsum("...e,...e->...", embeddings, embeddings).max(initial=0.0))
        if not np.isfinite(norm):
            large = np.isfinite(embeddings).all()
            raise InputError(
                self.source, "embeddings", "huge values" if large else "NaN or infinite values", "unit vectors"
            )
        self.largest_norm = max(self.largest_norm, float(norm))
        return embeddings

    def check_scores_with(self, other: "EmbeddingTable") -> None:
        """Raise InputError if a score between rows taken so far could overflow."""
        if self.largest_norm * other.largest_norm > _LARGEST_SCORE:
            problem = f"vectors of length {self.largest_norm:.3g} and {other.largest_norm:.3g}"
            raise InputError(self.source, "embeddings", problem, "unit vectors")


def _work_of_passes(queries: Tiles, gallery: Tiles) -> tuple[np.ndarray, np.ndarray]:
    """Return the work of the two passes for each pair of tiles: `SKIP`, `POSITIVES`, `FAST` or `GENERAL`.

    A pair of tiles can contain a query and an item of its group if their ranges of groups overlap.
    """
    overlaps = queries.first_group[:, None] <= gallery.last_group
    overlaps &= queries.last_group[:, None] >= gallery.first_group
    has_padding = ~gallery.filled.all(axis=1)
    first_pass = np.where(overlaps & ~gallery.altered, POSITIVES, SKIP)
    second_pass = np.where(overlaps | has_padding, GENERAL, FAST)
    return first_pass.astype(np.int32), second_pass.astype(np.int32)


def _gallery_tile(tiles: Tiles, table: EmbeddingTable, group: np.ndarray, tile: int) -> GalleryTile:
    """Read a tile of the gallery."""
    items, filled = tiles.items[tile], tiles.filled[tile]
    return GalleryTile(
        embeddings=table.take(items),
        group=np.where(filled, group[items], _NO_GROUP).astype(np.int32),
        index=items.astype(np.int32),
        filled=filled,
        altered=tiles.altered[tile],
    )


class QueriesOnDevices:
    """Query tiles, sharded over the devices. Tiles of padding make their number a multiple of the devices.

    Args:
        mesh: each tile is on one of its devices.
        tiles: the queries.
        table: embeddings of the queries.
        group: the group of each query, not negative.
    """

    def __init__(
        self, mesh: jax.sharding.Mesh, tiles: Tiles, table: EmbeddingTable, group: Int[np.ndarray, " queries"]
    ):
        self.mesh, self.tiles = mesh, tiles
        self.sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self.tile_count = len(tiles) + -len(tiles) % mesh.size
        last_repeated = np.minimum(np.arange(self.tile_count), len(tiles) - 1)
        items, width = tiles.items[last_repeated], table.table.shape[1]
        groups = np.full(items.shape, PADDING, np.int32)
        groups[: len(tiles)] = np.where(tiles.filled, group[tiles.items], PADDING)
        self.embedded = Queries(
            embeddings=self.shard((*items.shape, width), lambda index: table.take(items[index[0]])),
            group=self.shard(groups.shape, groups.__getitem__),
        )

    def shard(self, shape: tuple[int, ...], read: Callable[[tuple[slice, ...]], np.ndarray]) -> jax.Array:
        """Make an array that is sharded along its first axis; `read` returns the values of an index."""
        return jax.make_array_from_callback(shape, self.sharding, read)

    def shard_by_tile(self, values: Int[np.ndarray, " tiles"]) -> jax.Array:
        """Shard one value per tile; tiles of padding get 0 (`SKIP`)."""
        padded = np.pad(values, (0, self.tile_count - len(values)))
        return self.shard(padded.shape, padded.__getitem__)

    def replicate(self, tree: Any) -> Any:
        """Copy arrays to all devices."""
        return jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec()))

    def positions(self) -> Int[np.ndarray, " queries"]:
        """Return the position of each query in the concatenated tiles."""
        position = np.empty(np.count_nonzero(self.tiles.filled), np.int64)
        position[self.tiles.items[self.tiles.filled]] = np.flatnonzero(self.tiles.filled)
        return position


def _flat(array: np.ndarray) -> np.ndarray:
    """Reshape (tiles, size) to (queries,), and (tiles, kinds, size) to (queries, kinds)."""
    return array.reshape(-1) if array.ndim == 2 else array.transpose(0, 2, 1).reshape(-1, array.shape[1])
