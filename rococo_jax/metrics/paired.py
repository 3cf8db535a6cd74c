"""Paired comparison of models on the same images: difference, interval, test, detectable effect, equivalence.

A metric is a function f of counts that are summed over images, so a comparison needs the counts of each image alone:
c_i of the model, r_i of the reference, and d_i = c_i - r_i. All queries of an image (its captions, its seeds of mixing)
stay together, because they are not independent.

    difference   D = f(sum_i c_i) - f(sum_i r_i)
    swaps        D* = D after swapping the counts of the two models on a random half of the images, `FLIPS` times; the
                 same images for all tests of a family. sigma = root mean square of D*
    family       t* = max of |D*| / sigma over the tests of the family, for each swap
    p            (1 + swaps with |D*| >= |D|) / (1 + FLIPS), of this test alone
    corrected p  (1 + swaps with t* >= |D| / sigma) / (1 + FLIPS)
    c            the smallest value of t* such that a test with |D| / sigma > c has a corrected p below 0.05
    interval     D +- c sigma, simultaneous over the family, within the range of the metric
    MDE          minimum detectable effect E of the corrected test with a power of 80 %:
                 E = c sigma + 0.842 sqrt(sigma^2 - E^2 / images), which is (c + 0.842) sigma for many images
    equivalence  two one-sided t-tests at 5 %, after adding two images of which each model wins one

One number, c, decides everything: the corrected p is below 0.05 if and only if the interval excludes zero, and the MDE
is that of this test. A test outside the family has the c of its own swaps.

If two models were alike, an image's counts could as well be the other's, so every swap is as likely as its opposite
(Fisher's randomisation test for pairs): p is exact for each test. The added one is Phipson and Smyth 2010: a p of zero
would be wrong. The correction is single-step max-T (Westfall and Young 1993). All tests see the same swaps, so their
correlation is taken into account: the smallest corrected p is 1 / (1 + FLIPS) whatever the number of tests. Step-down
max-T rejects a little more, but has no intervals of the same level that agree with it: those of rejected tests would
end at zero (Strassburger and Bretz 2008, Statistics in Medicine 27, 4914). Simultaneous intervals also keep the level
for the claimed direction.

With sigma from the swaps, E is the sample size of McNemar's test (Connor 1987, Biometrics 43, 207) solved for the
difference, with c instead of 1.96; for several queries an image and for other functions it is the same formula [ours].
It takes sigma as it was observed: it states what the images can show, not what is true.

Without the two added images, few discordant images give no spread and so false proof of equivalence. They are the
adjusted Wald interval of Bonett and Price 2012 (Journal of Educational and Behavioral Statistics 37, 479), with the
jackknife's pseudo-values in place of the differences of single pairs, and half an image as correction for continuity.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

from rococo_jax.metrics.counts import Counts, Units
from rococo_jax.metrics.intervals import SEED, rows_within
from rococo_jax.metrics.metric import Metric

FLIPS = 9999
ALPHA = 0.05
POWER = 0.8
_FLIPS_PER_BLOCK = 256
# Differences after swaps that are in memory at once: 80 MB.
_MAX_SWAPPED = 10**7
# Swaps that tie with the observed difference may differ from it in the last digits of a sum.
_TIE = 1e-9

Verdict = Literal[
    "better",
    "worse",
    "equivalent",
    "undecided",
    "identical answers",
    "at chance",
    "text bias",
    "less text bias",
    "different",
]


# Counts of the model and of the reference, with the same metrics.
Pair = tuple[Counts, Counts]


@dataclasses.dataclass(frozen=True, eq=False)
class _Comparison:
    """Two models on the same images; an image without queries has zeros.

    Attributes:
        model, reference: counts of each image.
        images: number of each row's image in the family.
        counts: both counts, which compute metrics of sums.
    """

    model: Float[np.ndarray, "images columns"]
    reference: Float[np.ndarray, "images columns"]
    images: Int[np.ndarray, " images"]
    counts: Pair

    @classmethod
    def of(cls, pair: Pair, family: Units) -> "_Comparison":
        model, reference = pair
        units = np.union1d(model.units, reference.units)
        return cls(model.on(units), reference.on(units), np.searchsorted(family, units), pair)

    def difference(
        self, metric: str, model: Float[np.ndarray, "*swaps columns"], reference: Float[np.ndarray, "*swaps columns"]
    ) -> Float[np.ndarray, "*swaps"]:
        """Return the difference of a metric, or of its distance from its neutral value, of sums of counts."""
        about = self.counts[0].metrics[metric]
        one, other = (counts.of(metric, sums) for counts, sums in zip(self.counts, (model, reference), strict=True))
        if about.neutral is not None:
            one, other = np.abs(one - about.neutral), np.abs(other - about.neutral)
        with np.errstate(invalid="ignore"):
            return np.asarray(one - other)

    def observed(self) -> dict[str, float]:
        """Return the difference in each metric that both models have a value of."""
        model, reference = self.model.sum(axis=0), self.reference.sum(axis=0)
        values = {name: float(self.difference(name, model, reference)) for name in self.counts[0].metrics}
        return {name: value for name, value in values.items() if np.isfinite(value)}

    def pseudo_values(self, metric: str) -> Float[np.ndarray, " images_with_queries"]:
        """Return the jackknife's pseudo-values of a difference, which leave out one image with queries at a time."""
        has_queries = self.model.any(axis=1) | self.reference.any(axis=1)
        model, reference = self.model[has_queries], self.reference[has_queries]
        of_model, of_reference, images = model.sum(axis=0), reference.sum(axis=0), len(model)
        left_out = self.difference(metric, of_model - model, of_reference - reference)
        return images * self.difference(metric, of_model, of_reference) - (images - 1) * left_out


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """Difference between two models in one metric.

    Attributes:
        points: model minus reference, in the unit of the metric.
        low, high: 95 % interval, simultaneous over the family.
        p: of the two-sided test alone.
        p_corrected: corrected over the family; None for a test outside of it.
        mde: minimum detectable effect; None if no image differs, which says nothing about how often one would.
        images: number of images with a query.
        smallest_margin: the smallest margin within which the models are shown to be equivalent.
        is_identical: whether no image differs; the interval is then that of the rule of three.
        sigma: root mean square of the difference after swaps.
        critical: c, the number of sigmas beyond which the difference is significant.
    """

    points: float
    low: float
    high: float
    p: float
    p_corrected: float | None = None
    mde: float | None = None
    images: int = 0
    smallest_margin: float = np.inf
    is_identical: bool = False
    sigma: float = 0.0
    critical: float = np.inf

    @property
    def spread(self) -> float:
        """Root mean square of the difference of one image; sigma is this over the square root of the images."""
        return self.sigma * self.images**0.5

    def verdict(self, metric: Metric, margin: float | None = None) -> Verdict:
        """Judge the model against the reference.

        Args:
            metric: which end is better. Of a metric with a neutral value, `points` is the change of the distance from
                it.
            margin: differences smaller than this do not matter; None to decide on significance alone.

        Returns:
            `equivalent` if the difference is shown to be smaller than the margin, even where it is significant;
            `identical answers` if no image differs; `undecided` if the interval includes zero; else the direction of
            the difference.
        """
        if margin is not None and self.smallest_margin < margin:
            return "equivalent"
        if self.is_identical:
            return "identical answers"
        if self.low <= 0 <= self.high:
            return "undecided"
        if metric.neutral is not None:
            return "text bias" if self.points > 0 else "less text bias"
        if metric.better is None:
            return "different"
        return "better" if (self.points > 0) == (metric.better == "higher") else "worse"


