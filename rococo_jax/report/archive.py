"""What the examples show beside the results: pictures and original captions, as far as they are still to be had.

Results name the folders that they were measured on. A folder that has moved, or a file that is damaged by now, takes a
picture away from the page and nothing else.
"""

import base64
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from rococo_jax.data.images import open_image
from rococo_jax.errors import InputError
from rococo_jax.report.examples import Fooled, words_that_count

_LONGEST_SIDE = 320  # px: sharp at the size the page shows, about 20 kB each
_JPEG_QUALITY = 80

# Altered caption, by the words that count -> (image, original) of each place where it occurs.
_Origins = dict[str, list[tuple[str, str]]]


class Picture(NamedTuple):
    """A small JPEG inside a data URI, and its size in px."""

    uri: str
    width: int
    height: int


class Archive:
    """Finds pictures and originals by the folders that results name; every folder and file is read once."""

    def __init__(self) -> None:
        self._pictures: dict[tuple[str, str], Picture | None] = {}
        self._origins: dict[str, dict[str, _Origins]] = {}

    def picture(self, data: dict[str, Any], name: str) -> Picture | None:
        """The image `name` as the model saw it (no EXIF rotation), made small; None where it cannot be had."""
        key = (str(data.get("images")), name)
        if key not in self._pictures:
            self._pictures[key] = _small_picture(self.file(data, name))
        return self._pictures[key]

    def file(self, data: dict[str, Any], name: str) -> Path | None:
        """The file of the image `name`; None where there is none, or where it lies outside the run's folder."""
        folder = data.get("images")
        return _find_file(folder, name) if isinstance(folder, str) and name else None

    def source_caption(self, data: dict[str, Any], example: Fooled) -> str | None:
        """The original that the chosen caption was made from, one of the query's own image where several match."""
        folder = data.get("annotations")
        if not isinstance(folder, str):
            return None
        if folder not in self._origins:
            self._origins[folder] = _read_origins(folder)
        places = self._origins[folder].get(example.variant, {}).get(words_that_count(example.chosen), [])
        own = [original for image, original in places if image == example.image]
        return next(iter(own or [original for _, original in places]), None)


def small_jpeg(pixels: UInt8[np.ndarray, "height width 3"], side: int = _LONGEST_SIDE) -> Picture:
    """RGB pixels as a JPEG with a longest side of at most `side` px, inside a data URI."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_JPEG_QUALITY, optimize=True)
    return Picture("data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode(), image.width, image.height)


def _find_file(folder: str, name: str) -> Path | None:
    from rococo_jax.data.captions import find_images

    try:
        path = find_images([name], folder)[0].get(name)
        # A name comes from a results file, which may come from anybody: it must not fetch a picture from elsewhere.
        return path if path is not None and path.resolve().is_relative_to(Path(folder).resolve()) else None
    except (InputError, OSError, ValueError):
        return None


def _small_picture(path: Path | None) -> Picture | None:
    if path is None:
        return None
    try:
        return small_jpeg(np.asarray(open_image(path).convert("RGB")))
    except (InputError, OSError, ValueError):
        return None


def _read_origins(folder: str) -> dict[str, _Origins]:
    from rococo_jax.benchmarks.rococo.annotations import read_annotation_folder

    try:
        variants = read_annotation_folder(folder).variants
    except (InputError, OSError):
        return {}
    origins: dict[str, _Origins] = {}
    for variant, annotation in variants.items():
        places = origins.setdefault(variant, {})
        for item in annotation.items:
            for original, altered in zip(item.originals, item.altered, strict=True):
                if altered is not None:
                    places.setdefault(words_that_count(altered), []).append((item.image, original))
    return origins
