"""Dataclasses that are written to JSON and read back with every field checked."""

import dataclasses
import math
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from rococo_jax.errors import InputError

Activation = Literal["quick_gelu", "gelu", "gelu_tanh", "silu", "relu"]
PositionRule = Literal["bicubic", "antialiased", "antialiased_linear", "linear"]

# Of channels, tokens or pixels, and of layers; a spec beyond it describes no model: no array could have its shapes, and
# what is done for each layer would not end.
_LARGEST, _MOST_LAYERS = 10**6, 1000


class CheckedSpec:
    """The base of the spec dataclasses.

    `unwritten` are fields that JSON leaves out at their default: newer than models whose hashes must not change.
    """

    what: ClassVar[str]
    unwritten: ClassVar[frozenset[str]] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values, one entry a field; tuples become lists."""
        written = [field.name for field in dataclasses.fields(self) if field.name not in self.unwritten]
        items = {name: getattr(self, name) for name in (*written, *self.newer_fields)}
        return {name: _as_json(each) for name, each in items.items()}

    @property
    def newer_fields(self) -> list[str]:
        """The `unwritten` fields that are not at their default."""
        fields = (field for field in dataclasses.fields(self) if field.name in self.unwritten)
        return [field.name for field in fields if getattr(self, field.name) != field.default]

    @classmethod
    def from_json(cls, value: Any, source: object = "spec") -> "CheckedSpec":
        """The inverse of `to_json`. Raises InputError, which names `source`, for fields that are missing, unknown or
        wrong.
        """
        if not isinstance(value, dict):
            raise InputError(source, cls.what, type(value).__name__, "a JSON object")
        types = get_type_hints(cls)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(value) - set(fields)):
            raise InputError(source, cls.what, f"unknown fields {unknown}", f"only {sorted(fields)}")
        required = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
        if missing := sorted(required - set(value)):
            raise InputError(source, cls.what, f"no fields {missing}", f"all of {sorted(required)}")
        return cls(**{name: _checked(source, f"{cls.what}.{name}", types[name], item) for name, item in value.items()})


def largest(field: str) -> int:
    """The largest whole number that a field of this name may have in a model's description."""
    return _MOST_LAYERS if field.rpartition(".")[2].endswith(("layers", "depth", "depths")) else _LARGEST


def check_heads(what: str, width: int, heads: int) -> None:
    """Raises InputError where so many heads do not share the channels equally."""
    if width % heads:
        raise InputError(what, "heads", f"{heads} heads for a width of {width}", "a divisor of the width")


def _as_json(value: Any) -> Any:
    if isinstance(value, CheckedSpec):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else value


def _checked(source: object, field: str, wanted: Any, value: Any) -> Any:
    if get_origin(wanted) is Literal:
        if value not in get_args(wanted):
            raise InputError(source, field, repr(value), f"one of {list(get_args(wanted))}")
        return value
    if get_origin(wanted) is tuple:
        kinds = get_args(wanted)
        if kinds[-1] is Ellipsis and isinstance(value, list | tuple):  # any number of the same kind
            kinds = kinds[:1] * len(value)
        if not isinstance(value, list | tuple) or len(value) != len(kinds):
            raise InputError(source, field, repr(value), f"a list of {len(kinds)}")
        return tuple(_checked(source, field, kind, item) for kind, item in zip(kinds, value, strict=True))
    choices = get_args(wanted) or (wanted,)
    if value is None and type(None) in choices:
        return None
    if specs := [choice for choice in choices if dataclasses.is_dataclass(choice)]:
        # Towers of different kinds share few fields: the kind is the one with the most in common.
        return max(specs, key=lambda spec: _fields_in_common(spec, value)).from_json(value, source)
    for choice in choices:
        if choice is float and isinstance(value, int | float) and not isinstance(value, bool):
            if not (math.isfinite(value) and 0 < value < 1):
                raise InputError(source, field, value, "a number between 0 and 1")
            return float(value)
        if isinstance(value, choice) and isinstance(value, bool) == (choice is bool):
            least = 0 if field.endswith(("_id", ".token_types")) else 1
            if choice is int and not least <= value <= largest(field):
                raise InputError(source, field, value, f"a whole number from {least} to {largest(field):,}")
            return value
    names = " or ".join("null" if choice is type(None) else choice.__name__ for choice in choices)
    raise InputError(source, field, repr(value), names)


def _fields_in_common(spec: Any, value: Any) -> int:
    return len({field.name for field in dataclasses.fields(spec)} & set(value)) if isinstance(value, dict) else 0
