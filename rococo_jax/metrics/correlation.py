"""Rank correlations of metrics over models: Spearman's, alone and controlling for one metric, and Holm's correction.

    rho          correlation of ranks; equal values have their mean rank (`scipy.stats.rankdata`)
    partial      (r_xy - r_xz r_yz) / sqrt((1 - r_xz^2) (1 - r_yz^2)), where r are rhos: the correlation of the
                 residuals of the ranks of x and y after a linear fit on those of z
    p of rho     up to 9 models: of all orders, the share with |rho| at least as large; above: Student's t with n - 2
                 degrees of freedom, t = r sqrt((n - 2) / (1 - r^2)), as `scipy.stats.spearmanr`
    p of partial Student's t with n - 3
    interval     2.5th to 97.5th percentile over models drawn with replacement, ranked anew in each draw

All orders of all pairs are counted in one pass; `scipy.stats.permutation_test` takes 11 s for one pair of 9 models.

Holm (1979): of m p-values in ascending order the k-th is multiplied by m - k + 1, and none is below one before it.
"""

import dataclasses
import itertools
import math
import warnings

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata
from scipy.stats import t as student_t

from rococo_jax.metrics.intervals import LEVEL, RESAMPLES, image_draws

MAX_MODELS_OF_ALL_ORDERS = 9
_TIE = 1e-9  # correlations nearer than this are equal up to rounding
_DRAWS_AT_ONCE = 100


@dataclasses.dataclass(frozen=True, eq=False)
class Correlations:
    """Matrices over metrics; NaN on the diagonal of `p` and wherever a number is not defined.

    Attributes:
        rho: from -1 to 1.
        low, high: the 95 % bootstrap interval.
        p: two-sided, not corrected.
    """

    rho: Float[np.ndarray, "metrics metrics"]
    low: Float[np.ndarray, "metrics metrics"]
    high: Float[np.ndarray, "metrics metrics"]
    p: Float[np.ndarray, "metrics metrics"]


def correlate(
    values: Float[np.ndarray, "metrics models"], controlling_for: int | None = None, *, resamples: int = RESAMPLES
) -> Correlations:
    """Compute Spearman's correlations of every two metrics.

    No metric may be constant over the models. A draw in which one of a pair is constant does not count for its
    interval.

    Args:
        values: each metric of each model.
        controlling_for: row of a metric that is held constant: the correlations are partial ones.
        resamples: number of bootstrap draws.
    """
    models = values.shape[1]
    rho = _rank_correlations(values, controlling_for)
    drawn_models = [np.repeat(np.arange(models), counts) for counts in image_draws(models, resamples)]
    blocks = [np.array(drawn_models[start : start + _DRAWS_AT_ONCE]) for start in range(0, resamples, _DRAWS_AT_ONCE)]
    resampled = np.concatenate(
        [_rank_correlations(values[:, block].swapaxes(0, 1), controlling_for) for block in blocks]
    )
    tail = (100.0 - LEVEL) / 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a pair without a value in any draw, which stays NaN
        low, high = np.nanpercentile(resampled, [tail, 100.0 - tail], axis=0)
    if controlling_for is None and models <= MAX_MODELS_OF_ALL_ORDERS:
        p = _p_of_all_orders(values, rho)
    else:
        p = _p_of_student(rho, models - 2 - (controlling_for is not None))
    np.fill_diagonal(p, np.nan)
    p[np.isnan(rho)] = np.nan
    return Correlations(rho, low, high, p)


def _rank_correlations(
    values: Float[np.ndarray, "*draws metrics models"], controlling_for: int | None
) -> Float[np.ndarray, "*draws metrics metrics"]:
    """Return the correlations of ranks in each draw; NaN where a metric is constant."""
    ranks = rankdata(values, axis=-1)
    centred = ranks - (ranks.shape[-1] + 1) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        unit = centred / np.linalg.norm(centred, axis=-1, keepdims=True)
        r = np.clip(unit @ unit.swapaxes(-1, -2), -1.0, 1.0)
        if controlling_for is None:
            return r
        r_with_z = r[..., controlling_for]
        unexplained = 1 - r_with_z**2
        # The ranks of z itself, or of a metric of the same order, have no residuals.
        unexplained[unexplained < _TIE] = np.nan
        covariances = r - r_with_z[..., :, None] * r_with_z[..., None, :]
        sizes = np.sqrt(unexplained[..., :, None] * unexplained[..., None, :])
        return np.clip(covariances / sizes, -1.0, 1.0)


def _p_of_student(rho: Float[np.ndarray, "metrics metrics"], freedom: int) -> Float[np.ndarray, "metrics metrics"]:
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(rho) * np.sqrt(freedom / ((1 - rho) * (1 + rho)))
    return 2 * student_t.sf(t, freedom)


def _p_of_all_orders(
    values: Float[np.ndarray, "metrics models"], rho: Float[np.ndarray, "metrics metrics"]
) -> Float[np.ndarray, "metrics metrics"]:
    """Return for each two metrics the share of orders of one's values whose |rho| with the other is at least theirs."""
    models = values.shape[1]
    centred = rankdata(values, axis=1) - (models + 1) / 2
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    extreme_orders = np.zeros_like(rho)
    orders = itertools.permutations(range(models))
    while block := list(itertools.islice(orders, 20_000)):
        order = np.array(block)
        for metric, ranks in enumerate(unit):
            is_extreme = np.abs(unit @ ranks[order].T) >= np.abs(rho[metric])[:, None] - _TIE
            extreme_orders[metric] += is_extreme.sum(axis=1)
    # Rounding may see a tie in only one of the two ways to order a pair.
    return np.maximum(extreme_orders, extreme_orders.T) / math.factorial(models)


def holm(p: Float[np.ndarray, " tests"]) -> Float[np.ndarray, " tests"]:
    """Return Holm's corrected p-values, in the same order. NaN stays NaN and counts for no test.

    If all tested hypotheses are true, the probability that any corrected p-value is below 0.05 is at most 0.05.

    >>> [float(each) for each in holm(np.array([0.01, 0.5, 0.03]))]
    [0.03, 0.5, 0.06]
    """
    corrected = np.full(len(p), np.nan)
    tests: Bool[np.ndarray, " tests"] = ~np.isnan(p)
    order = np.argsort(p[tests], kind="stable")
    steps = np.maximum.accumulate(p[tests][order] * np.arange(len(order), 0, -1))
    corrected[np.flatnonzero(tests)[order]] = np.minimum(1.0, steps)
    return corrected
