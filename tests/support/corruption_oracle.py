"""The reference corruptions, made to use draws that are handed to them.

With its random numbers replaced by ours every kind becomes deterministic, so the nineteen can be compared pixel by
pixel and not only by their statistics.

ImageNet-C is defined by hendrycks/robustness, which needs ImageMagick. Its copy imagecorruptions-imaug is here for most
kinds; where it departs from the original, the original's step is put back: zooms are trimmed to the middle (zoom blur,
snow), flakes of snow are bytes before they are blurred and after it, pixels are enlarged by a box filter, five panes of
frost are drawn from, and the elastic transform is another one, written here with SciPy.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import pytest
from PIL import Image


@functools.cache
def frost_is_read_once() -> None:
    """Have the reference keep its photographs of frost, which it would decode again for every image."""
    cv2 = pytest.importorskip("cv2")
    cv2.imread = functools.cache(cv2.imread)


def reference(name: str, image: np.ndarray, severity: int, draws=None) -> np.ndarray:
    """The reference's corruption of one uint8 image, not yet cut to whole numbers.

    `draws` as `Corruption.draw` gives them, in NumPy.
    """
    if name == "elastic_transform":
        return elastic_transform(image, severity, *draws)
    kinds = pytest.importorskip("imagecorruptions").corruption_dict
    frost_is_read_once()
    with as_published(name), ExitStack() as stack:
        for target, replacement in {} if draws is None else _INJECT[name](image, severity, draws).items():
            stack.enter_context(mock.patch(target, replacement))
        return np.asarray(kinds[name](Image.fromarray(image), severity))


def at_random(name: str, image: np.ndarray, severity: int) -> np.ndarray:
    """The reference's corruption of one uint8 image with draws of NumPy's global generator."""
    if name == "elastic_transform":
        draws = np.random.uniform(-1, 1, (3, 2)), np.random.uniform(-1, 1, (2, *image.shape[:2]))
        return np.uint8(elastic_transform(image, severity, *draws))
    corrupt_one = pytest.importorskip("imagecorruptions").corrupt
    frost_is_read_once()
    with as_published(name):
        return corrupt_one(image, severity, name)


@contextmanager
def as_published(name: str) -> Iterator[None]:
    """Put the steps of hendrycks/robustness back into imagecorruptions."""
    package = pytest.importorskip("imagecorruptions.corruptions")
    zoom, blur, integers = package.clipped_zoom, package._motion_blur, np.random.randint

    def trimmed_to_the_middle(image: np.ndarray, factor: float) -> np.ndarray:
        zoomed = zoom(image, factor)
        top, left = ((after - before) // 2 for after, before in zip(zoomed.shape[:2], image.shape[:2], strict=True))
        return zoomed[top : top + image.shape[0], left : left + image.shape[1]]

    def in_bytes(flakes: np.ndarray, **how: float) -> np.ndarray:
        return np.floor(blur(np.floor(255 * flakes), **how)) / 255

    steps: dict[str, dict[str, Callable | int]] = {
        "zoom_blur": {"imagecorruptions.corruptions.clipped_zoom": trimmed_to_the_middle},
        "snow": {"imagecorruptions.corruptions.clipped_zoom": trimmed_to_the_middle,
                 "imagecorruptions.corruptions._motion_blur": in_bytes},
        "pixelate": {"PIL.Image.NEAREST": Image.BOX},
        "frost": {"numpy.random.randint": lambda *ends: integers(*((5,) if ends == (6,) else ends))},
    }  # fmt: skip
    with ExitStack() as stack:
        for target, step in steps.get(name, {}).items():
            stack.enter_context(mock.patch(target, step))
        yield


# Displacement, deviation of the filter and shifts of the affine map in units of 244 pixels, for images of 224.
ELASTIC = ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))


def elastic_transform(image: np.ndarray, severity: int, points: np.ndarray, field: np.ndarray) -> np.ndarray:
    """The elastic transform of ImageNet-C from draws in [-1, 1): of three points (across, down), and of each pixel.

    An affine map that shifts three corners of a square, then displacements by a smooth field; sizes follow the shorter
    side. Not yet cut to whole numbers.
    """
    ndimage = pytest.importorskip("scipy.ndimage")
    height, width, _ = image.shape
    side = min(height, width)
    alpha, sigma, reach = (244 / 224 * side * each for each in ELASTIC[severity - 1])
    middle, half = np.array([width // 2, height // 2]), side // 3
    corners = middle + half * np.array([[1, 1], [1, -1], [-1, -1]])
    # (x, y, 1) of a new pixel -> (x, y) of the old one.
    shifted = np.column_stack([corners + reach * np.float64(points), np.ones(3)])
    back = np.linalg.solve(shifted, corners).T[::-1, [1, 0, 2]]  # rows and columns
    image = np.float64(image)
    warped = [ndimage.affine_transform(image[..., each], back[:, :2], back[:, 2], order=1, mode="mirror")
              for each in range(3)]  # fmt: skip
    moved = [alpha * ndimage.gaussian_filter(np.float64(each), sigma, mode="reflect", truncate=3) for each in field]
    places = np.mgrid[:height, :width] + np.stack(moved)
    return np.stack([ndimage.map_coordinates(each, places, order=1, mode="reflect") for each in warped], axis=-1)


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


_INJECT = {
    "gaussian_noise": _normal, "speckle_noise": _normal, "spatter": _normal, "shot_noise": _poisson,
    "impulse_noise": _impulse, "glass_blur": _glass, "motion_blur": _motion, "snow": _snow, "fog": _fog,
    "frost": _frost,
}  # fmt: skip
