"""Which images a model was trained on: kept beside it, so that an evaluation can tell items that it has seen.

`training_images.txt` in a model directory: a head line, then one key a line, sorted. An image has up to two keys, each
16 hex digits of SHA-256: of its file's bytes, and, where its name is one of COCO's, of its number, so that an image
that was stored again under another of COCO's names is known as well.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from rococo_jax.data.image_files import Place, coco_number, hash_image
from rococo_jax.errors import InputError
from rococo_jax.storage import atomic_write

FILE = "training_images.txt"
_HEAD = "rococo_jax.training_images 1"
_DIGITS = 16


@dataclasses.dataclass(frozen=True)
class TrainingImages:
    """Keys of the images that a model, or any that it was started from, was trained on."""

    keys: frozenset[str]

    def __or__(self, other: "TrainingImages | None") -> "TrainingImages":
        return self if other is None else TrainingImages(self.keys | other.keys)

    def seen(self, names: Sequence[str], hashes: Sequence[str]) -> Bool[np.ndarray, " images"]:
        """Whether each image is among them, by its name or the SHA-256 of its file."""
        return np.array([not self.keys.isdisjoint(_keys(*each)) for each in zip(names, hashes, strict=True)], bool)


def training_images(names: Iterable[str], paths: Iterable[Place]) -> TrainingImages:
    """Read image files and hash them."""
    keys = [key for name, path in zip(names, paths, strict=True) for key in _keys(name, hash_image(path))]
    return TrainingImages(frozenset(keys))


def _keys(name: str, hashed: str) -> list[str]:
    number = coco_number(name)
    named = [] if number is None else [hashlib.sha256(f"coco:{number}".encode()).hexdigest()[:_DIGITS]]
    return [hashed[:_DIGITS], *named]


def write_training_images(folder: str | os.PathLike, images: TrainingImages | None) -> None:
    """Writes them into a model directory; nothing where they are not known."""
    if images is not None:
        with atomic_write(Path(folder) / FILE) as temporary:
            temporary.write_text("\n".join([_HEAD, *sorted(images.keys)]) + "\n")


def read_training_images(folder: str | os.PathLike) -> TrainingImages | None:
    """Training images of a model directory; None where it does not tell. Raises InputError: another kind of file."""
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    head, *keys = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    if head != _HEAD or any(len(key) != _DIGITS for key in keys):
        raise InputError(path, "training images", repr(head)[:80], f"{_HEAD!r} and keys of {_DIGITS} hex digits")
    return TrainingImages(frozenset(keys))
