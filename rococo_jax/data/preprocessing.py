"""Turn decoded images into the pixels that an image tower was trained on.

A `Preprocessing` is saved with the model. It has two halves:

    host    convert to RGB, resize with Pillow on 8-bit pixels, centre crop          -> uint8 (height, width, 3)
    device  x = (rescale_factor * pixel - mean) / std, float32                       -> input of the tower

Both halves equal the Pillow image processors of `transformers` 5 (CLIP, SigLIP, Bit as used by DINOv2, ViT),
or, for `library="open_clip"`, the `torchvision` transforms of open_clip and OpenAI. TIPSv2's own processor resizes with
torch, which rounds one value in a few hundred to a neighbouring one of the 256.

Details:

- The EXIF orientation of an image is *not* applied: pixels are used as stored.
- `transformers` composites transparency (an alpha band or a transparent colour of a palette) onto white and resizes
  RGB. open_clip and OpenAI resize an image in its own mode (a palette by nearest pixels), crop, and drop transparency.
- 16-bit greyscale, which the references clip at 255, is scaled (`pictures`).
- The long side of a resized image is rounded down: `int(shortest_edge * long / short)`.
- SigLIP 2 NaFlex keeps the aspect ratio of an image, up to whole patches, and packs the patches into one array
  (`pack_patches`). Its processor leaves grey and transparent images as they are, and its tower then refuses
  their channels.
- A crop larger than the image is padded with zeros (black). If the difference is odd, `transformers` puts the extra row
  or column before the image and crops from the smaller offset; torchvision puts it after the image and rounds to even.

SigLIP 2 NaFlex (arXiv 2502.14786) packs images of any aspect ratio into arrays of one shape. An image is resized to a
whole number of patches on both sides, at most n patches in all. Both sides have the same scale, rounded up to whole
patches; a bisection finds the largest scale that fits, as in `transformers`. The packed array has (n + 1) p x p pixels,
for patches of p x p:

    patches      row by row, one below the other, then zeros up to n patches
    grid size    the last patch: its first two pixels hold the numbers of rows and columns, as high and low byte in red
                 and green
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8
from PIL import Image

from rococo_jax.data.image_processors import RESAMPLING, is_colour, read_image_processor
from rococo_jax.data.pictures import as_8bit, as_rgb
from rococo_jax.data.pixel_cache import PixelView
from rococo_jax.errors import InputError, is_number, require_one_of
from rococo_jax.storage import hash_json

# The bisection of the scale stops at this width.
_TOLERANCE = 1e-5
_LARGEST_SCALE = 100.0
# Bounds the memory of a very thin image after resizing to 800 MB.
_MAX_RESIZED_PIXELS = 2**28
_LARGEST_SIDE = 2**14


def naflex_image_size(height: int, width: int, patch: int, max_patches: int) -> tuple[int, int]:
    """Return the height and width in pixels of an image resized to at most `max_patches` whole patches.

    >>> naflex_image_size(480, 640, patch=16, max_patches=256)
    (224, 288)
    """
    low, high = _TOLERANCE / 10, _LARGEST_SCALE

    def grid(scale: float) -> tuple[int, int]:
        return max(1, math.ceil(height * scale / patch)), max(1, math.ceil(width * scale / patch))

    while high - low >= _TOLERANCE:
        scale = (low + high) / 2
        low, high = (scale, high) if math.prod(grid(scale)) <= max_patches else (low, scale)
    rows, columns = grid(low)
    return rows * patch, columns * patch


def pack_patches(
    pixels: UInt8[np.ndarray, "height width 3"], patch: int, max_patches: int
) -> UInt8[np.ndarray, "rows patch 3"]:
    """Pack the patches of an image and the size of their grid; the image has whole patches."""
    rows, columns = pixels.shape[0] // patch, pixels.shape[1] // patch
    packed = np.zeros(((max_patches + 1) * patch, patch, 3), np.uint8)
    patches = pixels.reshape(rows, patch, columns, patch, 3).swapaxes(1, 2)
    packed[: rows * columns * patch] = patches.reshape(-1, patch, 3)
    packed[-patch, 0, :2] = divmod(rows, 256)
    packed[-patch, 1, :2] = divmod(columns, 256)
    return packed


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """The steps from an image to pixels: resize, crop, normalise.

    Exactly one of `shortest_edge` and `exact_size` is set.

    Attributes:
        shortest_edge: shorter side of the resized image in pixels; keeps the aspect ratio, and needs a `crop_size`.
        exact_size: (height, width) of the resized image, whatever its aspect ratio was.
        crop_size: (height, width) of the centre crop after resizing, or None for no crop.
        resample: name of Pillow's filter, in lower case.
        rescale_factor: factor of an 8-bit value before normalisation.
        mean: of red, green and blue, subtracted after rescaling.
        std: of red, green and blue, divided by after that.
        patch_size, max_patches: side of a patch and largest number of patches, for towers that keep the aspect ratio;
            `exact_size` is then the square of that many patches, as in `with_fixed_grid`.
        library: whose behaviour is followed for crops and for modes other than RGB: `transformers` or `open_clip`.
    """

    shortest_edge: int | None = None
    exact_size: tuple[int, int] | None = None
    crop_size: tuple[int, int] | None = None
    resample: str = "bicubic"
    rescale_factor: float = 1 / 255
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    library: str = "transformers"
    patch_size: int | None = None
    max_patches: int | None = None

    def __post_init__(self):
        _check(vars(self), "preprocessing")

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) in pixels of the input of the tower; of `with_fixed_grid` for towers that keep the ratio."""
        return self.crop_size or self.exact_size

    @property
    def pixel_shape(self) -> tuple[int, int, int]:
        """The shape of the result of `resize`."""
        if self.patch_size is None:
            return *self.image_size, 3
        return (self.max_patches + 1) * self.patch_size, self.patch_size, 3

    @property
    def with_fixed_grid(self) -> "Preprocessing":
        """The same preprocessing, but resizing all images to one square grid of patches, as mixed images need it."""
        return dataclasses.replace(self, patch_size=None, max_patches=None)

    def resize(self, image: Image.Image) -> UInt8[np.ndarray, "height width 3"]:
        """Do the host's half: convert to RGB, resize and crop, in 8 bits; pack patches if the aspect ratio is kept.

        Raises InputError as `resized`.
        """
        return self.packed(self.resized(image))

    def packed(self, pixels: UInt8[np.ndarray, "height width 3"]) -> UInt8[np.ndarray, "height2 width2 3"]:
        """Pack the result of `resized` into patches if the aspect ratio is kept; else return it unchanged."""
        return pixels if self.patch_size is None else pack_patches(pixels, self.patch_size, self.max_patches)

    def resized(self, image: Image.Image) -> UInt8[np.ndarray, "height width 3"]:
        """Convert to RGB, resize and crop, without packing patches.

        Raises InputError: the image has no pixels, or is so thin that the resized image would not fit in memory.
        """
        image = as_rgb(image) if self.library == "transformers" else as_8bit(image)
        height, width = self._resized_size(image.height, image.width)
        if height * width > _MAX_RESIZED_PIXELS:
            problem = f"{image.width} x {image.height} pixels, which would become {width} x {height}"
            raise InputError("image", "aspect ratio", problem, f"at most {_MAX_RESIZED_PIXELS} resized pixels")
        image = image.resize((width, height), resample=Image.Resampling[self.resample.upper()])
        if self.crop_size is not None:
            image = _centre_crop(image, self.crop_size, _OFFSETS[self.library])
        return np.array(as_rgb(image, "dropped"))

    @property
    def pixel_view(self) -> PixelView:
        """`resize` as a view that can be cached."""
        settings: list[Any] = [self.shortest_edge, self.exact_size, self.crop_size, self.resample]
        if self.library != "transformers":
            settings.append(self.library)
        if self.patch_size is not None:
            settings += [self.patch_size, self.max_patches]
        return PixelView(f"resized {hash_json(settings)}", self.pixel_shape, self.resize)

    def _resized_size(self, height: int, width: int) -> tuple[int, int]:
        if self.patch_size is not None:
            return naflex_image_size(height, width, self.patch_size, self.max_patches)
        if self.exact_size is not None:
            return self.exact_size
        if width <= height:
            return int(self.shortest_edge * height / width), self.shortest_edge
        return self.shortest_edge, int(self.shortest_edge * width / height)

    def normalise(
        self, pixels: UInt8[Array, "images height width 3"] | Float[Array, "images height width 3"]
    ) -> Float[Array, "images height width 3"]:
        """Do the device's half: `(rescale_factor * pixel - mean) / std` in float32, of values from 0 to 255."""
        rescaled = pixels.astype(jnp.float32) * jnp.float32(self.rescale_factor)
        mean = jnp.asarray(self.mean, jnp.float32)[None, None, None, :]
        normalised = (rescaled - mean) / jnp.asarray(self.std, jnp.float32)[None, None, None, :]
        if self.patch_size is None or pixels.shape[1:] != self.pixel_shape:
            return normalised
        # The last patch holds the size of the grid, not pixels.
        grid = pixels[:, -self.patch_size :].astype(jnp.float32)
        return normalised.at[:, -self.patch_size :].set(grid)

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest possible result of `normalise`, rounded to six decimals."""
        both = [(self.rescale_factor * v - m) / s for v in (0, 255) for m, s in zip(self.mean, self.std, strict=True)]
        return round(min(both), 6), round(max(both), 6)

    def with_image_size(self, size: int) -> "Preprocessing":
        """Return the preprocessing for square images of `size` pixels; the size before a crop grows in proportion."""
        if self.patch_size is not None:
            max_patches = (size // self.patch_size) ** 2
            return dataclasses.replace(self, exact_size=(size, size), max_patches=max_patches)
        if self.crop_size is None:
            return dataclasses.replace(self, exact_size=(size, size))
        growth = size / min(self.crop_size)
        exact = self.exact_size and tuple(round(side * growth) for side in self.exact_size)
        shortest = self.shortest_edge and round(self.shortest_edge * growth)
        return dataclasses.replace(self, exact_size=exact, shortest_edge=shortest, crop_size=(size, size))

    def to_json(self) -> dict[str, Any]:
        """Return the attributes as a JSON object, without those that were added later and have their default."""
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}
        newer = {"library": "transformers", "patch_size": None, "max_patches": None}
        return {k: v for k, v in values.items() if k not in newer or v != newer[k]}

    @classmethod
    def from_json(cls, value: Any, source: object = "preprocessing") -> "Preprocessing":
        """Read the output of `to_json`.

        Raises InputError: an unknown key or an impossible value; the error names `source`.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(value, Mapping) or not set(value) <= names:
            problem = sorted(set(value) - names) if isinstance(value, Mapping) else type(value).__name__
            raise InputError(source, "preprocessing", problem, f"only the keys {sorted(names)}")
        values = {key: tuple(each) if isinstance(each, list) else each for key, each in value.items()}
        values = {field.name: field.default for field in dataclasses.fields(cls)} | values
        _check(values, source)
        values["rescale_factor"] = float(values["rescale_factor"])
        values |= {name: tuple(map(float, values[name])) for name in ("mean", "std")}
        return cls(**values)

    @classmethod
    def from_huggingface(cls, config: Any, source: object = "preprocessor_config.json") -> "Preprocessing":
        """Read a `preprocessor_config.json`, or the `image_processor` part of a `processor_config.json`.

        Raises InputError: the kind of the processor or one of its steps is unknown; the error names `source`.
        """
        return cls.from_json(read_image_processor(config, source), source)

    def hash(self) -> str:
        """Return the SHA-256 of everything that determines the pixels."""
        return hash_json(self.to_json())

    def describe(self) -> str:
        """Return a summary such as `shortest edge to 224 (bicubic), centre crop 224 x 224, normalised by ...`."""
        steps = [f"{self.describe_size()} ({self.resample})"]
        if self.crop_size is not None:
            steps.append(f"centre crop {self.crop_size[0]} x {self.crop_size[1]}")
        numbers = (", ".join(f"{number:.4g}" for number in numbers) for numbers in (self.mean, self.std))
        return ", ".join(steps) + ", normalised by mean ({}) and std ({})".format(*numbers)

    def describe_size(self) -> str:
        """Return a summary of the size of a resized image."""
        if self.patch_size is not None:
            return f"aspect ratio kept, at most {self.max_patches} patches of {self.patch_size} x {self.patch_size}"
        if self.exact_size is not None:
            return f"resized to {self.exact_size[0]} x {self.exact_size[1]}"
        return f"shortest edge to {self.shortest_edge}"

    def describe_library_behaviour(self) -> str:
        """Return a summary of how the library crops images and converts modes other than RGB."""
        return f"{self.library}: {_LIBRARIES[self.library]}; EXIF orientation and colour profiles not applied"


