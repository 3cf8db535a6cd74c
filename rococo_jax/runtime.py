"""Setup of JAX for every command: the persistent compilation cache, the processes (`processes.py`), the device mesh."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Int

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
    "rows_of",
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
    """A mesh with the axes `data` and `fsdp`, whose devices `fsdp` divides; else InputError.

    Args:
        devices: in this order; by default all, placed by their topology (`arranged`).
    """
    count = jax.device_count() if devices is None else len(devices)
    if count % fsdp:
        raise InputError("devices", "fsdp", fsdp, f"a divisor of {count}, the number of devices")
    if devices is None:
        return jax.sharding.Mesh(arranged(jax.devices(), fsdp), AXES)
    return jax.sharding.Mesh(np.asarray(devices).reshape(-1, fsdp), AXES)


def arranged(devices: Sequence[Any], fsdp: int) -> np.ndarray:
    """All devices as (data, fsdp), neighbours on the mesh near each other, by `jax.experimental.mesh_utils`.

    Parameters are gathered along `fsdp` in every block, gradients reduced along `data` once: so `fsdp` takes links
    inside a slice (a TPU slice; the GPUs of a host) and spans slices only where it is a multiple of their size. Where
    the devices are no whole slices, or cannot be divided so, they keep their order.
    """
    # Imported late: it takes part of the time of every start.
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


def rows_of(devices: Iterable[jax.Device], mesh: jax.sharding.Mesh, rows: int) -> Int[np.ndarray, " own"]:
    """The rows of a batch over the whole mesh that lie on some of its devices, ascending."""
    places = NamedSharding(mesh, PartitionSpec(AXES)).devices_indices_map((rows,))
    parts = sorted(places[device][0].indices(rows) for device in devices)
    return np.concatenate([np.arange(*part) for part in parts])
