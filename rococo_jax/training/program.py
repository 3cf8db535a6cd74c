"""The step as one compiled program, and what it takes of a device's memory; one that does not fit is refused.

A device holds the arguments, temporaries and results of the program, and the next batch, which is on its way while a
step runs:

    bytes = arguments + temporaries + results that lie nowhere else, of the compiled step on one device
"""

import math
import time
from collections.abc import Mapping

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.progress import say
from rococo_jax.training.batch import Batch
from rococo_jax.training.state import TrainState
from rococo_jax.training.step import Step


def memory_of(device: jax.Device) -> int | None:
    """Bytes that programs may use of a device, None where it does not say (CPUs)."""
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit")


def step_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Bytes of a device's memory that a compiled step takes, None where the compiler does not report it.

    Frozen parameters that the step does not read (towers, where it trains on their features) do not count.
    """
    found = compiled.memory_analysis()
    if found is None:
        return None
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + found.temp_size_in_bytes + results


def compile_step(
    step: Step, state: TrainState, frozen: Mapping[str, jax.Array], batch: Batch, config: ConfigDict, mesh: Mesh
) -> jax.stages.Compiled:
    """The program of a step for batches like this one. Process 0 says what it takes of a device.

    Raises:
        InputError: the step takes more memory than a device has.
    """
    limit, begun = memory_of(mesh.local_devices[0]), time.perf_counter()
    try:
        compiled = step.lower(state, frozen, batch).compile()
        taken = step_bytes(compiled)
        taken = None if taken is None else taken + _bytes_of_device(batch)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        compiled, taken = None, None
    texts = "" if batch.texts.ids is None else f" of texts of {batch.texts.ids.shape[-1]} tokens"
    if compiled is None or (limit is not None and taken is not None and taken > limit):
        found = f"{config.micro_batches}, with which a step{texts} takes {_gigabytes(taken)} of a device's "
        wanted = "more micro-batches, more devices, another fsdp, remat 'full' or a smaller batch_size"
        raise InputError("config", "config.micro_batches", found + _gigabytes(limit), wanted)
    if jax.process_index() == 0:
        has = "" if limit is None else f", which has {_gigabytes(limit)}"
        settings = f"(micro_batches={config.micro_batches}, remat={config.remat})"
        compiling = f"compiled in {time.perf_counter() - begun:.1f} s"
        say(f"a step{texts} takes {_gigabytes(taken)} of a device{has} {settings}; {compiling}")
    return compiled


def _gigabytes(size: int | None) -> str:
    return "an unknown part" if size is None else f"{size / 1e9:.2f} GB"


def _bytes_of_device(batch: Batch) -> int:
    leaves = jax.tree.leaves(batch)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
