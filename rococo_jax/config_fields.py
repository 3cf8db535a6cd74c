"""Declaration of config keys: `Key`, with the checks of its value and what it needs to have an effect."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from ml_collections import ConfigDict


@dataclasses.dataclass(frozen=True)
class Check:
    """Condition on a config value, with its description for an error message."""

    holds: Callable[[Any], bool]
    expected: str


POSITIVE = Check(lambda value: value > 0, "a positive number")
NOT_NEGATIVE = Check(lambda value: value >= 0, "0 or more")
FRACTION = Check(lambda value: 0 <= value <= 1, "a number from 0 to 1")


def at_least(least: int) -> Check:
    """Accept numbers from `least` on."""
    return Check(lambda value: value >= least, f"at least {least}")


def between(least: int, most: int) -> Check:
    """Accept whole numbers from `least` to `most`."""
    return Check(lambda value: least <= value <= most, f"a whole number from {least} to {most}")


# Number of extra texts or images per pair. The upper limit bounds the memory of a host.
COUNT = between(1, 1000)


def below_one(noun: str) -> Check:
    """Accept numbers from 0 to 1, without 1."""
    return Check(lambda value: 0 <= value < 1, f"a {noun} from 0 to 1 (excluded)")


def one_of(*names: str) -> Check:
    """Accept these names."""
    return Check(lambda value: value in names, " or ".join(map(repr, names)))


def several_of(*names: str) -> Check:
    """Accept one or several of these names, separated by commas."""
    return Check(lambda value: set(value.split(",")) <= {*names}, f"names among {', '.join(names)}")


@dataclasses.dataclass(frozen=True)
class Need:
    """Condition on the whole config without which a key has no effect. Another value than the default is then refused.

    Attributes:
        holds: the condition.
        otherwise: describes a config in which it does not hold: "with config.X", "without config.Y".
        allows_presets: accept the value all the same, because configs preset the settings of losses that a command line
            turns on.
    """

    holds: Callable[[ConfigDict], Any]
    otherwise: str
    allows_presets: bool = False


@dataclasses.dataclass(frozen=True)
class Key:
    """Config key: default value, help text, an optional check of the value, and what it needs to have an effect.

    Attributes:
        affects: what changes with the value. "nothing": neither the model nor any result beyond rounding, so a run may
            resume with another value. "run": the run, but not the features of frozen towers, which other runs may
            share. "features": both. A new key affects features unless it says otherwise, which is always safe.
        needs: conditions that must all hold.
    """

    default: Any
    help: str
    check: Check | None = None
    affects: Literal["features", "run", "nothing"] = "features"
    needs: tuple[Need, ...] = ()
