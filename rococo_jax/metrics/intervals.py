"""Counts per query or item, metrics as functions of their shares, and bootstrap intervals by image.

Images are drawn with replacement, as many as there are. The queries of an image (its captions, in text-to-image) are
resampled together, because they are not independent. A metric's interval runs from the 2.5th to the 97.5th percentile
of its values over the draws (Efron's percentile interval). A drop compares two variants on the same draws.

A draw is a count for each image, so all draws of all metrics are one matrix product: counts times sums per image.
Images are sorted by group before drawing, so the order of queries does not matter.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int, UInt16

from rococo_jax.metrics.metric import Metric, drop

RESAMPLES = 2000
SEED = 0
LEVEL = 95.0
# Maximum size of draws in memory, in bytes. Larger sets are drawn again each time, in blocks of at most this size.
MAX_DRAW_BYTES = 2**27
_DRAWS_AT_ONCE = 100

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
    in any draw, because the drop is then undefined.
    """
    tail = (100.0 - LEVEL) / 2
    ends = [tail, 100.0 - tail]
    if runs[0].has_own_bootstrap:
        of_draws = [run.bootstrap(resamples, seed) for run in runs]
        return {name: _ends(np.mean([each[name] for each in of_draws], axis=0), ends) for name in of_draws[0]}
    every = [*runs, *([] if clean is None else [clean])]
    images = np.unique(np.concatenate([run.group for run in every]))
    widths = np.cumsum([len(run.columns) + 1 for run in every])[:-1]
    sums = sums_over_draws(np.concatenate([run.per_image(images) for run in every], axis=1), resamples, seed)
    metrics_of_draws = [run.metrics_of(each) for run, each in zip(every, np.split(sums, widths, axis=1), strict=True)]
    of_runs = metrics_of_draws[: len(runs)]
    values = {name: np.mean([of_run[name] for of_run in of_runs], axis=0) for name in _common_metrics(of_runs)}
    if clean is not None:
        before = metrics_of_draws[-1][clean.primary]
        points = before - values[clean.primary]
        values["drop"] = 100.0 * points / before if before.all() else None
        values["drop_points"] = points
    return {name: None if of_draws is None else _ends(of_draws, ends) for name, of_draws in values.items()}


def _common_metrics(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the metrics that every run has, in the order of the first."""
    return [name for name in runs[0] if all(name in run for run in runs)]


def _ends(values: Float[np.ndarray, " draws"], percentiles: list[float]) -> Interval:
    values = values[~np.isnan(values)]
    return [float(end) for end in np.percentile(values, percentiles)] if len(values) else None
