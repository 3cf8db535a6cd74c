"""Run the examples in docstrings."""

import doctest
import importlib

import pytest

from tests.test_architecture import MODULES


@pytest.mark.parametrize("name", [name for name, path in MODULES.items() if ">>>" in path.read_text()])
def test_examples_in_docstrings_give_the_documented_results(name):
    outcome = doctest.testmod(importlib.import_module(name))
    lines = MODULES[name].read_text().splitlines()
    examples = [line for line in lines if ">>> " in line and "+SKIP" not in line]
    assert (outcome.failed, outcome.attempted) == (0, len(examples))
