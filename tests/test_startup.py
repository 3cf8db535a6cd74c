"""Before the first step: the cache of compiled programs, and the options of GPUs."""

import importlib.util
import os
import re
from unittest.mock import Mock

import jax
import pytest

from rococo_jax.runtime import GPU_MEMORY_FRACTION, enable_compilation_cache, set_gpu_options
from rococo_jax.training.log import Meter
from rococo_jax.training.program import peak_flops
from tests.support.processes import run_lines
from tests.support.refusals import refused

COUNTED = """
import sys, jax, jax.numpy as jnp
from rococo_jax.runtime import enable_compilation_cache, make_mesh

enable_compilation_cache()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rsplit("/", 1)[1]))
mesh = make_mesh()
place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
for length in (16, 24, 32):
    shape = jax.ShapeDtypeStruct((length,), "float32", sharding=place)
    jax.jit(lambda x: jnp.sin(x).sum()).lower(shape).compile()
print("compiled", events.count("compile_requests_use_cache") - events.count("cache_hits"), file=sys.stderr)
barrier("counted")
"""

# JAX's key of a program names the topology of the devices. By JAX's source that is the whole mesh's on accelerators,
# which was not tried; on CPUs it differs between the processes, and this gives them the kinds of the devices instead.
SAME_KEYS = "from jax._src import cache_key\ncache_key._hash_accelerator_config = cache_key._hash_devices\n"


def programs_compiled(folder: str, before: str = "") -> list[int]:
    """Return programs that each of two processes compiled; `folder` may name the process by `{me}`."""
    before += f"os.environ['ROCOCO_CACHE'] = {folder!r}.format(me=os.environ['ROCOCO_PROCESS'])\n"
    ended = run_lines(COUNTED, 2, before=before)
    assert [code for code, _ in ended] == [0, 0], ended
    return [int(re.search(r"^compiled (\d+)$", said, re.MULTILINE)[1]) for _, said in ended]


def test_processes_that_share_a_compilation_cache_compile_nothing_at_the_second_start(tmp_path):
    shared = str(tmp_path / "shared")
    assert programs_compiled(shared, SAME_KEYS)[0] == 3
    assert programs_compiled(shared, SAME_KEYS) == [0, 0]


@pytest.mark.slow
def test_with_one_cache_per_host_the_second_process_compiles_at_every_start(tmp_path):
    own = str(tmp_path / "host-{me}")
    assert [programs_compiled(own, SAME_KEYS), programs_compiled(own, SAME_KEYS)] == [[3, 3], [0, 3]]


def test_an_unwritable_cache_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "file" / "compiled"))
    try:
        said = r"JAX_COMPILATION_CACHE_DIR.*file/compiled: Not a directory; wanted a folder"
        refused(said, enable_compilation_cache)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


SCHEDULER = "--xla_gpu_enable_latency_hiding_scheduler"


OF_USER = f"{SCHEDULER}=false --xla_dump_to=x"


@pytest.mark.parametrize(("plugin", "memory", "flags", "expected"), [
    ("jax_cuda12_plugin", "", "", (GPU_MEMORY_FRACTION, f"{SCHEDULER}=true")),
    ("jax_rocm60_plugin", "0.5", OF_USER, (None, OF_USER)), ("a_plugin_of_no_gpu", "", "", (None, "")),
])  # fmt: skip
def test_gpu_options_are_set_on_gpus_unless_the_user_has_set_them(plugin, memory, flags, expected, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == plugin else None)
    for name in ("CLIENT_MEM_FRACTION", "PYTHON_CLIENT_MEM_FRACTION", "PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.delenv(f"XLA_{name}", raising=False)
    monkeypatch.setenv("XLA_FLAGS", flags)
    if memory:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", memory)
    for _ in range(2):  # not twice
        set_gpu_options()
        assert (os.environ.get("XLA_CLIENT_MEM_FRACTION"), os.environ["XLA_FLAGS"]) == expected


@pytest.mark.parametrize(
    ("kind", "teraflops"),
    [("NVIDIA B200", 2250), ("AMD Instinct MI300X", 1307.4), ("TPU v6 lite", 918), ("TPU7x", 2307 / 2)],
)
def test_peak_flops_are_found_by_the_device_names_of_jax(kind, teraflops):
    assert peak_flops(Mock(spec=jax.Device, device_kind=kind)) == teraflops * 1e12


def test_an_unknown_chip_is_reported_in_one_line(monkeypatch, capsys):
    unknown = Mock(spec=jax.Device, device_kind="Chip 9", platform="gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [unknown])
    assert Meter(8).peak is None
    assert capsys.readouterr().err == "no published peak is known of 'Chip 9' (PEAK_TFLOPS): no mfu\n"
