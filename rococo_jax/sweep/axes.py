"""What is swept: axes and arms, as a command line or a config file writes them.

batch_size=32,64                                one key
losses.sc.weight+losses.vc.weight=1,2           several keys that always have the same value
losses.sc.variants=danger;danger,rand_voca      values that hold commas stand between semicolons
plain: losses.sc.weight=0 losses.vc.weight=0    an arm: a name, and overrides that hold for all its points
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rococo_jax.errors import InputError

_ARM_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


@dataclasses.dataclass(frozen=True)
class Axis:
    """Keys of the config that are varied together, and the values they take, as written."""

    keys: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def name(self) -> str:
        """What tables call it: the keys."""
        return "+".join(self.keys)

    @property
    def short(self) -> str:
        """What points and plots call it: the last two parts of each key."""
        return "+".join(".".join(key.split(".")[-2:]) for key in self.keys)


@dataclasses.dataclass(frozen=True)
class Arm:
    """A curve of the plot: a name (empty where there is one only) and the overrides of its points."""

    name: str
    overrides: Mapping[str, str]


def parse_axis(text: str, source: str = "over") -> Axis:
    """`key=value,value` or `key+key=value,value`. Raises InputError for no key, and no, empty or repeated values."""
    name, separator, values = text.partition("=")
    keys = tuple(key.strip().lstrip("-").removeprefix("config.") for key in name.split("+"))
    if not separator or not all(keys):
        raise InputError(source, "what is swept", repr(text), "KEY=VALUE,VALUE")
    texts = tuple(value.strip() for value in values.split(";" if ";" in values else ","))
    if not all(texts):
        raise InputError(source, name, "an empty value" if values.strip() else "no values", "KEY=VALUE,VALUE")
    refuse_twice(source, name, texts)
    if len(set(keys)) < len(keys):
        raise InputError(source, "what is swept", repr(name), "each key once")
    return Axis(keys, texts)


def parse_axes(texts: Sequence[str], source: str = "over") -> tuple[Axis, ...]:
    """Several axes, whose grid is swept. Raises InputError as `parse_axis`, for no axis, and a key on two."""
    if not texts:
        raise InputError(source, "what is swept", "nothing", "KEY=VALUE,VALUE, or a config file with get_sweep()")
    axes = tuple(parse_axis(text, source) for text in texts)
    refuse_twice(source, "what is swept", [key for axis in axes for key in axis.keys])
    return axes


def parse_arm(name: str, text: str, source: str = "arms") -> Arm:
    """An arm from its name, which names a folder, and its overrides, `key=value key=value`; else InputError."""
    if not _ARM_NAME.fullmatch(name):
        raise InputError(source, "name of an arm", repr(name), "letters, digits and . _ + -")
    overrides: dict[str, str] = {}
    for word in text.split():
        key, separator, value = word.lstrip("-").removeprefix("config.").partition("=")
        if not separator or not key:
            raise InputError(source, f"arm {name!r}", repr(word), "KEY=VALUE")
        overrides[key] = value
    return Arm(name, overrides)


def choose_arms(asked: Sequence[str], known: Sequence[str]) -> tuple[Arm, ...]:
    """The arms of a sweep: `asked` ones, `NAME` of a known arm or `NAME: key=value ...` of a new one, or else all
    `known`.

    Raises InputError as `parse_arm`, for an unknown name, and for a name twice.
    """
    of_file = {name.strip(): overrides for name, _, overrides in (text.partition(":") for text in known)}
    if not asked:
        return tuple(parse_arm(name, text, "get_sweep") for name, text in of_file.items()) or (Arm("", {}),)
    arms = []
    for text in asked:
        name, separator, overrides = (part.strip() for part in text.partition(":"))
        if not separator and name not in of_file:
            named = f"one of {', '.join(of_file)}, or " if of_file else ""
            raise InputError("arms", "name of an arm", repr(name), f"{named}'NAME: key=value key=value'")
        arms.append(parse_arm(name, overrides if separator else of_file[name]))
    refuse_twice("arms", "name of an arm", [arm.name for arm in arms])
    return tuple(arms)


def refuse_twice(source: str, field: str, values: Sequence[Any]) -> None:
    """Raises InputError for the first value that is there twice."""
    twice = next((value for place, value in enumerate(values) if value in values[:place]), None)
    if twice is not None:
        raise InputError(source, field, f"{twice} twice", "each of them once")
