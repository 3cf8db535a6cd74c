"""The order of training samples: a pure function of (seed, batch size, position), without state.

A sample's global number is its position g = step * B + place in a batch of B rows. An epoch is as many whole batches as
there are images for, and has its own permutation of all images: those that are left over, fewer than a batch, are
others in every epoch. No image is ever twice in a batch, and every position can be computed by itself.

Up to a million images the permutation is held in memory for its epoch; beyond, it is a keyed cipher on the numbers
below `images` (Grain's `index_shuffle`), which needs no memory but is slow for small numbers of images.

With shards, images are read shard by shard, for storage where seeking is dear. A batch is cut into lanes of
r = B / lanes consecutive rows, at least 32 where there are as many. Every epoch shuffles the shards and lays their
images one after another; each lane reads its part of that line from front to back:

    image at row j of lane l, step s of epoch e = line_e[l * images div lanes + s * r + j]

So each lane reads one shard at a time and seeks only between shards, and a batch has images of as many shards as it
has lanes, which the batch size alone decides: the order is the same for any number of processes.
"""

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from grain.experimental import index_shuffle
from jaxtyping import Int

from rococo_jax.errors import InputError

# Of the orders themselves: a run resumes only with the one that it began with.
_VERSION = 2
_ROUNDS = 4
# An epoch, and the next one, which is read ahead.
_EPOCHS_KEPT = 2
_MOST_IMAGES = 2**31 - 1
_IN_MEMORY = 2**20


@functools.lru_cache(maxsize=256)
def derive_seed(*parts: int | str) -> int:
    """A seed below 2^32 derived from all the parts; other parts give an unrelated seed."""
    return int.from_bytes(hashlib.blake2b(json.dumps(parts).encode(), digest_size=4).digest(), "little")


class EpochShuffle:
    """So many images, in another order in every epoch: each anywhere, or with `shards` the shards as they come."""

    def __init__(self, images: int, seed: int, shards: Sequence[int] = ()):
        self.images, self.seed, self.shards = images, seed, tuple(shards)
        # Of its own: sources of a mixture would drive each other out.
        self._shuffled = functools.lru_cache(_EPOCHS_KEPT)(self._shuffle)

    def __reduce__(self):
        return EpochShuffle, (self.images, self.seed, self.shards)

    def image(self, epoch: int, place: int) -> int:
        """The image at a place of an epoch."""
        if self.shards:
            numbers, ends = self._shuffled(epoch)
            shard = np.searchsorted(ends, place, side="right")
            return int(numbers[shard] + place - ends[shard])
        if self.images <= _IN_MEMORY:
            return int(self._shuffled(epoch)[0][place])
        seed = derive_seed(self.seed, "order", epoch)
        return index_shuffle(place, max_index=self.images - 1, seed=seed, rounds=_ROUNDS)

    def _shuffle(self, epoch: int) -> tuple[Int[np.ndarray, " items"], ...]:
        """The images; or of each shard the number behind its last image, and the place behind it in the line."""
        seed = derive_seed(self.seed, "shards" if self.shards else "order", epoch)
        order = np.random.Generator(np.random.Philox(seed)).permutation(len(self.shards) or self.images)
        sizes = np.array(self.shards, np.int64)
        return (np.cumsum(sizes)[order], np.cumsum(sizes[order])) if self.shards else (order,)


_LEAST_IN_LANE = 32
_MOST_LANES = 1024


def lane_count(batch_size: int) -> int:
    """How many lanes a batch has: the largest power of two that leaves each 32 rows, and divides the batch."""
    lanes = 1
    while lanes < _MOST_LANES and batch_size % (2 * lanes) == 0 and batch_size // (2 * lanes) >= _LEAST_IN_LANE:
        lanes *= 2
    return lanes


class SampleOrder:
    """The image at every position of a training run. Orders pickle.

    Args:
        shards: images of each shard, to read them lane by lane; without them each image is anywhere in an epoch.

    Raises InputError where there are no images, more than 2^31 - 1, or fewer than a (global) batch needs.
    """

    def __init__(self, images: int, batch_size: int, seed: int, shards: Sequence[int] = ()):
        if images < 1:
            raise InputError("training data", "images", "none", "at least one image with a caption")
        if images > _MOST_IMAGES:
            raise InputError("training data", "images", images, f"at most {_MOST_IMAGES}")
        if batch_size < 1 or batch_size > images:
            wanted = f"1 to {images}, the number of images, since no image may be twice in a batch"
            raise InputError("training data", "batch_size", batch_size, wanted)
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.shuffle, self.lanes = EpochShuffle(images, seed, shards), lane_count(batch_size) if shards else 1

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the order beside the data, as JSON values."""
        return {"order": _VERSION, "seed": self.seed, "batch_size": self.batch_size}

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return self.images // self.batch_size

    def _lane(self, position: int) -> tuple[int, int]:
        """The lane of a position, and how many rows of the lane came before."""
        step, place = divmod(position, self.batch_size)
        rows = self.batch_size // self.lanes
        return place // rows, step * rows + place % rows

    def image(self, position: int) -> int:
        """The image at a position."""
        lane, time = self._lane(position)
        epoch, place = divmod(time, self.steps_per_epoch * (self.batch_size // self.lanes))
        return self.shuffle.image(epoch, lane * self.images // self.lanes + place)

    def batch(self, step: int) -> Int[np.ndarray, " batch"]:
        """The images of one global batch, all different."""
        start = step * self.batch_size
        return np.array([self.image(start + place) for place in range(self.batch_size)], np.int64)

    def epoch(self, position: int) -> int:
        """The number of epochs before this position."""
        return position // self.batch_size // self.steps_per_epoch


def is_object_storage(path: str, mounts: Path = Path("/proc/mounts")) -> bool:
    """Whether data lies in a bucket: behind a URL, or a file system in user space such as gcsfuse (Linux)."""
    if "://" in path or not mounts.is_file():
        return "://" in path
    rows = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    holding = [(len(point), kind) for point, kind in rows if Path(path).resolve().is_relative_to(point)]
    return max(holding, default=(0, ""))[1].startswith("fuse")
