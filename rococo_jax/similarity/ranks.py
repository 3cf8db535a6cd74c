"""Rank statistics of queries against a gallery, from embeddings."""

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from rococo_jax.similarity.matrix import rank_statistics_of_matrix
from rococo_jax.similarity.statistics import RankStatistics


def rank_statistics(
    queries: Float[np.ndarray, "queries width"],
    gallery: Float[np.ndarray, "gallery width"],
    *,
    query_group: Int[np.ndarray, "queries"],
    gallery_group: Int[np.ndarray, "gallery"],
    gallery_altered: Bool[np.ndarray, "gallery"],
    mesh: jax.sharding.Mesh | None = None,
) -> RankStatistics:
    """First version: the whole matrix in NumPy."""
    return rank_statistics_of_matrix(
        np.asarray(queries, np.float32) @ np.asarray(gallery, np.float32).T,
        query_group=query_group,
        gallery_group=gallery_group,
        gallery_altered=gallery_altered,
        source="embeddings",
    )
