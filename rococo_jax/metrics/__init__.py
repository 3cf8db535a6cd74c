"""Numbers from ranks, choices and logits, with intervals. Nothing here reads or writes files."""

from rococo_jax.metrics.intervals import retrieval_intervals
from rococo_jax.metrics.retrieval import METRICS, drop, retrieval_metrics

__all__ = ["METRICS", "drop", "retrieval_intervals", "retrieval_metrics"]
