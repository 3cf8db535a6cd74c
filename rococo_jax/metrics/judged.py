"""Ranking with several judged positives, and correlation with graded judgements.

    precision at r     share of positives among the first r
    R-precision        precision at R, the number of positives
    mAP@R              mean over r = 1..R of [the r-th is positive] precision at r      (ECCV Caption, arXiv 2204.03359)
    R@1                the first is positive
    excused            the first is none of the query's own, and yet a positive: R@1 calls it wrong, people do not

Ties count against the positives. Spearman's rank correlation, times 100: of all pairs, and as published for
Crisscrossed Captions (arXiv 2004.15020), the mean over 1,000 samples of half of the queries, a pair of each.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from rococo_jax.metrics.intervals import draw_blocks
from rococo_jax.metrics.metric import Metric, percent

METRICS = (
    percent("map_at_r", "mAP@R", "higher", "mean precision over the places of positives up to their number",
            "benchmark"),
    percent("r_precision", "R-precision", "higher", "positives among as many first places as there are positives",
            "benchmark"),
    percent("judged_r1", "R@1, judged", "higher", "a judged positive is first", "benchmark"),
    percent("excused", "Excused", None, "R@1 counts an error, and people judged it none", "ours"),
)  # fmt: skip
CORRELATIONS = (
    Metric("spearman_sampled", "Spearman, sampled", "higher", "", "mean of 1,000 samples as published, times 100",
           "paper", lambda shares: shares),
    Metric("spearman", "Spearman", "higher", "", "rank correlation of similarity and rating over all pairs, times 100",
           "ours", lambda shares: shares),
)  # fmt: skip
_SAMPLES, _MOST_RESAMPLES = 1000, 500


def judge_rows(
    scores: Float[np.ndarray, "queries items"],
    positive: Bool[np.ndarray, "queries items"],
    own: Bool[np.ndarray, "queries items"],
) -> Float[np.ndarray, "queries counted"]:
    """The columns of `METRICS` for queries that have a positive each, from 0 to 1."""
    counts = np.empty((len(scores), len(METRICS)))
    for row, (values, right) in enumerate(zip(scores, positive, strict=True)):
        many = int(right.sum())
        # Of equal scores those of positives come last.
        order = np.lexsort((right, -values))[:many]
        hits = right[order]
        precision = hits.cumsum() / np.arange(1, many + 1)
        counts[row] = (hits * precision).mean(), precision[-1], hits[0], hits[0] and not own[row, order[0]]
    return counts


@dataclasses.dataclass(frozen=True, eq=False)
class Correlated:
    """Similarities and ratings of pairs, as `metrics.intervals` takes counts.

    Attributes:
        similarity, rating: of each pair.
        query: that pairs are sampled by.
        group: the image, by which intervals resample.
    """

    similarity: Float[np.ndarray, " pairs"]
    rating: Float[np.ndarray, " pairs"]
    query: Int[np.ndarray, " pairs"]
    group: Int[np.ndarray, " pairs"]
    metrics: tuple[Metric, ...] = CORRELATIONS

    resampled_alone = True
    primary = property(lambda self: self.metrics[0].name)

    def __len__(self) -> int:
        return len(self.rating)

    def values(self) -> dict[str, float]:
        """Both correlations, times 100."""
        return {"spearman_sampled": float(np.mean(self._sampled())),
                "spearman": 100 * spearman(self.similarity, self.rating)}  # fmt: skip

    def _sampled(self) -> Float[np.ndarray, " samples"]:
        order = np.argsort(self.query, kind="stable")
        _, begins, counts = np.unique(self.query[order], return_index=True, return_counts=True)
        rng, correlations = np.random.default_rng(0), []
        for _ in range(_SAMPLES):
            chosen = rng.permutation(len(begins))[: max(2, len(begins) // 2)]
            pairs = order[begins[chosen] + (rng.random(len(chosen)) * counts[chosen]).astype(int)]
            correlations.append(100 * spearman(self.similarity[pairs], self.rating[pairs]))
        return np.array(correlations)

    def resamples_of(self, resamples: int) -> dict[str, int]:
        """How many draws each metric takes where `resamples` are asked for."""
        return {"spearman_sampled": _SAMPLES, "spearman": min(resamples, _MOST_RESAMPLES)}

    def drawn(self, resamples: int, seed: int) -> dict[str, Float[np.ndarray, " draws"]]:
        """The samples as published, and all pairs of redrawn images."""
        _, place = np.unique(self.group, return_inverse=True)
        blocks = draw_blocks(int(place.max()) + 1, self.resamples_of(resamples)["spearman"], seed)
        pairs = np.arange(len(self))
        redrawn_pairs = [np.repeat(pairs, counts[place]) for block in blocks for counts in block]
        redrawn = [100 * spearman(self.similarity[each], self.rating[each]) for each in redrawn_pairs]
        return {"spearman_sampled": self._sampled(), "spearman": np.array(redrawn)}


def spearman(one: Float[np.ndarray, " pairs"], other: Float[np.ndarray, " pairs"]) -> float:
    """Rank correlation, equal values with their mean rank; 0 where one side is constant.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 9.0, 10.0]))
    1.0
    """
    ranks = [_mean_ranks(each) for each in (one, other)]
    x, y = (each - each.mean() for each in ranks)
    size = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / size) if size > 0 else 0.0


def _mean_ranks(values: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[place]
