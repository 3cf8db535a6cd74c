"""A captioned image, and the protocol of its sources: sequences whose index is the image's id while training.

Datasets of TensorFlow Datasets (TFDS) are read through its random-access source without TensorFlow:

    tfds:coco_captions/2014?split=train
    tfds:my_pairs?split=train[:90%]&data_dir=/data/tfds&image=photo&captions=texts/en&name=file

Before the `?` stands TFDS's name of the dataset, with config and version. Options: `split` (train by default),
`data_dir`, and the features of the image, the captions (one text, or a sequence) and the image's name, with a slash
where features are nested; by default those of TFDS's captioning datasets. Images stay undecoded.
"""

import abc
import bisect
import dataclasses
import hashlib
import itertools
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from PIL import Image

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.content_hashes import hash_files, hash_in_threads
from rococo_jax.data.file_state import local_stamp
from rococo_jax.data.image_files import hash_image
from rococo_jax.data.pictures import decode_image, open_image
from rococo_jax.data.tfds_examples import USUAL, choose_feature, find_feature, open_examples, text_of
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_bytes, hash_json


@dataclasses.dataclass(frozen=True)
class PairSample:
    """An image with its captions (at least one).

    Attributes:
        image: the image file's path, or its bytes.
        name: for errors and manifests.
    """

    image: Path | bytes
    name: str
    captions: tuple[str, ...]

    @property
    def source(self) -> Path | str:
        """The image in errors: the path, or the name where there are only bytes."""
        return self.name if isinstance(self.image, bytes) else self.image

    def read_bytes(self) -> bytes:
        """The bytes of the image file."""
        return self.image if isinstance(self.image, bytes) else self.image.read_bytes()

    def open(self) -> Image.Image:
        """The image, decoded whole. Raises InputError as `open_image`."""
        return decode_image(self.image, self.name) if isinstance(self.image, bytes) else open_image(self.image)


class PairSource(abc.ABC):
    """A sequence of captioned images, as training reads it. Sources pickle, and hold no open file when they do.

    Attributes:
        shards: number of images of each shard; empty where there are none.
    """

    shards: tuple[int, ...] = ()

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> PairSample:
        """Image `index` with its captions; not decoded."""

    def __iter__(self) -> Iterator[PairSample]:
        """All samples in order."""
        return (self[index] for index in range(len(self)))

    @abc.abstractmethod
    def hash(self) -> str:
        """Hash of what the samples are and of their order: names, captions and the bytes of every image.

        It does not depend on where the data lie. A run resumes only with a source of the same hash.
        """

    @property
    def parts(self) -> "tuple[PairSource, ...]":
        """The sources that it concatenates, or itself."""
        return (self,)

    def captioned(self, index: int) -> CaptionedImage:
        """The name and the captions of image `index`; the image is left unread where that is possible."""
        sample = self[index]
        return CaptionedImage(sample.name, sample.captions)

    def hash_image(self, index: int) -> str | None:
        """SHA-256 of the bytes of an image file; None where it cannot be read, as training skips it, too."""
        try:
            return hashlib.sha256(self[index].read_bytes()).hexdigest()
        except (InputError, OSError):
            return None

    def is_remote(self) -> bool:
        """Whether every image is fetched over a network, so that nothing reads all of them beforehand."""
        return False

    def file_stamp(self, index: int) -> str | None:
        """What differs once the file of an image was written again; None where an image has no file of its own."""
        return None


class CaptionedImages(PairSource):
    """Captioned images in memory, in file order: their names and captions, and where each image is.

    A place is a path, or of an image inside a table or a source, and has `read_bytes()` as paths do. `missing` names
    images that were left out.
    """

    def __init__(self, items: Sequence[CaptionedImage], places: Iterable[Any], missing: Sequence[str] = ()):
        self.names = tuple(item.image for item in items)
        self.captions_by_image = tuple(item.captions for item in items)
        # Strings take a fifth of the memory of paths, and pickle as much faster.
        self._places = tuple(str(place) if isinstance(place, Path) else place for place in places)
        self.missing = tuple(missing)
        self._hash: str | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> PairSample:
        place, item = self.place(index), self.captioned(index)
        return PairSample(place if isinstance(place, Path) else place.read_bytes(), item.image, item.captions)

    def captioned(self, index: int) -> CaptionedImage:
        """Name and captions of an image, from memory."""
        return CaptionedImage(self.names[index], self.captions_by_image[index])

    def place(self, index: int) -> Any:
        """The path of an image, or its place inside a table."""
        place = self._places[index]
        return Path(place) if isinstance(place, str) else place

    def file_stamp(self, index: int) -> str | None:
        """As `local_stamp` of the image's file; None for an image inside a table."""
        place = self.place(index)
        return local_stamp(place) if isinstance(place, Path) and place.is_file() else None

    @property
    def items(self) -> tuple[CaptionedImage, ...]:
        """All images' names and captions."""
        return tuple(map(self.captioned, range(len(self))))

    @property
    def paths(self) -> tuple[Any, ...]:
        """All images' places."""
        return tuple(map(self.place, range(len(self))))

    @property
    def captions(self) -> tuple[str, ...]:
        """All captions, image by image."""
        return tuple(itertools.chain.from_iterable(self.captions_by_image))

    @property
    def caption_image(self) -> Int[np.ndarray, " captions"]:
        """The row of the image that each caption describes."""
        return np.repeat(np.arange(len(self)), list(map(len, self.captions_by_image)))

    def hash(self) -> str:
        """Hash of names, captions and bytes of the images in their order; not of the folder, so that data may be moved.

        Files of images are read once, and again only where they may have changed (`content_hashes`).
        """
        if self._hash is None:
            files = [place for place in self._places if isinstance(place, str)]
            inside = [place for place in self._places if not isinstance(place, str)]
            of_files, of_tables = iter(hash_files(files)), iter(hash_in_threads(hash_image, inside))
            images = [next(of_files if isinstance(place, str) else of_tables) for place in self._places]
            self._hash = hash_json({"names": self.names, "captions": self.captions_by_image, "images": images})
        return self._hash


