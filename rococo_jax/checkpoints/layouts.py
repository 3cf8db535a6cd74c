"""`Transform`: how one parameter of ours and one or several tensors of a checkpoint are laid out.

Transforms of formats that can be exported only move numbers, so that a round trip gives the same bits. The way back
also computes the shapes that a checkpoint must have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Transform:
    """A pair of inverse functions: `to_ours(theirs) -> ours` and `to_theirs(ours, count) -> theirs`.

    `count` is the number of tensors that make up one parameter.
    """

    to_ours: Callable[[Sequence[np.ndarray]], np.ndarray]
    to_theirs: Callable[[np.ndarray, int], list[np.ndarray]]


def leading_ones(axes: int) -> Transform:
    """Return the transform for a tensor with `axes` more axes of length 1 in front."""
    return Transform(
        to_ours=lambda theirs: theirs[0].reshape(theirs[0].shape[axes:]),
        to_theirs=lambda ours, _: [ours.reshape((1,) * axes + ours.shape)],
    )


def without_first(count: int) -> Transform:
    """Return the transform for a tensor with `count` more rows in front that nothing reads; they are exported as 0."""
    return Transform(
        to_ours=lambda theirs: theirs[0][count:],
        to_theirs=lambda ours, _: [np.concatenate([np.zeros((count, *ours.shape[1:]), ours.dtype), ours])],
    )


def constant(array: np.ndarray) -> Transform:
    """Return the transform for a parameter that no checkpoint stores."""
    return Transform(to_ours=lambda _: array, to_theirs=lambda *_: [])


def patch(size: int | None = None) -> Transform:
    """Return the transform for a convolution whose stride is the size of its kernel.

    Theirs is (outputs, channels, rows, columns), ours (rows x columns x channels, outputs). `size` is the side of the
    kernel; by default it is computed for three channels.
    """

    def to_theirs(ours: np.ndarray, _: int) -> list[np.ndarray]:
        side = size or round((ours.shape[0] / 3) ** 0.5)
        return [ours.reshape(side, side, -1, ours.shape[1]).transpose(3, 2, 0, 1)]

    return Transform(lambda theirs: theirs[0].transpose(2, 3, 1, 0).reshape(-1, theirs[0].shape[0]), to_theirs)


# Unchanged. Several tensors are concatenated along the last axis, such as the biases of queries, keys and values.
SAME = Transform(
    to_ours=lambda theirs: theirs[0] if len(theirs) == 1 else np.concatenate(theirs, axis=-1),
    to_theirs=lambda ours, count: [ours] if count == 1 else np.split(ours, count, axis=-1),
)
# The weight of a linear layer of torch, (outputs, inputs); ours is (inputs, outputs), several side by side.
KERNEL = Transform(
    to_ours=lambda theirs: np.concatenate([weight.T for weight in theirs], axis=-1),
    to_theirs=lambda ours, count: [kernel.T for kernel in np.split(ours, count, axis=-1)],
)
# The biases of queries and values. Keys have none, which equals a bias of zeros.
QUERY_VALUE_BIAS = Transform(
    to_ours=lambda theirs: np.concatenate([theirs[0], np.zeros_like(theirs[0]), theirs[1]]),
    to_theirs=lambda ours, _: np.split(ours, 3, axis=-1)[::2],
)
# The weight or bias of queries, and one of keys and values together.
QUERY_AND_KEY_VALUE_KERNEL = Transform(
    to_ours=KERNEL.to_ours,
    to_theirs=lambda ours, _: [part.T for part in np.split(ours, [ours.shape[-1] // 3], axis=-1)],
)
QUERY_AND_KEY_VALUE_BIAS = Transform(
    to_ours=SAME.to_ours, to_theirs=lambda ours, _: np.split(ours, [ours.shape[-1] // 3], axis=-1)
)
# A convolution over patches of pixels, one over 2 x 2 cells, and one over single cells.
PATCH, PATCH_2X2, POINT = patch(), patch(2), patch(1)
# A convolution: theirs (outputs, inputs, rows, columns), ours (rows, columns, inputs, outputs).
CONVOLUTION = Transform(
    to_ours=lambda theirs: theirs[0].transpose(2, 3, 1, 0),
    to_theirs=lambda ours, _: [ours.transpose(3, 2, 0, 1)],
)