def paired_differences(
    pairs: Sequence[Pair],
    in_family: Callable[[int, str], bool] = lambda comparison, metric: True,
    *,
    flips: int = FLIPS,
    seed: int = SEED,
) -> list[dict[str, PairedDifference]]:
    """Compare models in all metrics of all comparisons, with the same swaps; see the module for the formulas.

    Args:
        pairs: counts of a model and of the reference, with the same columns.
        in_family: whether a test (place of the pair, name of the metric) is corrected with the others.

    Returns:
        For each pair the difference in each of its metrics. A metric without a value for one of the two models
        is left out.

    >>> r1 = Metric("r1", "R@1", "higher", "%", "", "ours", lambda shares: shares["r1"])
    >>> pair = (Counts.of_rows({"r1": np.full(1000, right)}, np.arange(1000), [r1]) for right in (1.0, 0.0))
    >>> (result,) = paired_differences([tuple(pair)])
    >>> result["r1"].points, round(result["r1"].low), result["r1"].high, result["r1"].p, round(result["r1"].mde)
    (100.0, 94, 100.0, 0.0001, 9)
    """
    units = np.unique(np.concatenate([each.units for pair in pairs for each in pair])) if pairs else np.empty(0)
    comparisons = [_Comparison.of(pair, units) for pair in pairs]
    observed, images = [comparison.observed() for comparison in comparisons], len(units)
    family = [[name for name in values if in_family(place, name)] for place, values in enumerate(observed)]
    maxima = np.zeros(flips)
    alone: list[dict[str, _Swaps]] = [{} for _ in comparisons]
    for places in _chunks(observed, flips):
        tests = [(place, name) for place in places for name in observed[place]]
        if not tests:
            continue
        swapped = _swapped_differences(comparisons, tests, images, flips, seed)
        for (place, name), column in zip(tests, swapped, strict=True):
            is_finite = np.isfinite(column)
            sigma = float(np.sqrt(np.mean(column[is_finite] ** 2))) if is_finite.any() else np.inf
            if sigma <= _TIE * max(1.0, abs(observed[place][name])):
                sigma = 0.0
            statistics = np.abs(column, out=column)
            p = _p_value(statistics, abs(observed[place][name]))
            statistics = np.divide(statistics, sigma, out=statistics) if sigma else np.zeros(flips)
            alone[place][name] = _Swaps(sigma, p, critical_value(statistics))
            if name in family[place]:
                np.maximum(maxima, statistics, out=maxima)
    size, critical = sum(map(len, family)), critical_value(maxima)
    results: list[dict[str, PairedDifference]] = [{} for _ in comparisons]
    for place, (comparison, values) in enumerate(zip(comparisons, observed, strict=True)):
        for name, points in values.items():
            swaps, is_primary = alone[place][name], name in family[place]
            low, high = comparison.counts[0].metrics[name].bounds
            results[place][name] = _difference(
                points,
                swaps,
                critical if is_primary else swaps.critical,
                _p_value(maxima, abs(points) / (swaps.sigma or np.inf)) if is_primary else None,
                comparison.pseudo_values(name),
                high - low,
                size if is_primary else 1,
            )
    return results


