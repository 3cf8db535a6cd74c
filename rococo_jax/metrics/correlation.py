"""Rank correlations of metrics over models: Spearman's, alone and controlling for one metric, and Holm's correction.

    rho          correlation of ranks, equal values with their mean rank
    partial      (r_xy - r_xz r_yz) / sqrt((1 - r_xz^2) (1 - r_yz^2)), the correlation of the residuals of x's and y's
    ranks
                 after a linear fit on z; r are rhos
    p of rho     up to 9 models: of all orders, the share with |rho| at least as large; above: Student's t with n - 2
                 degrees of freedom, t = r sqrt((n - 2) / (1 - r^2)), as SciPy has it
    p of partial Student's t with n - 3
    interval     2.5th to 97.5th percentile over models drawn with replacement, ranked anew in each draw

In a draw where model j occurs c_j times, the rank of a value is the c of the lower ones and half of (c of the equal
ones + 1), so all draws of a metric are two matrix products.

Holm (1979): of m p-values in ascending order the k-th is multiplied by m - k + 1, and none is below one before it.
"""

import dataclasses
import itertools
import math

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import stdtr
from scipy.stats import rankdata

from rococo_jax.metrics.intervals import LEVEL, RESAMPLES, image_draws

EXACT = 9
_TIE = 1e-9  # correlations nearer than this are equal up to rounding
_AT_ONCE = 100


@dataclasses.dataclass(frozen=True, eq=False)
class Correlations:
    """Matrices over metrics; NaN on the diagonal of `p` and wherever a figure is not defined.

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
    values: Float[np.ndarray, "metrics models"],
    given: int | None = None,
    *,
    resamples: int = RESAMPLES,
) -> Correlations:
    """Spearman's correlations of every two metrics, or partial ones with the metric in row `given` held constant.

    No metric may be constant over the models. A draw in which one of a pair is constant does not count for its
    interval.
    """
    models = values.shape[1]
    rho = _of_counts(values, np.ones((1, models)), given)[0]
    draws = image_draws(models, resamples)
    blocks = [draws[start : start + _AT_ONCE] for start in range(0, resamples, _AT_ONCE)]
    drawn = np.concatenate([_of_counts(values, block.astype(np.float64), given) for block in blocks])
    tail = (100.0 - LEVEL) / 2
    low, high = _percentiles(drawn, tail), _percentiles(drawn, 100.0 - tail)
    if given is None and models <= EXACT:
        p = _p_of_all_orders(values, rho)
    else:
        p = _student(rho, models - 2 - (given is not None))
    np.fill_diagonal(p, np.nan)
    p[np.isnan(rho)] = np.nan
    return Correlations(rho, low, high, p)


def _of_counts(
    values: Float[np.ndarray, "metrics models"], counts: Float[np.ndarray, "draws models"], given: int | None
) -> Float[np.ndarray, "draws metrics metrics"]:
    """Correlations in which each model occurs so many times; NaN where a metric is constant."""
    below = (values[:, :, None] < values[:, None, :]).astype(np.float64)
    equal = (values[:, :, None] == values[:, None, :]).astype(np.float64)
    ranks = counts @ below + (counts @ equal + 1) / 2
    # The mean of the ranks of n values is (n + 1) / 2, whatever the ties.
    centred = (ranks - (counts.sum(axis=1)[:, None] + 1) / 2) * np.sqrt(counts)
    centred = centred.transpose(1, 0, 2)
    products = centred @ centred.transpose(0, 2, 1)
    sizes = np.sqrt(np.diagonal(products, axis1=1, axis2=2))
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.clip(products / (sizes[:, :, None] * sizes[:, None, :]), -1.0, 1.0)
        if given is None:
            return r
        with_z = r[:, :, given]
        left = 1 - with_z**2
        left[left < _TIE] = np.nan  # z itself, or a metric of the same order: nothing is left of it
        return np.clip(
            (r - with_z[:, :, None] * with_z[:, None, :]) / np.sqrt(left[:, :, None] * left[:, None, :]), -1.0, 1.0
        )


def _percentiles(drawn: Float[np.ndarray, "draws metrics metrics"], at: float) -> Float[np.ndarray, "metrics metrics"]:
    """Percentiles over the draws that have a value; NaN where none has."""
    flat, found = drawn.reshape(len(drawn), -1), np.full(drawn[0].size, np.nan)
    there = ~np.isnan(flat)
    whole = there.all(axis=0)
    found[whole] = np.percentile(flat[:, whole], at, axis=0)
    for column in np.flatnonzero(there.any(axis=0) & ~whole):
        found[column] = np.percentile(flat[there[:, column], column], at)
    return found.reshape(drawn.shape[1:])


def _student(rho: Float[np.ndarray, "metrics metrics"], freedom: int) -> Float[np.ndarray, "metrics metrics"]:
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(rho) * np.sqrt(freedom / ((1 - rho) * (1 + rho)))
    return 2 * stdtr(freedom, -t)


def _p_of_all_orders(
    values: Float[np.ndarray, "metrics models"], rho: Float[np.ndarray, "metrics metrics"]
) -> Float[np.ndarray, "metrics metrics"]:
    """The share of orders of one metric's values whose correlation with another's is as far from 0 as theirs."""
    models = values.shape[1]
    centred = rankdata(values, axis=1) - (models + 1) / 2
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    extreme, many, orders = np.zeros_like(rho), math.factorial(models), itertools.permutations(range(models))
    while block := list(itertools.islice(orders, 20_000)):
        rows = np.array(block)
        for place, each in enumerate(unit):
            extreme[place] += (np.abs(unit @ each[rows].T) >= np.abs(rho[place])[:, None] - _TIE).sum(axis=1)
    # Of the two ways to order, by rows and by columns, rounding may see a tie in one alone.
    return np.maximum(extreme, extreme.T) / many


def holm(p: Float[np.ndarray, " tests"]) -> Float[np.ndarray, " tests"]:
    """Holm's corrected p-values, in the same order. NaN stays NaN and counts for no test.

    The chance that any test of hypotheses that are all true comes out below 0.05 is then at most 0.05.

    >>> [float(each) for each in holm(np.array([0.01, 0.5, 0.03]))]
    [0.03, 0.5, 0.06]
    """
    corrected = np.full(len(p), np.nan)
    tests: Bool[np.ndarray, " tests"] = ~np.isnan(p)
    order = np.argsort(p[tests], kind="stable")
    steps = np.maximum.accumulate(p[tests][order] * np.arange(len(order), 0, -1))
    corrected[np.flatnonzero(tests)[order]] = np.minimum(1.0, steps)
    return corrected