class ImageOfSource(NamedTuple):
    """The place of an image of a source, which can be read as a path can."""

    source: PairSource
    number: int

    def read_bytes(self) -> bytes:
        """The bytes of the image file."""
        return self.source[self.number].read_bytes()

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
        part, own = self._locate(index)
        return part[own]

    def captioned(self, index: int) -> CaptionedImage:
        """Name and captions of an image, from its part."""
        part, own = self._locate(index)
        return part.captioned(own)

    def _locate(self, index: int) -> tuple[PairSource, int]:
        """The part of an image, and its number there."""
        which = bisect.bisect_right(self.ends, index)
        return self.parts[which], index - (self.ends[which - 1] if which else 0)

    def hash(self) -> str:
        """Hash of the sources' hashes in their order."""
        return hash_json([part.hash() for part in self.parts])


_OPTIONS = ("split", "data_dir", *USUAL)


class TfdsPairs(PairSource):
    """The examples of a random-access source as image-text pairs; `source` names it in errors.

    Args:
        examples: mappings of features by number; images as the bytes of their file, texts as bytes or strings.
        features: which feature is the `image`, the `captions`, and the `name` (None for the number).
        identity: JSON values that identify the dataset, version and split.
        files: that hold the examples, where they are local files.
    """

    def __init__(
        self,
        examples: Sequence,
        features: Mapping[str, str | None],
        identity: Any,
        source: str,
        files: Sequence[Path] = (),
    ):
        self.examples, self.features, self.identity, self.source = examples, dict(features), identity, source
        self.files = tuple(files)
        self._hash: str | None = None

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> PairSample:
        example = self.examples[index]
        image = find_feature(example, self.features["image"])
        texts = find_feature(example, self.features["captions"])
        captions = tuple(map(text_of, [texts] if isinstance(texts, bytes | str) else texts))
        name = f"example {index} of {self.source}"
        if not isinstance(image, bytes):
            raise InputError(name, self.features["image"], type(image).__name__, "an encoded image")
        if not captions:
            raise InputError(name, self.features["captions"], "no caption", "at least one")
        own = self.features["name"] and find_feature(example, self.features["name"])
        return PairSample(image, text_of(own) if own else name, captions)

    def hash(self) -> str:
        """Hash of the dataset's name, version and split, the features that are read, and the bytes of its files.

        Where the files are not local, all examples are read.
        """
        if self._hash is None:
            contents = hash_files(self.files) if self.files else hash_in_threads(self._hash_of, range(len(self)))
            about = {"identity": self.identity, "examples": len(self), "features": self.features}
            self._hash = hash_json({**about, "contents": contents})
        return self._hash

    def _hash_of(self, index: int) -> str:
        sample = self[index]
        return hash_bytes(sample.read_bytes(), hash_json([sample.name, sample.captions]).encode())


def open_tfds(name: str) -> TfdsPairs:
    """Opens `tfds:NAME?options`. A dataset that is not on disk yet is prepared by TFDS, which may download it.

    Raises InputError where TFDS is not installed, has no such dataset or split or cannot read it by index, or a feature
    is missing.
    """
    dataset, _, query = name.removeprefix("tfds:").partition("?")
    options = {key: values[-1] for key, values in urllib.parse.parse_qs(query, strict_parsing=bool(query)).items()}
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise InputError(name, "option", unknown[0], f"one of {', '.join(_OPTIONS)}")
    split = options.get("split", "train")
    examples, first = open_examples(name, dataset, split, options)
    features = {role: choose_feature(role, options, first, name) for role in USUAL}
    return TfdsPairs(examples, features, [examples.dataset_info.full_name, split], name, _local_files(examples, split))


def _local_files(examples: Any, split: str) -> list[Path]:
    """The files that hold a split; none where one of them is not local."""
    paths = [Path(path) for path in examples.dataset_info.splits[split].filepaths]
    return paths if all(path.is_file() for path in paths) else []
