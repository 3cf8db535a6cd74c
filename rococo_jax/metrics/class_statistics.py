"""Statistics of one model's class probabilities: a few numbers per image, computed from blocks of logits.

    p = softmax(scale z), z a model's cosines (or logits, with scale 1); y the right class
    confidence = max p        nll = -ln p_y        brier = sum_c (p_c - 1[c = y])^2        entropy = -sum p ln p
    mcm = max softmax(z)      energy = ln sum exp z      max_logit = max z      raw_entropy: of softmax(z)

In a tie for the highest probability, a wrong class is predicted. Temperatures divide the scale (Guo et al., arXiv
1706.04599): each half of the images uses the temperature of lowest mean NLL on the other half, found by Newton steps on
ln T, so no temperature is applied where it was fitted. The logits of all images are never in memory at once.
"""

import dataclasses
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from rococo_jax.cores import usable_cores
from rococo_jax.similarity.statistics import Columns

# float64 numbers in a block: 8 MB, of which each worker has a few.
NUMBERS_AT_ONCE = 2**20
_STEPS, _ENOUGH = 40, 1e-7
_LOWEST, _HIGHEST = np.log(1e-3), np.log(1e3)

# A block of images: a run of them, or their numbers.
Run = slice | Int[np.ndarray, "_"]
# Images of a block -> float64 logits of each class.
Block = Callable[[Run], Float[np.ndarray, "images classes"]]


@dataclasses.dataclass(frozen=True, eq=False)
class ClassStatistics(Columns):
    """Statistics with one entry for each image; the module's docstring has the formulas.

    Attributes:
        label: the right class.
        predicted: the most probable class; in a tie, a wrong one.
        rank: rank of the right class, with ties against it; 1 is best.
        tied: whether another class is as probable as the right one, and both are the most probable.
        half: half of the images, 0 or 1, for temperatures.
        scaled_confidence, scaled_nll: with the temperature of the other half.
        temperatures: fitted on half 0 and on half 1.
        scale: factor on the logits.
    """

    label: Int[np.ndarray, " images"]
    predicted: Int[np.ndarray, " images"]
    rank: Int[np.ndarray, " images"]
    tied: Bool[np.ndarray, " images"]
    half: Int[np.ndarray, " images"]
    confidence: Float[np.ndarray, " images"]
    nll: Float[np.ndarray, " images"]
    brier: Float[np.ndarray, " images"]
    entropy: Float[np.ndarray, " images"]
    mcm: Float[np.ndarray, " images"]
    max_logit: Float[np.ndarray, " images"]
    energy: Float[np.ndarray, " images"]
    raw_entropy: Float[np.ndarray, " images"]
    scaled_confidence: Float[np.ndarray, " images"]
    scaled_nll: Float[np.ndarray, " images"]
    temperatures: tuple[float, float]
    scale: float

    shared_fields: ClassVar[tuple[str, ...]] = ("temperatures", "scale")

    @property
    def right(self) -> Bool[np.ndarray, " images"]:
        """Whether the right class is strictly the most probable."""
        return self.rank == 1


def halves(names: Sequence[str]) -> Int[np.ndarray, " images"]:
    """Return 0 or 1 for each image by a hash of its name, independent of the order and of other images."""
    return np.array([hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[0] & 1 for name in names], np.int8)


def class_statistics(
    block: Block,
    label: Int[np.ndarray, " images"],
    half: Int[np.ndarray, " images"],
    classes: int | Int[np.ndarray, " images"],
    scale: float,
    temperatures: tuple[float, float] | None = None,
) -> ClassStatistics:
    """Compute the statistics of each image from `block`.

    Args:
        block: function of a block of images, called several times and from several threads. All images of a block have
            the same number of classes; the block is a slice unless `classes` is an array.
        label: right class of each image; -1 for an out-of-distribution image, which has no rank and no NLL.
        half: 0 or 1.
        classes: number of classes; an array if each image has its own classes.
        scale: factor on the logits of `block`.
        temperatures: use these instead of fitting them.
    """
    runs = _runs_of_images(classes, len(label))
    if temperatures is None:
        temperatures = _fitted(block, label, half, runs, scale)
    other = np.array(temperatures)[1 - half]
    columns = {name: np.empty(len(label), _DTYPES.get(name, np.float64)) for name in ClassStatistics.columns()}
    columns["label"], columns["half"] = label, half

    def measure(run: Run) -> None:
        for name, values in _measured(block(run), label[run], scale, other[run]).items():
            columns[name][run] = values

    deque(_in_threads(measure, runs), maxlen=0)
    return ClassStatistics(**columns, temperatures=temperatures, scale=scale)


_DTYPES = {"predicted": np.int64, "rank": np.int64, "tied": bool}


