"""Similarities between two sets of embeddings, block by block and never held whole: what ranking and losses need."""

from rococo_jax.similarity.logsumexp import Items, ShardedLogits
from rococo_jax.similarity.matrix import rank_statistics_of_matrix
from rococo_jax.similarity.ranks import rank_statistics
from rococo_jax.similarity.statistics import KINDS, RankStatistics

__all__ = ["KINDS", "Items", "RankStatistics", "ShardedLogits", "rank_statistics", "rank_statistics_of_matrix"]
