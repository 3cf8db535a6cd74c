"""Counts per query or item, metrics as functions of their shares, and their 95 % intervals by image.

The queries of an image (its captions, in text-to-image) belong together, because they are not independent.

    share      `share_interval`: Wilson's interval with the effective number of images. A bootstrap of few hits, or of
               none, is too short.
    distance   `distance_interval`: a sum of absolute values (ECE), which chance alone makes larger than it is
    others     percentile bootstrap (Efron): from the 2.5th to the 97.5th percentile over the draws. Images are drawn
               with replacement, as many as there are. A drop compares two variants on the same draws.

A draw is a count for each image, so all draws of all metrics are one matrix product: counts times sums per image.
Images are sorted by group before drawing, so the order of queries does not matter.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int, UInt16
from scipy import stats

from rococo_jax.metrics.metric import Metric, columns_of, drop

RESAMPLES = 2000
SEED = 0
LEVEL = 95.0
# Maximum size of draws in memory, in bytes. Larger sets are drawn again each time, in blocks of at most this size.
MAX_DRAW_BYTES = 2**27
_DRAWS_AT_ONCE = 100
# Halvings of the interval that a factor is known to lie in: to 1 in 4,096.
_HALVINGS = 12

Interval = list[float] | None


@dataclasses.dataclass(frozen=True, eq=False)
class ItemCounts:
    """Counts for each query or item of one task and variant.

    Attributes:
        counts: value of each item in each column: mostly 0 or 1, or any number for a confidence, a loss or a change.
        group: image of each item; items of one image are resampled together.
        metrics: functions of the columns' shares; drops are measured on the first.
        entries: number of counts that the row of each item sums, such as the pairs of a query; None for one each.
    """

    counts: Float[np.ndarray, "items columns"]
    columns: tuple[str, ...]
    group: Int[np.ndarray, " items"]
    metrics: tuple[Metric, ...]
    entries: Int[np.ndarray, " items"] | None = None

    # Metrics that are not functions of sums over images have `bootstrap(resamples, seed)` instead of `per_image`, and
    # `resamples_of(resamples)`, the number of draws of each.
    has_own_bootstrap: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def primary(self) -> str:
        """Metric on which a drop is measured."""
        return self.metrics[0].name

    def values(self) -> dict[str, float]:
        """Return every metric, in its unit."""
        return {name: float(value) for name, value in self.metrics_of(self.totals()).items()}

    def totals(self) -> Float[np.ndarray, " columns_and_count"]:
        """Return the sum of each column and of the entries."""
        return np.append(self.counts.sum(axis=0), float(len(self) if self.entries is None else self.entries.sum()))

    def per_image(self, images: Int[np.ndarray, " images"]) -> Float[np.ndarray, "images columns_and_count"]:
        """Return sums over the items of each image; `images` are ascending and include all groups of the items."""
        place = places_among(images, self.group)
        # Sums of whole numbers, exact in float64 in any order.
        sums = [np.bincount(place, column, len(images)) for column in self.counts.T]
        return np.column_stack([*sums, np.bincount(place, self.entries, len(images)).astype(np.float64)])

    def metrics_of(self, totals: Float[np.ndarray, "*draws columns_and_count"]) -> dict[str, np.ndarray]:
        # A draw without any item that a metric counts has no value; it is excluded from the percentiles.
        with np.errstate(invalid="ignore"):
            shares = {
                name: np.asarray(100.0 * totals[..., place] / totals[..., -1])
                for place, name in enumerate(self.columns)
            }
            return {metric.name: np.asarray(metric.function(shares)) for metric in self.metrics}


def places_among(images: Int[np.ndarray, " images"], group: Int[np.ndarray, " items"]) -> Int[np.ndarray, " items"]:
    """Return the place of each item's image among `images`, ascending. Raises ValueError: one is not among them."""
    place = np.searchsorted(images, group)
    if (place == len(images)).any() or (images[place] != group).any():
        raise ValueError("an item's image is not among the images")
    return place


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


def mean_of_runs(
    runs: Sequence[Any], clean: ItemCounts | None = None, *, over_seeds: bool = False
) -> dict[str, float | None]:
    """Return the mean of each metric over runs: seeds, kinds of corruption or parts of a benchmark.

    Only several seeds also have the sample standard deviation of each metric, as `r1_std` and so on; that of kinds or
    parts shows how much these differ, not the uncertainty of the mean. With `clean`, the baseline, also `drop` and
    `drop_points` of the primary metric.
    """
    each = [run.values() for run in runs]
    values: dict[str, float | None] = dict(each[0])
    if len(each) > 1:
        stacked = {name: np.array([run[name] for run in each]) for name in _common_metrics(each)}
        values = {name: float(column.mean()) for name, column in stacked.items()}
        if over_seeds:
            values |= {f"{name}_std": float(column.std(ddof=1)) for name, column in stacked.items()}
    if clean is not None:
        values |= drop(clean.values()[clean.primary], values[clean.primary])
    return values


def common_shares(parts: Sequence[ItemCounts]) -> tuple[Metric, ...]:
    """Return the metrics that every part has and that are shares of items, so that items of all parts have them too."""
    names = _common_metrics([{metric.name: metric for metric in part.metrics} for part in parts])
    return tuple(metric for metric in parts[0].metrics if metric.is_share and metric.name in names)


