"""Options from dataclasses: one declaration for the command line, the call from Python, and the help.

A type says how a text is read: `str`, `int` (from 0), `float`; `bool`, a switch; `Literal["a", "b"]`, a choice;
`tuple[str, ...]`, `tuple[int, ...]` and `tuple[float, ...]`, a list with commas (`none` for no texts);
`tuple[int, int]`, NxM; `tuple[tuple[str, str], ...]`, NAME=VALUE, may be repeated; a dataclass, a group of its options.
`Annotated[..., Option(...)]` says the rest. Help is the docstring's line on the attribute, with the default where the
line names none. argparse does the parsing: tyro takes 0.1 s to import, as long as all of `rococo --help`, and neither
it nor Typer keeps an error to one line.
"""

import argparse
import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rococo_jax.errors import InputError

_PAIRS, _REQUIRED = tuple[tuple[str, str], ...], dataclasses.MISSING


@dataclasses.dataclass(frozen=True)
class Option:
    """Properties of an option that its type does not say.

    Attributes:
        metavar: placeholder of the value in the help.
        flag: flag, if it is not the attribute's name.
        positional: an argument without a flag; a tuple takes several words.
        repeated: a tuple of strings, one each time the flag is given.
        several: a tuple of strings, one word or more after the flag.
        least: the smallest whole number that is taken.
        check: reads the text, or raises an InputError.
        needs: conditions of which one must hold if the option is given.
        excludes: conditions of which none may hold if the option is given.

    A condition names another option of the command: `pixels`, if it is given; `search=beam`, if that is its value;
    `!pixels`, if it is not given. Several are joined by `+` and must all hold.
    """

    metavar: str | None = None
    flag: str | None = None
    positional: bool = False
    repeated: bool = False
    several: bool = False
    least: int = 0
    check: Callable[[str], Any] | None = None
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Group:
    """Use of a group of options in a command: all options or `only` some, with other flags for some attributes."""

    only: tuple[str, ...] | None = None
    flags: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Declared(typing.NamedTuple):
    """Attribute of a dataclass as an option, or as a group of options."""

    name: str
    kind: Any
    option: Option | Group
    default: Any
    help: str
    place: str  # name of its value in an `argparse.Namespace`

    @property
    def is_group(self) -> bool:
        """True if the attribute is a dataclass, whose options are a group."""
        return isinstance(self.option, Group)

    @property
    def flag(self) -> str:
        """Flag on the command line."""
        return f"--{(self.option.flag or self.name).replace('_', '-')}"

    @property
    def label(self) -> str:
        """The name in errors and help: the flag, or the name of a positional argument."""
        return (self.option.metavar or self.place.upper()) if self.option.positional else self.flag


