"""Similarities between two sets of embeddings, block by block and never held whole: what ranking and losses need."""

from rococo_jax.similarity.logsumexp import Items, Similarities
from rococo_jax.similarity.matrix import rank_statistics_of_matrix
from rococo_jax.similarity.ranks import rank_statistics
from rococo_jax.similarity.statistics import KINDS, RankStatistics

__all__ = ["KINDS", "Items", "RankStatistics", "Similarities", "rank_statistics", "rank_statistics_of_matrix"]