def _check(values: Mapping[str, Any], source: object) -> None:
    shortest_edge, exact_size, crop_size = (values[name] for name in ("shortest_edge", "exact_size", "crop_size"))
    sizes = f"shortest_edge {shortest_edge!r}, exact_size {exact_size!r}, crop_size {crop_size!r}"
    if (shortest_edge is None) == (exact_size is None):
        raise InputError(source, "size", sizes, "a shortest edge or an exact size")
    if exact_size is None and crop_size is None:
        raise InputError(source, "crop_size", "none", "a centre crop, so that all images have one size")
    pairs = [size for size in (exact_size, crop_size) if size is not None]
    edges = [] if shortest_edge is None else [shortest_edge]
    are_pairs = all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs)
    if not are_pairs or not all(type(side) is int and side > 0 for side in itertools.chain(edges, *pairs)):
        raise InputError(source, "size", sizes, "whole numbers of pixels, 1 or more")
    if any(side > _LARGEST_SIDE for side in itertools.chain(edges, *pairs)):
        raise InputError(source, "size", sizes, f"at most {_LARGEST_SIDE} pixels a side")
    _check_patches(values["patch_size"], values["max_patches"], exact_size, crop_size, source)
    if values["resample"] not in RESAMPLING.values():
        raise InputError(source, "resample", values["resample"], f"one of {', '.join(RESAMPLING.values())}")
    require_one_of(source, "library", values["library"], _LIBRARIES)
    if not is_number(values["rescale_factor"]):
        raise InputError(source, "rescale_factor", repr(values["rescale_factor"]), "a number")
    mean, std = values["mean"], values["std"]
    if not (is_colour(mean) and is_colour(std)) or 0 in std:
        raise InputError(source, "mean and std", f"{mean}, {std}", "three numbers each, and no std of 0")


