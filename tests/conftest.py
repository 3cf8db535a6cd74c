"""The strict setting of all tests: eight virtual CPU devices, no silent dtype or rank promotion, no hub."""

import gc
import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
os.environ["HF_HUB_OFFLINE"] = "1"

from pathlib import Path

import jax
import jaxtyping
import pytest

from tests.support.paths import require_real_data

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_collection_modifyitems(items):
    """Leaves thorough tests out unless they are asked for: a whole run should take less than twenty minutes."""
    if not os.environ.get("ROCOCO_THOROUGH"):
        left_out = pytest.mark.skip(reason="thorough; set ROCOCO_THOROUGH=1")
        for item in items:
            if item.get_closest_marker("thorough"):
                item.add_marker(left_out)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real images, captions and towers; a test that asks for it is marked `real_data`."""
    return require_real_data()


@pytest.fixture
def without_type_checks():
    """For tests over whole published files, where checking types at every call (as small inputs do) takes most time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session", params=[1, 2, pytest.param(4, marks=pytest.mark.thorough), 8])
def device_count(request) -> int:
    """How many of the virtual devices a test uses."""
    return request.param


@pytest.fixture(scope="session", autouse=True)
def compiled_programs_are_kept(tmp_path_factory):
    """Commands that tests start share one cache, which is not the user's."""
    os.environ.setdefault("ROCOCO_CACHE", str(tmp_path_factory.getbasetemp().parent / "rococo-cache"))


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_end_with_their_file():
    """What a file of tests compiled would stay in a worker's memory to its end, gigabytes of it."""
    yield
    jax.clear_caches()
    gc.collect()
