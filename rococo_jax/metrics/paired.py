"""Paired comparison of models on the same images: difference, interval, test, detectable effect, equivalence.

A metric is a function f of counts that are summed over images, so a comparison needs the counts of each image alone:
c_i of the model, r_i of the reference, and d_i = c_i - r_i. All queries of an image (its captions, its seeds of mixing)
stay together, because they are not independent.

    difference   D = f(sum_i c_i) - f(sum_i r_i)
    interval     percentile bootstrap over images, with the draws of `metrics.intervals`
    test         swap the counts of the two models on a random half of the images, `FLIPS` times:
                 p = (1 + swaps with |D*| >= |D|) / (1 + FLIPS)
    correction   step-down max-T over all tests of the family, on the same swaps
    sigma        standard deviation of D under swapping: sqrt(sum_i e_i^2), where e_i is the effect of image i,
                 f(m + d_i / 2) - f(m - d_i / 2), and m the mean of both models' sums; exact for a share
    MDE          minimum detectable effect E of a two-sided test at 5 % with a power of 80 %:
                 E = a sigma + b sqrt(sigma^2 - E^2 / images), a = 1.960, b = 0.842
    equivalence  two one-sided t-tests at 5 % with the jackknife's standard error of D

If two models were alike, an image's counts could as well be the other's, so every swap is as likely as its opposite
(Fisher's randomisation test for pairs). The added one is Phipson and Smyth 2010: a p of zero would be wrong.

Step-down max-T (Westfall and Young 1993, algorithm 2.8) compares the largest |D*| / sigma of all tests that are not yet
decided with each |D| / sigma. All tests see the same swaps, so their correlation is taken into account: the smallest
corrected p is 1 / (1 + FLIPS) whatever the number of models, variants and metrics.

The MDE of a share is the sample size of McNemar's test (Connor 1987, Biometrics 43, 207) solved for the difference; for
several queries an image and for other functions it is the same formula with their sigma [ours]. It takes sigma as it
was observed: it states what the images can show, not what is true. The jackknife's standard error is exact for means,
where the equivalence test is the paired TOST (Schuirmann 1987).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from rococo_jax.metrics.image_counts import Statistic
from rococo_jax.metrics.intervals import LEVEL, RESAMPLES, SEED, rows_within, sums_over_draws

FLIPS = 9999
ALPHA = 0.05
_FLIPS_PER_BLOCK = 256
# Swaps that tie with the observed difference may differ from it in the last digits of a sum.
_TIE = 1e-9

Verdict = Literal["better", "worse", "equivalent", "undecided"]


@dataclasses.dataclass(frozen=True, eq=False)
class PairedCounts:
    """Counts of two models on the same images, and the metrics that are computed from them.

    Attributes:
        model, reference: counts of each image, in the same order of images for all comparisons of a family; an image
            without queries has zeros.
        metrics: functions of the summed columns, by name.
    """

    model: Float[np.ndarray, "images columns"]
    reference: Float[np.ndarray, "images columns"]
    metrics: Mapping[str, Statistic]


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """Difference between two models in one metric.

    Attributes:
        points: model minus reference, in the unit of the metric.
        low, high: the 95 % bootstrap interval of it.
        p: of the two-sided swap test, not corrected.
        corrected: p after step-down max-T over the family; None for a test outside of it.
        mde: minimum detectable effect; None if no image differs, which says nothing about how often one would.
        standard_error: by the jackknife over images.
        images: number of images with a query.
    """

    points: float
    low: float
    high: float
    p: float
    corrected: float | None
    mde: float | None
    standard_error: float
    images: int

    def is_equivalent(self, margin: float) -> bool:
        """Whether two one-sided t-tests at 5 % show that the true difference is smaller than `margin` either way."""
        if self.images < 2:
            return False
        quantile = float(stats.t.ppf(1 - ALPHA, self.images - 1))
        return abs(self.points) + quantile * self.standard_error < margin

    def verdict(self, better: Literal["higher", "lower"], margin: float | None = None) -> Verdict:
        """Judge the model against the reference.

        Args:
            better: the end of the metric that is better.
            margin: differences smaller than this do not matter; None to decide on significance alone.

        Returns:
            `equivalent` if the difference is shown to be smaller than the margin, even where it is significant; else
            `better` or `worse` if it is significant at 5 %; else `undecided`.
        """
        if margin is not None and self.is_equivalent(margin):
            return "equivalent"
        if (self.p if self.corrected is None else self.corrected) >= ALPHA:
            return "undecided"
        return "better" if (self.points > 0) == (better == "higher") else "worse"


def paired_differences(
    comparisons: Sequence[PairedCounts],
    in_family: Callable[[int, str], bool] = lambda comparison, metric: True,
    *,
    flips: int = FLIPS,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> list[dict[str, PairedDifference]]:
    """Compare models in all metrics of all comparisons, with the same swaps and the same draws of images.

    Args:
        comparisons: counts over the same images in the same order.
        in_family: whether a test (place of the comparison, name of the metric) is corrected with the others.

    Returns:
        For each comparison the difference in each of its metrics. A metric without a value for one of the two models
        is left out.

    >>> right, n = np.ones((1000, 1)), np.ones((1000, 1))
    >>> recall = {"r1": lambda sums: 100 * sums[..., 0] / sums[..., 1]}
    >>> (result,) = paired_differences([PairedCounts(np.hstack([right, n]), np.hstack([0 * right, n]), recall)])
    >>> result["r1"].points, result["r1"].low, result["r1"].p, round(result["r1"].mde, 2)
    (100.0, 100.0, 0.0001, 8.85)
    """
    observed = [_observed(counts) for counts in comparisons]
    tests = [(place, name) for place, values in enumerate(observed) for name in values]
    if not tests:
        return [{} for _ in comparisons]
    points = np.array([observed[place][name] for place, name in tests])
    sigmas = np.array([_swap_deviation(comparisons[place], comparisons[place].metrics[name]) for place, name in tests])
    swapped = np.abs(_swapped_differences(comparisons, tests, flips, seed))
    family = np.array([in_family(*test) for test in tests])
    p = _p_values(swapped, np.abs(points))
    corrected = np.full(len(tests), np.nan)
    if family.any():
        corrected[family] = step_down_max_t(swapped[:, family], np.abs(points[family]), sigmas[family])
    bounds = [
        _bootstrap_intervals(counts, list(values), resamples, seed)
        for counts, values in zip(comparisons, observed, strict=True)
    ]
    image_counts = [int(_has_queries(counts).sum()) for counts in comparisons]
    results: list[dict[str, PairedDifference]] = [{} for _ in comparisons]
    for number, (place, name) in enumerate(tests):
        counts = comparisons[place]
        images = image_counts[place]
        mde = minimum_detectable_effect(sigmas[number], images)
        results[place][name] = PairedDifference(
            float(points[number]),
            *bounds[place][name],
            p=float(p[number]),
            corrected=float(corrected[number]) if family[number] else None,
            mde=mde or None,
            standard_error=_jackknife_error(counts, counts.metrics[name]),
            images=images,
        )
    return results


def minimum_detectable_effect(sigma: float, images: int) -> float:
    """The smallest difference that a two-sided paired test at 5 % finds in 80 % of such samples; see the module.

    At most the difference at which every image has the same effect: fewer images than that takes show nothing.

    >>> round(minimum_detectable_effect(100 * (0.25 / 281) ** 0.5, 281), 2)  # a quarter of 281 images discordant
    8.32
    """
    a, b = NormalDist().inv_cdf(1 - ALPHA / 2), NormalDist().inv_cdf(0.8)
    largest = sigma * np.sqrt(images)
    root = np.sqrt(max(0.0, images + b * b - a * a))
    return float(min(largest, largest * (a * np.sqrt(images) + b * root) / (images + b * b)))


def step_down_max_t(
    swapped: Float[np.ndarray, "flips tests"], observed: Float[np.ndarray, " tests"], sigma: Float[np.ndarray, " tests"]
) -> Float[np.ndarray, " tests"]:
    """Return p corrected over all tests by Westfall and Young's step-down max-T.

    Args:
        swapped: absolute differences after each random swap.
        observed: absolute differences.
        sigma: standard deviation of each difference under swapping; a test with 0 gets p = 1.
    """
    scale = np.where(sigma > 0, sigma, np.inf)
    statistic = observed / scale
    order = np.argsort(statistic, kind="stable")
    # From the smallest statistic up: the largest of all tests that are decided later.
    largest = np.zeros(len(swapped))
    raw = np.empty(len(order))
    for test in order:
        np.maximum(largest, swapped[:, test] / scale[test], out=largest)
        raw[test] = _p_values(largest[:, None], statistic[test : test + 1])[0]
    falling = order[::-1]
    corrected = np.empty(len(order))
    corrected[falling] = np.maximum.accumulate(raw[falling])
    return corrected


def _p_values(
    swapped: Float[np.ndarray, "flips tests"], observed: Float[np.ndarray, " tests"]
) -> Float[np.ndarray, " tests"]:
    as_extreme = (swapped >= observed * (1 - _TIE)).sum(axis=0)
    return (as_extreme + 1) / (len(swapped) + 1)


def _observed(counts: PairedCounts) -> dict[str, float]:
    model, reference = counts.model.sum(axis=0), counts.reference.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = {name: float(metric(model) - metric(reference)) for name, metric in counts.metrics.items()}
    return {name: value for name, value in values.items() if np.isfinite(value)}


def _swap_deviation(counts: PairedCounts, metric: Statistic) -> float:
    middle = (counts.model + counts.reference).sum(axis=0) / 2
    half = (counts.model - counts.reference) / 2
    effects = metric(middle + half) - metric(middle - half)
    return float(np.sqrt((effects**2).sum()))


def _swapped_differences(
    comparisons: Sequence[PairedCounts], tests: Sequence[tuple[int, str]], flips: int, seed: int
) -> Float[np.ndarray, "flips tests"]:
    """Return differences after random swaps. An undefined value counts as more extreme than any other."""
    halves = [(counts.model - counts.reference) / 2 for counts in comparisons]
    middles = [(counts.model + counts.reference).sum(axis=0) / 2 for counts in comparisons]
    ends = np.cumsum([half.shape[1] for half in halves])[:-1]
    stacked = np.concatenate(halves, axis=1)
    swapped, start = np.empty((flips, len(tests))), 0
    for signs in _sign_blocks(len(stacked), flips, seed):
        signed_halves = np.split(signs @ stacked, ends, axis=1)
        rows = slice(start, start := start + len(signs))
        for number, (place, name) in enumerate(tests):
            metric, middle = comparisons[place].metrics[name], middles[place]
            with np.errstate(invalid="ignore", divide="ignore"):
                difference = metric(middle + signed_halves[place]) - metric(middle - signed_halves[place])
            swapped[rows, number] = np.where(np.isfinite(difference), difference, np.inf)
    return swapped


def _sign_blocks(images: int, flips: int, seed: int) -> Iterator[Float[np.ndarray, "flips images"]]:
    """Yield blocks of random signs, the same for the same seed and any block size."""
    generator, block = np.random.default_rng(seed), rows_within(_FLIPS_PER_BLOCK, images)
    for start in range(0, flips, block):
        rows = min(block, flips - start)
        # Bits by whole bytes of a flip, so that a flip's signs do not depend on how many are drawn at once.
        bits = np.unpackbits(np.frombuffer(generator.bytes(rows * _bytes(images)), np.uint8).reshape(rows, -1), axis=1)
        signs = bits[:, :images].astype(np.float64)
        signs *= -2.0
        signs += 1.0
        yield signs


@functools.cache
def _bytes(images: int) -> int:
    # The generator hands out bytes in words of four.
    return -(-images // 32) * 4


def _bootstrap_intervals(
    counts: PairedCounts, names: Sequence[str], resamples: int, seed: int
) -> dict[str, tuple[float, float]]:
    columns, tail = counts.model.shape[1], (100.0 - LEVEL) / 2
    sums = sums_over_draws(np.concatenate([counts.model, counts.reference], axis=1), resamples, seed)
    intervals = {}
    for name in names:
        metric = counts.metrics[name]
        with np.errstate(invalid="ignore", divide="ignore"):
            resampled = metric(sums[:, :columns]) - metric(sums[:, columns:])
        low, high = np.percentile(resampled[np.isfinite(resampled)], [tail, 100.0 - tail])
        intervals[name] = float(low), float(high)
    return intervals


def _has_queries(counts: PairedCounts) -> Bool[np.ndarray, " images"]:
    return np.logical_or(counts.model.any(axis=1), counts.reference.any(axis=1))


def _jackknife_error(counts: PairedCounts, metric: Statistic) -> float:
    """Return the jackknife standard error of the difference, which leaves out one image at a time."""
    present = _has_queries(counts)
    model, reference = counts.model[present], counts.reference[present]
    images = len(model)
    if images < 2:
        return float("inf")
    with np.errstate(invalid="ignore", divide="ignore"):
        left_out = metric(model.sum(axis=0) - model) - metric(reference.sum(axis=0) - reference)
    deviations = left_out - left_out.mean()
    return float(np.sqrt((images - 1) / images * (deviations**2).sum()))
