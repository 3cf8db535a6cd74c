"""How towers compute: the precision of their products, and how many images a device encodes at once.

    float32    products at full precision, six passes of bfloat16 on TPUs, no tensor cores on GPUs
    high       float32 with cheaper products: three passes of bfloat16 (float32 on CPUs)
    bfloat16   towers in bfloat16; parameters, norms, softmax and heads stay float32

Evaluations take `high` on TPUs and on GPUs from the A100 on unless told otherwise: R@1 and FR@1 do not move
(`docs/performance/evaluation.md`), and full float32 leaves the tensor cores of GPUs idle. There JAX's `HIGH` is one
pass of TF32, which moves both; the three passes are asked for by name.

The batch is found from the memory that the compiled program needs, where the platform tells how much there is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec
from rococo_jax.models.attention import is_ampere_or_later
from rococo_jax.models.flops import image_flops, text_flops
from rococo_jax.models.products import Products
from rococo_jax.processes import gather

_HIGHEST, _HIGH = jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGH
_HIGH_ON_GPUS = jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3
PRECISIONS = {
    "float32": (jnp.float32, _HIGHEST, "float32"),
    "high": (jnp.float32, _HIGH, "float32 with products in 3 passes of bfloat16 (precision high)"),
    "bfloat16": (jnp.bfloat16, _HIGHEST, "bfloat16"),
}
# What a device encodes at once. Part of what decides a vector's last bits, hence not a parameter of a call. The last
# unit of every length is filled up: the more tokens a unit has, the more of a short list is padding.
_CPU_IMAGES, _CPU_TEXT_TOKENS = 16, 256
# A step on an accelerator takes some 1.5 ms of the host, whatever is in it. Enough work that a device needs several
# times as long at 300 TFLOP/s for images, whose last unit alone is filled up, and about as long for texts, of which one
# unit of every length is; and enough rows for the matrix units (50 x 12 tiles of 128 x 256 in an MLP of B/32).
_ACCELERATOR_IMAGE_FLOPS, _ACCELERATOR_TEXT_FLOPS = 2.25e12, 0.45e12
_ACCELERATOR_IMAGES, _ACCELERATOR_TEXT_TOKENS = (16, 1024), (4096, 16384)
# Of the free memory; the allocator loses some to fragments.
_USABLE = 0.9


@dataclass(frozen=True)
class Compute:
    """One of `PRECISIONS`, and the images that a device encodes at once (None for what fits), for an evaluation.

    Raises InputError for a value out of its range.
    """

    precision: str = "float32"
    images_at_once: int | None = None

    def __post_init__(self):
        if self.precision not in PRECISIONS:
            raise InputError("compute", "precision", repr(self.precision), f"one of {', '.join(PRECISIONS)}")
        if self.images_at_once is not None and self.images_at_once < 1:
            raise InputError("compute", "images_at_once", self.images_at_once, "at least 1")

    @property
    def dtype(self) -> type:
        """Of the towers."""
        return PRECISIONS[self.precision][0]

    def products_on(self, device: Any) -> Products:
        """Precision of float32 products in the towers."""
        precision = PRECISIONS[self.precision][1]
        return _HIGH_ON_GPUS if precision == _HIGH and is_ampere_or_later(device) else precision

    def summary(self) -> str:
        """One phrase for people."""
        return f"towers in {PRECISIONS[self.precision][2]}"


def precision_of_evaluations() -> str:
    """What an evaluation computes in by default on the devices at hand: `high` on TPUs and GPUs that are known to have
    its products.
    """
    device = jax.devices()[0]
    return "high" if device.platform == "tpu" or is_ampere_or_later(device) else "float32"


def images_at_once(spec: ModelSpec, platform: str) -> int:
    """Images that a device encodes at once: on accelerators the power of two next to a fixed number of operations."""
    if platform == "cpu" or spec.vision is None:
        return _CPU_IMAGES
    return _power_of_two(_ACCELERATOR_IMAGE_FLOPS / image_flops(spec), *_ACCELERATOR_IMAGES)


def text_tokens_at_once(spec: ModelSpec, platform: str) -> int:
    """Tokens of texts that a device encodes at once, as `images_at_once`."""
    if platform == "cpu" or spec.text is None:
        return _CPU_TEXT_TOKENS
    tokens = spec.text.context_length
    return _power_of_two(_ACCELERATOR_TEXT_FLOPS / (text_flops(spec) / tokens), *_ACCELERATOR_TEXT_TOKENS)


def _power_of_two(count: float, least: int, most: int) -> int:
    return min(most, max(least, 2 ** round(math.log2(count))))


def free_bytes(mesh: Mesh) -> int | None:
    """Free memory of the fullest device; None where the platform does not tell, as on CPUs. All processes of the mesh
    must call it.
    """

    def of_this_process() -> list[int | None]:
        stats = [device.memory_stats() or {} for device in mesh.local_devices]
        return [each["bytes_limit"] - each.get("bytes_in_use", 0) if "bytes_limit" in each else None for each in stats]

    shares = gather("free memory", of_this_process) if mesh.is_multi_process else [of_this_process()]
    free = [each for share in shares for each in share]
    return None if None in free else min(free)


def largest_unit(unit: int, needed: Callable[[int], int], free: int) -> int:
    """The unit of rows, or the largest power of two below it whose program fits into `free` bytes; 0 where none does.

    `needed` compiles the program of a unit and gives its bytes.
    """
    usable = int(_USABLE * free)
    while (bytes_needed := needed(unit)) > usable:
        if unit == 1:
            return 0
        # Nearly all of it grows with the rows.
        fits = max(1, unit * usable // bytes_needed)
        unit = min(2 ** int(math.log2(fits)), 2 ** (math.ceil(math.log2(unit)) - 1))
    return unit
