"""From a decoded photograph to the pixels that an image tower was trained on.

The rule is written down in a `Preprocessing`, which travels with the model. It has two halves:

    host    convert to RGB, resize with Pillow on 8-bit pixels, centre crop          -> uint8 (height, width, 3)
    device  x = (rescale_factor * pixel - mean) / std, float32                       -> what the tower reads

Both halves equal the Pillow image processors of `transformers` 5 (CLIP, SigLIP, Bit as used by DINOv2, ViT), which are
the reference here. Where that reference could surprise:

- The EXIF orientation of an opened image is *not* applied: the pixels are taken as stored.
- Transparency (an alpha band, or a palette's transparent colour) is composited onto white. Releases of `transformers`
  before 5, and OpenAI's own code, dropped the alpha band instead.
- 16-bit greyscale goes through Pillow's conversion to RGB, which clips at 255 and does not rescale.
- The long side of a resized image is rounded down: `int(shortest_edge * long / short)`.
- A crop that is larger than the image is padded with zeros (black), the odd row or column going before the image.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8
from PIL import Image

from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json

# Pillow's numbers, as `preprocessor_config.json` spells them, and the names used here.
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}

_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5)
_CROPPING = {
    "size": {"shortest_edge": 224},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": 224,
    "image_mean": _CLIP_MEAN,
    "image_std": _CLIP_STD,
}
_SQUASHING = {"size": {"height": 224, "width": 224}, "do_center_crop": False, "image_mean": _HALF, "image_std": _HALF}
# What each processor of `transformers` does where its configuration file is silent. `size` as a bare number means
# the shortest edge for the first two and a square for the last.
_PROCESSOR_DEFAULTS = {
    "CLIPImageProcessor": _CROPPING,
    "BitImageProcessor": _CROPPING,
    "SiglipImageProcessor": {**_SQUASHING, "resample": 3},
    "ViTImageProcessor": {**_SQUASHING, "resample": 2},
}
_BARE_SIZE_IS_A_SQUARE = {"ViTImageProcessor"}
_KNOWN_STEPS = {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"}

# A 1-pixel-wide photograph may be resized to a ribbon; this keeps the ribbon below 800 MB.
_MOST_RESIZED_PIXELS = 2**28


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How images become pixels. Exactly one of `shortest_edge` and `exact_size` is set.

    Attributes:
        shortest_edge: the resized image's shorter side in pixels, aspect ratio kept; then `crop_size` is needed.
        exact_size: (height, width) of the resized image, aspect ratio given up.
        crop_size: (height, width) of the centre crop after resizing, or None for no crop.
        resample: Pillow's filter by its name in lower case.
        rescale_factor: what an 8-bit value is multiplied with before it is normalised.
        mean: subtracted, for red, green and blue, after rescaling.
        std: divided by, for red, green and blue.
    """

    shortest_edge: int | None = None
    exact_size: tuple[int, int] | None = None
    crop_size: tuple[int, int] | None = None
    resample: str = "bicubic"
    rescale_factor: float = 1 / 255
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def __post_init__(self):
        if (self.shortest_edge is None) == (self.exact_size is None):
            raise InputError("preprocessing", "size", self._size_in_words(), "a shortest edge or an exact size")
        if self.exact_size is None and self.crop_size is None:
            raise InputError("preprocessing", "crop_size", "none", "a crop, so that all images have one size")
        if self.resample not in _RESAMPLING.values():
            raise InputError("preprocessing", "resample", self.resample, f"one of {', '.join(_RESAMPLING.values())}")
        sides = (self.shortest_edge or 1, *(self.exact_size or ()), *(self.crop_size or ()))
        if not all(isinstance(side, int) and side > 0 for side in sides):
            raise InputError("preprocessing", "size", self._size_in_words(), "whole numbers of pixels, 1 or more")
        if len(self.mean) != 3 or len(self.std) != 3 or 0 in self.std:
            raise InputError(
                "preprocessing", "mean and std", f"{self.mean}, {self.std}", "three numbers each, no std 0"
            )

    def _size_in_words(self) -> str:
        return f"shortest_edge {self.shortest_edge}, exact_size {self.exact_size}, crop_size {self.crop_size}"

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) in pixels of what `resize` returns and the tower reads."""
        return self.crop_size or self.exact_size

    def resize(self, image: Image.Image) -> UInt8[np.ndarray, "height width 3"]:
        """The host's half: RGB, resized, cropped, still 8 bit. The opened image's EXIF orientation is not applied.

        Raises:
            InputError: the image has no pixels, or is so thin that its resized form would not fit in memory.
        """
        if 0 in image.size:
            raise InputError("image", "size", f"{image.width} x {image.height}", "at least one pixel")
        image = _convert_to_rgb(image)
        height, width = self._resized_size(image.height, image.width)
        if height * width > _MOST_RESIZED_PIXELS:
            found = f"{image.width} x {image.height} pixels, which resized would be {width} x {height}"
            raise InputError("image", "aspect ratio", found, f"at most {_MOST_RESIZED_PIXELS} resized pixels")
        image = image.resize((width, height), resample=Image.Resampling[self.resample.upper()])
        pixels = np.asarray(image)
        return pixels.copy() if self.crop_size is None else centre_crop(pixels, self.crop_size)

    def _resized_size(self, height: int, width: int) -> tuple[int, int]:
        if self.exact_size is not None:
            return self.exact_size
        if width <= height:
            return int(self.shortest_edge * height / width), self.shortest_edge
        return self.shortest_edge, int(self.shortest_edge * width / height)

    def normalise(self, pixels: UInt8[Array, "images height width 3"]) -> Float[Array, "images height width 3"]:
        """The device's half: `(rescale_factor * pixel - mean) / std` in float32."""
        scaled = pixels.astype(jnp.float32) * jnp.float32(self.rescale_factor)
        mean = jnp.asarray(self.mean, jnp.float32)[None, None, None, :]
        return (scaled - mean) / jnp.asarray(self.std, jnp.float32)[None, None, None, :]

    def with_image_size(self, size: int) -> Self:
        """The same preprocessing for square images of `size` pixels; a resize before the crop grows in proportion."""
        if self.exact_size is not None:
            exact = tuple(round(side * size / self.image_size[0]) for side in self.exact_size)
            return dataclasses.replace(self, exact_size=exact, crop_size=self.crop_size and (size, size))
        shortest = max(round(self.shortest_edge * size / min(self.crop_size)), 1)
        return dataclasses.replace(self, shortest_edge=shortest, crop_size=(size, size))

    def to_json(self) -> dict[str, Any]:
        """A JSON value; tuples become lists, keys are the attributes."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], source: object = "preprocessing") -> Self:
        """Reads what `to_json` wrote.

        Raises:
            InputError: a key is unknown, or the values make no preprocessing. It names `source`.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(value, Mapping) or not set(value) <= names:
            found = sorted(set(value) - names) if isinstance(value, Mapping) else type(value).__name__
            raise InputError(source, "preprocessing", found, f"only the keys {sorted(names)}")
        try:
            return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in value.items()})
        except InputError as error:
            raise InputError(source, error.field, error.found, error.wanted) from None

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any], source: object = "preprocessor_config.json") -> Self:
        """Reads a `preprocessor_config.json` (or the `image_processor` part of a `processor_config.json`).

        Raises:
            InputError: the processor is of an unknown kind, or takes a step that is not known here. It names `source`.
        """
        config = config.get("image_processor", config)
        kind = str(config.get("image_processor_type", config.get("feature_extractor_type", "")))
        kind = kind.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
        if kind not in _PROCESSOR_DEFAULTS:
            raise InputError(source, "image_processor_type", kind or "none", f"one of {', '.join(_PROCESSOR_DEFAULTS)}")
        steps = {key for key, value in config.items() if key.startswith("do_") and value}
        if not steps <= _KNOWN_STEPS:
            raise InputError(source, "steps", sorted(steps - _KNOWN_STEPS), f"only {sorted(_KNOWN_STEPS)}")
        given = {key: value for key, value in config.items() if value is not None}
        return _from_processor({**_PROCESSOR_DEFAULTS[kind], **given}, kind in _BARE_SIZE_IS_A_SQUARE, source)

    def hash(self) -> str:
        """SHA-256 of everything that changes the pixels."""
        return hash_json(self.to_json())

    def describe(self) -> str:
        """One line for a person, such as `shortest edge to 224 (bicubic), centre crop 224 x 224, normalised`."""
        if self.exact_size is not None:
            steps = [f"squashed to {self.exact_size[0]} x {self.exact_size[1]} ({self.resample})"]
        else:
            steps = [f"shortest edge to {self.shortest_edge} ({self.resample})"]
        if self.crop_size is not None:
            steps.append(f"centre crop {self.crop_size[0]} x {self.crop_size[1]}")
        numbers = (", ".join(f"{number:.4g}" for number in numbers) for numbers in (self.mean, self.std))
        return ", ".join(steps) + ", normalised by mean ({}) and std ({})".format(*numbers)


