"""Configuration field lists, read in both directions, with one line per field.

    ours         theirs               check
    width        hidden_size          whole
    activation   hidden_act           activation
    -            num_channels         rgb

- ours: field of our spec; `-` for a key that must have the only value which our towers support.
- theirs: key of the configuration.
- check: what the value must be, and how it is converted (`CHECKS`).

A field of ours may have two lines; their values must then be equal. In `a + b` the lines of b replace those of a for
the same field of ours.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rococo_jax.errors import InputError, is_number, is_whole
from rococo_jax.models.checked_spec import largest
from rococo_jax.models.spec import Activation

# Spellings of activations in configurations; exports use the first. "gelu" is the exact one.
SPELLINGS: dict[Activation, tuple[str, ...]] = {
    "quick_gelu": ("quick_gelu",),
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast"),
    "silu": ("silu", "swish"),
    "relu": ("relu",),
}
_ACTIVATIONS = {spelling: ours for ours, spellings in SPELLINGS.items() for spelling in spellings}
_FIXED = "-"


class Section:
    """A part of a configuration over its defaults. Errors name the file and the field.

    `name` is the key of the part, empty for the whole file.
    """

    def __init__(self, source: object, name: str, values: Any, defaults: Mapping[str, Any]):
        if not isinstance(values, Mapping):
            raise InputError(source, name or "configuration", type(values).__name__, "a JSON object")
        self.source, self.name, self.values = source, name, {**defaults, **values}

    def field(self, key: str) -> str:
        """Return the full name of a key, for errors."""
        return f"{self.name}.{key}" if self.name else key

    def refuse(self, key: str, expected: str) -> InputError:
        """Return the error for the value of a key."""
        return InputError(self.source, self.field(key), repr(self.values[key]), expected)

    def integer(self, key: str) -> int:
        """Return a whole number of at least 1."""
        value = self.values[key]
        if not is_whole(value) or not 1 <= value <= largest(key):
            raise self.refuse(key, f"a whole number, 1 to {largest(key):,}")
        return value

    def count(self, key: str) -> int:
        """Return a whole number that may be 0."""
        return 0 if self.values[key] == 0 and is_whole(self.values[key]) else self.integer(key)

    def side(self, key: str) -> int:
        """Return the side of a square, which is one number or two equal ones."""
        value = self.values[key]
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            self.values[key] = value[0]
        return self.integer(key)

    def root(self, key: str) -> int:
        """Return the side of a square of which the number of cells is stored."""
        count = self.integer(key)
        if math.isqrt(count) ** 2 != count:
            raise self.refuse(key, "a square number")
        return math.isqrt(count)

    def number(self, key: str) -> float:
        """Return a number above 0."""
        value = self.values[key]
        if not is_number(value) or value <= 0:
            raise self.refuse(key, "a number above 0")
        return float(value)

    def whole_float(self, key: str) -> int:
        """Return a whole number that is stored as a float."""
        if (value := self.number(key)) % 1:
            raise self.refuse(key, "a whole number")
        return int(value)

    def flag(self, key: str) -> bool:
        """Return true or false."""
        if not isinstance(self.values[key], bool):
            raise self.refuse(key, "true or false")
        return self.values[key]

    def activation(self, key: str) -> Activation:
        """Return our name of an activation."""
        value = self.values[key]
        if value not in tuple(_ACTIVATIONS):  # the value may be unhashable
            raise self.refuse(key, f"one of {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[value]

    def must_be(self, key: str, required: Any, expected: str) -> None:
        """Raise InputError unless a key has the required value, or is missing."""
        if self.values.get(key, required) != required:
            raise self.refuse(key, expected)


class Check(NamedTuple):
    """A pair of functions: one reads a value from a section, the other writes ours."""

    read: Callable[[Section, str], Any]
    write: Callable[[Any], Any] = lambda value: value


def _fixed(required: Any, expected: str) -> Check:
    return Check(lambda section, key: section.must_be(key, required, expected))


CHECKS: dict[str, Check] = {
    "whole": Check(Section.integer),
    "count": Check(Section.count),
    "side": Check(Section.side),
    "root": Check(Section.root, lambda side: side**2),
    "number": Check(Section.number),
    "whole_float": Check(Section.whole_float, float),
    "flag": Check(Section.flag),
    "activation": Check(Section.activation, lambda activation: SPELLINGS[activation][0]),
    # of fixed fields
    "true": _fixed(True, "true"),
    "false": _fixed(False, "false"),
    "rgb": _fixed(3, "3: red, green and blue"),
}


class Field(NamedTuple):
    """A line of a list of fields."""

    ours: str
    theirs: str
    check: str


class FieldList:
    """Lines of fields. `a + b` has the lines of both; those of b replace lines of a with the same field of ours."""

    def __init__(self, lines: Iterable[Field]):
        self.lines = tuple(lines)

    def __add__(self, other: "FieldList") -> "FieldList":
        replaced = {line.ours for line in other.lines} - {_FIXED}
        return FieldList((*(line for line in self.lines if line.ours not in replaced), *other.lines))

    def read(self, section: Section) -> dict[str, Any]:
        """Return the values of our fields. Raises InputError for a value that a check refuses."""
        values: dict[str, Any] = {}
        for ours, theirs, check in self.lines:
            value = CHECKS[check].read(section, theirs)
            if values.get(ours, value) != value:
                raise section.refuse(theirs, f"{json.dumps(values[ours])}, like the other keys of the same setting")
            if ours != _FIXED:
                values[ours] = value
        return values

    def write(self, spec: Any) -> dict[str, Any]:
        """Return the keys of a configuration for a spec. Fixed fields are left to the defaults of their library."""
        return {
            theirs: CHECKS[check].write(getattr(spec, ours)) for ours, theirs, check in self.lines if ours != _FIXED
        }


def fields(text: str) -> FieldList:
    """Parse a list of fields.

    >>> fields("width  hidden_size  whole").lines
    (Field(ours='width', theirs='hidden_size', check='whole'),)
    """
    lines = [Field(*line.split()) for line in filter(None, map(str.strip, text.splitlines()))]
    for line in lines:
        if line.check not in CHECKS:
            raise ValueError(f"{line}: wanted a check: {', '.join(CHECKS)}")
    return FieldList(lines)
