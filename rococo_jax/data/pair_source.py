"""Define sources of captioned images: sequences whose index is the id of an image during training."""

import abc
import bisect
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from PIL import Image

from rococo_jax.cores import usable_cores
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.content_hashes import MISSING_FILE, FileHashes
from rococo_jax.data.pictures import decode_image, open_image
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json

# Images that are hashed before the next ones are started, so that not every image has its future at once.
_HASHED_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class PairSample:
    """An image with its captions (at least one).

    Attributes:
        image: the path of the image file, or its bytes.
        name: for errors and manifests.
    """

    image: Path | bytes
    name: str
    captions: tuple[str, ...]

    @property
    def source(self) -> Path | str:
        """The image in errors: its path, or its name if there are only bytes."""
        return self.name if isinstance(self.image, bytes) else self.image

    def read_bytes(self) -> bytes:
        """Return the bytes of the image file."""
        return self.image if isinstance(self.image, bytes) else self.image.read_bytes()

    def open(self, least_size: tuple[int, int] | None = None) -> Image.Image:
        """Return the decoded image, as `open_image`."""
        if isinstance(self.image, bytes):
            return decode_image(self.image, self.name, least_size)
        return open_image(self.image, least_size)


class PairSource(abc.ABC):
    """A sequence of captioned images, as training reads it. Sources can be pickled, without open files.

    Attributes:
        shards: number of images of each shard; empty if the source has no shards.
    """

    shards: tuple[int, ...] = ()

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> PairSample:
        """Return image `index` with its captions; not decoded."""

    def __iter__(self) -> Iterator[PairSample]:
        """Yield all samples in order."""
        return (self[index] for index in range(len(self)))

    @abc.abstractmethod
    def hash(self) -> str:
        """Return the hash of all samples in their order: names, captions and the bytes of every image.

        It does not depend on where the data lie. A run resumes only with a source of the same hash.
        """

    @property
    def parts(self) -> "tuple[PairSource, ...]":
        """The sources that this one concatenates, or itself."""
        return (self,)

    def captioned(self, index: int) -> CaptionedImage:
        """Return the name and the captions of image `index`, without reading the image if that is possible."""
        sample = self[index]
        return CaptionedImage(sample.name, sample.captions)

    def image_hashes(self) -> Iterable[str | None]:
        """Return the SHA-256 of each image file, in order; None for an image that cannot be read.

        The hash of the source and the list of training images use the same hashes, so a source that has them from
        an earlier reading should return these.
        """
        with ThreadPoolExecutor(usable_cores(), thread_name_prefix="hash") as pool:
            for start in range(0, len(self), _HASHED_AT_ONCE):
                yield from pool.map(self._hash_image, range(start, min(start + _HASHED_AT_ONCE, len(self))))

    def _hash_image(self, index: int) -> str | None:
        try:
            return hashlib.sha256(self[index].read_bytes()).hexdigest()
        except (InputError, OSError):  # training skips it as well
            return None

    def is_remote(self) -> bool:
        """Return whether every image is fetched over a network, so that reading all of them would take too long."""
        return False


class CaptionedImages(PairSource):
    """Captioned images in memory, in file order: their names, their captions and where each image lies.

    Args:
        items: names and captions.
        files: of the images: paths, or objects with `read_bytes()` and `sha256()` inside a table or a source.
        missing: names of images that were skipped because they have no file.
    """

    def __init__(self, items: Sequence[CaptionedImage], files: Iterable[Any], missing: Sequence[str] = ()):
        self.names = tuple(item.image for item in items)
        self.captions_by_image = tuple(item.captions for item in items)
        # Strings take a fifth of the memory of paths, and pickle five times faster.
        self._files = tuple(str(file) if isinstance(file, Path) else file for file in files)
        self.missing = tuple(missing)
        self._hash: str | None = None
        self._hashes: FileHashes | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_hashes": None}

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> PairSample:
        file, item = self.file(index), self.captioned(index)
        return PairSample(file if isinstance(file, Path) else file.read_bytes(), item.image, item.captions)

    def captioned(self, index: int) -> CaptionedImage:
        """Return the name and the captions of an image, from memory."""
        return CaptionedImage(self.names[index], self.captions_by_image[index])

    def file(self, index: int) -> Any:
        """Return the path of an image, or its place inside a table or source."""
        file = self._files[index]
        return Path(file) if isinstance(file, str) else file

    @property
    def items(self) -> tuple[CaptionedImage, ...]:
        """The names and captions of all images."""
        return tuple(map(self.captioned, range(len(self))))

    @property
    def paths(self) -> tuple[Any, ...]:
        """The files of all images, as `file` returns them."""
        return tuple(map(self.file, range(len(self))))

    @property
    def captions(self) -> tuple[str, ...]:
        """All captions, image by image."""
        return tuple(itertools.chain.from_iterable(self.captions_by_image))

    @property
    def caption_image(self) -> Int[np.ndarray, " captions"]:
        """The row of the image that each caption describes."""
        return np.repeat(np.arange(len(self)), list(map(len, self.captions_by_image)))

    def image_hashes(self) -> list[str | None]:
        """Return the SHA-256 of each image; None for an image without a file.

        Each file is read once, and again only if it may have changed; copies of tables have the hashes of their images.
        """
        if self._hashes is None:
            self._hashes = FileHashes(self._files)
        return self._hashes.read()

    def hash(self) -> str:
        """Return the hash of names, captions and image bytes in their order; it is independent of the folder."""
        if self._hash is None:
            images = [content or MISSING_FILE for content in self.image_hashes()]
            self._hash = hash_json({"names": self.names, "captions": self.captions_by_image, "images": images})
        return self._hash


class ImageOfSource(NamedTuple):
    """An image of a source, which can be read like a path."""

    source: PairSource
    number: int

    def read_bytes(self) -> bytes:
        """Return the bytes of the image file."""
        return self.source[self.number].read_bytes()

    def sha256(self) -> str:
        """Return the SHA-256 of the image file as 64 hex digits."""
        return hashlib.sha256(self.read_bytes()).hexdigest()

    def __str__(self) -> str:
        return self.source.captioned(self.number).image


class JoinedPairs(PairSource):
    """Several sources, concatenated."""

    parts: tuple[PairSource, ...] = ()

    def __init__(self, sources: Sequence[PairSource]):
        self.parts = tuple(sources)
        self.ends = tuple(itertools.accumulate(map(len, self.parts)))

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> PairSample:
        part, number = self._locate(index)
        return part[number]

    def captioned(self, index: int) -> CaptionedImage:
        """Return the name and the captions of an image, from its part."""
        part, number = self._locate(index)
        return part.captioned(number)

    def image_hashes(self) -> Iterator[str | None]:
        """Yield the hashes of the images of all parts."""
        for part in self.parts:
            yield from part.image_hashes()

    def _locate(self, index: int) -> tuple[PairSource, int]:
        """Return the part of an image, and its number there."""
        place = bisect.bisect_right(self.ends, index)
        return self.parts[place], index - (self.ends[place - 1] if place else 0)

    def hash(self) -> str:
        """Return the hash of the hashes of the parts, in their order."""
        return hash_json([part.hash() for part in self.parts])
