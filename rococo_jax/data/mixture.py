"""The order of samples drawn from several sources by weight: a pure function of (seed, position).

    which source    block k of M places holds source s D_s - D_(s-1) times, shuffled; D_s = C_s(k + 1) - C_s(k),
                    C_s(k) = round((w_1 + ... + w_s) M k)
    which image     the next of that source, in its own order and its own epochs

So after any number of samples a source was drawn within M of its share, and within 1 after whole blocks. M is at least
1,024 and 2 over the smallest weight. A source that is drawn more often than others of its size goes through more
epochs; a batch holds an image twice only where it draws more images of a source than that has, or where an epoch of a
source ends. They are positives of each other, as captions of one image are.
"""

import functools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Int

from rococo_jax.data.sample_order import SampleOrder, derive_seed
from rococo_jax.data.shard_order import ShardLine, lanes_of
from rococo_jax.errors import InputError

_LEAST_BLOCK = 1024
_LEAST_WEIGHT = Fraction(1, 10_000)
# Weights are written in decimals: thirds are 0.333 each.
_ROUNDING = Fraction(1, 10**6)


def read_weights(text: str, sources: int) -> tuple[Fraction, ...]:
    """The weights of "0.7,0.2,0.1".

    Raises:
        InputError: another number of weights than sources, one that is no number of at least 0.0001, or a sum that is
            not 1 within a millionth.
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

    def draw(self, position: int) -> tuple[int, int, int]:
        """Lane of a position, its source, and how many of that source came before in the lane."""
        step, place = divmod(position, self.batch_size)
        rows = self.batch_size // self.lanes
        lane, row = divmod(place, rows)
        block, place = divmod(step * rows + row, self.block)
        seed = derive_seed(self.seed, "mixture", lane, block)
        sources, before = _block(self._sums, self.block, block, seed)
        return lane, int(sources[place]), int(before[place])

    def _place(self, position: int) -> tuple[int, int, int]:
        """Source, epoch of its lane, and place in the epoch."""
        lane, source, count = self.draw(position)
        first, end = (each * self.sizes[source] // self.lanes for each in (lane, lane + 1))
        epoch, place = divmod(count, end - first)
        return source, epoch, first + place

    def image(self, position: int) -> int:
        """The image at a position."""
        source, epoch, place = self._place(position)
        if self.shards is None:
            return self.firsts[source] + self.orders[source].image(epoch * self.sizes[source] + place)
        return self.firsts[source] + self.lines[source].image(epoch, place)

    def in_batch(self, step: int, image: int) -> bool:
        """Whether an image is in the global batch of a step."""
        return image in _images_of_batch(self, step)

    def epoch(self, position: int) -> int:
        """The number of epochs of its own source before this position."""
        return self._place(position)[1]


@functools.lru_cache(maxsize=4)
def _images_of_batch(order: MixtureOrder, step: int) -> frozenset[int]:
    return frozenset(order.image(step * order.batch_size + place) for place in range(order.batch_size))


@functools.lru_cache(maxsize=1024)
def _block(
    sums: tuple[tuple[int, int], ...], size: int, number: int, seed: int
) -> tuple[Int[np.ndarray, " places"], Int[np.ndarray, " places"]]:
    """The source at every place of a block, and how many of it came before, in all blocks."""

    def drawn(blocks: int) -> np.ndarray:
        """How many of each source come in so many blocks."""
        ends = [(2 * top * size * blocks + bottom) // (2 * bottom) for top, bottom in sums]
        return np.diff(np.array([0, *ends], np.int64))

    start, end = drawn(number), drawn(number + 1)
    sources = np.repeat(np.arange(len(sums)), end - start)
    sources = np.random.Generator(np.random.Philox(seed)).permutation(sources)
    before = np.zeros(size, np.int64)
    for source in range(len(sums)):
        places = np.flatnonzero(sources == source)
        before[places] = start[source] + np.arange(len(places))
    return sources.astype(np.int16), before
