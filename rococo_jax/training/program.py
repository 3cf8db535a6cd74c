"""The compiled step: how much memory of a device it takes, and how many FLOPs it needs.

A device holds the arguments, temporaries and results of the program, and the next batch, which is copied to it while a
step runs. A program that does not fit is refused:

    bytes = arguments + temporaries + non-aliased outputs, of the compiled step on one device

FLOPs are counted from the spec of towers and heads. Losses are left out: their `4 B^2 dim` per pair of passes matter
only if a batch has more pairs than a tower has parameters. For each row of a tower:

    forward pass      image_flops or text_flops
    backward pass     twice that, through the part that is trained

Recomputation by rematerialisation and micro-batches does not count. Peaks are the vendors' numbers for dense bfloat16.
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
from rococo_jax.models import HeadSpec, ModelSpec
from rococo_jax.models.flops import image_flops, text_flops
from rococo_jax.progress import elapsed_time, say
from rococo_jax.training.batch import Batch, patches_per_image, pixel_shape
from rococo_jax.training.config_needs import cached_sides
from rococo_jax.training.freezing import SIDES, frozen_layers
from rococo_jax.training.inputs import shapes_per_pair


def memory_of(device: jax.Device) -> int | None:
    """Return the bytes that programs may use of a device, None if the device does not report them (CPUs)."""
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit")


def step_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Return the bytes of a device that a compiled step takes, None if the compiler does not report them.

    Frozen parameters that the step does not read (towers, when training on their features) do not count.
    """
    sizes = compiled.memory_analysis()
    if sizes is None:
        return None
    results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + results


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
        problem = f"{config.micro_batches}, with which a step{texts} takes {_gigabytes(size)} of a device's "
        expected = "more micro-batches, more devices, another fsdp, remat 'full' or a smaller batch_size"
        raise InputError("config", "config.micro_batches", problem + _gigabytes(limit), expected)
    if is_first_process:
        available = "" if limit is None else f", which has {_gigabytes(limit)}"
        settings = f"(micro_batches={config.micro_batches}, remat={config.remat})"
        seconds = f"compiled in {time.perf_counter() - start:.1f} s"
        say(f"a step{texts} takes {_gigabytes(size)} of a device{available} {settings}; {seconds}")
    return compiled


def _gigabytes(size: int | None) -> str:
    return "an unknown part" if size is None else f"{size / 1e9:.2f} GB"


def bytes_of_device(batch: Batch) -> int:
    """Return the bytes of a global batch that one device holds."""
    leaves = jax.tree.leaves(batch)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


# TFLOP/s of a device in dense bfloat16. NVIDIA's are of SXM modules, half of the numbers with sparsity.
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


def lookup_device(table: Mapping[str, Any], device: jax.Device) -> Any:
    """Return the entry whose name is the longest prefix of the device's kind, None if there is none (CPUs)."""
    return table.get(max(filter(device.device_kind.startswith, table), key=len, default=""))


def peak_flops(device: jax.Device) -> float | None:
    """Return the peak FLOP/s of a device, None if it is not in the table (CPUs)."""
    peak = lookup_device(PEAK_TFLOPS, device)
    return peak and peak * 1e12


def step_flops(
    config: ConfigDict, spec: ModelSpec, text_length: int, preprocessing: Preprocessing | None = None
) -> float:
    """Count the FLOPs that one step needs on all devices together.

    Args:
        text_length: tokens to which every text is padded.
        preprocessing: preprocessing of the model; without it images are squares of the tower's size.
    """
    passes = {"vision": 1, "text": 1}
    for field, items in shapes_per_pair(config).items():
        passes[field.tower] += math.prod(items)
    patches, pixels = patches_per_image(config, spec), pixel_shape(config, spec, preprocessing)
    lengths = {"vision": (patches, pixels), "text": (text_length,)}
    return sum(config.batch_size * passes[side] * _flops_per_item(config, spec, side, lengths[side]) for side in SIDES)


def _flops_per_item(config: ConfigDict, spec: ModelSpec, side: str, lengths: tuple) -> float:
    """Count the FLOPs of one image or text; `lengths` are the arguments of `image_flops` or `text_flops`."""
    tower, trainable = getattr(spec, side), config.train[side]
    if side in cached_sides(config):  # the products of the head alone
        return 3.0 * _head_flops(getattr(spec, f"{side}_head"), tower.features)
    forward = (image_flops if side == "vision" else text_flops)(spec, *lengths)
    trained_share = float(trainable == "all")
    if trainable.startswith("last:"):
        trained_share = 1 - frozen_layers(spec, side, trainable) / tower.layers
    return (1 + 2 * trained_share) * forward


def _head_flops(head: HeadSpec, features: int) -> float:
    if head.hidden is None:
        return 2.0 * features * (head.dim or 0)
    # A residual MLP is added to an affine map.
    affine = features * head.dim if head.kind == "linear" else 0
    return 2.0 * (affine + features * head.hidden + head.hidden * head.dim)
