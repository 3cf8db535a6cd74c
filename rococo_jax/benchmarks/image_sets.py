"""Image sets that are computed from files: corrupted images, and regions of images."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

from rococo_jax.benchmarks.variants import UNCORRUPTED, Variant
from rococo_jax.data.images import FileBackedImageSet, FileImages, Prepare, Task, chunks
from rococo_jax.data.pictures import as_rgb
from rococo_jax.data.pixel_cache import PixelView
from rococo_jax.errors import naming_source
from rococo_jax.perturb.images.corruptions import DEFINITION_VERSION, find_corruption
from rococo_jax.perturb.images.image_folders import image_id, rgb_pixels

# The constants of ImageNet-C were chosen for this size.
_CORRUPTED_SIDE = 224
_CORRUPTED_AT_ONCE = 32
_CENTRE_CROP = PixelView(
    f"cut {_CORRUPTED_SIDE}", (_CORRUPTED_SIDE, _CORRUPTED_SIDE, 3), partial(rgb_pixels, size=_CORRUPTED_SIDE)
)


@dataclasses.dataclass(frozen=True, eq=False)
class CorruptedImages(FileBackedImageSet):
    """Images cropped to a square of 224 pixels and corrupted as in ImageNet-C; with `kind=None` only cropped.

    `severity` is 1 to 5, or 0 without a corruption. Random numbers depend only on the name of an image and the seed.
    """

    originals: FileImages
    kind: str | None
    severity: int
    seed: int = 0

    def __post_init__(self):
        self.originals.pixel_cache.announce(_CENTRE_CROP)

    @property
    def variant(self) -> Variant:
        """Corruption and severity as fields of a variant."""
        return Variant(corruption=self.kind or UNCORRUPTED, severity=self.severity)

    @property
    def name(self) -> str:
        """`fog_3`, or `uncorrupted`."""
        return self.variant.name

    def __len__(self) -> int:
        return len(self.originals)

    def content(self, row: int) -> bytes:
        """Return the content of an image for hashes: name and hash of the file, and the corruption."""
        about = [self.kind, self.severity, self.seed, _CORRUPTED_SIDE, DEFINITION_VERSION]
        return json.dumps([self.originals.names[row], self.originals.hashes[row], *about]).encode()

    def tasks(self, rows: Sequence[int], prepare: Prepare) -> Iterator[Task]:
        """Return a task for each batch, which the device corrupts."""
        return (Task(len(batch), partial(self._prepared, batch, prepare)) for batch in chunks(rows, _CORRUPTED_AT_ONCE))

    def _prepared(self, rows: Sequence[int], prepare: Prepare) -> list[Any]:
        several = self.pixel_cache.is_announced(prepare)
        prepared = [self.pixel_cache.get(row, prepare) for row in rows] if several else [None]
        if all(pixels is not None for pixels in prepared):
            return prepared
        pixels = np.stack([self.originals.pixel_cache.pixels(row, _CENTRE_CROP) for row in rows])
        if self.kind is not None:
            ids = np.array([image_id(self.originals.names[row]) for row in rows], np.int64)
            corrupt = find_corruption(self.kind)
            pixels = np.asarray(corrupt(pixels, self.severity, jax.random.key(self.seed), ids=ids))
        results = [prepare(Image.fromarray(image)) for image in pixels]
        for row, each in zip(rows, results if several else [], strict=several):
            self.pixel_cache.put(row, prepare, each)
        return results


@dataclasses.dataclass(frozen=True, eq=False)
class CroppedImages(FileBackedImageSet):
    """Regions of images inside boxes, cropped before all other processing.

    Attributes:
        originals: the files.
        rows: row of the file of each region.
        boxes: left, top, right, bottom in pixels, as in Pillow's `crop`: black outside the image.
        name: name of the set.
    """

    originals: FileImages
    rows: tuple[int, ...]
    boxes: tuple[tuple[int, int, int, int], ...]
    name: str = "crops"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files."""
        return self.originals.paths

    def content(self, row: int) -> bytes:
        """Return the content of a region for hashes: hash of the file, and the box."""
        return json.dumps([self.originals.hashes[self.rows[row]], list(self.boxes[row])]).encode()

    def tasks(self, rows: Sequence[int], prepare: Prepare) -> Iterator[Task]:
        """Return a task for each row."""
        return (Task(1, lambda row=row: [self._prepared(row, prepare)]) for row in rows)

    def _prepared(self, row: int, prepare: Prepare) -> Any:
        with naming_source(self.paths[self.rows[row]]):
            return prepare(as_rgb(self.originals.pixel_cache.image(self.rows[row])).crop(self.boxes[row]))

    def note(self, row: int) -> str:
        """Return a phrase about the box, for tables."""
        return f"cut to {list(self.boxes[row])}"

    def input_keys(self) -> list[str]:
        """Return the names of the regions: file and box."""
        names = [self.originals.names[row] for row in self.rows]
        return [f"{self.name}/{name}@{','.join(map(str, box))}" for name, box in zip(names, self.boxes, strict=True)]
