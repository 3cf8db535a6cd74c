"""Draws of images, and 95 % intervals of metrics, which are functions of sums over images (`metrics.counts`).

The queries of an image (its captions, in text-to-image) belong together, because they are not independent.

    share      `share_interval`: Wilson's interval with the effective number of images. A bootstrap of few hits, or of
               none, is too short.
    distance   `distance_interval`: a sum of absolute values (ECE), which chance alone makes larger than it is
    others     percentile bootstrap (Efron): from the 2.5th to the 97.5th percentile over the draws. Images are drawn
               with replacement, as many as there are. A drop compares two variants on the same draws.

A draw is a count for each image, so all draws of all metrics are one matrix product: counts times sums per image.
Images are sorted by group before drawing, so the order of queries does not matter.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist

import numpy as np
from jaxtyping import Float, UInt16
from scipy import stats

from rococo_jax.metrics.metric import Metric

RESAMPLES = 2000
SEED = 0
LEVEL = 95.0
# Maximum size of draws in memory, in bytes. Larger sets are drawn again each time, in blocks of at most this size.
MAX_DRAW_BYTES = 2**27
_DRAWS_AT_ONCE = 100
# Halvings of the interval that a factor is known to lie in: to 1 in 4,096.
_HALVINGS = 12

Interval = list[float] | None


@functools.lru_cache(maxsize=4)
def image_draws(images: int, resamples: int = RESAMPLES, seed: int = SEED) -> UInt16[np.ndarray, "resamples images"]:
    """Return how often each image is in each draw (16 bits); the same seed gives the same draws.

    All draws are in memory; use `draw_blocks` for sets of images of any size.
    """
    counts = np.empty((resamples, images), np.uint16)
    for row, draw in zip(counts, _new_draws(images, resamples, seed), strict=True):
        row[:] = draw
    return counts


def draw_blocks(
    images: int, resamples: int = RESAMPLES, seed: int = SEED, rows: int = _DRAWS_AT_ONCE
) -> Iterator[UInt16[np.ndarray, "rows images"]]:
    """Yield the draws of `image_draws`, at most `rows` at once and never more than `MAX_DRAW_BYTES` bytes."""
    if 2 * images * resamples <= MAX_DRAW_BYTES:
        draws = image_draws(images, resamples, seed)
        yield from (draws[start : start + rows] for start in range(0, resamples, rows))
        return
    draws, rows = _new_draws(images, resamples, seed), rows_within(rows, images)
    yield from map(np.stack, iter(lambda: list(itertools.islice(draws, rows)), []))


def rows_within(rows: int, images: int) -> int:
    """Return how many of `rows` rows of float64 numbers fit into `MAX_DRAW_BYTES` bytes; at least one."""
    return max(1, min(rows, MAX_DRAW_BYTES // (8 * images)))


def _new_draws(images: int, resamples: int, seed: int) -> Iterator[UInt16[np.ndarray, " images"]]:
    generator = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(generator.integers(0, images, images), minlength=images).astype(np.uint16)


def sums_over_draws(
    per_image: Float[np.ndarray, "images columns"], resamples: int = RESAMPLES, seed: int = SEED
) -> Float[np.ndarray, "resamples columns"]:
    """Return the sum of each column in each draw of `image_draws`."""
    return np.concatenate([block @ per_image for block in draw_blocks(len(per_image), resamples, seed)])


# Images of which all queries agree, which the observed agreement within images is averaged with.
_AGREEING = 3.0
# Up to so many hits (or misses), Wilson's lower (or upper) end is replaced by that of a Poisson count.
_FEW = 3.5


def share_interval(hits: Float[np.ndarray, "runs images"], entries: Float[np.ndarray, "runs images"]) -> Interval:
    """Return the 95 % interval of a share, or of the mean of the shares of several runs, in percent.

    It is Wilson's interval of n queries, n the effective number of images. With the share p, and its variance v over
    images, n = p (1 - p) / v, at most the number of queries of a single run. Few images with a hit (or a miss) cannot
    show how much the queries of an image agree, so 1 / n is averaged with that of images whose queries all agree, with
    the weight of `_AGREEING` of the images with a hit; at p = 0 and 1 it is their number. For at most three hits
    Wilson's lower end is too high; it is then that of a Poisson count (Brown, Cai and DasGupta 2001, Statistical
    Science 16, 101).

    >>> [round(end, 1) for end in share_interval(np.zeros((1, 30)), np.ones((1, 30)))]
    [0.0, 11.4]
    """
    totals = entries.sum(axis=1, keepdims=True)
    if not totals.all():
        return None
    rates = hits.sum(axis=1, keepdims=True) / totals
    share = float(rates.mean())
    weight = (entries / totals).mean(axis=0)
    effect = ((hits - rates * entries) / totals).mean(axis=0)
    agreeing, variance = 1.0 / float(np.square(weight).sum()), float(np.square(effect).sum())
    decisive = min(_effective_number(hits / totals), _effective_number((entries - hits) / totals))
    observed = share * (1 - share) / variance if variance else agreeing
    if len(hits) == 1:
        observed = min(observed, float(totals[0, 0]))
    number = (decisive + _AGREEING) / (decisive / observed + _AGREEING / agreeing)
    z = NormalDist().inv_cdf(0.5 + LEVEL / 200)
    middle, shrink = share + z * z / (2 * number), 1 + z * z / number
    half = z * np.sqrt(share * (1 - share) / number + (z / (2 * number)) ** 2)
    low, high = (middle - half) / shrink, (middle + half) / shrink
    if share * number < _FEW:
        low = _poisson_end(share * number) / number
    if (1 - share) * number < _FEW:
        high = 1 - _poisson_end((1 - share) * number) / number
    return [100.0 * max(0.0, float(low)), 100.0 * min(1.0, float(high))]


def _effective_number(counts: Float[np.ndarray, "runs images"]) -> float:
    """Return how many images have counts: as many as there are if all have the same."""
    of_images = counts.mean(axis=0)
    return float(of_images.sum() ** 2 / squares) if (squares := np.square(of_images).sum()) else 0.0


def _poisson_end(count: float) -> float:
    return float(stats.chi2.ppf(1 - LEVEL / 100, 2 * count) / 2) if count > 0 else 0.0


def distance_interval(
    metric: Metric, observed: Sequence[Mapping[str, np.ndarray]], drawn: Sequence[Mapping[str, np.ndarray]]
) -> Interval:
    """Return the 95 % interval of a sum of absolute values, which noise makes larger than that of the true shares.

    The bootstrap gives the noise of the observed shares s: those of a draw minus s. If the true shares were x s, those
    of a sample would be x s plus such noise. The interval is x times the observed value, over all x for which the
    observed value lies between the 2.5th and the 97.5th percentile of the values of samples (inversion of a test).

    Args:
        observed, drawn: shares of each run, and the same on every draw; the value is the mean over runs.
    """
    noise = [
        {name: of_draws[name] - share for name, share in of_run.items()}
        for of_run, of_draws in zip(observed, drawn, strict=True)
    ]
    value = float(np.mean([metric.function(each) for each in observed]))

    def percentile(factor: float, level: float) -> float:
        shares = [
            {name: factor * share + of_run[name] for name, share in each.items()}
            for each, of_run in zip(observed, noise, strict=True)
        ]
        values = np.mean([metric.function(each) for each in shares], axis=0)
        return float(np.percentile(values[~np.isnan(values)], level))

    def factor_at(level: float) -> float:
        low, high = 0.0, 1.0
        if percentile(low, level) >= value:
            return low
        while percentile(high, level) < value:
            high *= 2
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if percentile(middle, level) < value else (low, middle)
        return high

    tail = (100.0 - LEVEL) / 2
    lowest, highest = metric.bounds
    # A value below those of noise alone excludes every factor; the truth is then at most that value.
    high = value * (factor_at(tail) or 1.0)
    return [max(lowest, value * factor_at(100.0 - tail)), min(highest, high)]


def percentile_ends(values: Float[np.ndarray, " draws"]) -> Interval:
    """Return the interval between the percentiles of values on draws, of those that are defined; None without any."""
    tail, values = (100.0 - LEVEL) / 2, values[~np.isnan(values)]
    return [float(end) for end in np.percentile(values, [tail, 100.0 - tail])] if len(values) else None
