"""The reference corruptions (imagecorruptions-imaug), made to use draws that are handed to them.

With its random numbers replaced by ours every kind becomes deterministic, so the nineteen can be compared pixel by
pixel and not only by their statistics.
"""

import functools
from contextlib import ExitStack
from unittest import mock

import numpy as np
import pytest
from PIL import Image


@functools.cache
def frost_is_read_once() -> None:
    """Has the reference keep its photographs of frost, which it decodes for every image, from here on."""
    cv2 = pytest.importorskip("cv2")
    cv2.imread = functools.cache(cv2.imread)


def reference(name: str, image: np.ndarray, severity: int, draws=None) -> np.ndarray:
    """The reference's corruption of one uint8 image, not yet cut to whole numbers.

    `draws` as `Corruption.draw` gives them, in NumPy.
    """
    kinds = pytest.importorskip("imagecorruptions").corruption_dict
    frost_is_read_once()
    with ExitStack() as stack:
        for target, replacement in {} if draws is None else _INJECT[name](image, severity, draws).items():
            stack.enter_context(mock.patch(target, replacement))
        return np.asarray(kinds[name](Image.fromarray(image), severity))


# Each: what of the reference's libraries gives the draws instead of random numbers.


def _normal(image, severity, draws):
    return {"numpy.random.normal": lambda size, scale=1.0, loc=0.0: loc + scale * np.asarray(draws, np.float64)}


def _poisson(image, severity, draws):
    stats = pytest.importorskip("scipy.stats")
    return {"numpy.random.poisson": lambda mean: np.maximum(stats.poisson.ppf(np.float64(draws), mean), 0)}


def _impulse(image, severity, draws):
    amount = (0.03, 0.06, 0.09, 0.17, 0.27)[severity - 1]
    # The reference draws twice: what flips, and whether it turns white.
    answers = iter([draws, np.where(draws < amount / 2, 0.0, 1.0)])
    generator = mock.Mock(random=lambda shape: next(answers))
    return {"skimage.util.noise.np.random.default_rng": lambda seed: generator}


@functools.cache
def _glass_walk():
    """The reference's walk with offsets that are handed to it; compiled once."""
    import numba

    @numba.njit
    def walk(x, offsets, reach):
        height, width = x.shape[:2]
        for round_ in range(offsets.shape[0]):
            for h in range(height - reach, reach, -1):
                for w in range(width - reach, reach, -1):
                    dy, dx = offsets[round_, h, w]
                    h_prime, w_prime = h + dy, w + dx
                    x[h, w], x[h_prime, w_prime] = x[h_prime, w_prime], x[h, w]
        return x

    return walk


def _glass(image, severity, draws):
    walk = _glass_walk()
    shuffle = "imagecorruptions.corruptions._shuffle_pixels_njit_glass_blur"
    return {shuffle: lambda height, width, x, constants, seed: walk(x, draws, constants[1])}


def _motion(image, severity, draws):
    return {"numpy.random.uniform": lambda low, high: float(draws)}


def _snow(image, severity, draws):
    flakes, angle = draws
    top, left = ((side - kept) // 2 for side, kept in zip(image.shape, flakes.shape, strict=False))
    around = ((top, image.shape[0] - top - len(flakes)), (left, image.shape[1] - left - flakes.shape[1]))
    return _normal(image, severity, np.pad(flakes, around)) | _motion(image, severity, angle)


def _fog(image, severity, draws):
    parts = iter([part for level in draws for part in level])
    return {"numpy.random.uniform": lambda low, high, shape: low + (high - low) * (next(parts) + 1.0) / 2}


def _frost(image, severity, draws):
    pane = np.pad(draws, ((0, 1), (0, 1), (0, 0)))[..., ::-1]  # the reference reads blue first and crops at random
    return {"cv2.resize": lambda *_, **__: pane}


def _elastic(image, severity, draws):
    fields = iter([draws[1], draws[0]])  # across first
    return {"numpy.random.uniform": lambda low, high, size: np.asarray(next(fields), np.float64)}


_INJECT = {
    "gaussian_noise": _normal, "speckle_noise": _normal, "spatter": _normal, "shot_noise": _poisson,
    "impulse_noise": _impulse, "glass_blur": _glass, "motion_blur": _motion, "snow": _snow, "fog": _fog,
    "frost": _frost, "elastic_transform": _elastic,
}  # fmt: skip
