"""Setup of JAX for every command: the persistent compilation cache, the processes (`processes.py`), the device mesh."""

import os
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from rococo_jax.errors import InputError
from rococo_jax.processes import barrier, distributed_run, initialize_distributed, on_any_process

__all__ = [
    "AXES",
    "barrier",
    "cache_folder",
    "distributed_run",
    "enable_compilation_cache",
    "initialize_distributed",
    "make_mesh",
    "on_any_process",
]

AXES = ("data", "fsdp")


def cache_folder() -> Path:
    """Folder of cached programs and embeddings: `ROCOCO_CACHE`, or `rococo_jax` in the user's cache folder."""
    named = os.environ.get("ROCOCO_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rococo_jax"


def enable_compilation_cache() -> None:
    """Turns on JAX's persistent compilation cache, unless the user has already chosen a folder for it."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


# XLA flags that say where and how programs run, not what they compute.
_HARMLESS = ("--xla_force_host_platform_device_count", "--xla_dump", "--xla_gpu_autotune", "--xla_cpu_parallel_codegen",
             "--xla_gpu_enable_latency_hiding", "--xla_tpu_enable_latency_hiding")  # fmt: skip


def numeric_flags() -> dict[str, str]:
    """What in the environment may change a result's last bits, for fingerprints and cache keys; usually nothing."""
    flags = sorted(flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_HARMLESS))
    precision = os.environ.get("JAX_DEFAULT_MATMUL_PRECISION")
    return {
        **({"xla_flags": " ".join(flags)} if flags else {}),
        **({"matmul_precision": precision} if precision else {}),
    }


def make_mesh(devices: Sequence[jax.Device] | None = None, fsdp: int = 1) -> jax.sharding.Mesh:
    """A mesh with the axes `data` and `fsdp` over `devices` (by default all), whose number `fsdp` divides; else
    ValueError.
    """
    devices = np.asarray(jax.devices() if devices is None else devices)
    if devices.size % fsdp:
        raise InputError("devices", "fsdp", fsdp, f"a divisor of {devices.size}, the number of devices")
    return jax.sharding.Mesh(devices.reshape(-1, fsdp), AXES)
