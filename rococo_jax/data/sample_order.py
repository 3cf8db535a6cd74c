"""The order of training samples: a pure function of (seed, batch size, position), without state.

The position of a sample is its global number g = step * B + row, in batches of B rows. An epoch has as many complete
batches as the images suffice for, and its own permutation of all images, so the images that are left over, fewer than a
batch, differ from epoch to epoch. No image is ever twice in a batch, and every position can be computed by itself.

For up to a million images, the permutation of an epoch is held in memory. For more, it is a keyed cipher on the numbers
below `images` (Grain's `index_shuffle`), which needs no memory but is slow for small numbers of images.

With shards, images are read shard by shard, for storage with expensive seeks. A batch is divided into lanes of
r = B / lanes consecutive rows, at least 32 if the batch is large enough. Every epoch shuffles the shards and
concatenates their images; each lane reads its part of this sequence from front to back:

    image at row j of lane l, step s of epoch e = sequence_e[l * images div lanes + s * r + j]

Each lane thus reads one shard at a time and seeks only between shards. A batch has images of as many shards as it has
lanes, which depends only on the batch size: the order is the same for any number of processes.

A `MixtureOrder` draws samples from several sources by weight. The source is chosen as Grain mixes datasets, in whole
numbers: of the first k samples, the first source has ceil(k w_1), and the others share the rest in the same way. At any
time, the count of a source differs from its share by less than the number of sources. The image is the next one of that
source, in its own random order and epochs.

A source that is drawn more often than others of its size goes through more epochs. A batch contains an image twice only
if it draws more images of a source than the source has, or at the end of an epoch of a source. Such samples are
positives of each other, like several captions of one image.
"""

import functools
import hashlib
import json
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from grain.experimental import index_shuffle
from jaxtyping import Int

from rococo_jax.errors import InputError

_OCTAL = re.compile(r"\\([0-7]{3})")
# To increase when the orders change: a run resumes only with the order that it began with.
_VERSION = 2
_ROUNDS = 4
# The current epoch, and the next one, which is read ahead.
_EPOCHS_IN_MEMORY = 2
_MAX_IMAGES = 2**31 - 1
_MAX_IMAGES_IN_MEMORY = 2**20
_MIN_WEIGHT = Fraction(1, 10_000)
# Weights are written in decimals, so their sum may differ from 1 by this much.
_TOLERANCE = Fraction(1, 10**6)