@functools.cache
def declared(options: type) -> tuple[Declared, ...]:
    """Return the options that a dataclass declares, in its order."""
    hints = typing.get_type_hints(options, include_extras=True)
    texts: dict[str, str] = {}
    declarations = []
    for base in reversed(options.__mro__):
        texts |= _texts(base.__doc__ or "")
    for field in dataclasses.fields(options):
        kind, option = hints[field.name], None
        if typing.get_origin(kind) is typing.Annotated:
            kind, option = typing.get_args(kind)
        if typing.get_origin(kind) in (types.UnionType, typing.Union):
            (kind,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
        option = option or (Group() if dataclasses.is_dataclass(kind) else Option())
        declarations.append(Declared(field.name, kind, option, field.default, texts.get(field.name, ""), field.name))
    return tuple(declarations)


def _texts(docstring: str) -> dict[str, str]:
    """Return the text of each attribute in a docstring: `name: text`, continued in lines that are indented further."""
    texts, name = {}, ""
    for line in docstring.partition("Attributes:")[2].splitlines():
        if begins := re.match(r" {8}(\w+): (.*)", line):
            name, texts[begins[1]] = begins.groups()
        elif line.startswith(" " * 10):
            texts[name] += f" {line.strip()}"
        elif line.strip():
            break
    return {name: text.rstrip(".").replace("`", "") for name, text in texts.items()}


def selected(options: type, group: Group) -> Iterable[Declared]:
    """Yield the options of a dataclass that a group takes, with the flags that they have there."""
    for each in declared(options):
        if group.only is None or each.name in group.only:
            flag = group.flags.get(each.name)
            renamed = {"option": dataclasses.replace(each.option, flag=flag), "place": flag} if flag else {}
            yield each._replace(**renamed)


def by_place(options: type, group: Group = Group()) -> dict[str, Declared]:
    """Return all options of a dataclass, those of its groups included, by their place."""
    places: dict[str, Declared] = {}
    for each in selected(options, group):
        places |= by_place(each.kind, each.option) if each.is_group else {each.place: each}
    return places


def refuse_combinations(options: type, values: Mapping[str, Any], command: str) -> None:
    """Raise InputError for an option without one that it needs, or beside one that it excludes.

    Args:
        values: the parsed arguments, before `parse` adds defaults.
    """
    places = by_place(options)

    def holds(condition: str) -> bool:
        for part in condition.split("+"):
            name, _, value = part.removeprefix("!").partition("=")
            given = values.get(name, places[name].default if value else None)
            if (given == value if value else bool(given)) == part.startswith("!"):
                return False
        return True

    for each in [each for place, each in places.items() if values.get(place)]:
        for condition in filter(holds, each.option.excludes):
            raise InputError(command, each.label, f"also {_words(condition, places)}", "one of the two")
        if each.option.needs and not any(map(holds, each.option.needs)):
            raise InputError(command, each.label, "it alone", f"it {_needs(each, places)}")


def _words(condition: str, places: Mapping[str, Declared]) -> str:
    parts = (part.removeprefix("!").partition("=") for part in condition.split("+"))
    return " and ".join(" ".join(filter(None, (places[name].label, value))) for name, _, value in parts)


def _needs(each: Declared, places: Mapping[str, Declared]) -> str:
    words = (("without " if one.startswith("!") else "with ") + _words(one, places) for one in each.option.needs)
    return " or ".join(words)


def add_options(
    parser: Any, options: type, group: Group = Group(), places: Mapping[str, Declared] | None = None
) -> None:
    """Add the options of a dataclass to an `argparse` parser; those of nested dataclasses get a heading.

    Args:
        places: all options of the command, by default those of the dataclass.
    """
    places = by_place(options, group) if places is None else places
    for each in selected(options, group):
        if each.is_group:
            add_options(parser.add_argument_group(each.help or each.name), each.kind, each.option, places)
        else:
            _add(parser, each, places)


def _add(parser: Any, each: Declared, places: Mapping[str, Declared]) -> None:
    """Add an option. Its words stay texts, and options that are not given are absent."""
    kind, option, text, is_required = each.kind, each.option, each.help, each.default is _REQUIRED
    is_tuple = typing.get_origin(kind) is tuple
    if each.default not in (None, (), False, "", _REQUIRED) and "(default" not in text:
        values = each.default if is_tuple else (each.default,)
        text = f"{text} (default: {','.join(map(str, values))})".strip()
    combination = [_needs(each, places)] * bool(option.needs)
    combination += [f"not with {_words(other, places)}" for other in option.excludes]
    text += f" ({', '.join(combination)})" if combination else ""
    settings = {"help": text.replace("%", "%%"), "default": argparse.SUPPRESS}
    if kind is bool:
        parser.add_argument(each.flag, dest=each.place, action="store_true", **settings)
        return
    settings |= {"metavar": option.metavar} if option.metavar else {}
    settings |= {"choices": typing.get_args(kind)} if typing.get_origin(kind) is typing.Literal else {}
    if option.positional:
        words = ("+" if is_required else "*") if is_tuple else (None if is_required else "?")
        parser.add_argument(each.place, nargs=words, **settings)
    else:
        action = "append" if option.repeated or kind == _PAIRS else "store"
        settings |= {"nargs": "+"} if option.several else {}
        parser.add_argument(each.flag, dest=each.place, action=action, required=is_required, **settings)


def parse(options: type, values: dict[str, Any], group: Group = Group()) -> Any:
    """Build the dataclass from parsed arguments. Defaults of options that were not given are added to `values`.

    Raises:
        InputError, OSError: a value is invalid for its option.
    """
    values_by_name = {}
    for each in selected(options, group):
        if each.is_group:
            values_by_name[each.name] = parse(each.kind, values, each.option)
        elif each.place in values:
            values_by_name[each.name] = _value(each, values[each.place], each.label)
        else:
            values[each.place] = each.default
    return options(**values_by_name)


def read(options: type, texts: Mapping[str, Any], label: Callable[[str], str]) -> Any:
    """Build the dataclass from the texts of a config; an empty text for an option without a default is ignored.

    Args:
        label: returns the name of an option in errors, by its attribute.

    Raises:
        InputError: a value is invalid for its option.
    """
    texts_by_option = {each: texts[each.name] for each in declared(options) if each.name in texts}
    texts_by_option = {
        each: text for each, text in texts_by_option.items() if text != "" or each.default not in (None, ())
    }
    values = {each: text.split(",") if each.kind == _PAIRS else text for each, text in texts_by_option.items()}
    return options(**{each.name: _value(each, value, label(each.name)) for each, value in values.items()})


def _value(each: Declared, words: Any, label: str) -> Any:
    """Read the value of an option from its text, or texts if it may be repeated; the label is for errors."""
    kind, option, check = each.kind, each.option, each.option.check
    if kind == _PAIRS:
        return tuple(_named(words, label, option.metavar or "NAME=VALUE").items())
    if isinstance(words, list):
        return tuple(map(check, words) if check else words)
    if check is not None:
        return check(words)
    if kind == tuple[str, ...]:
        return () if words == "none" else tuple(words.split(","))
    is_text = kind in (str, bool) or typing.get_origin(kind) is typing.Literal
    return words if is_text else read_numbers(kind, words, label, option.least)


def read_numbers(kind: Any, text: str | int, label: str, least: int = 0) -> Any:
    """Read a number, or a tuple of numbers, from a text.

    Args:
        kind: `int`, `float`, a tuple of any number of them, or of two `int` (NxM).
        least: the smallest whole number that is taken.

    Raises:
        InputError: the text is something else.
    """
    is_list, is_pair = typing.get_origin(kind) is tuple, kind == tuple[int, int]
    of = typing.get_args(kind)[0] if is_list else kind
    try:
        parts = text.split("x" if is_pair else ",") if is_list else [text]
        numbers = tuple(_number(of, part, least) for part in parts)
        if is_pair and len(numbers) != 2:
            raise ValueError(text)
    except ValueError:
        one = "whole number" if of is int else "number"
        form = f"NxM, {one}s" if is_pair else f"{one}s with commas between them" if is_list else f"a {one}"
        bound = f", {least} or more" if of is int and (least or not is_list) else ""
        raise InputError(label, "numbers" if is_list else "number", text, form + bound) from None
    return numbers if is_list else numbers[0]


def _number(kind: type, text: str | int, least: int) -> int | float:
    """Read a number, a whole one of at least `least`. Raises ValueError for another text."""
    value = kind(text)
    if kind is int and (not str(text).isdecimal() or value < least):
        raise ValueError(text)
    return value


def _named(entries: Iterable[str], label: str, form: str) -> dict[str, str]:
    """Return entries of the form NAME=VALUE as a dictionary."""
    values: dict[str, str] = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        if not name or not value or name in values:
            raise InputError(label, "entry", entry, f"{form}, each name once")
        values[name] = value
    return values
