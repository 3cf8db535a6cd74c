"""Is one model better than another on the same queries? Paired by image, because the queries of an image go together.

    d_i = h_i(model) - h_i(other)      hits of image i: its queries that count for the metric, over all runs (seeds)
    difference = 100 sum_i d_i / n     in points; n counts queries and runs, so it is the difference of the two figures
    p = (b + 1) / (m + 1)              b of m random sign flips of the d_i with |sum_i s_i d_i| >= |sum_i d_i|
    least seen                         the difference D per image that a test at 5 % finds in 80 % of such samples:
                                       D sqrt(N) = a sqrt(q) + b sqrt(q - D^2), q = mean of d_i^2 over the N images,
                                       a = 1.960 and b = 0.842 the normal quantiles of 1 - 0.05 / 2 and 0.8

If the models were alike, an image's hits could as well be the other's, so every sign is as likely as its opposite
(Fisher's randomisation test for pairs; the added one is Phipson and Smyth 2010: a p of zero would be a lie). Sums are
of whole numbers, so that ties with the observed sum are ties. The interval is the percentile bootstrap over images,
with the draws of `metrics.intervals`.

The least difference seen is the sample size of McNemar's test (Connor 1987, Biometrics 43, 207), where q is the share
of discordant pairs, solved for the difference; with several queries an image, q of their sums [ours]. It takes q as it
was found, so it says what the images can show, not what is true.
"""

import dataclasses
import functools
from statistics import NormalDist

import numpy as np
from jaxtyping import Float, Int, Num

from rococo_jax.metrics.intervals import LEVEL, RESAMPLES, SEED, rows_within, sums_over_draws

FLIPS = 9999
_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """Result of `paired_differences` for one comparison.

    Attributes:
        points: model minus other, in percentage points.
        low, high: the 95 % bootstrap interval of it.
        p: of the two-sided sign-flip test; not corrected for how many comparisons are made.
        least_seen: the smallest difference, in points, that the test finds in 80 % of such samples; None where no
            image differs, which says nothing of how often one would.
    """

    points: float
    low: float
    high: float
    p: float
    least_seen: float | None


def paired_differences(
    hits: Num[np.ndarray, "images comparisons"],
    other: Num[np.ndarray, "images comparisons"],
    queries: Int[np.ndarray, "images comparisons"],
    *,
    flips: int = FLIPS,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> list[PairedDifference]:
    """Many comparisons over one set of images at once; all see the same flips and draws.

    Args:
        hits: how many queries of each image count for the metric, whole numbers.
        other: the same of the model that is compared with.
        queries: how many queries each image has, runs counted.

    >>> one = np.ones((1000, 1), np.int64)
    >>> (found,) = paired_differences(one, 0 * one, one)
    >>> found.points, found.low, found.high, found.p, round(found.least_seen, 2)
    (100.0, 100.0, 100.0, 0.0001, 8.85)
    """
    difference = (hits - other).astype(np.float64)
    total = queries.sum(axis=0)
    # Sums of whole numbers tie exactly; those of shares, such as `blind`, up to rounding.
    least = np.abs(difference.sum(axis=0)) * (1 - 1e-12)
    as_extreme = np.zeros(difference.shape[1], np.int64)
    for signs in _sign_blocks(len(difference), flips, seed):
        as_extreme += (np.abs(signs @ difference) >= least).sum(axis=0)
    points, p = 100.0 * difference.sum(axis=0) / total, (as_extreme + 1) / (flips + 1)
    seen = 100.0 * least_seen((difference**2).mean(axis=0), len(difference)) * len(difference) / total
    columns = np.stack([points, *_bootstrap(difference, queries, resamples, seed), p, seen], axis=1)
    return [
        PairedDifference(points, low, high, p, least if least > 0 else None)
        for points, low, high, p, least in columns.tolist()
    ]


def least_seen(q: Float[np.ndarray, " comparisons"], images: int) -> Float[np.ndarray, " comparisons"]:
    """The smallest mean difference per image that a two-sided paired test at 5 % finds in 80 %; see the module.

    At most the difference at which every d_i is the same: fewer images than that takes show nothing.

    >>> least_seen(np.array([0.25]), 281).round(4)  # 281 images, a quarter of them discordant
    array([0.0832])
    """
    a, b = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(0.8)
    found = np.sqrt(q) * (a * np.sqrt(images) + b * np.sqrt(max(0.0, images + b * b - a * a))) / (images + b * b)
    return np.minimum(found, np.sqrt(q))


def _sign_blocks(images: int, flips: int, seed: int):
    """Blocks of random signs, `(flips at once, images)`. The same for the same seed, whatever the block size."""
    generator, at_once = np.random.default_rng(seed), rows_within(_AT_ONCE, images)
    for start in range(0, flips, at_once):
        rows = min(at_once, flips - start)
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


def _bootstrap(
    difference: Float[np.ndarray, "images comparisons"],
    queries: Int[np.ndarray, "images comparisons"],
    resamples: int,
    seed: int,
) -> Float[np.ndarray, "ends comparisons"]:
    sums, tail = sums_over_draws(np.concatenate([difference, queries], axis=1), resamples, seed), (100.0 - LEVEL) / 2
    drawn = 100.0 * sums[:, : difference.shape[1]] / sums[:, difference.shape[1] :]
    return np.percentile(drawn, [tail, 100.0 - tail], axis=0)
