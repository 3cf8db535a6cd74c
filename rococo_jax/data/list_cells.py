"""Lists of texts that a table has in one cell, as JSON, Python, NumPy and pandas write them.

["a dog", "a cat"]                   JSON, or a list of Python; also a tuple, ('a dog', 'a cat')
['a dog' 'a cat']                    an array of NumPy that `str` wrote, as in pandas' CSV of a column of arrays
array(['a dog', 'a cat'], dtype=object)          its `repr`; also [np.str_('a dog'), np.str_('a cat')]

Python itself joins strings side by side, so that `ast.literal_eval` makes one text of NumPy's form. A cell that begins
as a list of quoted texts and is none of these forms is no text either: a list that was shortened in print (`...`), with
something else than texts in it, with some commas missing, or cut off at the end.
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
# The beginning of a list in print: brackets, and then a quotation mark, bytes, or one of NumPy's texts.
_BEGINS_AS_LIST = re.compile(rf"""(?:{_CALL})?[\[{{](?:\s|[\[{{(]|{_CALL})*(?:[bBuUrR]?['"]|(?:np\.)?str_\()""")
_SHORTENED = re.compile(r"\[[^\[\]]*(?:,\s*|\s)(?:\.\.\.|…)\s*\]")
_NOTHING = re.compile(r"\[\s*(?:nan|NaN|None|null|<NA>)(?:[,\s]+(?:nan|NaN|None|null|<NA>))*\s*\]")
_SERIES = re.compile(r"(?s)0 .*\n.*dtype: (?:object|str|string)")
WANTED = "a text, or a list of texts as JSON writes it"


class NoList(Exception):
    """A cell that begins as a list and cannot be read as one; the message says what it is."""


def parse_list(cell: str) -> list[str] | None:
    """Return the texts of a cell that is a list of them, and None for a cell that is a plain text.

    Raises NoList: it begins as a list, and is none of the forms above.

    >>> parse_list("['a dog'\\n 'a cat']"), parse_list("[a text in brackets]")
    (['a dog', 'a cat'], None)
    """
    text = cell.strip()
    if text.startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
            if not is_list_of(str, value):
                raise NoList("a list with something but texts")
            return value
    if text.startswith("("):
        return _from_tuple(text)
    if _SERIES.fullmatch(text):
        raise NoList("a column that pandas printed")
    if _NOTHING.fullmatch(text):
        raise NoList("a list of missing values")
    if _SHORTENED.fullmatch(text):
        raise NoList("a list that was shortened when it was printed (...)")
    if not _BEGINS_AS_LIST.match(text):
        return None
    if _NUMPY.fullmatch(text):
        return [ast.literal_eval(literal) for literal in _LITERALS.findall(text)]
    return _from_python(text)


def _from_tuple(text: str) -> list[str] | None:
    """The texts of a tuple of Python; None where the cell is another text in round brackets."""
    tree = _parsed(text)
    return [_text_of(each, text) for each in tree.elts] if isinstance(tree, ast.Tuple) else None


def _from_python(text: str) -> list[str]:
    tree = _parsed(text)
    if tree is None:
        shortened = "..." in text[-8:] or "…" in text[-8:] or _NUMPY_SHORTENED.fullmatch(text)
        raise NoList("a list that was shortened when it was printed (...)" if shortened else "a list that is not whole")
    if isinstance(tree, ast.Call) and _name_of(tree) in ("array", "list", "tuple") and tree.args:
        tree = tree.args[0]
    if not isinstance(tree, ast.List | ast.Tuple):
        kinds = {ast.Dict: "an object", ast.Set: "a set (its order is by chance)"}
        raise NoList(kinds.get(type(tree), "brackets that are no list"))
    return [_text_of(each, text) for each in tree.elts]


def _parsed(text: str) -> ast.expr | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know, which stay as they are
            return ast.parse(text, mode="eval").body
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _text_of(node: ast.expr, source: str) -> str:
    """The text of one entry."""
    if isinstance(node, ast.Call) and _name_of(node) == "str_" and len(node.args) == 1:
        node = node.args[0]
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        is_shortened = isinstance(node, ast.Constant) and node.value is ...
        raise NoList("a list that was shortened when it was printed (...)" if is_shortened else _kind_of(node))
    if not _ONE_LITERAL.fullmatch(ast.get_source_segment(source, node) or ""):
        raise NoList("a list with texts side by side, without a comma between them")
    return node.value


def _name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _kind_of(node: ast.expr) -> str:
    value = getattr(node, "value", None)
    if isinstance(value, bytes):
        return "a list of bytes (b'...')"
    if isinstance(node, ast.Dict):
        return "a list of objects"
    return "a list of lists" if isinstance(node, ast.List | ast.Tuple | ast.Call) else "a list with something but texts"