def _check_patches(patch_size: Any, max_patches: Any, exact_size: Any, crop_size: Any, source: object) -> None:
    if patch_size is None and max_patches is None:
        return
    are_whole = type(patch_size) is int and type(max_patches) is int
    if not are_whole or not 2 <= patch_size <= _LARGEST_SIDE or not 1 <= max_patches < 2**16:
        problem = f"patch_size {patch_size!r}, max_patches {max_patches!r}"
        raise InputError(source, "patches", problem, "a side of 2 pixels or more, and 1 to 65,535 patches")
    side = math.isqrt(max_patches) * patch_size
    if crop_size is not None or exact_size != (side, side):
        problem = f"exact_size {exact_size!r}, crop_size {crop_size!r}"
        raise InputError(source, "size", problem, f"{side} x {side}, the square of {max_patches} patches, and no crop")


def _transformers_offset(length: int, crop_length: int) -> int:
    return (length - crop_length) // 2


def _torchvision_offset(length: int, crop_length: int) -> int:
    if crop_length > length:
        return -((crop_length - length) // 2)
    return round((length - crop_length) / 2)


# The first row or column of a centre crop, negative if the image is smaller than the crop.
_OFFSETS = {"transformers": _transformers_offset, "open_clip": _torchvision_offset}
_LIBRARIES = {
    "transformers": "RGB over white, resized, cropped from the smaller offset",
    "open_clip": "resized in its own mode, cropped from the offset rounded to even, then RGB with transparency dropped",
}


def _centre_crop(image: Image.Image, size: tuple[int, int], offset: Callable[[int, int], int]) -> Image.Image:
    """Cut the centre of `size` = (height, width) out of an image, and pad a smaller image with zeros."""
    height, width = size
    left, upper = offset(image.width, width), offset(image.height, height)
    return image.crop((left, upper, left + width, upper + height))
