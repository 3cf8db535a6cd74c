"""Training on one of the virtual devices, where a test asks for nothing else."""

import jax
import pytest

from rococo_jax.runtime import make_mesh
from rococo_jax.training import run


@pytest.fixture(scope="module")
def one_device():
    """A run without a mesh takes all devices of the machine: here as on a machine that has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "make_mesh", lambda fsdp=1: make_mesh(jax.devices()[:1], fsdp=fsdp))
        yield