def _from_processor(config: Mapping[str, Any], bare_size_is_a_square: bool, source: object) -> Preprocessing:
    if config.get("do_resize") is False:
        raise InputError(source, "do_resize", "false", "a processor that resizes")
    resample = _RESAMPLING.get(config["resample"])
    if resample is None:
        raise InputError(source, "resample", config["resample"], f"one of {sorted(_RESAMPLING)}")
    shortest_edge, exact_size = _read_size(config["size"], bare_size_is_a_square, source, "size")
    crop_size = None
    if config.get("do_center_crop"):
        crop_size = _read_size(config.get("crop_size", 224), True, source, "crop_size")[1]
    normalises = config.get("do_normalize", True)
    try:
        return Preprocessing(
            shortest_edge=shortest_edge,
            exact_size=exact_size,
            crop_size=crop_size,
            resample=resample,
            rescale_factor=config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0,
            mean=tuple(config["image_mean"]) if normalises else (0.0, 0.0, 0.0),
            std=tuple(config["image_std"]) if normalises else (1.0, 1.0, 1.0),
        )
    except InputError as error:
        raise InputError(source, error.field, error.found, error.wanted) from None


def _read_size(
    size: Any, bare_is_a_square: bool, source: object, field: str
) -> tuple[int | None, tuple[int, int] | None]:
    """(shortest edge, None) or (None, (height, width))."""
    if isinstance(size, int):
        return (None, (size, size)) if bare_is_a_square else (size, None)
    if isinstance(size, list | tuple) and len(size) == 2:
        return None, tuple(size)
    if isinstance(size, Mapping):
        given = {key: value for key, value in size.items() if value is not None}
        if set(given) == {"shortest_edge"}:
            return given["shortest_edge"], None
        if set(given) == {"height", "width"}:
            return None, (given["height"], given["width"])
    raise InputError(source, field, size, "a number, {shortest_edge}, or {height, width}")


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    """RGB, transparency composited onto white."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def centre_crop(
    pixels: UInt8[np.ndarray, "height width 3"], size: tuple[int, int]
) -> UInt8[np.ndarray, "crop_height crop_width 3"]:
    """The middle `size` = (height, width) of an image; zeros where the image is smaller than that.

    Where one row is left over, the crop starts at the smaller offset and the padding puts one more zero row before
    the image, as the reference does.
    """
    cropped = np.zeros((*size, 3), np.uint8)
    taken, placed = zip(*(_overlap(have, want) for have, want in zip(pixels.shape[:2], size, strict=True)), strict=True)
    cropped[placed] = pixels[taken]
    return cropped


def _overlap(have: int, want: int) -> tuple[slice, slice]:
    """Along one axis: the part of the image that is taken, and where in the crop it is placed."""
    if have >= want:
        start = (have - want) // 2
        return slice(start, start + want), slice(0, want)
    start = (want - have + 1) // 2
    return slice(0, have), slice(start, start + have)
