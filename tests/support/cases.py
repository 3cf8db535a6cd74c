"""Parameters of a test of which some run at every `make test`."""

from collections.abc import Container, Iterable

import pytest


def further(names: Iterable, always: Container, mark: pytest.MarkDecorator = pytest.mark.slow) -> list:
    """Return the names, or tuples of values, as parameters, with the mark on those that do not always run."""
    values = ((name, name if isinstance(name, tuple) else (name,)) for name in names)
    return [name if name in always else pytest.param(*each, marks=mark) for name, each in values]
