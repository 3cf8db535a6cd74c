"""The step as one compiled program: what it takes of a device's memory, and how many operations it needs.

A device holds the arguments, temporaries and results of the program, and the next batch, which is on its way while a
step runs. A program that does not fit is refused:

    bytes = arguments + temporaries + results that lie nowhere else, of the compiled step on one device

FLOPs are counted from the spec, towers and heads; losses are left out, `4 B^2 dim` a pair of passes, which matter only
where a batch has more pairs than a tower has parameters. For each row of a tower:

    a pass forward        image_flops or text_flops
    a pass backward       twice that, through what is trained

What rematerialisation and micro-batches compute again is no work of the model's and does not count. Peaks are
the vendors' dense bfloat16 figures.
"""

import contextlib
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec
from rococo_jax.models.flops import image_flops, text_flops
from rococo_jax.progress import elapsed_time, say
from rococo_jax.training.batch import Batch, kept_patches, pixel_shape
from rococo_jax.training.freezing import SIDES, cached_sides, frozen_layers
from rococo_jax.training.inputs import items_per_pair


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
    lowered: jax.stages.Lowered, batch: Batch, config: ConfigDict, limit: int | None
) -> jax.stages.Compiled:
    """Compile a step and check that it fits. Process 0 prints how much memory of a device it takes.

    Args:
        batch: a batch on the devices, or its shapes; a device holds the next one as well.
        limit: bytes of a device that programs may use, None if unknown.

    Raises:
        InputError: the step takes more memory than a device has.
    """
    start = time.perf_counter()
    is_first_process = jax.process_index() == 0
    try:
        with elapsed_time("compiling the training step") if is_first_process else contextlib.nullcontext():
            compiled = lowered.compile()
        size = step_bytes(compiled)
        size = None if size is None else size + bytes_of_device(batch)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        gigabytes = re.search(r"([\d.]+)G\b", str(error))  # as libtpu reports it, in units of 2^30 bytes
        compiled, size = None, gigabytes and int(float(gigabytes[1]) * 2**30)
    texts = "" if batch.texts.ids is None else f" of texts of {batch.texts.ids.shape[-1]} tokens"
    if compiled is None or (limit is not None and size is not None and size > limit):
        found = f"{config.micro_batches}, with which a step{texts} takes {_gigabytes(size)} of a device's "
        wanted = "more micro-batches, more devices, another fsdp, remat 'full' or a smaller batch_size"
        raise InputError("config", "config.micro_batches", found + _gigabytes(limit), wanted)
    if is_first_process:
        available = "" if limit is None else f", which has {_gigabytes(limit)}"
        settings = f"(micro_batches={config.micro_batches}, remat={config.remat})"
        seconds = f"compiled in {time.perf_counter() - start:.1f} s"
        say(f"a step{texts} takes {_gigabytes(size)} of a device{available} {settings}; {seconds}")
    return compiled


def _gigabytes(size: int | None) -> str:
    return "an unknown part" if size is None else f"{size / 1e9:.2f} GB"


def bytes_of_device(batch: Batch) -> int:
    """Bytes that one device holds of a batch over all."""
    leaves = jax.tree.leaves(batch)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


# TFLOP/s a device, dense bfloat16. NVIDIA's are of SXM forms, half of the figures with sparsity.
PEAK_TFLOPS = {
    "TPU v4": 275.0,  # docs.cloud.google.com/tpu/docs/v4
    "TPU v5 lite": 197.0,  # .../v5e
    "TPU v5e": 197.0,
    "TPU v5p": 459.0,  # .../v5p
    "TPU v5": 459.0,
    "TPU v6 lite": 918.0,  # .../v6e
    "TPU v6e": 918.0,
    "TPU7x": 1153.5,  # .../tpu7x: 2,307 a chip, whose two TensorCores JAX shows as a device each
    "NVIDIA A100": 312.0,  # NVIDIA's A100 data sheet
    "NVIDIA H100": 989.0,  # H100 data sheet: 1,979 with sparsity
    "NVIDIA H200": 989.0,  # H200 data sheet: 1,979 with sparsity
    "NVIDIA B200": 2250.0,  # nvidia.com/en-us/data-center/hgx: 36 PFLOP/s of eight with sparsity
    "AMD Instinct MI300X": 1307.4,  # AMD's MI300X data sheet; 2,614.9 with sparsity
}


def of_kind(table: Mapping[str, Any], device: jax.Device) -> Any:
    """The entry whose name the device's kind begins with, the longest of several; None without one (CPUs)."""
    return table.get(max(filter(device.device_kind.startswith, table), key=len, default=""))


def peak_flops(device: jax.Device) -> float | None:
    """FLOP/s of a device, None where the table does not have it (CPUs)."""
    peak = of_kind(PEAK_TFLOPS, device)
    return peak and peak * 1e12


def step_flops(
    config: ConfigDict, spec: ModelSpec, text_length: int, preprocessing: Preprocessing | None = None
) -> float:
    """Operations that one step needs of all devices together.

    Args:
        text_length: tokens that every text is padded to.
        preprocessing: of the model; without it images are squares of the tower's size.
    """
    passes = {"vision": 1, "text": 1}
    for field, items in items_per_pair(config).items():
        passes[field.tower] += math.prod(items)
    lengths = {"vision": (kept_patches(config, spec), pixel_shape(config, spec, preprocessing)), "text": (text_length,)}
    return sum(config.batch_size * passes[side] * _of_one(config, spec, side, lengths[side]) for side in SIDES)


def _of_one(config: ConfigDict, spec: ModelSpec, side: str, lengths: tuple) -> float:
    """Operations of one image or text, of what `image_flops` or `text_flops` count by."""
    tower, what = getattr(spec, side), config.train[side]
    if side in cached_sides(config):  # all that it costs is the head's products
        return 3.0 * _head_flops(getattr(spec, f"{side}_head"), tower.features)
    forward = (image_flops if side == "vision" else text_flops)(spec, *lengths)
    share = float(what == "all")
    if what.startswith("last:"):
        share = 1 - frozen_layers(spec, side, what) / tower.layers
    return (1 + 2 * share) * forward


def _head_flops(head, features: int) -> float:
    if head.hidden is None:
        return 2.0 * features * (head.dim or 0)
    beside = features * head.dim if head.kind == "linear" else 0  # the affine map that a residual MLP is added to
    return 2.0 * (beside + features * head.hidden + head.hidden * head.dim)
