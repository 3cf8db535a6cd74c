"""What a step takes of a device's memory, by the compiler; a step that does not fit is refused before it runs.

A device holds the arguments, temporaries and results of the compiled step, and the next batch, which is on its way
while a step runs.
"""

import math
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.training.batch import Batch
from rococo_jax.training.text_padding import text_tokens
from rococo_jax.training.throughput import step_bytes


def memory_of(device: jax.Device) -> int | None:
    """Bytes that programs may use of a device, None where it does not say (CPUs)."""
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit")


def compile_within_memory(
    lowered: jax.stages.Lowered, batch: Batch, config: ConfigDict, mesh: Mesh
) -> tuple[jax.stages.Compiled, str]:
    """The compiled step, and a line that says what it takes of a device.

    Args:
        batch: shapes, of which a device holds the next one as well.

    Raises:
        InputError: the step takes more memory than a device has.
    """
    limit = memory_of(mesh.local_devices[0])
    try:
        compiled = lowered.compile()
        taken = step_bytes(compiled)
        taken = None if taken is None else taken + _bytes_of_device(batch)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        compiled, taken = None, None
    if compiled is None or (limit is not None and taken is not None and taken > limit):
        texts = f" of texts of {text_tokens(batch)} tokens" if text_tokens(batch) else ""
        found = f"{config.micro_batches}, with which a step{texts} takes {_gigabytes(taken)} of a device's "
        wanted = "more micro-batches, more devices, another fsdp, remat 'full' or a smaller batch_size"
        raise InputError("config", "config.micro_batches", found + _gigabytes(limit), wanted)
    has = "" if limit is None else f", which has {_gigabytes(limit)}"
    settings = f"(micro_batches={config.micro_batches}, remat={config.remat})"
    return compiled, f"a step takes {_gigabytes(taken)} of a device{has} {settings}"


def _gigabytes(size: int | None) -> str:
    return "an unknown part" if size is None else f"{size / 1e9:.2f} GB"


def _bytes_of_device(tree: Any) -> int:
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
