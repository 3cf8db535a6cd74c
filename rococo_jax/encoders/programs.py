"""The compiled programs of an encoder: the precision of their products, and what they take.

    float32    products at full precision, six passes of bfloat16 on TPUs, no tensor cores on GPUs
    high       float32 with cheaper products: three passes of bfloat16 (float32 on CPUs)
    bfloat16   towers in bfloat16; parameters, norms, softmax and heads stay float32

Evaluations take `high` on TPUs and on GPUs from the A100 on unless told otherwise: R@1 and FR@1 do not move
(`docs/research/performance.md`), and full float32 leaves the tensor cores of GPUs idle. There JAX's `HIGH` is one
pass of TF32, which moves both; the three passes are asked for by name. The images that a device encodes at once are
found from the memory that the compiled program needs, where the platform tells how much there is.

Short captions are not padded to the whole context: under a causal mask or an attention mask padding never changes a
vector. Every bucket of lengths has one static shape, unit x length, whatever the number of texts: an element of a
matrix product has the same bits wherever it stands in an array of one shape, so a text's vector does not depend on its
neighbours.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from PIL import Image

from rococo_jax.data.pictures import as_8bit
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.encoders.device_steps import on_active_devices
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec, TextSpec
from rococo_jax.models.attention import is_ampere_or_later
from rococo_jax.models.flops import image_flops, text_flops
from rococo_jax.models.fsdp import merge_gathered
from rococo_jax.models.products import Products, float32_products
from rococo_jax.processes import gather
from rococo_jax.runtime import AXES

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
    """How an evaluation computes: one of `PRECISIONS`, and the images a device encodes at once (None: what fits).

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
        """The dtype of the towers."""
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


