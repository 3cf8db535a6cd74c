"""How queries and gallery are cut into tiles of one fixed shape, on the host.

A float32 product has the same bits wherever in the operands its row and column stand, as long as the operands have the
same shape, and other bits for other shapes. So every product of this project's ranking is one tile of one shape for
each kind of device, the last tile is filled up, and small inputs fill up one tile: scores, and with them exact ties
between captions that occur twice, do not depend on how much is ranked, in which order, or on how many devices.

Items are sorted by group first, so that the few pairs of tiles in which a query can meet its own items lie near the
diagonal, and altered items have tiles of their own; all other pairs take a cheaper path.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from rococo_jax.errors import InputError

# Queries and gallery items of a tile. On CPU a tile of scores (2 MiB) stays in the cache between product and counting.
_TILE_SHAPES = {"cpu": (512, 1024)}
_TILE_SHAPE_OF_ACCELERATORS = (2048, 8192)
# Scores are sums of products: no partial sum can leave float32 while the product of the norms stays below this.
_LARGEST_SCORE = 1e38


def tile_shape(platform: str) -> tuple[int, int]:
    """Queries and gallery items of a tile on `cpu`, `gpu` or `tpu`."""
    return _TILE_SHAPES.get(platform, _TILE_SHAPE_OF_ACCELERATORS)


@dataclass(frozen=True, eq=False)
class Tiles:
    """Items of one side, sorted by group and cut into tiles.

    Attributes:
        items: the item at each place; the last of a run fills up its last tile.
        filled: False at places that only fill up.
        altered: whether the tile's items are altered; a tile never has both kinds.
        first_group: the lowest group in each tile.
        last_group: the highest.
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
    """Which pairs of tiles can hold a query and an item of its group: those whose ranges of groups overlap."""
    starts_before_end = queries.first_group[:, None] <= gallery.last_group
    ends_after_start = queries.last_group[:, None] >= gallery.first_group
    return starts_before_end & ends_after_start


class Rows:
    """Rows of a table of embeddings, taken out a tile at a time as float32, and checked on the way.

    Args:
        table: embeddings, in memory or a memory map; other precisions are rounded to float32.
        rows: the row of each item; all in order by default.
        source: what to call them in an error.
    """

    def __init__(self, table: Float[np.ndarray, "rows width"], rows: Int[np.ndarray, "items"] | None, source: str):
        self.table, self.rows, self.source = table, rows, source
        self.largest_norm = 0.0

    def __len__(self) -> int:
        return len(self.table) if self.rows is None else len(self.rows)

    def take(self, items: Shaped[np.ndarray, "*tile"]) -> Float[np.ndarray, "*tile width"]:
        """The embeddings of some items.

        Raises:
            InputError: one of them is NaN, infinite, or so large that a score would not be a float32 number.
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
        """Makes sure that no score between rows taken so far can overflow."""
        if self.largest_norm * other.largest_norm > _LARGEST_SCORE:
            found = f"vectors of length {self.largest_norm:.3g} and {other.largest_norm:.3g}"
            raise InputError(self.source, "embeddings", found, "unit vectors")
