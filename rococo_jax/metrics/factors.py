"""Effective robustness: is a model better on a subset than its accuracy on all images foretells?

    line       Huber regression over models of probit(accuracy on the subset) on probit(accuracy on all)
    effective  accuracy on the subset - accuracy that the line foretells, in points

After Taori et al. (arXiv 2007.00644); the robust line is this project's. Intervals redraw images, the line stays.
"""

import dataclasses
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool, Float

from rococo_jax.metrics.intervals import image_draws
from rococo_jax.metrics.published_field import huber_line

# Fewer models make no line; fewer images no claim.
LEAST_MODELS, LEAST_IMAGES = 5, 200
_DRAWS = 500
_probit = np.vectorize(NormalDist().inv_cdf, otypes=[float])
_share = np.vectorize(NormalDist().cdf, otypes=[float])


@dataclasses.dataclass(frozen=True, eq=False)
class Factor:
    """One factor over models.

    Attributes:
        images: in the subset.
        line: slope and intercept on probit axes; None with too few models or images.
        all, subset: accuracy of each model, in percent.
        effective: points above the line, and the interval of each; None without a line.
    """

    images: int
    line: tuple[float, float] | None
    all: Float[np.ndarray, " models"]
    subset: Float[np.ndarray, " models"]
    effective: Float[np.ndarray, "models 3"] | None


def probit(share: Float[np.ndarray, " models"], images: int) -> Float[np.ndarray, " models"]:
    """The normal quantile of shares from 0 to 1; none is nearer to 0 or 1 than half an image."""
    return _probit(np.clip(share, 0.5 / images, 1 - 0.5 / images))


def foretold(line: tuple[float, float], across: Float[np.ndarray, " models"]) -> Float[np.ndarray, " models"]:
    """The share on the subset that the line has at these probits."""
    return _share(line[0] * across + line[1])


def measure_factor(right: Bool[np.ndarray, "models images"], within: Bool[np.ndarray, " images"]) -> Factor:
    """One factor, from which model is right on which image, and which images are in the subset."""
    images, many = right.shape[1], int(within.sum())
    every, subset = right.mean(axis=1), right[:, within].mean(axis=1)
    if len(right) < LEAST_MODELS or many < LEAST_IMAGES:
        return Factor(many, None, 100 * every, 100 * subset, None)
    line = huber_line(probit(every, images), probit(subset, many))
    effective = 100 * (subset - foretold(line, probit(every, images)))
    drawn = []
    for counts in image_draws(images, _DRAWS):
        of_all = right @ counts / images
        inside = counts[within]
        of_subset = right[:, within] @ inside / max(1, inside.sum())
        drawn.append(100 * (of_subset - foretold(line, probit(of_all, images))))
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    return Factor(many, line, 100 * every, 100 * subset, np.stack([effective, low, high], axis=1))
