"""Sweep axes and arms, as the command line or a config file writes them.

batch_size=32,64                                one key
losses.sc.weight+losses.vc.weight=1,2           several keys that always have the same value
losses.sc.variants=danger;danger,rand_voca      values with commas are separated by semicolons
plain: losses.sc.weight=0 losses.vc.weight=0    an arm: a name, and overrides of all its points
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rococo_jax.errors import InputError

_ARM_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


@dataclasses.dataclass(frozen=True)
class Axis:
    """Config keys that are varied together, and their values as texts."""

    keys: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name in tables: the keys."""
        return "+".join(self.keys)

    @property
    def short(self) -> str:
        """Name in names of points and in plots: the last two parts of each key."""
        return "+".join(".".join(key.split(".")[-2:]) for key in self.keys)


@dataclasses.dataclass(frozen=True)
class Arm:
    """A curve of the plot: a name (empty if it is the only one) and the overrides of its points."""

    name: str
    overrides: Mapping[str, str]


def parse_axis(text: str, source: str = "over") -> Axis:
    """Parse `key=value,value` or `key+key=value,value`.

    Raises InputError: there is no key or no value, or a key or value is empty or repeated.
    """
    name, separator, values = text.partition("=")
    keys = tuple(key.strip().lstrip("-").removeprefix("config.") for key in name.split("+"))
    if not separator or not all(keys):
        raise InputError(source, "axis", repr(text), "KEY=VALUE,VALUE")
    texts = tuple(value.strip() for value in values.split(";" if ";" in values else ","))
    if not all(texts):
        raise InputError(source, name, "an empty value" if values.strip() else "no values", "KEY=VALUE,VALUE")
    refuse_repeated(source, name, texts)
    if len(set(keys)) < len(keys):
        raise InputError(source, "axis", repr(name), "each key once")
    return Axis(keys, texts)


def parse_axes(texts: Sequence[str], source: str = "over") -> tuple[Axis, ...]:
    """Parse the axes of a grid. Raises InputError as `parse_axis`, without an axis, or for a key on two axes."""
    if not texts:
        raise InputError(source, "axis", "nothing", "KEY=VALUE,VALUE, or a config file with get_sweep()")
    axes = tuple(parse_axis(text, source) for text in texts)
    refuse_repeated(source, "axis", [key for axis in axes for key in axis.keys])
    return axes


def parse_arm(name: str, text: str, source: str = "arms") -> Arm:
    """Parse the overrides `key=value key=value` of an arm. Raises InputError, also if no folder can have the name."""
    if not _ARM_NAME.fullmatch(name):
        raise InputError(source, "name of an arm", repr(name), "letters, digits and . _ + -")
    overrides: dict[str, str] = {}
    for word in text.split():
        key, separator, value = word.lstrip("-").removeprefix("config.").partition("=")
        if not separator or not key:
            raise InputError(source, f"arm {name!r}", repr(word), "KEY=VALUE")
        overrides[key] = value
    return Arm(name, overrides)


def choose_arms(requested: Sequence[str], defined: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms of a sweep: the requested ones, or all defined ones if none are requested.

    Args:
        requested: `NAME` of a defined arm, or `NAME: key=value ...` of a new one.
        defined: `NAME: key=value ...` of each arm of the config file.

    Raises:
        InputError: as `parse_arm`, or a name is unknown or repeated.
    """
    overrides_of = {name.strip(): overrides for name, _, overrides in (text.partition(":") for text in defined)}
    if not requested:
        arms = [parse_arm(name, text, "get_sweep") for name, text in overrides_of.items()]
        return tuple(arms) or (Arm("", {}),)
    arms = []
    for text in requested:
        name, separator, overrides = (part.strip() for part in text.partition(":"))
        if not separator and name not in overrides_of:
            names = f"one of {', '.join(overrides_of)}, or " if overrides_of else ""
            raise InputError("arms", "name of an arm", repr(name), f"{names}'NAME: key=value key=value'")
        arms.append(parse_arm(name, overrides if separator else overrides_of[name]))
    refuse_repeated("arms", "name of an arm", [arm.name for arm in arms])
    return tuple(arms)


def refuse_repeated(source: str, field: str, values: Sequence[Any]) -> None:
    """Raise InputError for the first repeated value."""
    for place, value in enumerate(values):
        if value in values[:place]:
            raise InputError(source, field, f"{value} twice", "each of them once")
