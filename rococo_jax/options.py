"""Options from dataclasses: one declaration for the command line, the call from Python, and the help.

    @dataclasses.dataclass(frozen=True)
    class Drawing:
        \"\"\"Draw scenes.

        Attributes:
            out: where they go.
            seeds: of the scenes.
        \"\"\"

        out: Annotated[str, Option("DIR", check=output_folder)]
        seeds: tuple[int, ...] = (1, 2)

gives `--out DIR` (required) and `--seeds N,N`, and `parse` gives the object. A type says how a text is read:

    str, int, float        one value; integers from 0
    bool                   a switch
    Literal["a", "b"]      one of these
    tuple[str | int, ...]  a list with commas; none is `none`
    tuple[tuple[str, str], ...]    NAME=VALUE, may be repeated
    a dataclass            a group of its options

Help is the docstring's line on the attribute, with the default where it says none. argparse does the rest: tyro takes
0.1 s to import, half of `rococo --help`, and neither it nor Typer keeps errors to one line with the nearest name.
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

_PAIRS = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Option:
    """What a type does not say of an option.

    Attributes:
        metavar: what stands for the value in help.
        flag: instead of the attribute's name.
        positional: an argument without a flag; a tuple takes several words.
        repeated: a tuple of strings, one each time the flag is given.
        check: refuses the text, or reads it.
    """

    metavar: str | None = None
    flag: str | None = None
    positional: bool = False
    repeated: bool = False
    check: Callable[[str], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Group:
    """What a command takes of a group.

    Attributes:
        only: these options alone; all by default.
        flags: by attribute, instead of its name.
    """

    only: tuple[str, ...] | None = None
    flags: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Declared(typing.NamedTuple):
    """One attribute of a dataclass as an option, or as a group of options."""

    name: str
    kind: Any
    option: Option | Group
    default: Any
    help: str
    place: str  # of its value in an `argparse.Namespace`

    @property
    def flag(self) -> str:
        """How the command line calls it."""
        return f"--{(self.option.flag or self.name).replace('_', '-')}"


@functools.cache
def declared(options: type) -> tuple[Declared, ...]:
    """The options that a dataclass declares, in its order."""
    hints, texts = typing.get_type_hints(options, include_extras=True), attribute_texts(options)
    found = []
    for field in dataclasses.fields(options):
        kind, *extras = typing.get_args(hints[field.name]) if _is_annotated(hints[field.name]) else (hints[field.name],)
        if typing.get_origin(kind) in (types.UnionType, typing.Union):
            (kind,) = (each for each in typing.get_args(kind) if each is not type(None))
        option = extras[0] if extras else Group() if dataclasses.is_dataclass(kind) else Option()
        found.append(Declared(field.name, kind, option, field.default, texts.get(field.name, ""), field.name))
    return tuple(found)


def _is_annotated(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Annotated


def attribute_texts(options: type) -> dict[str, str]:
    """What a docstring says of each attribute: `    name, name: text`, going on in lines that are further in."""
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in (options.__doc__ or "").partition("Attributes:")[2].splitlines():
        if begins := re.match(r" {8}(\w+(?:, \w+)*): (.*)", line):
            names = begins[1].split(", ")
            texts |= dict.fromkeys(names, begins[2])
        elif line.startswith(" " * 10):
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
        elif line.strip():
            break
    return {name: text.rstrip(".").replace("`", "") for name, text in texts.items()}


def add_options(parser: Any, options: type, group: Group = Group()) -> None:
    """Add the options of a dataclass to an `argparse` parser; those of nested ones under a heading."""
    for each in _taken(options, group):
        if isinstance(each.option, Group):
            add_options(parser.add_argument_group(each.help or each.name), each.kind, each.option)
        else:
            _add(parser, each)


def parse(options: type, values: dict[str, Any], group: Group = Group()) -> Any:
    """The dataclass of the words of an `argparse.Namespace`, which gets the defaults of what was not given.

    Raises:
        InputError, OSError: a text is none of its option's.
    """
    given = {}
    for each in _taken(options, group):
        if isinstance(each.option, Group):
            given[each.name] = parse(each.kind, values, each.option)
        elif each.place in values:
            label = each.place.upper() if each.option.positional else each.flag
            given[each.name] = read_value(each, values[each.place], label)
        else:
            values[each.place] = each.default
    return options(**given)


def read(options: type, texts: Mapping[str, Any], label: Callable[[str], str]) -> Any:
    """The dataclass of a config's texts; an empty one of an option that is nothing by default is not given.

    Args:
        label: what errors call an option, by its attribute.

    Raises:
        InputError: a text is none of its option's.
    """
    given = {each: texts[each.name] for each in declared(options) if each.name in texts}
    given = {each: text for each, text in given.items() if text != "" or each.default not in (None, ())}
    values = {each: text.split(",") if each.kind == _PAIRS else text for each, text in given.items()}
    return options(**{each.name: read_value(each, value, label(each.name)) for each, value in values.items()})


def _taken(options: type, group: Group) -> Iterable[Declared]:
    for each in declared(options):
        if group.only is None or each.name in group.only:
            flag = group.flags.get(each.name)
            renamed = {} if flag is None else {"option": dataclasses.replace(each.option, flag=flag), "place": flag}
            yield each._replace(**renamed)


def _add(parser: Any, each: Declared) -> None:
    """Add one option; its words stay texts, and what is not given stays away."""
    kind, option, needed = each.kind, each.option, each.default is dataclasses.MISSING
    text = each.help
    if each.default not in (None, (), False, "", dataclasses.MISSING) and "(default" not in text:
        values = each.default if isinstance(each.default, tuple) else (each.default,)
        text = f"{text} (default: {','.join(map(str, values))})".strip()
    given = {"help": text.replace("%", "%%"), "default": argparse.SUPPRESS}
    is_tuple = typing.get_origin(kind) is tuple
    if kind is bool:
        parser.add_argument(each.flag, dest=each.place, action="store_true", **given)
        return
    choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else None
    given |= (
        {"choices": choices, "metavar": option.metavar} if choices is None or option.metavar else {"choices": choices}
    )
    if option.positional:
        words = ("+" if needed else "*") if is_tuple else (None if needed else "?")
        parser.add_argument(each.place, nargs=words, **given)
    else:
        action = "append" if option.repeated or kind == _PAIRS else "store"
        given |= {"nargs": "+"} if option.several else {}
        parser.add_argument(each.flag, dest=each.place, action=action, required=needed, **given)


def read_value(each: Declared, words: Any, label: str) -> Any:
    """The value of an option from its text, or its texts where it may be repeated.

    Raises:
        InputError: it is none of the option's; the error calls it by its label.
    """
    kind, option = each.kind, each.option
    if option.check is not None:
        return tuple(map(option.check, words)) if isinstance(words, list) else option.check(words)
    if isinstance(words, list):
        return (
            tuple(named_values(words, label, option.metavar or "NAME=VALUE").items())
            if kind == _PAIRS
            else tuple(words)
        )
    if not isinstance(words, str):
        return words
    if kind == tuple[str, ...]:
        return () if words == "none" else tuple(words.split(","))
    if kind == tuple[int, ...]:
        numbers = words.split(",")
        if not all(number.isdecimal() for number in numbers):
            raise InputError(label, "numbers", words, "whole numbers with commas between them")
        return tuple(map(int, numbers))
    if kind is int and not words.isdecimal():
        raise InputError(label, "number", words, "a whole number, 0 or more")
    if kind in (int, float):
        try:
            return kind(words)
        except ValueError:
            raise InputError(label, "number", words, "a number") from None
    return words


def named_values(entries: Iterable[str], label: str, form: str) -> dict[str, str]:
    """Entries of the form NAME=VALUE, by name.

    Raises:
        InputError: an entry has another form, or a name comes twice.
    """
    values: dict[str, str] = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        if not name or not value or name in values:
            raise InputError(label, "entry", entry, f"{form}, each name once")
        values[name] = value
    return values
