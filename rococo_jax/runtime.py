"""Setup of JAX for every command: the persistent compilation cache, options of GPUs, the device mesh."""

import importlib.util
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Int

from rococo_jax.errors import InputError
from rococo_jax.processes import current_group
from rococo_jax.progress import report_compilation
from rococo_jax.storage import refuse_url

AXES = ("data", "fsdp")


def _on_jax_event(event: str, *about: Any, **more: Any) -> None:
    if event.startswith("/jax/core/compile/"):  # tracing, lowering and compiling, also from the persistent cache
        report_compilation()


jax.monitoring.register_event_duration_secs_listener(_on_jax_event)


def cache_folder() -> Path:
    """Return the folder of cached programs and embeddings: `ROCOCO_CACHE`, or `rococo_jax` in the user's cache folder.

    A user without a home directory, as in some containers, has no such folder, and nothing is cached.

    Raises InputError: `ROCOCO_CACHE` is a URL.
    """
    if named := os.environ.get("ROCOCO_CACHE"):
        refuse_url(named, "ROCOCO_CACHE")
        return Path(named)
    if of_user := os.environ.get("XDG_CACHE_HOME"):
        return Path(of_user) / "rococo_jax"
    try:
        home = Path.home()
    except RuntimeError:
        home = Path("/nonexistent")
    return home / ".cache" / "rococo_jax"


