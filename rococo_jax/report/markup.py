"""HTML and SVG as nested calls in which plain text is always escaped.

Captions, file names and model names hold anything, tags and scripts included. So there is one rule and no place to
forget it: a `str` becomes text, only `Markup` (which `element` makes) is taken as it is.
"""

import html
import re
from collections.abc import Iterable

_VOID = frozenset({"br", "col", "img", "input", "link", "meta"})
# Control characters, lone surrogates and non-characters: HTML forbids them and UTF-8 cannot write some.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is HTML already and needs no escaping."""

    __slots__ = ()


Child = Markup | str | int | float | None | Iterable


def printable(text: str) -> str:
    """`text` with every character that HTML cannot hold replaced by U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", text)


def join(*children: Child) -> Markup:
    """The children one after another: text escaped, `None` left out, lists flattened."""
    return Markup("".join(_as_html(child) for child in children))


def _as_html(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return html.escape(printable(child), quote=True)
    if isinstance(child, int | float):
        return str(child)
    return join(*child)


def element(name: str, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """One element.

    Args:
        name: the element's name ("td").
        children: text, markup, or lists of them.
        attributes: `class_` and `for_` lose their underscore at the end, other underscores become hyphens;
            `None` and `False` leave an attribute out, `True` writes its bare name.

    >>> element("td", "a < b", class_="number", data_value=1.5)
    '<td class="number" data-value="1.5">a &lt; b</td>'
    """
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{join(*children)}</{name}>")


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    key = key.rstrip("_").replace("_", "-")
    return f" {key}" if value is True else f' {key}="{html.escape(printable(str(value)), quote=True)}"'


def isolated(text: str) -> Markup:
    """Text from outside (a caption, a file name) whose writing direction cannot leak into the page around it."""
    return element("bdi", text)
