"""The order of training samples: a pure function of (seed, batch size, position), without state.

A sample's global number is its position g = step * batch_size + place in the batch. Each run of `images` positions is
an epoch with its own permutation of all images, so a batch may hold the tail of one epoch and the head of the next.
Such a batch could hold an image twice; to prevent it, the head of the new epoch is reordered: images that are in the
old epoch's tail move behind the others. No image is ever twice in a batch.

Every position can be computed by itself. Up to a million images the permutation is held in memory for its epoch;
beyond, it is a keyed cipher on the numbers below `images` (Grain's `index_shuffle`), which needs no memory but is slow
for small numbers of images.

`ShardOrder` reads shard by shard, for storage where seeking is dear. A batch of B rows is cut into lanes of r = B /
lanes consecutive rows, at least 32 where there are as many. Every epoch shuffles the shards and lays their images one
after another; lane l reads its part of that line from front to back:

    position g = step * B + l * r + j
    lane time   u = step * r + j, epoch e = u div n, place v = u mod n       n = r * (images div B)
    image       line_e[l * images div lanes + v]

So each lane reads one shard at a time and seeks only between shards, and a batch has images of as many shards as it
has lanes, which the batch size alone decides: the order is the same for any number of processes. The images left over,
fewer than a batch and its lanes, are others in every epoch.
"""

import functools
import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from grain.experimental import index_shuffle
from jaxtyping import Int

from rococo_jax.errors import InputError

_ROUNDS = 4
# The heads of the current epochs are needed at every batch, older ones hardly ever.
_HEADS_KEPT = 4
# An epoch, and the one before it, whose tail is in the same batch.
_EPOCHS_KEPT = 2
_MOST_IMAGES = 2**31 - 1
_IN_MEMORY = 2**20


@functools.lru_cache(maxsize=256)
def derive_seed(*parts: int | str) -> int:
    """A seed below 2^32 derived from all the parts; other parts give an unrelated seed."""
    return int.from_bytes(hashlib.blake2b(json.dumps(parts).encode(), digest_size=4).digest(), "little")


@runtime_checkable
class Order(Protocol):
    """The image at every position of a training run, of `images` in all. Orders pickle."""

    images: int
    batch_size: int
    seed: int

    def image(self, position: int) -> int:
        """The image at a position."""

    def epoch(self, position: int) -> int:
        """How often the image at a position came before, where all come equally often."""

    def in_batch(self, step: int, image: int) -> bool:
        """Whether an image is in the global batch of a step."""