def pool_items(parts: Sequence[ItemCounts]) -> ItemCounts:
    """Return the items of all parts as those of one part, with the columns and `common_shares` of all."""
    columns = tuple(_common_metrics([dict.fromkeys(part.columns) for part in parts]))
    counts = [part.counts[:, [part.columns.index(name) for name in columns]] for part in parts]
    groups = np.concatenate([part.group for part in parts])
    entries = None
    if any(part.entries is not None for part in parts):
        entries = np.concatenate([np.ones(len(part), int) if part.entries is None else part.entries for part in parts])
    return ItemCounts(np.concatenate(counts), columns, groups, common_shares(parts), entries)


def intervals(
    runs: Sequence[Any], clean: ItemCounts | None = None, *, resamples: int = RESAMPLES, seed: int = SEED
) -> dict[str, Interval]:
    """Return `[low, high]` in the metric's unit for the mean of each metric over runs (seeds, kinds or parts).

    A run is a `ItemCounts`, or is `has_own_bootstrap` and has `values()` and `drawn(resamples, seed)`.
    Several runs are resampled with the same images, which are those of any run or the baseline. `clean`, the
    baseline, adds `drop` and `drop_points`. The interval of `drop` is None if the primary metric of the baseline is 0
    in any draw, because the drop is then undefined. A share of numbers that are not whole, such as probabilities, has
    the bootstrap's interval.
    """
    tail = (100.0 - LEVEL) / 2
    ends = [tail, 100.0 - tail]
    if runs[0].has_own_bootstrap:
        of_draws = [run.bootstrap(resamples, seed) for run in runs]
        return {name: _ends(np.mean([each[name] for each in of_draws], axis=0), ends) for name in of_draws[0]}
    every = [*runs, *([] if clean is None else [clean])]
    images = np.unique(np.concatenate([run.group for run in every]))
    widths = np.cumsum([len(run.columns) + 1 for run in every])[:-1]
    per_image = [run.per_image(images) for run in every]
    sums = sums_over_draws(np.concatenate(per_image, axis=1), resamples, seed)
    metrics_of_draws = [run.metrics_of(each) for run, each in zip(every, np.split(sums, widths, axis=1), strict=True)]
    of_runs = metrics_of_draws[: len(runs)]
    values = {name: np.mean([of_run[name] for of_run in of_runs], axis=0) for name in _common_metrics(of_runs)}
    if clean is not None:
        before = metrics_of_draws[-1][clean.primary]
        points = before - values[clean.primary]
        values["drop"] = 100.0 * points / before if before.all() else None
        values["drop_points"] = points
    bounds = {name: None if of_draws is None else _ends(of_draws, ends) for name, of_draws in values.items()}
    of_images = per_image[: len(runs)]
    for metric in [metric for metric in runs[0].metrics if metric.name in bounds]:
        if metric.is_distance:
            of_draws = np.split(sums, widths, axis=1)[: len(runs)]
            bounds[metric.name] = distance_interval(metric, [run.columns for run in runs], of_images, of_draws)
        elif metric.is_share:
            # A share is a sum of columns: of counts as of shares.
            by_run = zip(runs, of_images, strict=True)
            hits = np.stack([metric.function(dict(zip(run.columns, each.T, strict=False))) for run, each in by_run])
            entries = np.stack([each[:, -1] for each in of_images])
            if np.array_equal(hits, np.rint(hits)) and (hits >= 0).all() and (hits <= entries).all():
                bounds[metric.name] = share_interval(hits, entries)
    return bounds


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
    metric: Metric,
    columns: Sequence[Sequence[str]],
    per_image: Sequence[Float[np.ndarray, "images columns_and_count"]],
    of_draws: Sequence[Float[np.ndarray, "draws columns_and_count"]],
) -> Interval:
    """Return the 95 % interval of a sum of absolute values, which noise makes larger than that of the true shares.

    The bootstrap gives the noise of the observed shares s: those of a draw minus s. If the true shares were x s, those
    of a sample would be x s plus such noise. The interval is x times the observed value, over all x for which the
    observed value lies between the 2.5th and the 97.5th percentile of the values of samples (inversion of a test).

    Args:
        columns, per_image, of_draws: of each run; the value is the mean over runs.
    """
    observed, noise = [], []
    for names, of_images, draws in zip(columns, per_image, of_draws, strict=True):
        places, totals = [names.index(name) for name in columns_of(metric, names)], of_images.sum(axis=0)
        observed.append({names[place]: 100.0 * totals[place] / totals[-1] for place in places})
        noise.append({names[place]: 100.0 * draws[:, place] / draws[:, -1] for place in places})
        noise[-1] = {name: drawn - observed[-1][name] for name, drawn in noise[-1].items()}
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


def _common_metrics(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the metrics that every run has, in the order of the first."""
    return [name for name in runs[0] if all(name in run for run in runs)]


def _ends(values: Float[np.ndarray, " draws"], percentiles: list[float]) -> Interval:
    values = values[~np.isnan(values)]
    return [float(end) for end in np.percentile(values, percentiles)] if len(values) else None
