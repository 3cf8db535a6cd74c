"""95 % bootstrap intervals, resampled by image.

Images are drawn with replacement, as many as there are; the queries of an image (its captions, in text-to-image) come
and go together, because they are not independent. A metric's interval runs from the 2.5th to the 97.5th percentile of
its values over the draws (Efron's percentile interval). The clean and the altered run of a drop use the same draws.

A draw is a count for each image, so all draws of all metrics are one matrix product: counts times hits per image.
Images are put in the order of their group before drawing, so the order of queries does not matter.
"""

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, UInt16

from rococo_jax.metrics.retrieval import COUNTED, hits, metrics_of_counts
from rococo_jax.similarity.statistics import RankStatistics

RESAMPLES = 2000
SEED = 0
LEVEL = 95.0
_DRAWS_AT_ONCE = 100

Interval = list[float] | None


@functools.lru_cache(maxsize=4)
def image_draws(images: int, resamples: int = RESAMPLES, seed: int = SEED) -> UInt16[np.ndarray, "resamples images"]:
    """How often each image is in each draw (16-bit counts). Same seed, same draws."""
    generator = np.random.default_rng(seed)
    counts = np.empty((resamples, images), np.uint16)
    for start in range(0, resamples, _DRAWS_AT_ONCE):
        rows = min(_DRAWS_AT_ONCE, resamples - start)
        drawn = generator.integers(0, images, (rows, images)) + images * np.arange(rows)[:, None]
        counts[start : start + rows] = np.bincount(drawn.ravel(), minlength=rows * images).reshape(rows, images)
    return counts


def retrieval_intervals(
    statistics: RankStatistics | Sequence[RankStatistics],
    protocol: str,
    image: Int[np.ndarray, "queries"],
    *,
    clean: RankStatistics | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, Interval]:
    """`[low, high]` in percent for every metric.

    Args:
        statistics: one entry per query; or several runs over the same queries, whose mean is meant.
        protocol: `paper`, `strict` or `control`.
        image: the image that each query is, or belongs to.
        clean: statistics of the same queries on the clean gallery; adds `drop` and `drop_points`. The interval of
            `drop` is None where in some draw the clean R@1 is 0, because its drop is not defined.
        resamples: how many draws.
        seed: of the draws.
    """
    _, image = np.unique(image, return_inverse=True)
    runs = [statistics] if isinstance(statistics, RankStatistics) else statistics
    drawn_runs = [_over_draws(run, protocol, image, resamples, seed) for run in runs]
    values = {name: np.mean([drawn[name] for drawn in drawn_runs], axis=0) for name in drawn_runs[0]}
    if clean is not None:
        clean_r1 = _over_draws(clean, protocol, image, resamples, seed)["r1"]
        points = clean_r1 - values["r1"]
        values["drop"] = 100.0 * points / clean_r1 if clean_r1.all() else None
        values["drop_points"] = points
    tail = (100.0 - LEVEL) / 2
    return {
        name: None if drawn is None else [float(end) for end in np.percentile(drawn, [tail, 100.0 - tail])]
        for name, drawn in values.items()
    }


def _over_draws(
    statistics: RankStatistics, protocol: str, image: np.ndarray, resamples: int, seed: int
) -> dict[str, Float[np.ndarray, "resamples"]]:
    """The value of each metric in each draw."""
    images = int(image.max()) + 1
    per_image = np.zeros((images, len(COUNTED) + 1))
    # Sums of whole numbers, exact in float64 in any order.
    np.add.at(per_image, image, np.column_stack([hits(statistics, protocol), np.ones(len(image))]))
    draws = image_draws(images, resamples, seed)
    parts = [draws[start : start + _DRAWS_AT_ONCE] @ per_image for start in range(0, resamples, _DRAWS_AT_ONCE)]
    totals = np.concatenate(parts)
    return metrics_of_counts(totals[:, :-1], totals[:, -1])
