"""The one place where a picture is read: a file, its bytes, a PIL image or an array becomes 8-bit RGB.

    picture   `open_image`, `decode_image`, `as_8bit`: 8 bits a channel, colours and transparency as stored
    RGB       `as_rgb`: transparency over white, or dropped

The command line, the Python interface, adapters, alterations, training and reports share it. Of a file with several
frames or pages the first is read, at full size: JPEG's decoding at a fraction of it (`Image.draft`) gives other pixels.
As in the reference libraries neither the EXIF orientation nor a colour profile is applied. 16 bits a channel are scaled
to 8, which Pillow's own `convert` would clip; what has no known range is refused.
"""

import contextlib
import functools
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from rococo_jax.data.image_files import ImageFile
from rococo_jax.errors import InputError
from rococo_jax.progress import say

# What becomes of transparency: white behind, as in `transformers` 5, or the colours alone, as by Pillow's `convert`.
Alpha = Literal["white", "dropped"]

# Counts the changes of what `as_8bit` and `as_rgb` give, for keys of what is computed of it.
DECODING_VERSION = 2
_WANTED = "a whole image file that Pillow can read"
_NO_RANGE = "8 or 16 bits a channel, whose range is known; scale mode {} to whole numbers from 0 to 255"
_PIXELS = "whole numbers from 0 to 255 as uint8, (height, width, 3)"
# Modes that some library cannot read, or resizes wrongly, and what they are without loss.
_PLAIN_MODES = {"La": "LA", "RGBa": "RGBA", "PA": "RGBA", "LAB": "RGB"}
_BITS_PER_SAMPLE = 258
# Raw modes of Pillow with 16 bits a channel, in some order of bytes; RGB;16 and BGR;16 have 16 bits a pixel.
_RAW_16_BITS = re.compile(r"^I;16|;16[BLN]")
# Of the longer side to the shorter: no photograph is a line, and a square crop of one shows nothing.
_MOST_ELONGATED = 1000


def open_image(place: ImageFile | str) -> Image.Image:
    """The picture in a file.

    Raises InputError where the file is missing, empty, cut short, too large to decode safely, not an image, or as
    `as_8bit`.
    """
    place = Path(place) if isinstance(place, str) else place
    return decode_image(_bytes(place), place)


def decode_image(data: bytes, source: object) -> Image.Image:
    """Like `open_image`, for the bytes of an image file; `source` names it in errors."""
    image = _header(data, source)
    if image.mode.startswith("I;16") or any(_has_16_bits(tile.args) for tile in image.tile):
        _say_once("images of 16 bits a channel are scaled to 8 bits")
    picture = as_8bit(image, source)
    with contextlib.suppress(Exception):  # a damaged second frame, which is looked for in a GIF
        if image.is_animated and image.format != "MPO":  # a camera's previews
            _say_once("of images with several frames or pages the first is read")
    return picture


def _has_16_bits(decoder_arguments: Any) -> bool:
    """Return whether a decoder reads 16 bits a channel: its raw mode, alone or the first argument, says so."""
    raw_mode = decoder_arguments[0] if isinstance(decoder_arguments, tuple) else decoder_arguments
    return isinstance(raw_mode, str) and _RAW_16_BITS.search(raw_mode) is not None


def image_size(place: ImageFile) -> tuple[int, int]:
    """Width and height, read without decoding. Raises InputError as `open_image`."""
    return _header(_bytes(place), place).size


def image_format(data: bytes, source: object) -> str:
    """The form of an image file by Pillow's name, such as JPEG. Raises InputError as `open_image`."""
    return _header(data, source).format or ""


def has_exif_rotation(place: ImageFile) -> bool:
    """Whether a file has an EXIF orientation, which is not applied; read without decoding. Errors as `open_image`."""
    image = _header(_bytes(place), place)
    try:
        # A PNG's own method decodes it, in search of EXIF behind its pixels.
        return Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1) in range(2, 9)
    except Exception:  # EXIF that cannot be read turns nothing
        return False


