"""A captioned image, and the protocol of its sources: sequences whose index is the image's id while training."""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from PIL import Image

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.storage import hash_json


@dataclasses.dataclass(frozen=True)
class PairSample:
    """An image with its captions.

    Attributes:
        image: the image file's path, or its bytes.
        name: for errors and manifests.
        captions: at least one.
    """

    image: Path | bytes
    name: str
    captions: tuple[str, ...]

    @property
    def source(self) -> Path | str:
        """The image in errors: the path, or the name where there are only bytes."""
        return self.name if isinstance(self.image, bytes) else self.image

    def open(self) -> Image.Image:
        """The image, decoded whole.

        Raises:
            InputError: as `open_image`.
        """
        # Imported late, because it imports JAX, which processes that only draw or name samples do without.
        from rococo_jax.data.images import decode_image, open_image

        return decode_image(self.image, self.name) if isinstance(self.image, bytes) else open_image(self.image)


@runtime_checkable
class PairSource(Protocol):
    """A sequence of captioned images, as training reads it. Sources pickle, and hold no open file when they do."""

    def __len__(self) -> int:
        """The number of images."""

    def __getitem__(self, index: int) -> PairSample:
        """Image `index` with its captions; not decoded."""

    def hash(self) -> str:
        """Hash of what decides which sample has which number: a run resumes only with a source of the same hash."""


class FolderPairs:
    """Image files, with their captions in memory.

    Args:
        images: the captioned images.
        paths: their files.
    """

    def __init__(self, images: Sequence[CaptionedImage], paths: Sequence[Path]):
        self.names = tuple(image.image for image in images)
        self.captions = tuple(image.captions for image in images)
        # Strings take a fifth of the memory of paths, and pickle as much faster.
        self.paths = tuple(str(path) for path in paths)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> PairSample:
        return PairSample(Path(self.paths[index]), self.names[index], self.captions[index])

    def hash(self) -> str:
        """Hash of names and captions in their order; not of the folder, so that data may be moved."""
        return hash_json({"names": self.names, "captions": self.captions})


class JoinedPairs:
    """Several sources, concatenated."""

    def __init__(self, sources: Sequence[PairSource]):
        self.sources = tuple(sources)
        self.ends = tuple(itertools.accumulate(len(source) for source in self.sources))

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> PairSample:
        which = bisect.bisect_right(self.ends, index)
        return self.sources[which][index - (self.ends[which - 1] if which else 0)]

    def hash(self) -> str:
        """Hash of the sources' hashes in their order."""
        return hash_json([source.hash() for source in self.sources])
