"""Check types and shapes at a function's first calls of a test, which costs a fraction of checking every call.

Later calls of a test, as those of a loop, seldom have other types. Preparing a check takes milliseconds: it waits for
the first call, and a function inside a function, prepared anew wherever it is defined, is checked at its first calls of
a file.
"""

import dataclasses
import functools
import inspect
from types import CodeType

import jaxtyping

CALLS = 3
_checked_at_every_call = jaxtyping.jaxtyped
_calls_of_test: dict[CodeType, int] = {}
_calls_of_file: dict[CodeType, int] = {}


def begin_test() -> None:
    """Have the next calls of every function checked again."""
    _calls_of_test.clear()


def begin_file() -> None:
    """Have the next calls of functions inside functions checked again."""
    _calls_of_file.clear()


def jaxtyped(fn=None, *, typechecker):
    """Stand in for `jaxtyping.jaxtyped`, which `--jaxtyping-packages` puts around every function and dataclass."""
    if fn is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if inspect.isclass(fn):
        if dataclasses.is_dataclass(fn) and "__init__" in vars(fn):
            fn.__init__ = jaxtyped(fn.__init__, typechecker=typechecker)
        return fn
    calls = _calls_of_file if "<locals>" in fn.__qualname__ else _calls_of_test
    code = fn.__code__
    checked = None

    @functools.wraps(fn)
    def first_calls_checked(*args, **kwargs):
        nonlocal checked
        count = calls.get(code, 0)
        if count == CALLS:
            return fn(*args, **kwargs)
        calls[code] = count + 1
        if checked is None:
            # jaxtyping prepares two checks, one of the arguments alone; types without shapes need one, by beartype.
            checked = _checked_at_every_call(fn, typechecker=typechecker) if _needs_jaxtyping(fn) else typechecker(fn)
        return checked(*args, **kwargs)

    return first_calls_checked


def _needs_jaxtyping(fn) -> bool:
    """Return whether a function has shapes, or what beartype alone refuses: forward references, bare iterators."""
    hints = fn.__annotations__.values()
    # A name in quotes stands for a class that is defined later: 'X', Sequence['X'], ForwardRef('X').
    named = any(isinstance(hint, str) or (not isinstance(hint, type) and "'" in repr(hint)) for hint in hints)
    return named or "jaxtyping." in str(hints) or inspect.isgeneratorfunction(fn)


# The import hook looks it up where a module is imported.
jaxtyping.jaxtyped = jaxtyped
