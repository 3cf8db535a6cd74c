"""Recall, false recall and the four-way split of the first place, in percent, from rank statistics.

    R@K        share of queries whose best own original is at rank <= K
    r_mean     (R@1 + R@5 + R@10) / 3
    FR@1       share of queries whose first place is an altered item, of whichever image
    top1_*     the first place split into own original / own altered / other's altered / other's original
    drop       100 (R@1 clean - R@1 altered) / R@1 clean

R@K, FR@1 and r_mean follow the public code of RoCOCO (arXiv 2304.10727); the paper reports a drop rate whose formula
is in no public code, so `drop` is this project's own. Protocols differ in ties: `paper` and `control` rank by the
nearest defined equivalent of the published sort, `strict` by the pessimistic rank, and gives a tie for the first place
to an altered caption of another image, then of the own image, then another original, and only then to an own original.
"""

import numpy as np
from jaxtyping import Float

from rococo_jax.similarity.statistics import KINDS, RankStatistics

# What is counted for each query; every metric is linear in the shares of these.
COUNTED = ("r1", "r5", "r10", *(f"top1_{kind}" for kind in KINDS))
METRICS = ("r1", "r5", "r10", "r_mean", "fr1", *(f"top1_{kind}" for kind in KINDS))
_CUTOFFS = (1, 5, 10)


def ranks(statistics: RankStatistics, protocol: str) -> np.ndarray:
    """The rank of the best own original of each query, 1 is best, as the protocol treats ties."""
    return statistics.rank_pessimistic if protocol == "strict" else statistics.rank_published


def top_kinds(statistics: RankStatistics, protocol: str) -> np.ndarray:
    """Who has the first place of each query (places in `KINDS`), as the protocol treats ties."""
    return statistics.top_kind_against_the_model if protocol == "strict" else statistics.top_kind_published


def hits(statistics: RankStatistics, protocol: str) -> Float[np.ndarray, "queries counted"]:
    """1.0 where a query counts for the metric of that column of `COUNTED`, else 0.0."""
    within = ranks(statistics, protocol)[:, None] <= np.array(_CUTOFFS)
    on_top = top_kinds(statistics, protocol)[:, None] == np.arange(len(KINDS))
    return np.concatenate([within, on_top], axis=1).astype(np.float64)


def metrics_of_counts(
    counts: Float[np.ndarray, "*sets counted"], queries: Float[np.ndarray, "*sets"]
) -> dict[str, Float[np.ndarray, "*sets"]]:
    """All of `METRICS` in percent from how many queries count for each column of `COUNTED`, of how many."""
    percent = {name: np.asarray(100.0 * counts[..., place] / queries) for place, name in enumerate(COUNTED)}
    percent["r_mean"] = (percent["r1"] + percent["r5"] + percent["r10"]) / 3
    percent["fr1"] = percent["top1_own_altered"] + percent["top1_other_altered"]
    return {name: np.asarray(percent[name]) for name in METRICS}


def retrieval_metrics(statistics: RankStatistics, protocol: str) -> dict[str, float]:
    """All of `METRICS` in percent.

    Args:
        statistics: one entry per query.
        protocol: `paper`, `strict` or `control`.
    """
    counts = hits(statistics, protocol).sum(axis=0)
    return {name: float(value) for name, value in metrics_of_counts(counts, np.array(float(len(statistics)))).items()}


def drop(clean_r1: float, altered_r1: float) -> dict[str, float | None]:
    """What alteration costs: `drop` in percent of the clean R@1, and `drop_points` in points.

    `drop` is None where the clean R@1 is 0: nothing was there to be lost.

    >>> drop(50.0, 40.0)
    {'drop': 20.0, 'drop_points': 10.0}
    """
    points = clean_r1 - altered_r1
    return {"drop": 100.0 * points / clean_r1 if clean_r1 else None, "drop_points": points}
