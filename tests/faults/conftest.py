"""One set of inputs for all rows, copied for each."""

import shutil
from pathlib import Path

import jax
import pytest

from rococo_jax.runtime import enable_compilation_cache
from tests.support.faults import World, make_world


@pytest.fixture(scope="package", autouse=True)
def programs_are_kept(compiled_programs_are_kept):
    """As the commands do: what one row compiles, the next reads."""
    enable_compilation_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture(scope="package")
def pristine(tmp_path_factory, programs_are_kept) -> Path:
    """Inputs that nobody damages."""
    return make_world(tmp_path_factory.mktemp("pristine") / "world").root


@pytest.fixture
def world(pristine, tmp_path) -> World:
    """A copy of the inputs."""
    return World(Path(shutil.copytree(pristine, tmp_path / "world", symlinks=True)))
