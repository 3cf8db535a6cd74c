"""Base of the spec dataclasses, which are written to JSON and read back with every field checked."""

import dataclasses
import math
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from rococo_jax.errors import InputError

Activation = Literal["quick_gelu", "gelu", "gelu_tanh", "silu", "relu"]
PositionRule = Literal["bicubic", "antialiased", "antialiased_linear", "linear"]

# Upper limits of sizes (channels, tokens, pixels) and of layers. Larger numbers are damage: their arrays could not be
# allocated, and loops over their layers would not end.
_LARGEST_SIZE = 10**6
_MOST_LAYERS = 1000


class CheckedSpec:
    """Base of the spec dataclasses.

    Attributes:
        label: name of the spec in errors.
        omit_if_default: fields that JSON omits if they have their default value. They were added after models had been
            published, whose hashes must not change.
    """

    label: ClassVar[str]
    omit_if_default: ClassVar[frozenset[str]] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON values with one entry per field; tuples become lists."""
        always = [field.name for field in dataclasses.fields(self) if field.name not in self.omit_if_default]
        return {name: _as_json(getattr(self, name)) for name in (*always, *self.non_default_optional)}

    @property
    def non_default_optional(self) -> list[str]:
        """List of the `omit_if_default` fields with another value than their default."""
        fields = (field for field in dataclasses.fields(self) if field.name in self.omit_if_default)
        return [field.name for field in fields if getattr(self, field.name) != field.default]

    @classmethod
    def from_json(cls, value: Any, source: object = "spec") -> "CheckedSpec":
        """Invert `to_json`. Raises InputError, which names `source`: a field is missing, unknown or wrong."""
        if not isinstance(value, dict):
            raise InputError(source, cls.label, type(value).__name__, "a JSON object")
        types = get_type_hints(cls)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(value) - set(fields)):
            raise InputError(source, cls.label, f"unknown fields {unknown}", f"only {sorted(fields)}")
        required = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
        if missing := sorted(required - set(value)):
            raise InputError(source, cls.label, f"no fields {missing}", f"all of {sorted(required)}")
        return cls(**{name: _checked(source, f"{cls.label}.{name}", types[name], item) for name, item in value.items()})


def largest(field: str) -> int:
    """Return the largest whole number that a field of this name may have."""
    counts_layers = field.rpartition(".")[2].endswith(("layers", "depth", "depths"))
    return _MOST_LAYERS if counts_layers else _LARGEST_SIZE


def check_heads(source: str, width: int, heads: int) -> None:
    """Raise InputError unless the number of heads divides the width."""
    if width % heads:
        raise InputError(source, "heads", f"{heads} heads for a width of {width}", "a divisor of the width")


def _as_json(value: Any) -> Any:
    if isinstance(value, CheckedSpec):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else value


def _checked(source: object, field: str, field_type: Any, value: Any) -> Any:
    """Return `value` as the type of its field, or raise InputError."""
    if get_origin(field_type) is Literal:
        if value not in get_args(field_type):
            raise InputError(source, field, repr(value), f"one of {list(get_args(field_type))}")
        return value
    if get_origin(field_type) is tuple:
        return _checked_tuple(source, field, get_args(field_type), value)

    choices = get_args(field_type) or (field_type,)  # the members of a union, or the type alone
    if value is None and type(None) in choices:
        return None
    specs = [choice for choice in choices if dataclasses.is_dataclass(choice)]
    if specs:
        # Specs of different kinds of towers share few fields: choose the one with the most in common.
        return max(specs, key=lambda spec: _fields_in_common(spec, value)).from_json(value, source)
    for choice in choices:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if choice is float and is_number:
            return _checked_fraction(source, field, value)
        if isinstance(value, choice) and isinstance(value, bool) == (choice is bool):
            if choice is int:
                _check_range(source, field, value)
            return value
    names = " or ".join("null" if choice is type(None) else choice.__name__ for choice in choices)
    raise InputError(source, field, repr(value), names)


def _checked_tuple(source: object, field: str, item_types: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if item_types[-1] is Ellipsis and isinstance(value, list | tuple):  # any number of items of one type
        item_types = item_types[:1] * len(value)
    if not isinstance(value, list | tuple) or len(value) != len(item_types):
        raise InputError(source, field, repr(value), f"a list of {len(item_types)}")
    return tuple(_checked(source, field, item_type, item) for item_type, item in zip(item_types, value, strict=True))


def _checked_fraction(source: object, field: str, value: float) -> float:
    if not (math.isfinite(value) and 0 < value < 1):
        raise InputError(source, field, value, "a number between 0 and 1")
    return float(value)


def _check_range(source: object, field: str, value: int) -> None:
    lowest = 0 if field.endswith(("_id", ".token_types")) else 1
    if not lowest <= value <= largest(field):
        raise InputError(source, field, value, f"a whole number from {lowest} to {largest(field):,}")


def _fields_in_common(spec: Any, value: Any) -> int:
    return len({field.name for field in dataclasses.fields(spec)} & set(value)) if isinstance(value, dict) else 0
