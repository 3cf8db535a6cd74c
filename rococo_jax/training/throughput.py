"""How fast a run is: images a second, FLOPs of a step, and the share of the chips' peak.

    mfu = model FLOPs / (seconds a step * devices * peak)       arXiv 2204.02311, appendix B

FLOPs are counted from the spec, towers and heads; losses are left out, `4 B^2 dim` a pair of passes, which matter only
where a batch has more pairs than a tower has parameters. For each row of a tower:

    a pass forward        image_flops or text_flops
    a pass backward       twice that, through what is trained

What rematerialisation and micro-batches compute again is no work of the model's and does not count. Peaks are
the vendors' dense bfloat16 figures.
"""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping

import jax
from ml_collections import ConfigDict

from rococo_jax.models import ModelSpec
from rococo_jax.models.flops import image_flops, text_flops
from rococo_jax.progress import say
from rococo_jax.training.freezing import SIDES, cached_sides, frozen_layers
from rococo_jax.training.inputs.active import items_per_pair
from rococo_jax.training.patch_dropout import kept_patches

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


def peak_flops(device: jax.Device) -> float | None:
    """FLOP/s of a device, None where the table does not have it (CPUs)."""
    kinds = [kind for kind in PEAK_TFLOPS if device.device_kind.startswith(kind)]
    return PEAK_TFLOPS[max(kinds, key=len)] * 1e12 if kinds else None


class Meter:
    """Counts steps between two readings.

    Args:
        images: images of a global batch.
        devices: of the run's mesh.
        flops: operations of a step on one device; 0 where unknown.

    Attributes:
        memory: bytes that the step's program takes on one device, None where unknown.
    """

    def __init__(self, images: int, devices: int = 1, flops: float = 0.0):
        self.images, self.devices, self.flops = images, devices, flops
        self.memory: int | None = None
        device = jax.local_devices()[0]
        self.peak = peak_flops(device)
        if self.peak is None and device.platform != "cpu" and jax.process_index() == 0:
            say(f"no published peak is known of {device.device_kind!r} (PEAK_TFLOPS): no mfu")
        self.begun, self.lost = time.perf_counter(), Counter()
        self.restart()

    def restart(self) -> None:
        """Forgets the steps so far."""
        self.start, self.steps, self.waited = time.perf_counter(), 0, 0.0

    def count(self, waited: float = 0.0) -> None:
        """Counts one step, before which the host waited so many seconds for its batch."""
        self.steps += 1
        self.waited += waited
        self.lost["waiting for data"] += waited

    @contextlib.contextmanager
    def paused(self, reason: str) -> Iterator[None]:
        """Leaves out the time of a block, which is not spent on steps."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.start += seconds
        self.lost[reason] += seconds

    def goodput(self) -> tuple[float, str]:
        """The share of the time since the start that was spent in steps; and it in words, with what took the rest."""
        whole = max(time.perf_counter() - self.begun, 1e-9)
        share = max(0.0, 1 - sum(self.lost.values()) / whole)
        rest = [f"{reason} {seconds / whole:.0%}" for reason, seconds in self.lost.most_common() if seconds]
        return share, ", ".join([f"{share:.0%} of {whole:.0f} s in steps", *rest])

    def read(self) -> dict[str, float]:
        """Figures since the last reading."""
        now = time.perf_counter()
        steps = max(self.steps, 1)
        seconds, waited = max(now - self.start, 1e-9) / steps, self.waited / steps
        self.restart()
        rate = self.images / seconds
        figures = {
            "images_per_second": rate,
            "images_per_second_per_device": rate / self.devices,
            "seconds_per_step": seconds,
            "seconds_waiting_for_data": waited,
            "goodput": self.goodput()[0],
        }
        if self.flops and self.peak:
            figures["mfu"] = self.flops / seconds / self.peak
        if self.memory is not None:
            figures["memory_bytes_per_device"] = self.memory
        return figures | memory_in_use(jax.local_devices()[0].memory_stats() or {})


def memory_in_use(stats: Mapping[str, int]) -> dict[str, int]:
    """Bytes in use now and at most so far, of what a device tells of its memory (CPUs: nothing)."""
    names = {"memory_in_use_bytes": "bytes_in_use", "memory_peak_bytes": "peak_bytes_in_use"}
    return {name: stats[key] for name, key in names.items() if key in stats}


def step_flops(config: ConfigDict, spec: ModelSpec, text_length: int) -> float:
    """Operations that one step needs of all devices together.

    Args:
        text_length: tokens that every text is padded to.
    """
    passes = {"vision": 1, "text": 1}
    for field, items in items_per_pair(config).items():
        passes[field.tower] += math.prod(items)
    return sum(config.batch_size * passes[side] * _of_one(config, spec, side, text_length) for side in SIDES)


def _of_one(config: ConfigDict, spec: ModelSpec, side: str, text_length: int) -> float:
    """Operations of one image or text."""
    tower, what = getattr(spec, side), config.train[side]
    if side in cached_sides(config):  # all that it costs is the head's products
        return 3.0 * _head_flops(getattr(spec, f"{side}_head"), tower.features)
    length = kept_patches(config, spec) if side == "vision" else text_length
    forward = (image_flops if side == "vision" else text_flops)(spec, length)
    share = float(what == "all")
    if what.startswith("last:"):
        share = 1 - frozen_layers(spec, side, what) / tower.layers
    return (1 + 2 * share) * forward


def _head_flops(head, features: int) -> float:
    if head.hidden is None:
        return 2.0 * features * (head.dim or 0)
    beside = features * head.dim if head.kind == "linear" else 0  # the affine map that a residual MLP is added to
    return 2.0 * (beside + features * head.hidden + head.hidden * head.dim)
