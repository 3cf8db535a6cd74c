"""Parse lists of texts in one cell of a table, as JSON, Python, NumPy and pandas write them.

["a dog", "a cat"]                   JSON, or a list of Python; also a tuple, ('a dog', 'a cat')
['a dog' 'a cat']                    a NumPy array written by `str`, as in pandas' CSV of a column of arrays
array(['a dog', 'a cat'], dtype=object)          its `repr`; also [np.str_('a dog'), np.str_('a cat')]

Python concatenates adjacent strings, so `ast.literal_eval` would make one text of NumPy's form. A cell that begins like
a list of quoted texts but has none of these forms is refused: it was abbreviated when it was printed (`...`), contains
something other than texts, lacks some commas, or is truncated.
"""

import ast
import contextlib
import json
import re
import warnings

from rococo_jax.errors import is_list_of

_LITERAL = r"""(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")"""
_NUMPY = re.compile(rf"\[\s*{_LITERAL}(?:\s+{_LITERAL})*\s*\]")
_NUMPY_SHORTENED = re.compile(rf"\[\s*(?:{_LITERAL}\s+)*\.\.\.(?:\s+{_LITERAL})*\s*\]")
_ONE_LITERAL, _LITERALS = re.compile(_LITERAL), re.compile(_LITERAL)
_CALL = r"(?:(?:np|numpy)\.)?(?:array|list|tuple)\("
# The beginning of a printed list: brackets, then a quotation mark, bytes, or one of NumPy's texts.
_BEGINS_AS_LIST = re.compile(rf"""(?:{_CALL})?[\[{{](?:\s|[\[{{(]|{_CALL})*(?:[bBuUrR]?['"]|(?:np\.)?str_\()""")
_SHORTENED = re.compile(r"\[[^\[\]]*(?:,\s*|\s)(?:\.\.\.|…)\s*\]")
_NOTHING = re.compile(r"\[\s*(?:nan|NaN|None|null|<NA>)(?:[,\s]+(?:nan|NaN|None|null|<NA>))*\s*\]")
# The beginnings of all forms.
_BEGINNINGS = ("[", "(", "{", "0 ", "array(", "list(", "tuple(", "np.", "numpy.")
EXPECTED = "a text, or a list of texts as JSON writes it"

_ABBREVIATED = "a list that was shortened when it was printed (...)"


class MalformedList(Exception):
    """A cell that begins like a list but is not one; the message says what it is."""


def is_caption(cell: object) -> bool:
    """Return whether a cell is a caption that needs no further check, as nearly all are."""
    if not isinstance(cell, str) or not cell.isascii():
        return False
    text = cell.strip()
    return bool(text) and not text.startswith(_BEGINNINGS)


def parse_list(cell: str) -> list[str] | None:
    """Return the texts of a cell that is a list, or None if the cell is a plain text.

    Raises MalformedList: it begins like a list but has none of the forms above.

    >>> parse_list("['a dog'\\n 'a cat']"), parse_list("[a text in brackets]")
    (['a dog', 'a cat'], None)
    """
    text = cell.strip()
    if not text.startswith(_BEGINNINGS):
        return None
    if text.startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
            if not is_list_of(str, value):
                raise MalformedList("a list with something but texts")
            return value
    if text.startswith("("):
        return _from_tuple(text)
    if text.startswith("0 ") and _is_series(text):
        raise MalformedList("a column that pandas printed")
    if _NOTHING.fullmatch(text):
        raise MalformedList("a list of missing values")
    if _SHORTENED.fullmatch(text):
        raise MalformedList(_ABBREVIATED)
    if not _BEGINS_AS_LIST.match(text):
        return None
    if _NUMPY.fullmatch(text):
        return [ast.literal_eval(literal) for literal in _LITERALS.findall(text)]
    return _from_python(text)


def _is_series(text: str) -> bool:
    """Return whether lines end with the type of a column, as in pandas' print of one."""
    lines, _, kind = text.rpartition("dtype: ")
    return "\n" in lines and kind in ("object", "str", "string")


def _from_tuple(text: str) -> list[str] | None:
    """Return the texts of a Python tuple, or None if the cell is another text in round brackets."""
    tree = _parse_python(text)
    return [_text_of(each, text) for each in tree.elts] if isinstance(tree, ast.Tuple) else None


def _from_python(text: str) -> list[str]:
    tree = _parse_python(text)
    if tree is None:
        is_abbreviated = "..." in text[-8:] or "…" in text[-8:] or _NUMPY_SHORTENED.fullmatch(text)
        raise MalformedList(_ABBREVIATED if is_abbreviated else "a list that is incomplete")
    if isinstance(tree, ast.Call) and _name_of(tree) in ("array", "list", "tuple") and tree.args:
        tree = tree.args[0]
    if not isinstance(tree, ast.List | ast.Tuple):
        kinds = {ast.Dict: "an object", ast.Set: "a set (its order is by chance)"}
        raise MalformedList(kinds.get(type(tree), "brackets that are not a list"))
    return [_text_of(each, text) for each in tree.elts]


def _parse_python(text: str) -> ast.expr | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about unknown escapes, which are left unchanged
            return ast.parse(text, mode="eval").body
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _text_of(node: ast.expr, source: str) -> str:
    """Return the text of one entry."""
    if isinstance(node, ast.Call) and _name_of(node) == "str_" and len(node.args) == 1:
        node = node.args[0]
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        is_abbreviated = isinstance(node, ast.Constant) and node.value is ...
        raise MalformedList(_ABBREVIATED if is_abbreviated else _describe_list_of(node))
    if not _ONE_LITERAL.fullmatch(ast.get_source_segment(source, node) or ""):
        raise MalformedList("a list with texts side by side, without a comma between them")
    return node.value


def _name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _describe_list_of(node: ast.expr) -> str:
    """Return what a list with this entry is, for the error."""
    value = getattr(node, "value", None)
    if isinstance(value, bytes):
        return "a list of bytes (b'...')"
    if isinstance(node, ast.Dict):
        return "a list of objects"
    return "a list of lists" if isinstance(node, ast.List | ast.Tuple | ast.Call) else "a list with something but texts"