@dataclasses.dataclass(frozen=True)
class _Swaps:
    """Results of the swaps of one test: the spread of D*, the uncorrected p, and c if the test were alone."""

    sigma: float
    p: float
    critical: float


def _difference(
    points: float,
    swaps: _Swaps,
    critical: float,
    p_corrected: float | None,
    pseudo_values: Float[np.ndarray, " images"],
    value_range: float,
    family_size: int,
) -> PairedDifference:
    images, sigma = len(pseudo_values), swaps.sigma
    # Of n images without a difference, an image differs in at most about 3 / n of the cases (rule of three).
    half_width = critical * sigma if sigma else value_range * np.log(family_size / ALPHA) / images
    mde = minimum_detectable_effect(sigma, images, critical) if np.isfinite(critical * sigma) else 0.0
    return PairedDifference(
        points,
        float(max(points - half_width, -value_range)),
        float(min(points + half_width, value_range)),
        p=swaps.p,
        p_corrected=p_corrected,
        mde=mde or None,
        images=images,
        smallest_margin=smallest_margin(points, pseudo_values, value_range),
        is_identical=sigma == 0.0,
        sigma=sigma,
        critical=critical,
    )


def minimum_detectable_effect(sigma: float, images: int, critical: float) -> float:
    """The smallest difference that a test with this critical value finds in 80 % of such samples; see the module.

    At most the difference at which every image has the same effect: fewer images than that takes show nothing.

    >>> round(minimum_detectable_effect(100 * (0.25 / 281) ** 0.5, 281, 1.96), 2)  # a quarter of 281 images discordant
    8.32
    """
    a, b = critical, NormalDist().inv_cdf(POWER)
    largest = sigma * np.sqrt(images)
    root = np.sqrt(max(0.0, images + b * b - a * a))
    return float(min(largest, largest * (a * np.sqrt(images) + b * root) / (images + b * b)))


