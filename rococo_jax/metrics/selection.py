"""Discriminative samples: images on which corruption changes what models say, no two of them alike.

    v(i) = mean over models and corruptions of [the answer changed];  images with v = 0 are left out
    next = argmax over the others of  a v(i) + (1 - a) d(i),  d(i) the cosine distance to the nearest chosen one

The rule is this project's; Bench-C (arXiv 2511.19032) selects by inconsistency, then by diversity.
"""

import numpy as np
from jaxtyping import Float, Int


def select_greedily(
    inconsistency: Float[np.ndarray, " images"],
    vectors: Float[np.ndarray, "images width"] | None,
    count: int,
    weight: float,
) -> tuple[Int[np.ndarray, " chosen"], Float[np.ndarray, " chosen"], Int[np.ndarray, " chosen"]]:
    """The chosen images in order, the distance of each to the nearest before it, and which that is (-1 for none).

    Ties go to the earlier image. Without vectors, and for the first image, inconsistency decides alone.

    Args:
        inconsistency: v, from 0 to 1.
        vectors: of the images, any length.
        count: how many at most.
        weight: a, from 0 to 1.
    """
    left = inconsistency > 0
    unit = None
    if vectors is not None:
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        unit = vectors / np.where(norms > 0, norms, 1.0)
    distance, nearest = np.full(len(inconsistency), np.inf), np.full(len(inconsistency), -1)
    chosen, distances, before = [], [], []
    while left.any() and len(chosen) < count:
        spread = distance if chosen and unit is not None else np.zeros(len(inconsistency))
        # Rounded, so that sums in another order do not decide between equals.
        score = np.where(left, np.round(weight * inconsistency + (1 - weight) * spread, 12), -np.inf)
        one = int(score.argmax())
        left[one] = False
        chosen.append(one)
        distances.append(distance[one])
        before.append(nearest[one])
        if unit is not None:
            to_chosen = 1.0 - unit @ unit[one]
            nearest = np.where(to_chosen < distance, one, nearest)
            distance = np.minimum(to_chosen, distance)
    return np.array(chosen, int), np.array(distances), np.array(before, int)
