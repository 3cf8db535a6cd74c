"""Make one set of inputs for all rows, copied for each."""

import os
import shutil
from pathlib import Path

import pytest

from rococo_jax.locks import hold
from tests.support.devices import all_devices_are
from tests.support.faults import World, make_world
from tests.support.programs import compile_quickly


@pytest.fixture(scope="module", autouse=True)
def two_devices():
    """All devices of a command, whose programs for eight would take longer."""
    with all_devices_are(2):
        yield


@pytest.fixture(scope="package")
def pristine() -> Path:
    """Return inputs that nobody damages, made once for all workers, by programs of the same kind as each file's."""
    compile_quickly(True)
    root = Path(os.environ["ROCOCO_MADE_RUNS"]).with_name("faults")
    with hold(root, wait=True):
        if not root.is_dir():
            make_world(root.with_name("faults-unfinished")).root.rename(root)
    return root


@pytest.fixture
def world(pristine, tmp_path) -> World:
    """A copy of the inputs, with the embeddings of an evaluation in the cache."""
    root = Path(shutil.copytree(pristine, tmp_path / "world", symlinks=True))
    (root / "embeddings").rename(root / "cache")
    return World(root)
