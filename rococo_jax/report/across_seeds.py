"""Runs of several seeds beside each other, from the hits of each image of each: values, and on draws of images.

Images are drawn with replacement as in `metrics.intervals`; the queries of an image come and go together, and all runs
are drawn with the same images. So an interval of a mean over runs says what other images would have given, and the
spread over runs what other seeds would have.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from rococo_jax.errors import InputError
from rococo_jax.evaluation.per_image import ImageHits
from rococo_jax.metrics.intervals import sums_over_draws


def over_draws(runs: Sequence[ImageHits]) -> tuple[Float[np.ndarray, " runs"], Float[np.ndarray, "draws runs"]]:
    """A metric of each run in per cent, and the same on every draw of the images.

    Raises InputError: the runs were evaluated on different images.
    """
    if any(run.images != runs[0].images for run in runs):
        sizes = sorted({len(run.images) for run in runs})
        raise InputError("runs", "images", f"different ones ({sizes} of them)", "runs evaluated on the same images")
    columns = np.stack([*(100.0 * run.hits for run in runs), runs[0].queries], axis=1)
    total, sums = columns.sum(0), sums_over_draws(columns)
    return total[:-1] / total[-1], sums[:, :-1] / sums[:, -1:]


def interval(drawn: Float[np.ndarray, " draws"]) -> list[float]:
    """The 95 % interval of values over draws."""
    return [float(value) for value in np.percentile(drawn, [2.5, 97.5])]


def spread(each: Float[np.ndarray, " runs"]) -> float | None:
    """The sample standard deviation over runs; None of a single one."""
    return float(each.std(ddof=1)) if len(each) > 1 else None
