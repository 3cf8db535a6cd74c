"""The order of samples that are read shard by shard, for storage where seeking is dear.

A batch of B rows is cut into lanes of r = B / lanes consecutive rows, at least 32 where there are as many. Every epoch
shuffles the shards and lays their images one after another; lane l reads its part of that line from front to back:

    position g = step * B + l * r + j
    lane time   u = step * r + j, epoch e = u div n, place v = u mod n       n = r * (images div B)
    image       line_e[l * images div lanes + v]

So each lane reads one shard at a time and seeks only between shards, and a batch has images of as many shards as it
has lanes. Lanes are a function of the batch size alone: the order is the same for any number of processes, and a
process reads the shards of its own rows. The images left over, fewer than a batch and its lanes, are others in every
epoch. No image is twice in a batch.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from rococo_jax.data.sample_order import SampleOrder, derive_seed
from rococo_jax.errors import InputError

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

    def image(self, epoch: int, place: int) -> int:
        """The image at a place of an epoch's line."""
        firsts, ends, starts = _line(self.shards, derive_seed(self.seed, "shards", epoch))
        shard = int(np.searchsorted(ends, place, side="right"))
        return int(firsts[shard] + place - starts[shard])

    def place(self, epoch: int, image: int) -> int:
        """The place of an image in an epoch's line."""
        firsts, ends, starts = _line(self.shards, derive_seed(self.seed, "shards", epoch))
        (shard,) = np.flatnonzero((firsts <= image) & (image < firsts + ends - starts))
        return int(starts[shard] + image - firsts[shard])


@functools.lru_cache(maxsize=8)
def _line(shards: tuple[int, ...], seed: int) -> tuple[Int[np.ndarray, " shards"], ...]:
    """Of each shard in a shuffled order: its first image, and where it ends and starts in the line."""
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


def has_shards(source: object) -> bool:
    """Whether a source consists of shards."""
    return bool(getattr(source, "shards", None))


def shards_of(source: object, name: str) -> tuple[int, ...]:
    """Images of each shard of a source. Raises InputError, which names `name`, where it has none."""
    if not has_shards(source):
        wanted = "'shuffled' for sources without shards (folders, TFDS)"
        raise InputError("config", "config.data.order", f"'shards' of {name}", wanted)
    return tuple(source.shards)
