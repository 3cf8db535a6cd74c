"""Metrics for changes of a model's predictions and confidence under corruption.

p, q are the probabilities of K candidates before and after corruption, y is the right one. RAS is defined in words in
arXiv 2511.19032; the formula is [ours]:

    U(p) = H(p) / ln K                               uncertainty
    A(p) = 1 - |max p - 1[argmax p = y]|             alignment of confidence and correctness
    r = [A(q) - A(p)] - |U(q) - U(p)|                in (-2, 1], 0 where nothing changes
    RAS = mean r = destructive + corrective          mean min(r, 0), mean max(r, 0)
    erroneous confidence                             wrong after corruption, with lower entropy (U fell)
    hesitation                                       right before and after, with higher entropy (U rose)
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from rococo_jax.metrics.metric import Metric, percent, raw_mean
from rococo_jax.similarity.statistics import Columns

METRICS = (
    Metric(
        "ras",
        "RAS",
        "higher",
        "",
        "robustness alignment score: gain in alignment minus change of uncertainty",
        "ours",
        raw_mean("ras"),
    ),
    Metric(
        "ras_destructive",
        "RAS, destructive",
        "higher",
        "",
        "mean of the negative part of RAS",
        "ours",
        raw_mean("ras_destructive"),
    ),
    Metric(
        "ras_corrective",
        "RAS, corrective",
        "higher",
        "",
        "mean of the positive part of RAS",
        "ours",
        raw_mean("ras_corrective"),
    ),
    percent("consistency", "Consistency", "higher", "the same prediction before and after", "ours"),
    percent("right_to_wrong", "Right to wrong", "lower", "right before, wrong after", "ours"),
    percent("wrong_to_right", "Wrong to right", "higher", "wrong before, right after", "ours"),
    percent(
        "erroneous_confidence",
        "Erroneous confidence",
        "lower",
        "wrong after corruption, with lower entropy than before",
        "ours",
    ),
    percent("hesitation", "Hesitation", "lower", "right before and after, with higher entropy", "ours"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Confidence(Columns):
    """A model's confidence over K candidates, with one entry for each query, item or image.

    Attributes:
        answer: the most probable candidate.
        right: whether it is right.
        confidence: its probability.
        uncertainty: entropy over ln K, from 0 to 1.
    """

    answer: Int[np.ndarray, " items"]
    right: Bool[np.ndarray, " items"]
    confidence: Float[np.ndarray, " items"]
    uncertainty: Float[np.ndarray, " items"]

    @property
    def alignment(self) -> Float[np.ndarray, " items"]:
        """A in the formulas of this module."""
        return 1.0 - np.abs(self.confidence - self.right)


def alignment_change(before: Confidence, after: Confidence) -> Float[np.ndarray, " items"]:
    """Return r of each item."""
    return after.alignment - before.alignment - np.abs(after.uncertainty - before.uncertainty)


def change_counts(before: Confidence, after: Confidence) -> dict[str, np.ndarray]:
    """Return the changes of each item, by column."""
    return {
        "ras": alignment_change(before, after),
        "consistency": before.answer == after.answer,
        "right_to_wrong": before.right & ~after.right,
        "wrong_to_right": ~before.right & after.right,
        "erroneous_confidence": ~after.right & (after.uncertainty < before.uncertainty),
        "hesitation": before.right & after.right & (after.uncertainty > before.uncertainty),
    }


def change_columns(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns that `METRICS` are functions of; none without those of `change_counts`."""
    if "ras" not in columns:
        return {}
    parts = {"ras_destructive": np.minimum(columns["ras"], 0.0), "ras_corrective": np.maximum(columns["ras"], 0.0)}
    return {metric.name: parts[metric.name] if metric.name in parts else columns[metric.name] for metric in METRICS}


def confidence_of(
    scores: Float[np.ndarray, "items candidates"], right: Bool[np.ndarray, "items candidates"], scale: float
) -> Confidence:
    """Return the softmax of `scale` times scores over the candidates that are not NaN; a tie for the first rank is
    wrong.

    >>> one = confidence_of(np.array([[0.2, 0.1, np.nan]]), np.array([[True, False, False]]), 10.0)
    >>> one.right.tolist(), round(float(one.confidence[0]), 3)
    ([True], 0.731)
    """
    valid = ~np.isnan(scores)
    z = scale * np.where(valid, scores, -np.inf)
    top = z.max(axis=1, keepdims=True)
    shifted = z - top
    p = np.exp(shifted)
    total = p.sum(axis=1, keepdims=True)
    p /= total
    entropy = np.log(total[:, 0]) - np.where(valid, p * np.where(valid, shifted, 0.0), 0.0).sum(axis=1)
    first = z == top
    wrong = first & ~right
    answer = np.where(wrong.any(axis=1), wrong.argmax(axis=1), first.argmax(axis=1))
    candidates = np.maximum(valid.sum(axis=1), 2)
    return Confidence(answer, ~wrong.any(axis=1), p.max(axis=1), entropy / np.log(candidates))
