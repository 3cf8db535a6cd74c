"""Scripts of experiments as modules."""

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from tests.support.paths import CHECKOUT


@pytest.fixture(scope="session")
def experiment() -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that imports a script of `experiments/` by its name, as the other scripts do."""
    folder = str(CHECKOUT / "experiments")
    sys.path.insert(0, folder)
    yield importlib.import_module
    sys.path.remove(folder)
