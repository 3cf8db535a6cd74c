"""Examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

from tests.support.paths import CHECKOUT

MODULES = [path for path in sorted((CHECKOUT / "rococo_jax").rglob("*.py")) if ">>>" in path.read_text()]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_examples_in_docstrings_are_true(path):
    found = doctest.testmod(importlib.import_module(name_of(path)))
    examples = [line for line in path.read_text().splitlines() if ">>> " in line and "+SKIP" not in line]
    assert (found.failed, found.attempted) == (0, len(examples))