class SampleOrder:
    """The image at every position of a training run.

    Raises InputError where there are no images, more than 2^31 - 1, or fewer than a (global) batch needs.
    """

    def __init__(self, images: int, batch_size: int, seed: int):
        if images < 1:
            raise InputError("training data", "images", "none", "at least one image with a caption")
        if images > _MOST_IMAGES:
            raise InputError("training data", "images", images, f"at most {_MOST_IMAGES}")
        if batch_size < 1 or batch_size > images:
            wanted = f"1 to {images}, the number of images, since no image may be twice in a batch"
            raise InputError("training data", "batch_size", batch_size, wanted)
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self._heads: dict[int, Int[np.ndarray, " head"]] = {}
        # Of its own: sources of a mixture would drive each other out.
        self._permutation = functools.lru_cache(maxsize=_EPOCHS_KEPT)(_permutation)
        self._lock = threading.Lock()

    def __reduce__(self):
        return SampleOrder, (self.images, self.batch_size, self.seed)

    def image(self, position: int) -> int:
        """The image at a position."""
        epoch, place = divmod(position, self.images)
        if place < self.batch_size and self._carried(epoch):
            with self._lock:
                return int(self._head(epoch)[place])
        return self._drawn(epoch, place)

    def batch(self, step: int) -> Int[np.ndarray, " batch"]:
        """The images of one global batch, all different."""
        start = step * self.batch_size
        return np.array([self.image(start + place) for place in range(self.batch_size)], np.int64)

    def in_batch(self, step: int, image: int) -> bool:
        """Whether an image is in the global batch of a step."""
        return self.in_run(step * self.batch_size, (step + 1) * self.batch_size, image)

    def in_run(self, start: int, end: int, image: int) -> bool:
        """Whether an image is at one of the positions from `start` to before `end`."""
        if end - start >= 2 * self.images - 1:  # a whole epoch
            return True
        for epoch in range(start // self.images, -(-end // self.images)):
            begun = epoch * self.images
            first, last = max(start - begun, 0), min(end - begun, self.images)
            if self._carried(epoch) and first < self.batch_size:
                with self._lock:
                    if (self._head(epoch)[first:last] == image).any():
                        return True
                first = self.batch_size
            if first < last and (self._run(epoch, first, last) == image).any():
                return True
        return False

    def epoch(self, position: int) -> int:
        """The number of complete passes over all images before this position."""
        return position // self.images

    def _drawn(self, epoch: int, place: int) -> int:
        seed = derive_seed(self.seed, "order", epoch)
        if self.images <= _IN_MEMORY:
            return int(self._permutation(self.images, seed)[place])
        return index_shuffle(place, max_index=self.images - 1, seed=seed, rounds=_ROUNDS)

    def _run(self, epoch: int, first: int, last: int) -> Int[np.ndarray, " places"]:
        """The images at some consecutive places of an epoch, before its head is reordered."""
        seed = derive_seed(self.seed, "order", epoch)
        if self.images <= _IN_MEMORY:
            return self._permutation(self.images, seed)[first:last]
        return _shuffled(self.images, seed, first, last)

    def _carried(self, epoch: int) -> int:
        """The number of images of the previous epoch in the batch in which this epoch begins."""
        return epoch * self.images % self.batch_size

    def _head(self, epoch: int) -> Int[np.ndarray, " head"]:
        """The first `batch_size` images of an epoch, reordered so that its first batch holds no image twice."""
        # Where an epoch is shorter than two batches, the previous epoch's tail may overlap its own head. Then start
        # from an earlier epoch that does not depend on its predecessor; an epoch that begins a batch never does.
        first = epoch
        while (
            first not in self._heads and self._carried(first) and self.images - self._carried(first) < self.batch_size
        ):
            first -= 1
        for each in range(first, epoch + 1):
            if each not in self._heads:
                self._heads[each] = self._make_head(each)
        head = self._heads[epoch]
        for old in sorted(self._heads)[:-_HEADS_KEPT]:
            del self._heads[old]
        return head

    def _make_head(self, epoch: int) -> Int[np.ndarray, " head"]:
        drawn = self._run(epoch, 0, self.batch_size)
        carried = self._carried(epoch)
        if not carried:
            return drawn
        start = epoch * self.images
        tail = [self._before(start - back) for back in range(carried, 0, -1)]
        allowed = np.flatnonzero(~np.isin(drawn, tail))[: self.batch_size - carried]
        return np.concatenate([drawn[allowed], np.delete(drawn, allowed)])

    def _before(self, position: int) -> int:
        """Like `image`, for a position whose epoch's head is made already where it is needed."""
        epoch, place = divmod(position, self.images)
        if place < self.batch_size and epoch in self._heads:
            return int(self._heads[epoch][place])
        return self._drawn(epoch, place)


def _permutation(images: int, seed: int) -> Int[np.ndarray, " images"]:
    return np.random.Generator(np.random.Philox(seed)).permutation(images)


@functools.lru_cache(maxsize=4)
def _shuffled(images: int, seed: int, first: int, last: int) -> Int[np.ndarray, " places"]:
    """As `_permutation`, of more images than are held in memory."""
    shuffle = functools.partial(index_shuffle, max_index=images - 1, seed=seed, rounds=_ROUNDS)
    return np.fromiter(map(shuffle, range(first, last)), np.int64, last - first)


_LEAST_IN_LANE = 32
_MOST_LANES = 1024


def lanes_of(batch_size: int) -> int:
    """How many lanes a batch has: the largest power of two that leaves each 32 rows, and divides the batch."""
    lanes = 1
    while lanes < _MOST_LANES and batch_size % (2 * lanes) == 0 and batch_size // (2 * lanes) >= _LEAST_IN_LANE:
        lanes *= 2
    return lanes


class ShardLine:
    """The images of all shards in a line, the shards in another order in every epoch."""

    def __init__(self, shards: Sequence[int], seed: int):
        self.shards, self.seed, self.images = tuple(shards), seed, sum(shards)
        self._line = functools.lru_cache(maxsize=_EPOCHS_KEPT)(_line)

    def __reduce__(self):
        return ShardLine, (self.shards, self.seed)

    def image(self, epoch: int, place: int) -> int:
        """The image at a place of an epoch's line."""
        firsts, ends, starts = self._line(self.shards, derive_seed(self.seed, "shards", epoch))
        shard = int(np.searchsorted(ends, place, side="right"))
        return int(firsts[shard] + place - starts[shard])

    def place(self, epoch: int, image: int) -> int:
        """The place of an image in an epoch's line."""
        firsts, ends, starts = self._line(self.shards, derive_seed(self.seed, "shards", epoch))
        (shard,) = np.flatnonzero((firsts <= image) & (image < firsts + ends - starts))
        return int(starts[shard] + image - firsts[shard])


def _line(shards: tuple[int, ...], seed: int) -> tuple[Int[np.ndarray, " shards"], ...]:
    """First image of each shard in a shuffled order, and where the shard ends and starts in the line."""
    sizes = np.array(shards, np.int64)
    shuffled = np.random.Generator(np.random.Philox(seed)).permutation(len(sizes))
    ends = np.cumsum(sizes[shuffled])
    return (np.cumsum(sizes) - sizes)[shuffled], ends, ends - sizes[shuffled]


class ShardOrder:
    """The image at every position of a run over shards of so many images.

    Raises InputError where a batch has more images than there are.
    """

    def __init__(self, shards: Sequence[int], batch_size: int, seed: int):
        SampleOrder(sum(shards), batch_size, seed)  # refuses what no order can do
        self.images, self.batch_size, self.seed = sum(shards), batch_size, seed
        self.line, self.lanes = ShardLine(shards, seed), lanes_of(batch_size)
        self.rows = batch_size // self.lanes
        self.per_epoch = self.images // batch_size * self.rows

    def _time(self, position: int) -> tuple[int, int]:
        """Lane and lane time."""
        step, place = divmod(position, self.batch_size)
        lane, row = divmod(place, self.rows)
        return lane, step * self.rows + row

    def image(self, position: int) -> int:
        """The image at a position."""
        lane, time = self._time(position)
        epoch, place = divmod(time, self.per_epoch)
        return self.line.image(epoch, lane * self.images // self.lanes + place)

    def in_batch(self, step: int, image: int) -> bool:
        """Whether an image is in the global batch of a step."""
        start, end = step * self.rows, (step + 1) * self.rows
        lanes = np.arange(self.lanes) * self.images // self.lanes
        for epoch in {start // self.per_epoch, (end - 1) // self.per_epoch}:
            begun = epoch * self.per_epoch
            first, last = max(start - begun, 0), min(end - begun, self.per_epoch)
            place = self.line.place(epoch, image)
            if ((lanes + first <= place) & (place < lanes + last)).any():
                return True
        return False

    def epoch(self, position: int) -> int:
        """The number of epochs before this position."""
        return self._time(position)[1] // self.per_epoch


def seeks_are_requests(path: str, mounts: Path = Path("/proc/mounts")) -> bool:
    """Whether data lies in a bucket: behind a URL, or a file system in user space such as gcsfuse (Linux)."""
    if "://" in path or not mounts.is_file():
        return "://" in path
    rows = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    holding = [(len(point), kind) for point, kind in rows if Path(path).resolve().is_relative_to(point)]
    return max(holding, default=(0, ""))[1].startswith("fuse")
