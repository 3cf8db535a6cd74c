"""Random augmentation of training images: a random crop, a flip, colour jitter, or resizing without a crop.

The crop is the usual one (GoogLeNet, arXiv 1409.4842): the share of the area is drawn uniformly from `crop_scale`, the
aspect ratio log-uniformly from `crop_ratio`, and the position uniformly. After ten boxes that do not fit, the largest
centred box within the ratios is used. The crop is resized to the tower's size, whatever its aspect ratio, with the
filter of the preprocessing.

Colour jitter is that of SimCLR (arXiv 2002.05709), by Pillow's `ImageEnhance`, on the pixels that the tower reads: with
probability `jitter_prob`, brightness, contrast and saturation are multiplied by a factor from 1 - s to 1 + s and the
hue is rotated by -h to h of the circle, in random order; then the image becomes grey with probability `grayscale_prob`.

RoCOCO's published mixed images are complete images resized to a square. For a model trained only on centre crops, they
therefore differ in two ways, in the resizing and in the mixing.
"""

import dataclasses
import functools
import math

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageEnhance

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError

_ATTEMPTS = 10
_ENHANCE = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """The random changes of each training image, drawn anew for every sample.

    Attributes:
        crop_scale: least and largest share of the image's area in a random crop, or None for the preprocessing's own
            crop (its centre).
        crop_ratio: least and largest width over height of a random crop.
        flip: mirror half of the images left to right. Captions that say left and right are then wrong.
        resize_prob: the share of images that are resized to the tower's size without a crop.
        jitter: strength of brightness, contrast and saturation, 0 or more, and of hue, at most 1/2; or None.
        jitter_prob, grayscale_prob: the share of images whose colours change, and that become grey.
        also_resized: return every image resized without a crop as well.
    """

    crop_scale: tuple[float, float] | None = None
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = False
    resize_prob: float = 0.0
    also_resized: bool = False
    jitter: tuple[float, float, float, float] | None = None
    jitter_prob: float = 0.8
    grayscale_prob: float = 0.0

    def __post_init__(self):
        for name, most in (("crop_scale", 1.0), ("crop_ratio", math.inf)):
            bounds = getattr(self, name)
            if bounds is not None and not (len(bounds) == 2 and 0 < bounds[0] <= bounds[1] <= most):
                expected = "two numbers above 0, the smaller one first" + (", at most 1" if most == 1 else "")
                raise InputError("augmentation", name, bounds, expected)
        for name in ("resize_prob", "jitter_prob", "grayscale_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError("augmentation", name, getattr(self, name), "a share from 0 to 1")
        jitter = self.jitter
        if jitter is not None and not (len(jitter) == 4 and min(jitter) >= 0 and jitter[3] <= 0.5):
            raise InputError("augmentation", "jitter", jitter, "four strengths from 0, the last one at most 0.5")

    @property
    def smallest_crop(self) -> float:
        """The shorter side of the smallest random crop, as a share of that of a square image."""
        if self.crop_scale is None:
            return 1.0
        return math.sqrt(self.crop_scale[0] * min(self.crop_ratio[0], 1 / self.crop_ratio[1]))

    def views(
        self, image: Image.Image, preprocessing: Preprocessing, rng: np.random.Generator
    ) -> dict[str, UInt8[np.ndarray, "height width 3"]]:
        """Return `pixels`, from `apply`, and with `also_resized` the image without a crop as `resized`."""
        views = {"pixels": self.apply(image, preprocessing, rng)}
        if self.also_resized:
            views["resized"] = without_crop(preprocessing).resize(image)
        return views

    def apply(
        self, image: Image.Image, preprocessing: Preprocessing, rng: np.random.Generator
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return the 8-bit pixels that the tower reads. Raises InputError as `Preprocessing.resize`."""
        mirrored = rng.random() < 0.5  # always drawn, so that `flip` does not change the boxes
        if self.resize_prob and rng.random() < self.resize_prob:
            pixels = without_crop(preprocessing).resized(image)
        elif self.crop_scale is None:
            pixels = preprocessing.resized(image)
        else:
            box = random_box(image.size, self.crop_scale, self.crop_ratio, rng)
            pixels = without_crop(preprocessing).resized(image.crop(box))
        if self.jitter and rng.random() < self.jitter_prob:
            pixels = jitter_colours(pixels, self.jitter, rng)
        if self.grayscale_prob and rng.random() < self.grayscale_prob:
            pixels = np.asarray(Image.fromarray(pixels).convert("L").convert("RGB"))
        return preprocessing.packed(np.ascontiguousarray(pixels[:, ::-1]) if self.flip and mirrored else pixels)


def jitter_colours(
    pixels: UInt8[np.ndarray, "h w 3"], strengths: tuple[float, float, float, float], rng: np.random.Generator
) -> UInt8[np.ndarray, "h w 3"]:
    """Change brightness, contrast, saturation and hue at random, in a random order."""
    image = Image.fromarray(pixels)
    factors = [rng.uniform(max(0.0, 1 - each), 1 + each) for each in strengths[:3]]
    rotation = rng.uniform(-strengths[3], strengths[3])
    for change in rng.permutation(4):
        if change < 3 and strengths[change]:
            image = _ENHANCE[change](image).enhance(factors[change])
        elif change == 3 and strengths[3]:
            hue, saturation, value = image.convert("HSV").split()
            rotated = (np.asarray(hue).astype(int) + round(255 * rotation)) % 256
            image = Image.merge("HSV", (Image.fromarray(rotated.astype(np.uint8)), saturation, value)).convert("RGB")
    return np.asarray(image)


def random_box(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draw a crop (left, upper, right, lower) of an image of `size` = (width, height)."""
    width, height = size
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_ATTEMPTS):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(low, high))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, upper, left + w, upper + h
    w = max(1, min(width, round(height * ratio[1])))
    h = max(1, min(height, round(width / ratio[0])))
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


@functools.lru_cache(maxsize=8)
def without_crop(preprocessing: Preprocessing) -> Preprocessing:
    """Return the same preprocessing without a crop: the image is resized to the tower's size, whatever its shape."""
    return dataclasses.replace(preprocessing, shortest_edge=None, exact_size=preprocessing.image_size, crop_size=None)
