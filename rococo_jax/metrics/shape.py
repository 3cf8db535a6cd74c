"""Shape bias: the answers for images whose outline is of one class and whose texture is of another.

shape bias      N_shape / (N_shape + N_texture) over images whose two labels differ; predictions of neither are
                left out (Geirhos et al. 2019, arXiv 1811.12231)
"""

import dataclasses

import numpy as np
from jaxtyping import Int

from rococo_jax.metrics.class_statistics import ClassStatistics
from rococo_jax.metrics.classify import BinnedCounted
from rococo_jax.metrics.metric import Metric, Shares, percent


def _bias(shares: Shares) -> np.ndarray:
    return np.asarray(100.0 * shares["saw_shape"] / (shares["saw_shape"] + shares["saw_texture"]))


METRICS = (
    Metric("shape_bias", "Shape bias", None, "%", "share of shape among answers by shape or texture, where the two "
           "differ", "benchmark", _bias),
    percent("saw_texture", "Texture", None, "the answer is the class of the texture, where the two differ",
            "benchmark"),
)  # fmt: skip


def seen(statistics: ClassStatistics, texture: Int[np.ndarray, " images"]) -> tuple[np.ndarray, np.ndarray]:
    """Images answered by shape and by texture, where the two differ."""
    conflict = statistics.label != texture
    return conflict & statistics.right, conflict & ~statistics.right & (statistics.predicted == texture)


def count_shapes(
    counted: BinnedCounted, statistics: ClassStatistics, texture: Int[np.ndarray, " images"]
) -> BinnedCounted:
    """The counts with those of shape and texture."""
    columns_of_shape = np.stack(seen(statistics, texture), axis=1).astype(np.float64)
    dense = counted.counts.shape[1]
    columns = (*counted.columns[:dense], "saw_shape", "saw_texture", *counted.columns[dense:])
    metrics = METRICS if columns_of_shape.any() else METRICS[1:]
    metrics = (counted.metrics[0], *metrics, *counted.metrics[1:])
    counts = np.concatenate([counted.counts, columns_of_shape], axis=1)
    return dataclasses.replace(counted, counts=counts, columns=columns, metrics=metrics)


def shape_shares(
    statistics: ClassStatistics, texture: Int[np.ndarray, " images"], classes: tuple[str, ...]
) -> dict[str, list[int]]:
    """Of each class of shape, how many images were answered by shape and by texture."""
    counts = [np.bincount(statistics.label[each], minlength=len(classes)) for each in seen(statistics, texture)]
    return {name: [int(shape), int(texture)] for name, shape, texture in zip(classes, *counts, strict=True)}
