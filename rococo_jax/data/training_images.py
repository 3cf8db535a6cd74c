"""The list of images that a model was trained on, saved with the model so that an evaluation can mark items on them.

`training_images.txt` in a model directory is a header line and then one key per line, sorted. An image has up to two
keys of 16 hex digits: the SHA-256 of its file, and, if its name is one of COCO's, the SHA-256 of its number, which also
identifies an image that was encoded again or renamed to another of COCO's names. The header ends with `at least` if the
model was trained on further, unknown images, such as those of the checkpoint it was started from.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from rococo_jax.data.image_files import ImageFile, coco_number, hash_image
from rococo_jax.data.pair_source import PairSource
from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.storage import atomic_write, hash_json

FILE = "training_images.txt"
_HEAD = "rococo_jax.training_images 1"
_AT_LEAST = f"{_HEAD} at least"
_DIGITS = 16
_ADVANCE_EVERY = 4096


@dataclasses.dataclass(frozen=True)
class TrainingImages:
    """Keys of the images that a model was trained on, including those of the models it was started from.

    Attributes:
        keys: of the known images.
        complete: whether there are no further, unknown images.
    """

    keys: frozenset[str]
    complete: bool = True

    def __or__(self, other: "TrainingImages | None") -> "TrainingImages":
        """Return the images of both; None stands for unknown images, which make the union incomplete."""
        return union(self, other)

    def contains(self, names: Sequence[str], hashes: Sequence[str]) -> Bool[np.ndarray, " images"]:
        """Return whether each image is in the list, by its name or the SHA-256 of its file."""
        return np.array([not self.keys.isdisjoint(_keys(*each)) for each in zip(names, hashes, strict=True)], bool)


# The list of a model with random parameters.
NO_IMAGES = TrainingImages(frozenset())


def union(*lists: TrainingImages | None) -> TrainingImages | None:
    """Return the images of several models or sources together, or None if all lists are unknown."""
    known_lists = [images for images in lists if images is not None]
    if not known_lists:
        return None
    complete = len(known_lists) == len(lists) and all(images.complete for images in known_lists)
    return TrainingImages(frozenset().union(*(images.keys for images in known_lists)), complete)


def training_images(names: Iterable[str], paths: Iterable[ImageFile]) -> TrainingImages:
    """Read image files and return the list of them."""
    keys = [key for name, path in zip(names, paths, strict=True) for key in _keys(name, hash_image(path))]
    return TrainingImages(frozenset(keys))


@dataclasses.dataclass(frozen=True)
class SourceImages:
    """The current images of a source.

    Attributes:
        sha256: hash of the names and the bytes of all images, in order; for images behind a network, of the source.
        images: the list of them; None if the images lie behind a network, as reading all of them takes too long.
    """

    sha256: str
    images: TrainingImages | None


def source_images(source: PairSource) -> SourceImages:
    """Return the images of a source. Files that did not change since the source last hashed them are not read again."""
    parts = [_images_of_part(part) for part in source.parts]
    return SourceImages(hash_json([part.sha256 for part in parts]), union(*(part.images for part in parts)))


def _images_of_part(source: PairSource) -> SourceImages:
    if source.is_remote():
        return SourceImages(source.hash(), None)
    digest, keys = hashlib.sha256(), set()
    with progress("hashing training images", len(source), "images") as advance:
        for number, content in enumerate(source.image_hashes()):
            name = source.captioned(number).image
            digest.update(hash_json([name, content]).encode())
            keys.update(_keys(name, content) if content else [])
            if (number + 1) % _ADVANCE_EVERY == 0:
                advance(_ADVANCE_EVERY)
        advance(len(source) % _ADVANCE_EVERY)
    return SourceImages(digest.hexdigest(), TrainingImages(frozenset(keys)))


def _keys(name: str, sha256: str) -> list[str]:
    """Return the keys of an image."""
    number = coco_number(name)
    keys_of_number = [] if number is None else [hashlib.sha256(f"coco:{number}".encode()).hexdigest()[:_DIGITS]]
    return [sha256[:_DIGITS], *keys_of_number]


def write_training_images(folder: str | os.PathLike, images: TrainingImages | None) -> None:
    """Write the list into a model directory, unless it is unknown."""
    if images is not None:
        with atomic_write(Path(folder) / FILE) as temporary:
            head = _HEAD if images.complete else _AT_LEAST
            temporary.write_text("\n".join([head, *sorted(images.keys)]) + "\n")


def read_training_images(folder: str | os.PathLike) -> TrainingImages | None:
    """Read the list of a model directory, or None if it has none. Raises InputError: the file is something else."""
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    head, *keys = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    if head not in (_HEAD, _AT_LEAST) or any(len(key) != _DIGITS for key in keys):
        raise InputError(path, "training images", repr(head)[:80], f"{_HEAD!r} and keys of {_DIGITS} hex digits")
    return TrainingImages(frozenset(keys), complete=head == _HEAD)
