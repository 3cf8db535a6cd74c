"""One set of inputs for all rows, copied for each."""

import shutil
from pathlib import Path

import pytest

from tests.support.faults import World, make_world
from tests.support.programs import compile_quickly


@pytest.fixture(scope="package")
def pristine(tmp_path_factory) -> Path:
    """Inputs that nobody damages, by programs of the same kind as each file's, whose fixture comes later."""
    compile_quickly(True)
    return make_world(tmp_path_factory.mktemp("pristine") / "world").root


@pytest.fixture
def world(pristine, tmp_path) -> World:
    """A copy of the inputs."""
    return World(Path(shutil.copytree(pristine, tmp_path / "world", symlinks=True)))
