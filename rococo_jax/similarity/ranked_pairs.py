"""Ranks and differences at once: the scores of originals and of their altered copies serve both.

The altered items of a gallery and the originals that they were made from are cut into tiles side by side, so that one
visit of a query tile counts the ranks in both and the differences between them. Ranks and differences are those of
`rank_statistics` and `difference_statistics`, to the bit; the differences cost some subtractions and comparisons, and
no product more than the ranking.
"""

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.progress import progress
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity.differences import NOT_SHOWN, DifferenceStatistics, OwnQueries, PairCounting
from rococo_jax.similarity.ranks import (
    QueriesOnDevices,
    Ranking,
    Rows,
    check_inputs,
    cut_into_tiles,
    cut_runs_into_tiles,
    gallery_block,
    tile_needs,
    tile_shape,
)
from rococo_jax.similarity.statistics import RankStatistics


def are_made_of_different_originals(
    gallery_altered: Bool[np.ndarray, "gallery"], gallery_origin: Int[np.ndarray, "gallery"]
) -> bool:
    """Whether each altered item, and nothing else, was made from an original of its own."""
    origins = gallery_origin[gallery_altered]
    alone = np.array_equal(gallery_altered, gallery_origin >= 0) and len(np.unique(origins)) == len(origins)
    return bool(alone and not gallery_altered[origins].any())


def rank_and_difference_statistics(
    queries: Float[np.ndarray, "query_rows width"] | Float[Array, "query_rows width"],
    gallery: Float[np.ndarray, "gallery_rows gallery_width"] | Float[Array, "gallery_rows gallery_width"],
    *,
    query_group: Int[np.ndarray, "queries"],
    gallery_group: Int[np.ndarray, "gallery"],
    gallery_altered: Bool[np.ndarray, "gallery"],
    gallery_origin: Int[np.ndarray, "gallery"],
    gallery_mixed_in: Int[np.ndarray, "gallery"] | None = None,
    query_rows: Int[np.ndarray, "queries"] | None = None,
    gallery_rows: Int[np.ndarray, "gallery"] | None = None,
    mesh: jax.sharding.Mesh | None = None,
    source: str = "embeddings",
) -> tuple[RankStatistics, DifferenceStatistics]:
    """As `rank_statistics`, and `difference_statistics` of the altered items and their originals, in gallery order.

    Args:
        gallery_origin: the place in the gallery of the original of each altered item, -1 for the others; each original
            once (`are_made_of_different_originals`).
        gallery_mixed_in: the second group that an altered item shows, -1 for none.
        queries, gallery, query_group, gallery_group, gallery_altered, query_rows, gallery_rows, mesh, source: as in
            `rank_statistics`.

    Raises:
        InputError: as `rank_statistics`.
        ValueError: two altered items have one original, or one has none.
    """
    check_inputs(queries, gallery, query_group, gallery_group, gallery_altered, source)
    if not are_made_of_different_originals(gallery_altered, gallery_origin):
        raise ValueError("gallery_origin: found altered items without an original of their own")
    mesh = make_mesh(jax.devices()[:1]) if mesh is None else mesh
    rows, columns = tile_shape(mesh.devices.flat[0].platform)
    query_table = Rows(np.asarray(queries), query_rows, source)
    gallery_table = Rows(np.asarray(gallery), gallery_rows, source)
    known, groups = np.unique(np.concatenate([query_group, gallery_group]), return_inverse=True)
    altered = np.flatnonzero(gallery_altered)
    second = np.full(len(altered), NOT_SHOWN)
    if gallery_mixed_in is not None:
        place = np.minimum(np.searchsorted(known, gallery_mixed_in[altered]), len(known) - 1)
        second = np.where(known[place] == gallery_mixed_in[altered], place, NOT_SHOWN)
    query_group, gallery_group = groups[: len(query_group)], groups[len(query_group) :]

    # Altered items sorted by group beside their originals; originals without a copy fill the last of these tiles.
    order = np.argsort(gallery_group[altered], kind="stable")
    with_copy = gallery_origin[altered[order]]
    others = np.setdiff1d(np.flatnonzero(~gallery_altered), with_copy)
    others = others[np.argsort(gallery_group[others], kind="stable")]
    tiles = cut_runs_into_tiles(gallery_group, np.concatenate([with_copy, others]), altered[order], columns)
    query_tiles = cut_into_tiles(query_group, np.zeros(len(query_group), bool), rows)
    positives, distractors = tile_needs(query_tiles, tiles)
    on_devices = QueriesOnDevices(mesh, query_tiles, query_table, query_group)
    ranking = Ranking(on_devices)
    counting = PairCounting(on_devices, OwnQueries(gallery_group[altered], second, query_group), ranking)

    unaltered = int(np.count_nonzero(~tiles.altered))
    total = int(np.count_nonzero(positives) + np.count_nonzero(distractors))
    with progress("ranking", total, "tiles") as advance:
        for needs in (positives, distractors):
            for tile in range(unaltered):
                which, start = np.array([tile]), tile * columns
                if start < len(order) and needs is distractors:
                    which = np.array([tile, unaltered + tile])
                    block = gallery_block(tiles, gallery_table, gallery_group, which)
                    query_table.check_scores_with(gallery_table)
                    counting.count(block, order[start : start + columns], needs[:, which])
                elif needs[:, tile].any():
                    block = gallery_block(tiles, gallery_table, gallery_group, which)
                    query_table.check_scores_with(gallery_table)
                    ranking.count(block, needs[:, which])
                advance(int(np.count_nonzero(needs[:, which])))
    return ranking.statistics(), counting.statistics()
