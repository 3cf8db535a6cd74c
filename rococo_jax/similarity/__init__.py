"""Similarities between two sets of embeddings, in blocks: sharded reductions of logits for losses, and rank counts."""

from rococo_jax.similarity.differences import DifferenceStatistics, difference_statistics
from rococo_jax.similarity.matrix import (
    difference_statistics_of_matrix,
    rank_statistics_of_matrix,
    score_blocks,
    top_k_mask,
)
from rococo_jax.similarity.ranks import rank_statistics
from rococo_jax.similarity.sharded_logits import ON_ONE_DEVICE, PairwiseSide, ShardedLogits
from rococo_jax.similarity.statistics import KINDS, RankStatistics

__all__ = [
    "KINDS",
    "ON_ONE_DEVICE",
    "DifferenceStatistics",
    "PairwiseSide",
    "RankStatistics",
    "ShardedLogits",
    "difference_statistics",
    "difference_statistics_of_matrix",
    "rank_statistics",
    "rank_statistics_of_matrix",
    "score_blocks",
    "top_k_mask",
]