def smallest_margin(points: float, pseudo_values: Float[np.ndarray, " images"], value_range: float) -> float:
    """Return the smallest margin within which two one-sided tests at 5 % show equivalence; see the module.

    Args:
        points: the difference.
        pseudo_values: of the jackknife: the difference of each image, where the metric is a mean over images.
        value_range: difference that an image can have at most; without a bound, the largest one that an image has.
    """
    if not np.isfinite(value_range):
        value_range = float(np.abs(pseudo_values).max(initial=0.0))
    images = len(pseudo_values) + 2
    if images < 4 or not value_range:
        return np.inf
    mean = points * (images - 2) / images
    squares = np.square(pseudo_values - pseudo_values.mean() + points).sum() + 2 * value_range**2
    error = np.sqrt(max(0.0, squares / images - mean**2) / (images - 1))
    return float(abs(mean) + 0.5 * value_range / images + stats.t.ppf(1 - ALPHA, images - 1) * error)


def least_margin(images: int) -> float:
    """Return the smallest margin, in percentage points, that this many images can show (rule of three).

    >>> least_margin(30), least_margin(5000)
    (10.0, 0.06)
    """
    return 300.0 / images


def critical_value(statistics: Float[np.ndarray, " flips"]) -> float:
    """Return c: a test is significant at 5 % if and only if its statistic is larger; see the module."""
    flips = len(statistics)
    more_extreme = int(np.ceil(ALPHA * (flips + 1))) - 2  # so many swaps may be as extreme as a significant difference
    if more_extreme < 0:
        return np.inf
    return float(np.partition(statistics, flips - 1 - more_extreme)[flips - 1 - more_extreme] / (1 - _TIE))


def _p_value(swapped: Float[np.ndarray, " flips"], observed: float) -> float:
    return (int((swapped >= observed * (1 - _TIE)).sum()) + 1) / (len(swapped) + 1)


def _chunks(observed: Sequence[Mapping[str, float]], flips: int) -> Iterator[list[int]]:
    """Yield runs of comparisons whose differences after all swaps are in memory at once."""
    places: list[int] = []
    tests = 0
    for place, values in enumerate(observed):
        if places and (tests + len(values)) * flips > _MAX_SWAPPED:
            yield places
            places, tests = [], 0
        places.append(place)
        tests += len(values)
    yield places


def _swapped_differences(
    comparisons: Sequence[_Comparison], tests: Sequence[tuple[int, str]], images: int, flips: int, seed: int
) -> Float[np.ndarray, "tests flips"]:
    """Return differences after random swaps. An undefined value counts as more extreme than any other."""
    by_images: dict[bytes, list[int]] = {}
    for place in dict.fromkeys(place for place, _ in tests):
        by_images.setdefault(comparisons[place].images.tobytes(), []).append(place)
    halves = {
        key: np.concatenate([(comparisons[place].model - comparisons[place].reference) / 2 for place in places], axis=1)
        for key, places in by_images.items()
    }
    middles = {place: (each.model + each.reference).sum(axis=0) / 2 for place, each in enumerate(comparisons)}
    swapped, start = np.empty((len(tests), flips)), 0
    for signs in sign_blocks(images, flips, seed):
        block = slice(start, start := start + len(signs))
        sums: dict[int, np.ndarray] = {}
        for key, places in by_images.items():
            ends = np.cumsum([comparisons[place].model.shape[1] for place in places])[:-1]
            signed = signs[:, comparisons[places[0]].images] @ halves[key]
            sums |= zip(places, np.split(signed, ends, axis=1), strict=True)
        for number, (place, name) in enumerate(tests):
            difference = comparisons[place].difference(name, middles[place] + sums[place], middles[place] - sums[place])
            swapped[number, block] = np.where(np.isfinite(difference), difference, np.inf)
    return swapped


def sign_blocks(images: int, flips: int, seed: int) -> Iterator[Float[np.ndarray, "flips images"]]:
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
