"""The order of samples drawn from several sources by weight: a pure function of (seed, position).

Which source: of the first k samples, the first source has ceil(k w_1), and the others share the rest in the same way,
as Grain mixes datasets, in whole numbers. At any time a source is fewer samples from its share than there are sources.
Which image: the next of that source, in its own order and its own epochs. With shards, each lane of a batch
(`sample_order`) is such a mixture of its parts of the sources.

A source that is drawn more often than others of its size goes through more epochs; a batch holds an image twice only
where it draws more images of a source than that has, or where an epoch of a source ends. They are positives of each
other, as captions of one image are.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from rococo_jax.data.sample_order import EpochShuffle, SampleOrder, derive_seed, lane_count
from rococo_jax.errors import InputError

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


class MixtureOrder(SampleOrder):
    """The image at every position of a run; images are numbered through all sources.

    Args:
        images: of each source.
        weights: share of the samples of each source, which sum to 1.
        shards: images of each shard of each source, to read them lane by lane; without them each source's images are
            in any order.
    """

    def __init__(
        self,
        images: Sequence[int],
        weights: Sequence[Fraction],
        batch_size: int,
        seed: int,
        shards: Sequence[Sequence[int]] = (),
    ):
        super().__init__(sum(images), batch_size, seed)
        self.sizes, self.firsts = tuple(images), (np.cumsum(images) - images).tolist()
        whole = math.lcm(*(weight.denominator for weight in weights))
        self.parts = [int(weight * whole) for weight in weights]
        self.lanes = lane_count(batch_size) if shards else 1
        while self.lanes > min(images):
            self.lanes //= 2
        self.shuffles = [
            EpochShuffle(size, derive_seed(seed, "source", number), shards[number] if shards else ())
            for number, size in enumerate(images)
        ]

    def _draw(self, number: int) -> tuple[int, int]:
        """The source of a lane's sample, and how many of it came before."""
        rest = sum(self.parts)
        for source, part in enumerate(self.parts[:-1]):
            others = number * (rest - part) // rest
            if (number + 1) * (rest - part) // rest == others:
                return source, number - others
            number, rest = others, rest - part
        return len(self.parts) - 1, number

    def _place(self, position: int) -> tuple[int, int, int]:
        """Source, epoch of its lane, and place in the epoch."""
        lane, time = self._lane(position)
        source, count = self._draw(time)
        first, end = (each * self.sizes[source] // self.lanes for each in (lane, lane + 1))
        epoch, place = divmod(count, end - first)
        return source, epoch, first + place

    def image(self, position: int) -> int:
        """The image at a position."""
        source, epoch, place = self._place(position)
        return self.firsts[source] + self.shuffles[source].image(epoch, place)

    def epoch(self, position: int) -> int:
        """The number of epochs of its own source before this position."""
        return self._place(position)[1]
