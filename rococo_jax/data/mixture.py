"""The order of samples drawn from several sources by weight: a pure function of (seed, position).

The source is chosen as Grain mixes datasets, in whole numbers: of the first k samples, the first source has ceil(k
w_1), and the others share the rest in the same way. At any time, the count of a source differs from its share by less
than the number of sources. The image is the next one of that source, in its own random order and epochs.

A source that is drawn more often than others of its size goes through more epochs. A batch contains an image twice only
if it draws more images of a source than the source has, or at the end of an epoch of a source. Such samples are
positives of each other, like several captions of one image.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from rococo_jax.data.sample_order import EpochShuffle, SampleOrder, derive_seed
from rococo_jax.errors import InputError

_MIN_WEIGHT = Fraction(1, 10_000)
# Weights are written in decimals, so their sum may differ from 1 by this much.
_TOLERANCE = Fraction(1, 10**6)


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
