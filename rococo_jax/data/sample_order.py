"""The order of training samples: a pure function of (seed, batch size, position), without state.

A sample's global number is its position g = step * batch_size + place in the batch. Each run of `images` positions is
an epoch with its own permutation of all images, so a batch may hold the tail of one epoch and the head of the next.
Such a batch could hold an image twice; to prevent it, the head of the new epoch is reordered: images that are in the
old epoch's tail move behind the others. No image is ever twice in a batch.

Every position can be computed by itself. Up to a million images the permutation is held in memory for its epoch;
beyond, it is a keyed cipher on the numbers below `images` (Grain's `index_shuffle`), which needs no memory but is slow
for small numbers of images.
"""

import functools
import hashlib
import json
import threading
from typing import Protocol, runtime_checkable

import numpy as np
from grain.experimental import index_shuffle
from jaxtyping import Int

from rococo_jax.errors import InputError

_ROUNDS = 4
# The heads of the current epochs are needed at every batch, older ones hardly ever.
_HEADS_KEPT = 4
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
            return int(_permutation(self.images, seed)[place])
        return index_shuffle(place, max_index=self.images - 1, seed=seed, rounds=_ROUNDS)

    def _run(self, epoch: int, first: int, last: int) -> Int[np.ndarray, " places"]:
        """The images at some consecutive places of an epoch, before its head is reordered."""
        seed = derive_seed(self.seed, "order", epoch)
        if self.images <= _IN_MEMORY:
            return _permutation(self.images, seed)[first:last]
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


@functools.lru_cache(maxsize=4)
def _permutation(images: int, seed: int) -> Int[np.ndarray, " images"]:
    return np.random.Generator(np.random.Philox(seed)).permutation(images)


@functools.lru_cache(maxsize=4)
def _shuffled(images: int, seed: int, first: int, last: int) -> Int[np.ndarray, " places"]:
    """As `_permutation`, of more images than are held in memory."""
    shuffle = functools.partial(index_shuffle, max_index=images - 1, seed=seed, rounds=_ROUNDS)
    return np.fromiter(map(shuffle, range(first, last)), np.int64, last - first)
