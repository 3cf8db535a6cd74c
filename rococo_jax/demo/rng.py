"""Random choices that depend on names alone: the same on every machine, in any order, in every version of Python.

The standard library promises that `random.Random`, seeded with a string and read through `random()` alone, keeps its
stream.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

Thing = TypeVar("Thing")


class RandomStream:
    """A stream of random choices, decided by its names.

    Args:
        names: what the choices are for, with seeds and indices.
    """

    def __init__(self, *names: object):
        self._random = random.Random("/".join(str(name) for name in names))

    def chance(self, probability: int | float) -> bool:
        """True with the given probability."""
        return self._random.random() < probability

    def between(self, low: int | float, high: int | float) -> float:
        """A number drawn uniformly from `low` to `high`."""
        return low + (high - low) * self._random.random()

    def choose(self, things: Sequence[Thing]) -> Thing:
        """One of `things`, all equally likely."""
        return things[int(self._random.random() * len(things))]

    def shuffled(self, things: Sequence[Thing]) -> list[Thing]:
        """`things` in a random order."""
        order = sorted((self._random.random(), index) for index in range(len(things)))
        return [things[index] for _, index in order]
