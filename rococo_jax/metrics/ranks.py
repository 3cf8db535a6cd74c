"""Intervals of the ranks of several models in one metric, and groups of models that cannot be told apart.

All pairs of models are compared at once, by the values of each image. With n images, the metric m_j of model j, and the
jackknife's pseudo-values P_ij = n m_j - (n - 1) m_j(without image i),

    difference   D_jk = m_j - m_k
    spread       sigma_jk = sqrt(sum_i (P_ij - P_ik)^2) / n
    swaps        D*_jk = sum_i s_i (P_ij - P_ik) / n with random signs s_i, the same images for all pairs, `FLIPS` times
    c            critical value of max over all pairs of |D*_jk| / sigma_jk, as in `metrics.paired`
    significant  |D_jk| / sigma_jk > c
    rank         of model j: from 1 + (models that are significantly better) to the number of models - (models that are
                 significantly worse)

If every image has one query, P_ij is the score of model j on image i, and D*_jk is the difference after swapping the
two models on a random half of the images, as in `rococo compare`; otherwise it is that to first order. With a
probability of 95 % no pair is ordered wrongly, and then all ranks are in their intervals: the confidence set for all
ranks of Mogstad, Romano, Shaikh and Wilhelm 2024 (Review of Economic Studies 91, 476), with one step and swaps instead
of the bootstrap. Models with the same true value share the best rank that any of them could have.

The groups are the compact letter display of the same tests (Piepho 2004, Journal of Computational and Graphical
Statistics 13, 456): two models share a letter if and only if they do not differ significantly. Letters are chosen
greedily, from the first model on, instead of by inserting and absorbing: the number of steps is bounded.
"""

import dataclasses
import itertools
import string
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.intervals import SEED
from rococo_jax.metrics.paired import FLIPS, critical_value, sign_blocks

# A spread below this, relative to the values, is rounding: the two models agree on every image.
_NO_SPREAD = 1e-12


@dataclasses.dataclass(frozen=True)
class Rank:
    """Rank interval of a model among others, 1 the best, and the letters of its groups."""

    low: int
    high: int
    letters: str


def pseudo_values(counts: Counts, metric: str) -> Float[np.ndarray, " images"]:
    """Return the jackknife's pseudo-values of a metric over images; their mean is the metric, to first order."""
    of_images = counts.on(counts.units)
    images, total = len(of_images), of_images.sum(axis=0)
    return images * counts.of(metric, total) - (images - 1) * counts.of(metric, total - of_images)


def significant_differences(
    values: Float[np.ndarray, " models"],
    of_images: Float[np.ndarray, "images models"],
    *,
    flips: int = FLIPS,
    seed: int = SEED,
) -> Bool[np.ndarray, "models models"]:
    """Return which models differ significantly, over all pairs at once with 5 % of false alarms; see the module.

    Args:
        values: metric of each model.
        of_images: pseudo-values of each model.

    >>> right = np.repeat([[1.0, 1.0, 0.0]], 40, axis=0)
    >>> significant_differences(right.mean(axis=0), right).tolist()
    [[False, False, True], [False, False, True], [True, True, False]]
    """
    models = len(values)
    shares = of_images / len(of_images)
    spreads = np.zeros((models, models))
    for model in range(models):
        spreads[model] = np.sqrt(np.square(shares - shares[:, [model]]).sum(axis=0))
    is_rounding = spreads <= _NO_SPREAD * max(1.0, float(np.abs(values).max(initial=0.0)))
    inverse = np.divide(1.0, spreads, out=np.zeros_like(spreads), where=~is_rounding)
    maxima, start = np.empty(flips), 0
    for signs in sign_blocks(len(shares), flips, seed):
        # By model, so that the differences of one model from all others are contiguous.
        swapped = (signs @ shares).T
        largest = np.zeros(len(signs))
        for model in range(models - 1):
            differences = np.abs(swapped[model + 1 :] - swapped[model])
            differences *= inverse[model, model + 1 :, None]
            np.maximum(largest, differences.max(axis=0), out=largest)
        maxima[start : start + len(signs)] = largest
        start += len(signs)
    return np.abs(values[:, None] - values) * inverse > critical_value(maxima)


def ranks(
    values: Float[np.ndarray, " models"], differs: Bool[np.ndarray, "models models"], *, is_higher_better: bool = True
) -> list[Rank]:
    """Return the rank interval and the letters of each model.

    Args:
        values: metric of each model.
        differs: which models differ significantly.

    >>> differs = np.array([[False, False, True], [False, False, False], [True, False, False]])
    >>> [(rank.low, rank.high, rank.letters) for rank in ranks(np.array([9.0, 8.0, 7.0]), differs)]
    [(1, 2, 'a'), (1, 3, 'ab'), (2, 3, 'b')]
    """
    scores = values if is_higher_better else -values
    is_better = differs & (scores[:, None] > scores)  # the row's model than the column's
    order = np.argsort(-scores, kind="stable").tolist()
    letters = letters_of(differs, order)
    lowest, highest = 1 + is_better.sum(axis=0), len(values) - is_better.sum(axis=1)
    return [Rank(*ends) for ends in zip(lowest.tolist(), highest.tolist(), letters, strict=True)]


def letters_of(differs: Bool[np.ndarray, "models models"], order: Sequence[int]) -> list[str]:
    """Return the letters of each model; two models share one if and only if they do not differ significantly.

    Args:
        order: models, the best first; the first has an a.
    """
    letters = [""] * len(order)
    names = _names()
    share = np.zeros_like(differs)
    for place, one in enumerate(order):
        for other in order[place:]:
            if differs[one, other] or share[one, other]:
                continue
            group = [one] if one == other else [one, other]
            for model in order:
                if model not in group and not differs[model, group].any():
                    group.append(model)
            name = next(names)
            for model in group:
                letters[model] += name
            share[np.ix_(group, group)] = True
    return letters


def _names():
    """Yield a to z, A to Z, and then (1), (2), ..."""
    yield from string.ascii_letters
    yield from (f"({number})" for number in itertools.count(1))
