"""The images that a model was trained on: kept with it, so that an evaluation can tell the items that it has seen.

`training_images.txt` in a model directory: a head line, then one key a line, sorted. An image has up to two keys, each
16 hex digits of SHA-256: of its file's bytes, and, where its name is one of COCO's, of its number, so that an image
that was stored again under another of COCO's names is known as well. The head line ends with `at least` where the
model was trained on further images that are not known, such as those of a checkpoint that it was started from.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from rococo_jax.cores import usable_cores
from rococo_jax.data.image_files import ImageFile, coco_number, hash_image
from rococo_jax.data.pair_source import PairSource
from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.storage import atomic_write, hash_json

FILE = "training_images.txt"
_HEAD = "rococo_jax.training_images 1"
_AT_LEAST = f"{_HEAD} at least"
_DIGITS = 16
_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class TrainingImages:
    """Keys of the images that a model, or any that it was started from, was trained on.

    Attributes:
        keys: of the known images.
        complete: whether these are all of them.
    """

    keys: frozenset[str]
    complete: bool = True

    def __or__(self, other: "TrainingImages | None") -> "TrainingImages":
        """Return the images of both models; of those of `None` nothing is known, so the union is incomplete."""
        return union(self, other)

    def contains(self, names: Sequence[str], hashes: Sequence[str]) -> Bool[np.ndarray, " images"]:
        """Whether each image is among them, by its name or the SHA-256 of its file."""
        return np.array([not self.keys.isdisjoint(_keys(*each)) for each in zip(names, hashes, strict=True)], bool)


# Of a model with random parameters.
NO_IMAGES = TrainingImages(frozenset())


def union(*lists: TrainingImages | None) -> TrainingImages | None:
    """The images of several models or sources together; None where nothing is known of any."""
    known = [images for images in lists if images is not None]
    if not known:
        return None
    complete = len(known) == len(lists) and all(images.complete for images in known)
    return TrainingImages(frozenset().union(*(images.keys for images in known)), complete)


def training_images(names: Iterable[str], paths: Iterable[ImageFile]) -> TrainingImages:
    """Read image files and hash them."""
    keys = [key for name, path in zip(names, paths, strict=True) for key in _keys(name, hash_image(path))]
    return TrainingImages(frozenset(keys))


@dataclasses.dataclass(frozen=True)
class ImageContents:
    """The images of a source as they are now.

    Attributes:
        sha256: hash of the names and the bytes of all images, in order; of images behind a network, of their source.
        images: their keys; None where nothing read all of them.
    """

    sha256: str
    images: TrainingImages | None


def read_image_contents(source: PairSource) -> ImageContents:
    """Read all images of a source and hash them."""
    parts = [_read_part(part) for part in source.parts]
    return ImageContents(hash_json([part.sha256 for part in parts]), union(*(part.images for part in parts)))


def _read_part(source: PairSource) -> ImageContents:
    if source.is_remote():
        return ImageContents(source.hash(), None)
    digest, keys = hashlib.sha256(), set()
    with (
        progress("hashing training images", len(source), "images") as advance,
        ThreadPoolExecutor(usable_cores(), thread_name_prefix="hash") as pool,
    ):
        # So many at a time, so that not every image has its future at once.
        for start in range(0, len(source), _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, len(source)))
            for number, content in zip(numbers, pool.map(source.hash_image, numbers), strict=True):
                name = source.captioned(number).image
                digest.update(hash_json([name, content]).encode())
                keys.update(_keys(name, content) if content else [])
            advance(len(numbers))
    return ImageContents(digest.hexdigest(), TrainingImages(frozenset(keys)))


def stamp_images(source: PairSource) -> str | None:
    """Return a hash that differs once an image was written again; None where only reading the images can tell."""
    stamps: list[str | None] = []
    for part in source.parts:
        stamps += [part.hash()] if part.is_remote() else map(part.file_stamp, range(len(part)))
    return None if None in stamps else hash_json(stamps)


def _keys(name: str, hashed: str) -> list[str]:
    number = coco_number(name)
    named = [] if number is None else [hashlib.sha256(f"coco:{number}".encode()).hexdigest()[:_DIGITS]]
    return [hashed[:_DIGITS], *named]


def write_training_images(folder: str | os.PathLike, images: TrainingImages | None) -> None:
    """Write the list into a model directory; nothing where it is not known."""
    if images is not None:
        with atomic_write(Path(folder) / FILE) as temporary:
            head = _HEAD if images.complete else _AT_LEAST
            temporary.write_text("\n".join([head, *sorted(images.keys)]) + "\n")


def read_training_images(folder: str | os.PathLike) -> TrainingImages | None:
    """Training images of a model directory; None where it has no list. Raises InputError for another kind of file."""
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    head, *keys = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    if head not in (_HEAD, _AT_LEAST) or any(len(key) != _DIGITS for key in keys):
        raise InputError(path, "training images", repr(head)[:80], f"{_HEAD!r} and keys of {_DIGITS} hex digits")
    return TrainingImages(frozenset(keys), complete=head == _HEAD)