@functools.lru_cache(maxsize=256)
def derive_seed(*parts: int | str) -> int:
    """Derive a seed below 2^32 from all the parts; different parts give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(json.dumps(parts).encode(), digest_size=4).digest(), "little")


class EpochShuffle:
    """A new order of the images in every epoch: fully random, or with `shards`, in random order of the shards."""

    def __init__(self, images: int, seed: int, shards: Sequence[int] = ()):
        self.images, self.seed, self.shards = images, seed, tuple(shards)
        # One cache for each object: the sources of a mixture would evict each other's epochs.
        self._shuffled = functools.lru_cache(_EPOCHS_IN_MEMORY)(self._shuffle)

    def __reduce__(self):
        return EpochShuffle, (self.images, self.seed, self.shards)

    def image(self, epoch: int, place: int) -> int:
        """Return the image at a place of an epoch."""
        if self.shards:
            end_numbers, end_places = self._shuffled(epoch)
            shard = np.searchsorted(end_places, place, side="right")
            return int(end_numbers[shard] + place - end_places[shard])
        if self.images <= _MAX_IMAGES_IN_MEMORY:
            return int(self._shuffled(epoch)[0][place])
        seed = derive_seed(self.seed, "order", epoch)
        return index_shuffle(place, max_index=self.images - 1, seed=seed, rounds=_ROUNDS)

    def _shuffle(self, epoch: int) -> tuple[Int[np.ndarray, " items"], ...]:
        """Return the images of an epoch; or, for each of its shards, the number and the place behind its last image."""
        seed = derive_seed(self.seed, "shards" if self.shards else "order", epoch)
        order = np.random.Generator(np.random.Philox(seed)).permutation(len(self.shards) or self.images)
        if not self.shards:
            return (order,)
        sizes = np.array(self.shards, np.int64)
        end_numbers, end_places = np.cumsum(sizes)[order], np.cumsum(sizes[order])
        return end_numbers, end_places


_MIN_ROWS_IN_LANE = 32
_MAX_LANES = 1024


def lane_count(batch_size: int) -> int:
    """Return the number of lanes: the largest power of two that divides the batch and leaves each lane 32 rows."""
    lanes = 1
    while lanes < _MAX_LANES and batch_size % (2 * lanes) == 0 and batch_size // (2 * lanes) >= _MIN_ROWS_IN_LANE:
        lanes *= 2
    return lanes


class SampleOrder:
    """The image at every position of a training run. Orders can be pickled.

    Args:
        shards: number of images of each shard, to read them lane by lane; without shards, an epoch is fully random.

    Raises InputError: there are no images, more than 2^31 - 1, or fewer than a (global) batch needs.
    """

    def __init__(self, images: int, batch_size: int, seed: int, shards: Sequence[int] = ()):
        if images < 1:
            raise InputError("training data", "images", "none", "at least one image with a caption")
        if images > _MAX_IMAGES:
            raise InputError("training data", "images", images, f"at most {_MAX_IMAGES}")
        if batch_size < 1 or batch_size > images:
            expected = f"1 to {images}, the number of images, since no image may be twice in a batch"
            raise InputError("training data", "batch_size", batch_size, expected)
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.shuffle, self.lanes = EpochShuffle(images, seed, shards), lane_count(batch_size) if shards else 1

    @property
    def identity(self) -> dict[str, Any]:
        """Everything but the data that determines the order, as JSON values."""
        return {"order": _VERSION, "seed": self.seed, "batch_size": self.batch_size}

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return self.images // self.batch_size

    def _lane(self, position: int) -> tuple[int, int]:
        """Return the lane of a position, and the number of earlier rows of that lane."""
        step, row = divmod(position, self.batch_size)
        rows_in_lane = self.batch_size // self.lanes
        return row // rows_in_lane, step * rows_in_lane + row % rows_in_lane

    def image(self, position: int) -> int:
        """Return the image at a position."""
        lane, row_of_lane = self._lane(position)
        epoch, place = divmod(row_of_lane, self.steps_per_epoch * (self.batch_size // self.lanes))
        return self.shuffle.image(epoch, lane * self.images // self.lanes + place)

    def batch(self, step: int) -> Int[np.ndarray, " batch"]:
        """Return the images of one global batch, all different."""
        start = step * self.batch_size
        return np.array([self.image(start + row) for row in range(self.batch_size)], np.int64)

    def epoch(self, position: int) -> int:
        """Return the number of complete epochs before this position."""
        return position // self.batch_size // self.steps_per_epoch


def is_object_storage(path: str, mounts: Path = Path("/proc/mounts")) -> bool:
    """Return whether a path lies in a bucket: behind a URL, or on a FUSE file system such as gcsfuse (Linux)."""
    if "://" in path or not mounts.is_file():
        return "://" in path
    kind_by_point = _kinds_of_mounts(mounts)
    resolved = Path(path).resolve()
    above = next((each for each in (resolved, *resolved.parents) if str(each) in kind_by_point), None)
    return above is not None and kind_by_point[str(above)].startswith("fuse")


@functools.cache
def _kinds_of_mounts(mounts: Path) -> dict[str, str]:
    """Return the kind of file system at each mount point; the kernel writes blanks and backslashes in octal.

    The mounts of a process are read once: a data set may have thousands of tars, and a machine a hundred mounts.
    """
    rows = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    return {_OCTAL.sub(lambda match: chr(int(match[1], 8)), point): kind for point, kind in rows}


def read_weights(text: str, sources: int) -> tuple[Fraction, ...]:
    """Parse weights such as "0.7,0.2,0.1".

    Raises InputError: there are more or fewer weights than sources, one is not a number of at least 0.0001, or their
        sum differs from 1 by more than a millionth.
    """

    def error(problem: str, expected: str) -> InputError:
        return InputError("config", "config.data.weights", problem, expected)

    try:
        weights = tuple(Fraction(each.strip()) for each in text.split(","))
    except (ValueError, ZeroDivisionError):
        raise error(repr(text), "numbers with commas between them, as 0.7,0.2,0.1") from None
    if len(weights) != sources:
        problem = f"{len(weights)} weights for {sources} sources (folders together are one)"
        raise error(problem, "a weight for each entry of data.images")
    if min(weights) < _MIN_WEIGHT:
        raise error(repr(text), f"weights of {float(_MIN_WEIGHT)} and more")
    if abs(sum(weights) - 1) > _TOLERANCE:
        raise error(f"{text}, whose sum is {float(sum(weights)):.6g}", "weights that sum to 1")
    return tuple(weight / sum(weights) for weight in weights)


class MixtureOrder(SampleOrder):
    """The image at every position of a run; images are numbered through all sources.

    Args:
        images: number of images of each source.
        weights: share of each source in the samples; they sum to 1.
    """

    def __init__(self, images: Sequence[int], weights: Sequence[Fraction], batch_size: int, seed: int):
        super().__init__(sum(images), batch_size, seed)
        self.sizes, self.firsts = tuple(images), (np.cumsum(images) - images).tolist()
        denominator = math.lcm(*(weight.denominator for weight in weights))
        self.numerators = [int(weight * denominator) for weight in weights]
        self.shuffles = [EpochShuffle(size, derive_seed(seed, "source", number)) for number, size in enumerate(images)]

    def _draw(self, number: int) -> tuple[int, int]:
        """Return the source of sample `number`, and the number of earlier samples from that source."""
        total = sum(self.numerators)
        for source, numerator in enumerate(self.numerators[:-1]):
            # Samples of the remaining sources among the first `number`, and among one more.
            count_of_rest = number * (total - numerator) // total
            if (number + 1) * (total - numerator) // total == count_of_rest:
                return source, number - count_of_rest
            number = count_of_rest
            total -= numerator
        return len(self.numerators) - 1, number

    def _place(self, position: int) -> tuple[int, int, int]:
        """Return the source of a position, and its epoch and place there."""
        source, count = self._draw(position)
        return source, *divmod(count, self.sizes[source])

    def image(self, position: int) -> int:
        """Return the image at a position."""
        source, epoch, place = self._place(position)
        return self.firsts[source] + self.shuffles[source].image(epoch, place)

    def epoch(self, position: int) -> int:
        """Return the number of epochs of the position's own source before it."""
        return self._place(position)[1]
