"""Training on one of the virtual devices, where a test asks for nothing else, with programs that compile quickly."""

import jax
import pytest
from jax._src import compiler

from rococo_jax.runtime import make_mesh
from rococo_jax.training import run
from tests.support.step_cases import QUICK

# Files whose commands compile what is compared with programs of this process.
WITH_COMMANDS = ("test_processes", "test_sharded_evaluation")


@pytest.fixture(scope="module", autouse=True)
def quick_programs(request, programs_of_a_file):
    """Every program by the options that the cases of a step take. JAX has no public setting for all programs."""
    original = compiler.get_compile_options

    def quick(*given, env_options_overrides=None, **named):
        return original(*given, env_options_overrides={**QUICK, **(env_options_overrides or {})}, **named)

    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem not in WITH_COMMANDS:
            patch.setattr(compiler, "get_compile_options", quick)
        yield


@pytest.fixture(scope="module")
def one_device():
    """A run without a mesh takes all devices of the machine: here as on a machine that has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "make_mesh", lambda fsdp=1: make_mesh(jax.devices()[:1], fsdp=fsdp))
        yield
