"""Prompt templates of this project's own wording, and those of a user's file; `{}` stands for the class's name.

The first n of the list are used, so 5 templates hold the 1. A file has one template a line.
"""

from pathlib import Path

from rococo_jax.errors import InputError

_WAYS = (
    *("a picture of a {}.", "a {}.", "a close view of a {}.", "a {} seen from far away.", "an image that shows a {}."),
    *("a {} in bright light.", "a {} in dim light.", "a blurred picture of a {}.", "a sharp picture of a {}."),
    *("a small {}.", "a big {}.", "a {} in the middle.", "a {} at the edge.", "part of a {}.", "a whole {}."),
    *("a drawing of a {}.", "a painting of a {}.", "a sketch of a {}.", "a model of a {}.", "a toy {}."),
    *("a {} outdoors.", "a {} indoors.", "one {}.", "several of them: {}.", "the {}.", "this is a {}."),
    *("here is a {}.", "a grainy picture of a {}.", "a picture in black and white of a {}.", "a clean {}."),
)
_MANNERS = ("colourful", "dark", "noisy", "pale", "cropped", "plain", "good", "bad", "old", "compressed")
_THINGS = ("picture of the {}.", "image of one {}.", "view of a {}.", "snapshot of a {}.", "rendering of a {}.")
TEMPLATES = (*_WAYS, *(f"a {manner} {thing}" for thing in _THINGS for manner in _MANNERS))
COUNTS = (1, 5, 30, 80)


def templates_of(name: str) -> tuple[str, ...]:
    """The first so many of our templates, or those of a file.

    Raises:
        InputError: neither such a number nor a file, or a template is empty or has no place for the class.
    """
    if name.isdecimal() and int(name) in COUNTS:
        return TEMPLATES[: int(name)]
    path, wanted = Path(name), f"one of {', '.join(map(str, COUNTS))}, or a file with one template a line"
    if not path.is_file():
        raise InputError("templates", "name", name or "nothing", wanted)
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(path, "text", error.reason, "UTF-8") from None
    for number, line in enumerate(lines, 1):
        if line.count("{}") != 1:
            raise InputError(path, f"line {number}", repr(line)[:80], "a template with {} once, for the class")
    return tuple(line.strip() for line in lines)


def prompt(template: str, name: str) -> str:
    """A template with the class's name in it; its article fits.

    >>> prompt("a picture of a {}.", "oven"), prompt("a {}.", "red car")
    ('a picture of an oven.', 'a red car.')
    """
    before, _, after = template.partition("{}")
    if name[:1].lower() in "aeiou" and (before == "a " or before.endswith(" a ")):
        before = f"{before[:-1]}n "
    return f"{before}{name}{after}"


def variant_of(name: str) -> str:
    """`templates_5`, or `templates_FILE` without the ending."""
    return f"templates_{Path(name).stem}"
