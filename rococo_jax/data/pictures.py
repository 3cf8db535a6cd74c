"""Decode images: the one place where a file, its bytes, a PIL image or an array becomes an 8-bit image.

    8 bits    `open_image`, `decode_image`, `as_8bit`: 8 bits per channel, with the stored colours and transparency
    RGB       `as_rgb`: the same in RGB, composited onto white or with transparency dropped

The command line, the Python interface, adapters, alterations, training and reports share these functions. Of a file
with several frames or pages the first one is read, at full size: decoding a JPEG at a reduced size (`Image.draft`)
gives other pixels, which training alone may request (`least_size`). As in the reference libraries, neither the EXIF
orientation nor a colour profile is applied. Channels of 16 bits are scaled to 8, where Pillow's own `convert` would
clip them. Values without a known range are refused.
"""

import contextlib
import functools
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt8
from PIL import ExifTags, Image, UnidentifiedImageError

from rococo_jax.data.image_files import ImageFile
from rococo_jax.errors import InputError
from rococo_jax.progress import say

# How transparency is removed: composited onto white, as in `transformers` 5, or dropped, as by Pillow's `convert`.
Alpha = Literal["white", "dropped"]

# Part of the cache keys of everything computed from pixels; to increase when `as_8bit` or `as_rgb` give other pixels.
DECODING_VERSION = 2
_EXPECTED = "a complete image file that Pillow can read"
_NO_RANGE = "8 or 16 bits per channel; scale an image of mode {} to whole numbers from 0 to 255"
_PIXELS = "whole numbers from 0 to 255 as uint8, (height, width, 3)"
# Modes that some libraries cannot read or resize incorrectly, and equivalent modes without loss.
_PLAIN_MODES = {"La": "LA", "RGBa": "RGBA", "PA": "RGBA", "LAB": "RGB"}
_BITS_PER_SAMPLE = 258
# Pillow's raw modes with 16 bits per channel, in any byte order; RGB;16 and BGR;16 have 16 bits per pixel.
_RAW_16_BITS = re.compile(r"^I;16|;16[BLN]")
_THUMBNAIL_QUALITY = 80
# Longer side divided by shorter side; a more extreme image is no photograph.
_MAX_ASPECT_RATIO = 1000


def open_image(file: ImageFile | str, least_size: tuple[int, int] | None = None) -> Image.Image:
    """Open and decode an image file, with 8 bits per channel.

    Args:
        least_size: width and height; a JPEG is decoded at a half, quarter or eighth of its size if that has them.

    Raises InputError: the file is missing, empty, truncated, too large to decode safely or not an image, or as
        `as_8bit`.
    """
    file = Path(file) if isinstance(file, str) else file
    return decode_image(_read_bytes(file), file, least_size)


def decode_image(data: bytes, source: object, least_size: tuple[int, int] | None = None) -> Image.Image:
    """Decode the bytes of an image file, as `open_image`; `source` names the image in errors."""
    image = _open_header(data, source)
    if least_size is not None:
        image.draft(None, least_size)
    if image.mode.startswith("I;16") or any(_has_16_bits(tile.args) for tile in image.tile):
        _say_once("images with 16 bits per channel are scaled to 8 bits")
    decoded = as_8bit(image, source)
    with contextlib.suppress(Exception):  # Pillow looks for a second frame, which may be damaged
        if image.is_animated and image.format != "MPO":  # further frames of MPO are previews by a camera
            _say_once("only the first frame or page of images with several is read")
    return decoded


def _has_16_bits(decoder_arguments: Any) -> bool:
    """Return whether a decoder reads 16 bits per channel, by its raw mode, the only or first argument."""
    raw_mode = decoder_arguments[0] if isinstance(decoder_arguments, tuple) else decoder_arguments
    return isinstance(raw_mode, str) and _RAW_16_BITS.search(raw_mode) is not None


def image_size(file: ImageFile) -> tuple[int, int]:
    """Return width and height without decoding the image. Raises InputError as `open_image`."""
    return encoded_size(_read_bytes(file), file)


def encoded_size(data: bytes, source: object) -> tuple[int, int]:
    """Return width and height from the bytes of an image file, without decoding. Raises InputError as `open_image`."""
    return _open_header(data, source).size


def image_format(data: bytes, source: object) -> str:
    """Return Pillow's name of an image file's format, such as JPEG. Raises InputError as `open_image`."""
    return _open_header(data, source).format or ""


def has_exif_rotation(file: ImageFile) -> bool:
    """Return whether EXIF data rotate or mirror the image, which is not applied. Raises InputError as `open_image`."""
    image = _open_header(_read_bytes(file), file)
    try:
        # The method of PNG images would decode the pixels, to look for EXIF data behind them.
        return Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1) in range(2, 9)
    except Exception:  # unreadable EXIF data rotate nothing
        return False


