"""Parameters of a test of which some run at every `make test`."""

from collections.abc import Container, Iterable

import pytest


def further(names: Iterable[str], always: Container[str], mark: pytest.MarkDecorator = pytest.mark.slow) -> list:
    """Return the names as parameters, with the mark on those that do not always run."""
    return [name if name in always else pytest.param(name, marks=mark) for name in names]