def as_8bit(image: Any, source: object = "image") -> Image.Image:
    """A PIL image of any mode, or whole numbers from 0 to 255 in an array, as 8 bits a channel.

    Args:
        image: arrays are `(height, width)` or `(height, width, channels)`: 1 grey, 3 RGB, 4 with alpha.
        source: names the image in errors.

    Raises:
        InputError: it is damaged, has no pixels, is thinner than 1000 to 1, or its numbers have no known range.
    """
    image = image if isinstance(image, Image.Image) else _from_array(image, source)
    if 0 in image.size:
        raise InputError(source, "size", f"{image.width} x {image.height}", "at least one pixel")
    if max(image.size) > _MOST_ELONGATED * min(image.size):
        found = f"{image.width} x {image.height} pixels"
        raise InputError(source, "aspect ratio", found, f"at most {_MOST_ELONGATED} to 1")
    with _refusals(source):
        image.load()
    if image.mode[0] in "IF":
        return _as_8_bits(image, source)
    has_alpha = image.mode == "P" and image.palette.mode == "RGBA"
    plain = "RGBA" if has_alpha else _PLAIN_MODES.get(image.mode)
    return image.convert(plain) if plain else image


def as_rgb(image: Any, alpha: Alpha = "white", source: object = "image") -> Image.Image:
    """Like `as_8bit`, in RGB; `alpha` says what becomes of transparency, a transparent colour included."""
    image = as_8bit(image, source)
    if alpha == "white" and image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    image = image.convert("RGB")
    image.info.pop("transparency", None)
    return image


def _as_8_bits(image: Image.Image, source: object) -> Image.Image:
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        most = 2 ** getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))[0] - 1  # a TIFF may have 12
    elif image.mode == "I" and low >= 0 and high <= 255:
        most = 255
    else:
        raise InputError(source, "image", f"values from {low:g} to {high:g}", _NO_RANGE.format(image.mode))
    grey = np.round(values * (255 / most)).clip(0, 255).astype(np.uint8)
    clear = image.info.get("transparency")
    return Image.fromarray(grey if clear is None else np.stack([grey, np.uint8(255) * (values != clear)], axis=-1))


def _from_array(image: Any, source: object) -> Image.Image:
    values = np.asarray(image)
    if values.dtype.kind not in "iu" or values.dtype == np.uint16:
        known = values.dtype.kind in "biufc"
        found = f"{values.dtype}, whose range is not known" if known else f"a {type(image).__name__}"
        raise InputError(source, "pixels", found, _PIXELS if known else "a PIL image or an array")
    channels = values.shape[2] if values.ndim == 3 else 1 if values.ndim == 2 else 0
    if channels not in (1, 3, 4):
        raise InputError(source, "shape", values.shape, "(height, width, 3)")
    if values.size and not 0 <= values.min() <= values.max() <= 255:
        raise InputError(source, "pixels", f"{values.dtype} from {values.min()} to {values.max()}", _PIXELS)
    if 0 in values.shape:
        raise InputError(source, "size", f"{values.shape[1]} x {values.shape[0]}", "at least one pixel")
    return Image.fromarray((values[..., 0] if values.shape[2:] == (1,) else values).astype(np.uint8))


def _bytes(place: ImageFile) -> bytes:
    try:
        return place.read_bytes()
    except PermissionError:
        raise
    except OSError as error:
        others = {FileNotFoundError: "nothing there", IsADirectoryError: "a folder"}
        raise InputError(place, "image", others.get(type(error), f"a damaged file ({error})"), _WANTED) from None


def _header(data: bytes, source: object) -> Image.Image:
    if not data:
        raise InputError(source, "image", "an empty file", _WANTED)
    with _refusals(source):
        return Image.open(io.BytesIO(data))


@contextlib.contextmanager
def _refusals(source: object) -> Iterator[None]:
    try:
        yield
    except (Exception, MemoryError) as error:
        # What Pillow's decoders raise on damaged files differs from plugin to plugin: OSError, SyntaxError, KeyError,
        # NotImplementedError, struct.error, ...
        others = {UnidentifiedImageError: "a file that is not an image", Image.DecompressionBombError: str(error)}
        raise InputError(source, "image", others.get(type(error), f"a damaged file ({error})"), _WANTED) from None


@functools.cache
def _say_once(text: str) -> None:
    say(text)