def as_8bit(image: Any, source: object = "image") -> Image.Image:
    """Convert a PIL image of any mode, or an array of whole numbers from 0 to 255, to 8 bits per channel.

    Args:
        image: arrays are `(height, width)` or `(height, width, channels)`: 1 grey, 3 RGB, 4 with alpha.
        source: names the image in errors.

    Raises:
        InputError: the image is damaged, has no pixels or an aspect ratio above 1000, or its values have no known
            range.
    """
    image = image if isinstance(image, Image.Image) else _from_array(image, source)
    if 0 in image.size:
        raise InputError(source, "size", f"{image.width} x {image.height}", "at least one pixel")
    if max(image.size) > _MAX_ASPECT_RATIO * min(image.size):
        problem = f"{image.width} x {image.height} pixels"
        raise InputError(source, "aspect ratio", problem, f"at most {_MAX_ASPECT_RATIO} to 1")
    with _refusing_damaged(source):
        image.load()
    if image.mode[0] in "IF":
        return _as_8_bits(image, source)
    has_alpha = image.mode == "P" and image.palette.mode == "RGBA"
    plain_mode = "RGBA" if has_alpha else _PLAIN_MODES.get(image.mode)
    return image.convert(plain_mode) if plain_mode else image


def as_rgb(image: Any, alpha: Alpha = "white") -> Image.Image:
    """Convert an image to RGB, as `as_8bit`; `alpha` says how transparency is removed, also of a transparent colour."""
    image = as_8bit(image)
    if alpha == "white" and image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    image = image.convert("RGB")
    image.info.pop("transparency", None)
    return image


def thumbnail_jpeg(image: Image.Image, longest_side: int) -> bytes:
    """Return a JPEG of an image on white, reduced to a longest side in pixels if that is shorter, for a page."""
    small = as_rgb(image).copy()
    small.thumbnail((longest_side, longest_side))
    return image_bytes(small, "JPEG", quality=_THUMBNAIL_QUALITY, optimize=True)


def image_bytes(image: Image.Image | UInt8[np.ndarray, "height width 3"], kind: str, **options: Any) -> bytes:
    """Return the bytes of a PNG or JPEG file of an image; `options` are passed to Pillow."""
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _as_8_bits(image: Image.Image, source: object) -> Image.Image:
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        white = 2 ** getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))[0] - 1  # a TIFF may have 12 bits
    elif image.mode == "I" and low >= 0 and high <= 255:
        white = 255
    else:
        raise InputError(source, "image", f"values from {low:g} to {high:g}", _NO_RANGE.format(image.mode))
    grey = np.round(values * (255 / white)).clip(0, 255).astype(np.uint8)
    transparent_value = image.info.get("transparency")
    if transparent_value is None:
        return Image.fromarray(grey)
    alpha = np.uint8(255) * (values != transparent_value)
    return Image.fromarray(np.stack([grey, alpha], axis=-1))


def _from_array(image: Any, source: object) -> Image.Image:
    values = np.asarray(image)
    if values.dtype.kind not in "iu" or values.dtype == np.uint16:
        if values.dtype.kind in "biufc":
            raise InputError(source, "pixels", f"{values.dtype}, whose range is not known", _PIXELS)
        raise InputError(source, "pixels", f"a {type(image).__name__}", "a PIL image or an array")
    channels = values.shape[2] if values.ndim == 3 else 1 if values.ndim == 2 else 0
    if channels not in (1, 3, 4):
        raise InputError(source, "shape", values.shape, "(height, width, 3)")
    if values.size and not 0 <= values.min() <= values.max() <= 255:
        raise InputError(source, "pixels", f"{values.dtype} from {values.min()} to {values.max()}", _PIXELS)
    if 0 in values.shape:
        raise InputError(source, "size", f"{values.shape[1]} x {values.shape[0]}", "at least one pixel")
    return Image.fromarray((values[..., 0] if values.shape[2:] == (1,) else values).astype(np.uint8))


def _read_bytes(file: ImageFile) -> bytes:
    try:
        return file.read_bytes()
    except PermissionError:
        raise
    except OSError as error:
        reasons = {FileNotFoundError: "nothing there", IsADirectoryError: "a folder"}
        raise InputError(file, "image", reasons.get(type(error), f"a damaged file ({error})"), _EXPECTED) from None


def _open_header(data: bytes, source: object) -> Image.Image:
    if not data:
        raise InputError(source, "image", "an empty file", _EXPECTED)
    with _refusing_damaged(source):
        return Image.open(io.BytesIO(data))


@contextlib.contextmanager
def _refusing_damaged(source: object) -> Iterator[None]:
    try:
        yield
    except (Exception, MemoryError) as error:
        # Pillow's plugins raise different exceptions for damaged files: OSError, SyntaxError, KeyError,
        # NotImplementedError, struct.error, ...
        reasons = {UnidentifiedImageError: "a file that is not an image", Image.DecompressionBombError: str(error)}
        raise InputError(source, "image", reasons.get(type(error), f"a damaged file ({error})"), _EXPECTED) from None


@functools.cache
def _say_once(text: str) -> None:
    say(text)