def enable_compilation_cache() -> None:
    """Turn on JAX's persistent compilation cache, in `JAX_COMPILATION_CACHE_DIR` or in `cache_folder()`.

    All processes read it, but JAX writes it from process 0 alone, so the hosts of a run should share the folder.

    Raises InputError: process 0 cannot write `JAX_COMPILATION_CACHE_DIR`. If the default folder cannot be written,
    programs are compiled at every start.
    """
    configured = jax.config.jax_compilation_cache_dir
    folder = configured or str(cache_folder() / "compiled")
    group = current_group()
    if "://" not in folder and (group is None or group.number == 0):
        _check_writable(Path(folder), "JAX_COMPILATION_CACHE_DIR" if configured else None)
    if configured is None:
        jax.config.update("jax_compilation_cache_dir", folder)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def _check_writable(folder: Path, variable: str | None) -> None:
    """Check that the folder can be written. JAX itself only warns, once per program."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if variable:
            reason = f"{folder}: {error.strerror}"
            raise InputError("environment", variable, reason, "a folder that can be written") from None


# By default JAX takes 75 % of a GPU's memory; CUDA, NCCL and cuDNN, which allocate memory besides it, need a tenth.
# The latency-hiding scheduler overlaps the reduction of a layer's gradients with computation.
GPU_MEMORY_FRACTION = "0.9"
GPU_FLAGS = {"--xla_gpu_enable_latency_hiding_scheduler": "true"}
_GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin", "jax_rocm60_plugin")
# Variables by which a user sets how much memory JAX takes.
_MEMORY_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE",
                     "XLA_PYTHON_CLIENT_ALLOCATOR")  # fmt: skip


def set_gpu_options() -> None:
    """Set options of GPUs that every long command needs, if JAX has a plugin for GPUs and the user has not set them.

    It must be called before JAX starts the devices, since JAX then reads the environment.
    """
    if not any(importlib.util.find_spec(name) for name in _GPU_PLUGINS):
        return
    if not any(name in os.environ for name in _MEMORY_VARIABLES):
        os.environ[_MEMORY_VARIABLES[0]] = GPU_MEMORY_FRACTION
    flags = os.environ.get("XLA_FLAGS", "").split()
    named = {flag.partition("=")[0] for flag in flags}
    missing = [f"{name}={value}" for name, value in GPU_FLAGS.items() if name not in named]
    if missing:
        os.environ["XLA_FLAGS"] = " ".join([*flags, *missing])


# XLA flags that change where and how programs run. Those of autotuning choose the algorithm of a product, and with it
# the last bits; but without them the choice may differ at every start, too, so they identify nothing.
_HARMLESS = ("--xla_force_host_platform_device_count", "--xla_dump", "--xla_gpu_autotune", "--xla_cpu_parallel_codegen",
             "--xla_gpu_enable_latency_hiding", "--xla_tpu_enable_latency_hiding")  # fmt: skip


# Variables that drivers and compilers read, and settings of JAX with their defaults.
_NUMERIC_VARIABLES = ("LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
_NUMERIC_SETTINGS = {
    "jax_default_matmul_precision": None,
    "jax_enable_x64": False,
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
    "jax_optimization_level": "UNKNOWN",
    "jax_exec_time_optimization_effort": 0.0,
    "jax_allow_f16_reductions": True,
}


def numeric_flags() -> dict[str, str]:
    """Return settings of JAX and of the environment that may change a result; usually there are none.

    Fingerprints and cache keys contain them. Settings are those at the time of the call, however they were made: by the
    environment, `jax.config.update` or a context such as `jax.default_matmul_precision`.
    """
    flags = sorted(flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_HARMLESS))
    variables = {name.lower(): os.environ[name] for name in _NUMERIC_VARIABLES if os.environ.get(name)}
    settings = {name: getattr(jax.config, name, default) for name, default in _NUMERIC_SETTINGS.items()}
    changed = {name: str(value) for name, value in settings.items() if value != _NUMERIC_SETTINGS[name]}
    return {**({"xla_flags": " ".join(flags)} if flags else {}), **variables, **changed}


def make_mesh(devices: Sequence[jax.Device] | None = None, fsdp: int = 1) -> jax.sharding.Mesh:
    """Return a mesh with the axes `data` and `fsdp`.

    Args:
        devices: devices in this order; by default all, in the order of `device_array`.
        fsdp: size of the axis `fsdp`.

    Raises InputError: `fsdp` does not divide the number of devices.
    """
    count = jax.device_count() if devices is None else len(devices)
    if count % fsdp:
        raise InputError("devices", "fsdp", fsdp, f"a divisor of {count}, the number of devices")
    if devices is None:
        return jax.sharding.Mesh(device_array(jax.devices(), fsdp), AXES)
    return jax.sharding.Mesh(np.asarray(devices).reshape(-1, fsdp), AXES)


def device_array(devices: Sequence[Any], fsdp: int) -> np.ndarray:
    """Arrange devices as an array (data, fsdp) by their topology, with `jax.experimental.mesh_utils`.

    Parameters are gathered along `fsdp` in every block, whereas gradients are reduced along `data` once per step. So
    `fsdp` uses links inside a slice (a TPU slice; the GPUs of a host), and spans slices only if it is a multiple of
    their size. If the devices are not complete slices, or cannot be divided in this way, they keep their order.
    """
    # Imported late, since importing it takes time.
    from jax.experimental import mesh_utils

    in_order = np.asarray(devices).reshape(-1, fsdp)
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    size = len(devices) // slices
    inner = min(fsdp, size)
    if len(devices) % slices or size % inner or fsdp % inner:
        return in_order
    try:
        if slices == 1:
            return mesh_utils.create_device_mesh(in_order.shape, devices, allow_split_physical_axes=True)
        outer = (slices * inner // fsdp, fsdp // inner)
        return mesh_utils.create_hybrid_device_mesh(
            (size // inner, inner), outer, devices, allow_split_physical_axes=True
        )
    except (NotImplementedError, ValueError, AssertionError):
        return in_order


def rows_of(devices: Iterable[jax.Device], mesh: jax.sharding.Mesh, rows: int) -> Int[np.ndarray, " rows"]:
    """Return the rows of a global batch that are on some devices of the mesh, in ascending order."""
    slices = NamedSharding(mesh, PartitionSpec(AXES)).devices_indices_map((rows,))
    ranges = sorted(slices[device][0].indices(rows) for device in devices)
    return np.concatenate([np.arange(*each) for each in ranges])
