"""Training on one of the virtual devices, where a test asks for nothing else; a step traced once for all runs."""

import copy

import pytest

from rococo_jax.models import fsdp
from rococo_jax.training import setup
from rococo_jax.training.config import flat
from tests.support.devices import all_devices_are
from tests.support.input_world import make_world

# Config keys that do not change how a step is computed.
AROUND = ("checkpoint", "eval", "init", "log", "profile", "data.images", "data.captions", "data.on_decode_error")


STEPS = {}


@pytest.fixture(scope="module", autouse=True)
def shared_steps(request):
    """Trace the step of a config, model and mesh once, however many runs of a worker take it.

    The step gets a config without `AROUND`: one that read such a key would fail, and cannot be taken for another's.
    """
    make_step = setup.make_step

    def kept(config, spec, preprocessing, optimizer, mesh):
        config = copy.deepcopy(config).unlock()
        for key in AROUND:
            section, _, leaf = key.rpartition(".")
            del (config[section] if section else config)[leaf]
        key = repr((flat(config), spec, preprocessing, fsdp.LEAST_SHARDED)), mesh
        if key not in STEPS:
            STEPS[key] = make_step(config, spec, preprocessing, optimizer, mesh)
        return STEPS[key]

    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem != "test_program":  # which counts what is compiled
            patch.setattr(setup, "make_step", kept)
        yield


@pytest.fixture(scope="module")
def one_device():
    """A run without a mesh takes all devices of the machine: here as on a machine that has one."""
    with all_devices_are(1):
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Training data whose every pixel and word is known."""
    return make_world(tmp_path_factory.mktemp("world"))
