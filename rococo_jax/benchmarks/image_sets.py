"""Corrupted images of any benchmark, and parts of images inside boxes."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

from rococo_jax.data.images import IMAGES_PER_RUN, FileImages, Prepare, as_rgb, chunks
from rococo_jax.perturb.images.corruptions import find_corruption
from rococo_jax.perturb.images.image_folders import image_id, read_rgb

UNCORRUPTED = "uncorrupted"
# The constants of ImageNet-C were chosen for this size.
_CORRUPTED_SIDE = 224
_CORRUPTED_AT_ONCE = 32


@dataclasses.dataclass(frozen=True, eq=False)
class CorruptedImages:
    """Files cut to a square of 224 pixels and corrupted as in ImageNet-C; `kind=None` is the cut alone.

    `severity` is 1 to 5, 0 without a corruption. What is random about an image depends on its name and the seed alone.
    """

    originals: FileImages
    kind: str | None
    severity: int
    seed: int = 0

    @property
    def name(self) -> str:
        """`fog_3`, or `uncorrupted`."""
        return UNCORRUPTED if self.kind is None else f"{self.kind}_{self.severity}"

    def __len__(self) -> int:
        return len(self.originals)

    def content(self, row: int) -> bytes:
        """Name and hash of the file, and the corruption."""
        about = [self.kind, self.severity, self.seed, _CORRUPTED_SIDE]
        return json.dumps([self.originals.names[row], self.originals.hashes[row], *about]).encode()

    def runs(self, size: int = IMAGES_PER_RUN) -> list[list[int]]:
        """The rows in order."""
        return self.originals.runs(size)

    def read(self, rows: Sequence[int], prepare: Prepare | None = None) -> Iterator[Any]:
        """Corrupts batches on the device; see `ImageSet.read`."""
        key, originals = jax.random.key(self.seed), self.originals
        with ThreadPoolExecutor(2, thread_name_prefix="images") as pool:
            for batch in chunks(rows, _CORRUPTED_AT_ONCE):
                pixels = np.stack(list(pool.map(lambda row: read_rgb(originals.paths[row], _CORRUPTED_SIDE), batch)))
                if self.kind is not None:
                    ids = np.array([image_id(originals.names[row]) for row in batch], np.int64)
                    pixels = np.asarray(find_corruption(self.kind)(pixels, self.severity, key, ids=ids))
                yield from map(prepare or _same, map(Image.fromarray, pixels))

    def applied_to(self, originals: FileImages) -> "CorruptedImages":
        """The same corruption of other images."""
        return dataclasses.replace(self, originals=originals)

    def thumbnail(self, row: int) -> Image.Image:
        """The corrupted image."""
        return next(self.read([row]))

    def note(self, row: int) -> str:
        """Nothing; the set's name tells it."""
        return self.originals.note(row)


@dataclasses.dataclass(frozen=True, eq=False)
class CroppedImages:
    """Parts of files inside boxes, cut before anything else is done to them.

    Attributes:
        originals: the files.
        rows: for each part, the file that it is cut from.
        boxes: left, top, right, bottom in pixels, as in Pillow's `crop`.
        name: of the set.
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
        """Hash of the file, and the box."""
        return json.dumps([self.originals.hashes[self.rows[row]], list(self.boxes[row])]).encode()

    def runs(self, size: int = IMAGES_PER_RUN) -> list[list[int]]:
        """The parts in order."""
        return chunks(range(len(self)), size)

    def read(self, rows: Sequence[int], prepare: Prepare | None = None) -> Iterator[Any]:
        """Opens files in threads and cuts them; see `ImageSet.read`."""
        boxes = iter([self.boxes[row] for row in rows])
        whole = self.originals.read([self.rows[row] for row in rows], _same)
        return ((prepare or as_rgb)(image.crop(box)) for image, box in zip(whole, boxes, strict=True))

    def thumbnail(self, row: int) -> Image.Image:
        """The part itself."""
        return next(self.read([row]))

    def note(self, row: int) -> str:
        """The box."""
        return f"cut to {list(self.boxes[row])}"


def _same(image: Image.Image) -> Image.Image:
    return image