def _runs_of_images(classes: int | Int[np.ndarray, " images"], images: int) -> list[Run]:
    """Return blocks of images with the same number of classes, small enough for memory."""
    if np.ndim(classes) == 0:
        return [*_runs(images, int(classes))]
    blocks = [(int(size), np.flatnonzero(classes == size)) for size in np.unique(classes)]
    return [rows[run] for size, rows in blocks for run in _runs(len(rows), size)]


def _runs(images: int, classes: int) -> list[slice]:
    size = max(1, NUMBERS_AT_ONCE // max(1, classes))
    return [slice(start, min(start + size, images)) for start in range(0, images, size)]


def _in_threads(function: Callable[[Run], Any], runs: Sequence[Run]) -> Iterator[Any]:
    with ThreadPoolExecutor(min(4, usable_cores()), thread_name_prefix="classes") as pool:
        yield from pool.map(function, runs)


def _measured(
    z: Float[np.ndarray, "images classes"], label: Int[np.ndarray, " images"], scale: float, temperature: np.ndarray
) -> dict[str, np.ndarray]:
    rows, has_label = np.arange(len(z)), label >= 0
    top = z.max(axis=1)
    right_logit = np.where(has_label, z[rows, label], np.inf)
    is_wrong_top = (z == top[:, None]) & (np.arange(z.shape[1]) != label[:, None])
    shifted = z - top[:, None]
    log_sum, entropy, p = _softmax(scale * shifted)
    p[rows[has_label], label[has_label]] -= 1.0
    raw_log_sum, raw_entropy, _ = _softmax(shifted)
    scaled_log_sum = np.log(np.exp((scale / temperature)[:, None] * shifted).sum(axis=1))
    behind = np.where(has_label, top - right_logit, np.nan)
    has_wrong_top = is_wrong_top.any(axis=1)
    return {
        "predicted": np.where(has_wrong_top, is_wrong_top.argmax(axis=1), label),
        "rank": np.where(has_label, (z >= right_logit[:, None]).sum(axis=1), 0),
        "tied": has_wrong_top & (right_logit == top),
        "confidence": np.exp(-log_sum),
        "nll": log_sum + scale * behind,
        "brier": np.square(p).sum(axis=1),
        "entropy": entropy,
        "mcm": np.exp(-raw_log_sum),
        "max_logit": top,
        "energy": top + raw_log_sum,
        "raw_entropy": raw_entropy,
        "scaled_confidence": np.exp(-scaled_log_sum),
        "scaled_nll": scaled_log_sum + (scale / temperature) * behind,
    }


def _softmax(shifted: Float[np.ndarray, "images classes"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the log-sum-exp, the entropy, and the probabilities."""
    p = np.exp(shifted)
    total = p.sum(axis=1)
    p /= total[:, None]
    log_sum = np.log(total)
    return log_sum, log_sum - np.einsum("ij,ij->i", p, shifted), p


def _fitted(
    block: Block, label: np.ndarray, half: np.ndarray, runs: Sequence[Run], scale: float
) -> tuple[float, float]:
    """Return the temperature fitted on each half; 1 for a half without images."""
    log_t, low, high = np.zeros(2), np.full(2, _LOWEST), np.full(2, _HIGHEST)
    has_label = label >= 0
    counts = np.maximum([np.sum(has_label & (half == side)) for side in (0, 1)], 1)

    def slopes(run: Run) -> Float[np.ndarray, "2 halves"]:
        """Return first and second derivative of the summed NLL by b = ln(scale / T), for each half."""
        z, right_class = block(run), label[run]
        shifted = (z - z.max(axis=1)[:, None]) * (scale * np.exp(-log_t[half[run]]))[:, None]
        _, _, p = _softmax(shifted)
        mean = np.einsum("ij,ij->i", p, shifted)
        spread = np.einsum("ij,ij,ij->i", p, shifted, shifted) - mean**2
        first = mean - shifted[np.arange(len(z)), right_class]
        derivatives = np.stack([first, first + spread]) * has_label[run]
        return np.stack([derivatives[:, half[run] == side].sum(axis=1) for side in (0, 1)], axis=1)

    for _ in range(_STEPS):
        first, second = sum(_in_threads(slopes, runs), np.zeros((2, 2))) / counts
        # NLL is convex in the scale b, so the sign of its slope shows on which side the minimum is.
        low, high = np.where(first > 0, log_t, low), np.where(first < 0, log_t, high)
        curved = second > 1e-12
        newton = log_t + np.where(curved, first / np.where(curved, second, 1.0), 0.0)
        inside = curved & (newton > low) & (newton < high)
        step = np.where(first == 0, log_t, np.where(inside, newton, (low + high) / 2)) - log_t
        log_t = log_t + step
        if np.abs(step).max() < _ENOUGH:
            break
    return tuple(float(t) for t in np.exp(log_t))