# Steps of two where captions are frequent (half of all COCO captions have 12 to 14 tokens), coarse ones beyond: every
# step is a program to compile, and steps of one would save 4 % of the tokens.
_LENGTHS = (8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class TextBatch:
    """Texts `index`, padded to `length` and encoded in units of `unit` rows, at most one for each device."""

    index: np.ndarray
    length: int
    unit: int


def bucket_length(tokens: int, context_length: int) -> int:
    """The padded length for a text of `tokens` tokens: the next step, at most `context_length`."""
    for length in _LENGTHS:
        if tokens <= length < context_length:
            return length
    return context_length


def text_batches(
    token_counts: Sequence[int],
    context_length: int,
    tokens_per_device: int,
    devices: int = 1,
    fixed_length: int | None = None,
) -> Iterator[TextBatch]:
    """Groups texts by bucket, shortest first; within a bucket in the order given.

    Args:
        tokens_per_device: rows x length on one device, as near as whole rows allow.
        devices: how many units a batch may have.
        fixed_length: the one length for towers whose vectors depend on padding (SigLIP), else None.
    """
    lengths = np.array([fixed_length or bucket_length(count, context_length) for count in token_counts], dtype=np.int64)
    for length in np.unique(lengths).tolist():
        unit = max(1, tokens_per_device // length)
        members = np.flatnonzero(lengths == length)
        for start in range(0, len(members), unit * devices):
            yield TextBatch(members[start : start + unit * devices], length, unit)


def pad_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """Repeats the first row up to `count` rows: real content, so that no padding can make a NaN."""
    if len(rows) == count:
        return rows
    return np.concatenate([rows, np.broadcast_to(rows[:1], (count - len(rows), *rows.shape[1:]))])


def one_ahead(running: Iterable) -> Iterator:
    """Yield each result after the next one has been started, so that the device does not wait for the host."""
    pending = None
    for current in running:
        if pending is not None:
            yield pending
        pending = current
    if pending is not None:
        yield pending


def as_pixels(images: Any, preprocessing: Preprocessing) -> Iterator[np.ndarray]:
    """Image by image: uint8 as the model wants it, or float pixels of its size as they are.

    Raises InputError: no list of images, float pixels of another size or range, or as `as_8bit`.
    """
    return (_pixels(image, f"image {number}", preprocessing) for number, image in enumerate(separate_images(images)))


def separate_images(images: Any) -> Iterable[Any]:
    """The images of one array, of any framework, or of a sequence. Raises InputError where it is one image alone."""
    if hasattr(images, "__array__"):
        images = np.asarray(images)
        if images.ndim != 4:
            raise InputError("images", "shape", images.shape, "(images, height, width, 3)")
    if isinstance(images, Image.Image | str) or not isinstance(images, Iterable):
        raise InputError("images", "type", f"one {type(images).__name__}", "a list of PIL images, or an array")
    return images


def _pixels(image: Any, name: str, preprocessing: Preprocessing) -> np.ndarray:
    if isinstance(image, Image.Image):
        return preprocessing.resize(as_8bit(image, name))
    pixels, shape = np.asarray(image), preprocessing.pixel_shape
    if pixels.dtype == np.uint8 and pixels.shape == shape:
        return pixels
    if not jnp.issubdtype(pixels.dtype, jnp.floating):
        return preprocessing.resize(as_8bit(image, name))
    if pixels.shape != shape:
        raise InputError(name, "shape of float pixels", pixels.shape, f"{shape}, as the model sees them")
    most = max(map(abs, preprocessing.limits))
    # The last patch of a packed sequence holds the grid's size, not colours.
    colours = pixels if preprocessing.patch_size is None else pixels[: -preprocessing.patch_size]
    if (largest := float(np.abs(colours).max())) > _MOST_BEYOND * most:
        wanted = f"values normalised as the model sees them, at most {most:.3g}; as uint8 they are normalised here"
        raise InputError(name, "float pixels", f"values up to {largest:.4g}", wanted)
    return pixels


def token_ids(name: str, spec: TextSpec | None, tokenizer: Tokenizer | None, texts: Sequence[Any]) -> list[list[int]]:
    """The ids of each text, strings or lists of ids, of the model `name`, special tokens in place.

    Raises InputError: the model has no text tower or no tokenizer, a text has more tokens than its context, ids that a
    look-up would clip, or no end where it is pooled.
    """
    if spec is None:
        raise InputError(name, "text tower", "none", "a model with a text tower")
    if tokenizer is None:
        raise InputError(name, "tokenizer", "none", "a model that came with its tokenizer files")
    if isinstance(texts, str) or len(texts) == 0:
        raise InputError(name, "texts", repr(texts), "a non-empty sequence of strings or lists of token ids")
    ids = tokenizer.encode(list(texts)) if isinstance(texts[0], str) else [list(map(int, t)) for t in texts]
    longest = max(map(len, ids))
    if longest > spec.context_length:
        raise InputError(name, "token ids", f"{longest} tokens", f"at most {spec.context_length}")
    for row in ids:
        if row and not 0 <= min(row) <= max(row) < spec.vocabulary_size:
            found = max(row) if min(row) >= 0 else min(row)
            raise InputError(name, "token ids", found, f"0 to {spec.vocabulary_size - 1}")
        if spec.pooling == "first_eos" and spec.eos_id not in row:
            raise InputError(name, "token ids", f"no {spec.eos_id} in a text", "every text ended by it")
    return ids


_PROJECTED_ROWS = 256
# Times the greatest normalised value: floats beyond it were never normalised.
_MOST_BEYOND = 10


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def image_features(mesh, graph, preprocessing: Preprocessing | None, products, state, active, images) -> jax.Array:
    """Pooled features of the image tower. Static: mesh, graph, preprocessing and precision of float32 products."""

    def encode(state, images) -> jax.Array:
        with float32_products(products):
            return merge_gathered(graph, state).image_features(_normalised(images, preprocessing))

    return on_active_devices(mesh, encode, state, active, images)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def image_tokens(mesh, graph, preprocessing: Preprocessing | None, products, state, active, images) -> jax.Array:
    """What the image tower gives before pooling."""

    def encode(state, images) -> jax.Array:
        with float32_products(products):
            return merge_gathered(graph, state).vision.tokens(_normalised(images, preprocessing))

    return on_active_devices(mesh, encode, state, active, images)


def _normalised(images: jax.Array, preprocessing: Preprocessing | None) -> jax.Array:
    return preprocessing.normalise(images) if images.dtype == jnp.uint8 else images.astype(jnp.float32)


@partial(jax.jit, static_argnums=(0, 1, 2))
def text_features(mesh, graph, products, state, active, ids, mask) -> jax.Array:
    """Pooled features of the text tower."""

    def encode(state, ids, mask) -> jax.Array:
        with float32_products(products):
            return merge_gathered(graph, state).text_features(ids, mask)

    return on_active_devices(mesh, encode, state, active, ids, mask)


@partial(jax.jit, static_argnums=(0, 1))
def matching_logits(mesh, graph, state, active, images, ids, mask) -> jax.Array:
    """Logits of groups of pairs: of an image each, by its row in the tokens beside the parameters, with its texts."""

    def encode(state, images, ids, mask) -> jax.Array:
        parameters, tokens = state
        return merge_gathered(graph, parameters).matching_logits(tokens[images], ids, mask)

    return on_active_devices(mesh, encode, state, active, images, ids, mask)


@partial(jax.jit, static_argnums=(0, 1))
def projected(graph, method: str, state, features) -> jax.Array:
    """Unit vectors from features, by a method of the module."""
    model = merge_gathered(graph, state)
    vectors = getattr(model, method)(features)
    if model.sharded_over is None:
        return vectors
    return jax.lax.with_sharding_constraint(vectors, NamedSharding(model.sharded_over, PartitionSpec()))


def project(mesh: Mesh, graph, state, method: str, features: np.ndarray) -> np.ndarray:
    """`projected` of any number of rows, in units of a fixed number for each device."""
    rows, sharding = _PROJECTED_ROWS * mesh.size, NamedSharding(mesh, PartitionSpec(AXES))
    outputs = []
    for start in range(0, len(features), rows):
        part = features[start : start + rows]
        padded = pad_rows(part, rows)
        placed = jax.make_array_from_callback(padded.shape, sharding, padded.__getitem__)
        outputs.append(np.asarray(projected(graph, method, state, placed))[: len(part)])
    return np.concatenate(outputs)
