"""Counts summed by image, and metrics as functions of their sums, for comparisons of models.

Metrics of a variant that is pooled over its parts are functions of the sums of all parts, so they have intervals and
paired tests like those of any other variant.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from rococo_jax.metrics.intervals import ItemCounts
from rococo_jax.metrics.metric import Metric, columns_of

# Sums of the counted columns -> value of a metric, for one sum or for many at once.
Statistic = Callable[[Float[np.ndarray, "*draws columns"]], Float[np.ndarray, "*draws"]]


@dataclasses.dataclass(frozen=True, eq=False)
class ImageCounts:
    """Counts of one variant by image.

    Attributes:
        images: names of the images, in the order of the rows.
        counts: sums over the rows of each image.
        metrics: functions of the summed columns, by name.
        entries: columns that count the queries, items or pairs of each metric.
    """

    images: tuple[str, ...]
    counts: Float[np.ndarray, "images columns"]
    metrics: Mapping[str, Statistic]
    entries: Mapping[str, tuple[int, ...]]

    def value(self, metric: str) -> float:
        """Return the metric over all images, in its unit; NaN where it is undefined."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(self.metrics[metric](self.counts.sum(axis=0)))

    def on(self, images: Sequence[str]) -> Float[np.ndarray, "images columns"]:
        """Return the counts of these images, with zeros for absent ones."""
        row = {name: number for number, name in enumerate(self.images)}
        rows = np.array([row.get(name, -1) for name in images], np.int64)
        return np.concatenate([self.counts, np.zeros((1, self.counts.shape[1]))])[rows]

    def has_same_entries(self, other: "ImageCounts", metric: str) -> bool:
        """Whether both count the same number of queries, items or pairs of each image for a metric."""
        pairs = zip(self.entries[metric], other.entries[metric], strict=True)
        return self.images == other.images and all(
            np.array_equal(self.counts[:, one], other.counts[:, two]) for one, two in pairs
        )


def image_counts(
    runs: Sequence[ItemCounts], names: Sequence[str], requested: Collection[str] | None = None
) -> ImageCounts:
    """Return the counts of runs, such as seeds, summed by image.

    Args:
        runs: with the same columns; `group` is a place in `names`.
        names: of images, ascending.
        requested: names of metrics; all by default.
    """
    first = runs[0]
    metrics = [metric for metric in first.metrics if requested is None or metric.name in requested]
    columns_by_metric = {metric.name: columns_of(metric, first.columns) for metric in metrics}
    columns_used = [name for name in first.columns if any(name in columns for columns in columns_by_metric.values())]
    images = np.unique(np.concatenate([run.group for run in runs]))
    # The last column counts entries.
    columns = [*(first.columns.index(name) for name in columns_used), len(first.columns)]
    counts = sum(run.per_image(images)[:, columns] for run in runs)
    return ImageCounts(
        tuple(names[place] for place in images.tolist()),
        np.asarray(counts),
        {metric.name: _statistic(metric, columns_by_metric[metric.name], columns_used) for metric in metrics},
        {metric.name: (len(columns_used),) for metric in metrics},
    )


def _statistic(metric: Metric, names: Sequence[str], columns: Sequence[str]) -> Statistic:
    """Return the metric as a function of sums, of which the one after all `columns` is the number of entries."""
    places = {name: columns.index(name) for name in names}
    function = metric.function
    assert function is not None

    def value(sums: Float[np.ndarray, "*draws columns"]) -> Float[np.ndarray, "*draws"]:
        entries = sums[..., len(columns)]
        shares = {name: np.asarray(100.0 * sums[..., place] / entries) for name, place in places.items()}
        return np.asarray(function(shares))

    return value


def side_by_side(parts: Sequence[ImageCounts]) -> ImageCounts:
    """Return the counts of different metrics of the same variant side by side."""
    images, counts, starts = _joined(parts)
    metrics = {name: _shifted(parts[part].metrics[name], *starts[part]) for part, name in _names(parts)}
    entries = {name: _shift(parts[part].entries[name], starts[part][0]) for part, name in _names(parts)}
    return ImageCounts(images, counts, metrics, entries)


# The name of a baseline's metric beside that of the variant that is compared with it.
BASELINE = "baseline"


def beside_baseline(counts: ImageCounts, baseline: ImageCounts, metric: str) -> ImageCounts:
    """Return one metric of a variant, and as `BASELINE` the same of its baseline, over the images of both."""
    of_variant = dataclasses.replace(counts, metrics={metric: counts.metrics[metric]})
    of_baseline = dataclasses.replace(
        baseline, metrics={BASELINE: baseline.metrics[metric]}, entries={BASELINE: baseline.entries[metric]}
    )
    return side_by_side([of_variant, of_baseline])


def mean_over_parts(parts: Sequence[ImageCounts]) -> ImageCounts:
    """Return the counts of a variant whose metrics are means over parts, each with the same weight."""
    images, counts, starts = _joined(parts)
    shared = [name for name in parts[0].metrics if all(name in part.metrics for part in parts)]
    metrics, entries = {}, {}
    for name in shared:
        of_parts = [_shifted(part.metrics[name], *place) for part, place in zip(parts, starts, strict=True)]
        metrics[name] = _mean_of(of_parts)
        shifted = [_shift(part.entries[name], place[0]) for part, place in zip(parts, starts, strict=True)]
        entries[name] = tuple(column for columns in shifted for column in columns)
    return ImageCounts(images, counts, metrics, entries)


def _mean_of(statistics: Sequence[Statistic]) -> Statistic:
    return lambda sums: np.mean([statistic(sums) for statistic in statistics], axis=0)


def _shifted(statistic: Statistic, start: int, end: int) -> Statistic:
    return lambda sums: statistic(sums[..., start:end])


def _shift(columns: Sequence[int], start: int) -> tuple[int, ...]:
    return tuple(start + column for column in columns)


def _names(parts: Sequence[ImageCounts]) -> list[tuple[int, str]]:
    return [(place, name) for place, part in enumerate(parts) for name in part.metrics]


def _joined(
    parts: Sequence[ImageCounts],
) -> tuple[tuple[str, ...], Float[np.ndarray, "images columns"], list[tuple[int, int]]]:
    """Return the images of any part, the counts of all parts side by side, and the columns of each."""
    images = parts[0].images
    if any(part.images != images for part in parts):
        images = tuple(sorted({name for part in parts for name in part.images}))
        counts = np.concatenate([part.on(images) for part in parts], axis=1)
    else:
        counts = np.concatenate([part.counts for part in parts], axis=1)
    ends = np.cumsum([0, *(part.counts.shape[1] for part in parts)]).tolist()
    return images, counts, list(itertools.pairwise(ends))
