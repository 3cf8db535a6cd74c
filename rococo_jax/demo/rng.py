"""Random choices named by words, the same on every machine, in every order and on every version of Python.

`random.Random` seeded with a string and read through `random()` alone is the part of the standard library whose
stream is promised to stay as it is.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

Thing = TypeVar("Thing")


class RandomStream:
    """A stream of choices. Streams made from the same names agree; any other name gives another stream.

    Args:
        names: what the choices are for, seeds and indices included.
    """

    def __init__(self, *names: object):
        self._random = random.Random("/".join(str(name) for name in names))

    def chance(self, probability: int | float) -> bool:
        """True with the given probability."""
        return self._random.random() < probability

    def between(self, low: int | float, high: int | float) -> float:
        """A number, uniform from `low` to `high`."""
        return low + (high - low) * self._random.random()

    def choose(self, things: Sequence[Thing]) -> Thing:
        """One of `things`, each as likely as the others."""
        return things[int(self._random.random() * len(things))]

    def shuffled(self, things: Sequence[Thing]) -> list[Thing]:
        """`things` in a random order."""
        order = sorted((self._random.random(), index) for index in range(len(things)))
        return [things[index] for _, index in order]
