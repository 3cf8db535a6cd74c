"""The order of samples drawn from several sources by weight: a pure function of (seed, position).

    which source    block k of M places holds source s D_s - D_(s-1) times, shuffled; D_s = C_s(k + 1) - C_s(k),
                    C_s(k) = round((w_1 + ... + w_s) M k)
    which image     the next of that source, in its own order and its own epochs

So after any number of samples a source was drawn within M of its share, and within 1 after whole blocks. M is at least
1,024 and 2 over the smallest weight. A source that is drawn more often than others of its size goes through more
epochs; a batch holds an image twice only where it draws more images of a source than that has, or where an epoch of a
source ends. They are positives of each other, as captions of one image are.
"""

import bisect
import functools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Int

from rococo_jax.data.sample_order import SampleOrder, ShardLine, derive_seed, lanes_of
from rococo_jax.errors import InputError

_LEAST_BLOCK = 1024
_LEAST_WEIGHT = Fraction(1, 10_000)
# Weights are written in decimals: thirds are 0.333 each.
_ROUNDING = Fraction(1, 10**6)


def read_weights(text: str, sources: int) -> tuple[Fraction, ...]:
    """The weights of "0.7,0.2,0.1".

    Raises InputError: another number of weights than sources, one that is no number of at least 0.0001, or a sum that
    is not 1 within a millionth.
    """

    def refuse(found: str, wanted: str) -> InputError:
        return InputError("config", "config.data.weights", found, wanted)

    try:
        weights = tuple(Fraction(each.strip()) for each in text.split(","))
    except (ValueError, ZeroDivisionError):
        raise refuse(repr(text), "numbers with commas between them, as 0.7,0.2,0.1") from None
    if len(weights) != sources:
        found = f"{len(weights)} weights for {sources} sources (folders together are one)"
        raise refuse(found, "a weight for each entry of data.images")
    if min(weights) < _LEAST_WEIGHT:
        raise refuse(repr(text), f"weights of {float(_LEAST_WEIGHT)} and more")
    if abs(sum(weights) - 1) > _ROUNDING:
        raise refuse(f"{text}, which sum to {float(sum(weights)):.6g}", "weights that sum to 1")
    return tuple(weight / sum(weights) for weight in weights)


class MixtureOrder:
    """The image at every position of a run; images are numbered through all sources.

    Args:
        images: of each source.
        weights: share of the samples of each source, which sum to 1.
        shards: images of each shard of each source, to read them lane by lane as `ShardOrder`; None to draw each
            source's images in any order.
    """

    def __init__(
        self,
        images: Sequence[int],
        weights: Sequence[Fraction],
        batch_size: int,
        seed: int,
        shards: Sequence[Sequence[int]] | None = None,
    ):
        self.sizes, self.weights, self.shards = tuple(images), tuple(weights), shards
        self.images, self.batch_size, self.seed = sum(images), batch_size, seed
        SampleOrder(self.images, batch_size, seed)  # refuses what no order can do
        self.firsts = (np.cumsum(images) - images).tolist()
        self.lanes = 1 if shards is None else lanes_of(batch_size)
        while self.lanes > min(images):
            self.lanes //= 2
        seeds = [derive_seed(seed, "source", number) for number in range(len(images))]
        if shards is None:
            self.orders = [SampleOrder(size, 1, own) for size, own in zip(images, seeds, strict=True)]
        else:
            self.lines = [ShardLine(sizes, own) for sizes, own in zip(shards, seeds, strict=True)]
        self.block = _LEAST_BLOCK
        while self.block * min(self.weights) < 2:
            self.block *= 2
        sums = [sum(self.weights[: number + 1]) for number in range(len(self.weights))]
        self._sums = tuple((each.numerator, each.denominator) for each in sums)

    def __reduce__(self):
        return MixtureOrder, (self.sizes, self.weights, self.batch_size, self.seed, self.shards)

    def _block(self, lane: int, number: int) -> tuple[Int[np.ndarray, " places"], Int[np.ndarray, " places"]]:
        return _block(self._sums, self.block, number, derive_seed(self.seed, "mixture", lane, number))

    def _place(self, position: int) -> tuple[int, int, int]:
        """Source, epoch of its lane, and place in the epoch."""
        step, place = divmod(position, self.batch_size)
        lane, row = divmod(place, self.batch_size // self.lanes)
        block, place = divmod(step * (self.batch_size // self.lanes) + row, self.block)
        sources, before = self._block(lane, block)
        source = int(sources[place])
        first, end = (each * self.sizes[source] // self.lanes for each in (lane, lane + 1))
        epoch, place = divmod(int(before[place]), end - first)
        return source, epoch, first + place

    def image(self, position: int) -> int:
        """The image at a position."""
        source, epoch, place = self._place(position)
        if self.shards is None:
            return self.firsts[source] + self.orders[source].image(epoch * self.sizes[source] + place)
        return self.firsts[source] + self.lines[source].image(epoch, place)

    def in_batch(self, step: int, image: int) -> bool:
        """Whether an image is in the global batch of a step.

        Of one source a lane's rows of a batch draw one run of places after another, so no image has to be listed.
        """
        source = bisect.bisect_right(self.firsts, image) - 1
        image -= self.firsts[source]
        rows = self.batch_size // self.lanes
        start, end = step * rows, (step + 1) * rows
        if self.shards is None:
            return self.orders[source].in_run(*(self._count_before(0, time, source) for time in (start, end)), image)
        size = self.sizes[source]
        # Of any lane: how often the source came before the block of the first row, and with that of the last one.
        least, most = (
            _drawn(self._sums, self.block * each)[source] for each in (start // self.block, -(-end // self.block))
        )
        for epoch in range(least // -(-size // self.lanes), most // (size // self.lanes) + 1):
            place = self.lines[source].place(epoch, image)
            lane = ((place + 1) * self.lanes - 1) // size
            first, last = (each * size // self.lanes for each in (lane, lane + 1))
            count = epoch * (last - first) + place - first
            if self._count_before(lane, start, source) <= count < self._count_before(lane, end, source):
                return True
        return False

    def _count_before(self, lane: int, time: int, source: int) -> int:
        """How often a source was drawn in a lane before a row of it."""
        block, place = divmod(time, self.block)
        sources, _ = self._block(lane, block)
        return int(_drawn(self._sums, self.block * block)[source] + np.count_nonzero(sources[:place] == source))

    def epoch(self, position: int) -> int:
        """The number of epochs of its own source before this position."""
        return self._place(position)[1]


def _drawn(sums: tuple[tuple[int, int], ...], places: int) -> Int[np.ndarray, " sources"]:
    """How many of each source come in so many places, which are whole blocks."""
    ends = [(2 * top * places + bottom) // (2 * bottom) for top, bottom in sums]
    return np.diff(np.array([0, *ends], np.int64))


@functools.lru_cache(maxsize=1024)
def _block(
    sums: tuple[tuple[int, int], ...], size: int, number: int, seed: int
) -> tuple[Int[np.ndarray, " places"], Int[np.ndarray, " places"]]:
    """The source at every place of a block, and how many of it came before, in all blocks."""
    start, end = (_drawn(sums, size * each) for each in (number, number + 1))
    sources = np.repeat(np.arange(len(sums)), end - start)
    sources = np.random.Generator(np.random.Philox(seed)).permutation(sources)
    before = np.zeros(size, np.int64)
    for source in range(len(sums)):
        places = np.flatnonzero(sources == source)
        before[places] = start[source] + np.arange(len(places))
    return sources.astype(np.int16), before
