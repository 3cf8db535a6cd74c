"""Image sets: images by row, whatever they are made of. Files as they are here; derived sets where they are made."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from PIL import Image

from rococo_jax.data.images import map_images
from rococo_jax.storage import hash_file

ORIGINALS = "originals"
IMAGES_PER_RUN = 512

Prepare = Callable[[Image.Image], Any]


@runtime_checkable
class ImageSet(Protocol):
    """A table of images: originals, mixed, corrupted and cropped ones alike; one image a row.

    Attributes:
        name: of the table; tasks and results name it.
    """

    name: str

    def __len__(self) -> int:
        """How many images there are."""

    def content(self, row: int) -> bytes:
        """All that decides the image's pixels, for the key of the embedding cache."""

    def runs(self, size: int) -> list[list[int]]:
        """Every row once, in runs of about `size`, in the order in which they are read with the least work."""

    def read(self, rows: Sequence[int], prepare: Callable[[Image.Image], Any] | None = None) -> Iterator[Any]:
        """The images of these rows as PIL images, or what `prepare` makes of each.

        Raises:
            InputError: an image file cannot be read; it names the file.
        """

    def thumbnail(self, row: int) -> Image.Image:
        """The image as a model meets it, for a report."""

    def note(self, row: int) -> str:
        """One phrase that a reader needs beside the image, such as what was mixed in; often empty."""


@dataclasses.dataclass(frozen=True, eq=False)
class FileImages:
    """Image files, as they are.

    Attributes:
        names: what captions and results call them.
        paths: their files, in the same order.
        name: of the set.
    """

    names: tuple[str, ...]
    paths: tuple[Path, ...]
    name: str = ORIGINALS

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def hashes(self) -> tuple[str, ...]:
        """SHA-256 of every file."""
        return tuple(map(hash_file, self.paths))

    def content(self, row: int) -> bytes:
        """The hash of the file."""
        return bytes.fromhex(self.hashes[row])

    def runs(self, size: int = IMAGES_PER_RUN) -> list[list[int]]:
        """The rows in order."""
        return chunks(range(len(self)), size)

    def read(self, rows: Sequence[int], prepare: Prepare | None = None) -> Iterator[Any]:
        """Opens and prepares files in threads, in order; see `ImageSet.read`."""
        return map_images([self.paths[row] for row in rows], prepare or as_rgb)

    def thumbnail(self, row: int) -> Image.Image:
        """The image itself."""
        return next(self.read([row]))

    def note(self, row: int) -> str:
        """Nothing."""
        del row
        return ""


def as_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB."""
    return image.convert("RGB")


def chunks(items: Sequence, size: int) -> list[list]:
    """Runs of `size` items; the last may be shorter."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
