"""How fast a run is: images a second, FLOPs of a step, and the share of the chips' peak.

    share_of_peak = step_flops / (seconds a step * devices * peak)
    bytes = arguments + temporaries + results that lie nowhere else, of the compiled step on one device

FLOPs are counted from the spec, towers and heads; losses are left out, `4 B^2 dim` a pair of passes, which matter only
where a batch has more pairs than a tower has parameters. For each row of a tower:

    a pass forward        image_flops or text_flops
    a pass backward       twice that, through what is trained
    remat "full"          one pass forward more through what is trained ("dots": some percent, not counted)
    in parts              one pass forward more through everything (gradient cache)

Peaks are the vendors' dense bfloat16 figures.
"""

import math
import time

import jax
from ml_collections import ConfigDict

from rococo_jax.models import ModelSpec, ResNetSpec
from rococo_jax.models.flops import image_flops, text_flops
from rococo_jax.training.freezing import frozen_layers
from rococo_jax.training.inputs.loss_input import items_per_pair

# TFLOP/s a device, dense bfloat16: Google Cloud's TPU pages and NVIDIA's data sheets (SXM forms).
PEAK_TFLOPS = {
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5p": 459.0,
    "TPU v5": 459.0,
    "TPU v6 lite": 918.0,
    "TPU v6e": 918.0,
    "NVIDIA A100": 312.0,
    "NVIDIA H100": 989.0,
    "NVIDIA H200": 989.0,
}


def peak_flops(device: jax.Device) -> float | None:
    """FLOP/s of a device, None where the table does not have it (CPUs)."""
    kinds = [kind for kind in PEAK_TFLOPS if device.device_kind.startswith(kind)]
    return PEAK_TFLOPS[max(kinds, key=len)] * 1e12 if kinds else None


def step_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Bytes of a device's memory that a compiled step takes, None where the compiler does not report it.

    Frozen parameters that the step does not read (towers, where it trains on their features) do not count.
    """
    found = compiled.memory_analysis()
    if found is None:
        return None
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + found.temp_size_in_bytes + results


class Meter:
    """Counts steps between two readings.

    Args:
        images: images of a global batch.
        flops: of a step on one device, None where unknown.
        memory: bytes that a step takes on one device, None where unknown.
    """

    def __init__(self, images: int, flops: float | None, memory: int | None = None):
        self.images, self.flops, self.memory = images, flops, memory
        self.peak = peak_flops(jax.devices()[0])
        self.start, self.steps = time.perf_counter(), 0

    def count(self) -> None:
        """Counts one step."""
        self.steps += 1

    def pause(self, seconds: float) -> None:
        """Leaves out time that was spent on evaluation or saving."""
        self.start += seconds

    def read(self) -> dict[str, float]:
        """Figures since the last reading."""
        now = time.perf_counter()
        seconds = max(now - self.start, 1e-9) / max(self.steps, 1)
        self.start, self.steps = now, 0
        rate = self.images / seconds
        figures = {
            "images_per_second": rate,
            "images_per_second_per_device": rate / jax.device_count(),
            "seconds_per_step": seconds,
        }
        if self.flops and self.peak:
            figures["share_of_peak"] = self.flops / seconds / self.peak
        if self.memory is not None:
            figures["memory_bytes_per_device"] = self.memory
        return figures


def step_flops(config: ConfigDict, spec: ModelSpec, text_length: int) -> float:
    """Operations of one step on all devices together.

    Args:
        text_length: tokens that every text is padded to.
    """
    passes = {"vision": 1, "text": 1}
    for field, items in items_per_pair(config).items():
        passes[field.tower] += math.prod(items)
    images, texts = passes["vision"], passes["text"]
    if config.data.cached_features:
        # Heads only; all that a pass costs is their products.
        heads = [_head_flops(spec.vision_head, spec.vision.features), _head_flops(spec.text_head, spec.text.features)]
        return 3.0 * config.batch_size * (images * heads[0] + texts * heads[1])
    of_images = images * image_flops(spec) * _passes(config, spec, "vision")
    of_texts = texts * text_flops(spec, text_length) * _passes(config, spec, "text")
    return config.batch_size * (of_images + of_texts)


def _passes(config: ConfigDict, spec: ModelSpec, side: str) -> float:
    """How many forward passes a row costs."""
    what = config.train[side]
    tower = getattr(spec, side)
    share = float(what == "all")
    if what.startswith("last:") and not isinstance(tower, ResNetSpec):
        share = 1 - frozen_layers(spec, side, what) / tower.layers
    again = float(config.micro_batches > 1)
    return 1 + again + share * (2 + (config.remat == "full"))


def _head_flops(head, features: int) -> float:
    if head.hidden is None:
        return 2.0 * features * (head.dim or 0)
    return 2.0 * (features * head.dim + features * head.hidden + head.hidden * head.dim)
