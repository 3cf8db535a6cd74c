"""Accuracy of choices between texts for one image, in percent, from similarities; every comparison is strict.

    OTA     share of items with s(c) > s(c_n)                          original test accuracy
    ties    share of items with s(c) = s(c_n)

OTA as The Hard Positive Truth (arXiv 2409.17958) defines it; it is SugarCrepe's accuracy (arXiv 2306.14610). A constant
scorer has 0: an equal score is no right choice.
"""

import numpy as np
from jaxtyping import Float

from rococo_jax.metrics.metric import Metric, share

COUNTED = ("ota", "ties")
METRICS = (
    Metric("ota", "OTA", "higher", "%", "accuracy: the right text scores strictly higher than the wrong one",
           "benchmark", share("ota")),
    Metric("ties", "Ties", "lower", "%", "right and wrong text score the same, which counts as an error", "ours",
           share("ties")),
)  # fmt: skip


def count_choices(
    right: Float[np.ndarray, " items"], wrong: Float[np.ndarray, " items"]
) -> Float[np.ndarray, "items counted"]:
    """1.0 where an item counts for that column of `COUNTED`, else 0.0."""
    return np.stack([right > wrong, right == wrong], axis=1).astype(np.float64)
