"""The compiled programs of an encoder: the precision of their products, and the shapes of their inputs.

    float32    products at full precision: six passes of bfloat16 on TPUs, no tensor cores on GPUs
    high       float32 with cheaper products: three passes of bfloat16 (float32 on CPUs)
    bfloat16   towers in bfloat16; parameters, norms, softmax and heads stay float32

By default evaluations use `high` on TPUs and on GPUs from the A100 on: R@1 and FR@1 do not change, and full float32
leaves the tensor cores of GPUs idle. On GPUs, JAX's `HIGH` is one pass of TF32, which changes both; the three passes
are requested by name.

Short texts are not padded to the whole context: under a causal mask or an attention mask, padding never changes an
embedding. Every padded length has one static shape, unit x length, whatever the number of texts: an element of a matrix
product has the same bits at every position of an array of one shape, so the embedding of a text does not depend on the
other texts.
"""

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
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
from rococo_jax.encoders.device_steps import on_each_device, pad_rows
from rococo_jax.errors import InputError, require_one_of
from rococo_jax.models import ModelSpec, TextSpec
from rococo_jax.models.flops import image_flops, text_flops
from rococo_jax.models.fsdp import merge_gathered
from rococo_jax.models.fused_attention import is_ampere_or_later
from rococo_jax.models.products import Products, float32_products
from rococo_jax.runtime import AXES

_HIGHEST, _HIGH = jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGH
_HIGH_ON_GPUS = jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3
PRECISIONS = {
    "float32": (jnp.float32, _HIGHEST, "float32"),
    "high": (jnp.float32, _HIGH, "float32 with products in 3 passes of bfloat16 (precision high)"),
    "bfloat16": (jnp.bfloat16, _HIGHEST, "bfloat16"),
}
# Units of a device. They decide the last bits of an embedding, so they are not a parameter of a call. The last unit of
# every length is padded: the larger the unit, the more of a short list is padding.
_CPU_IMAGES, _CPU_TEXT_TOKENS = 16, 256
# The host needs about 1.5 ms for a step on an accelerator. A unit of images has work for several times as long at 300
# TFLOP/s, since only the last one is padded; a unit of texts for about as long, since one of every length is. Both have
# enough rows for the matrix units (50 x 12 tiles of 128 x 256 in an MLP of B/32).
_ACCELERATOR_IMAGE_FLOPS, _ACCELERATOR_TEXT_FLOPS = 2.25e12, 0.45e12
_ACCELERATOR_IMAGES, _ACCELERATOR_TEXT_TOKENS = (16, 1024), (4096, 16384)


@dataclass(frozen=True)
class Compute:
    """Settings of the computation: one of `PRECISIONS`, and the images that a device encodes at once (None: default).

    Raises InputError for a value out of its range.
    """

    precision: str = "float32"
    images_at_once: int | None = None

    def __post_init__(self):
        require_one_of("compute", "precision", self.precision, PRECISIONS)
        if self.images_at_once is not None and self.images_at_once < 1:
            raise InputError("compute", "images_at_once", self.images_at_once, "at least 1")

    @property
    def dtype(self) -> type:
        """The dtype of the towers."""
        return PRECISIONS[self.precision][0]

    def products_on(self, device: Any) -> Products:
        """Return the precision of float32 products in the towers on a device."""
        precision = PRECISIONS[self.precision][1]
        return _HIGH_ON_GPUS if precision == _HIGH and is_ampere_or_later(device) else precision

    def summary(self) -> str:
        """Return one phrase for people."""
        return f"towers in {PRECISIONS[self.precision][2]}"


def precision_of_evaluations() -> str:
    """Return the default precision of evaluations on the available devices.

    It is `high` on TPUs and on GPUs that are known to have its products, else `float32`.
    """
    device = jax.devices()[0]
    return "high" if device.platform == "tpu" or is_ampere_or_later(device) else "float32"


def images_at_once(spec: ModelSpec, platform: str) -> int:
    """Return the images that a device encodes at once; on accelerators, a power of two with a fixed amount of work."""
    if platform == "cpu" or spec.vision is None:
        return _CPU_IMAGES
    return _power_of_two(_ACCELERATOR_IMAGE_FLOPS / image_flops(spec), *_ACCELERATOR_IMAGES)


def text_tokens_at_once(spec: ModelSpec, platform: str) -> int:
    """Return the text tokens that a device encodes at once; see `images_at_once`."""
    if platform == "cpu" or spec.text is None:
        return _CPU_TEXT_TOKENS
    tokens = spec.text.context_length
    return _power_of_two(_ACCELERATOR_TEXT_FLOPS / (text_flops(spec) / tokens), *_ACCELERATOR_TEXT_TOKENS)


def _power_of_two(count: float, least: int, most: int) -> int:
    return min(most, max(least, 2 ** round(math.log2(count))))


# Steps of two where captions are frequent (half of all COCO captions have 12 to 14 tokens), larger ones beyond. Each
# length is a program to compile; steps of one would save 4 % of the tokens.
_PADDED_LENGTHS = (8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class TextBatch:
    """Texts `index`, padded to `length` and encoded in units of `unit` rows, at most one unit for each device."""

    index: np.ndarray
    length: int
    unit: int


def bucket_length(tokens: int, context_length: int) -> int:
    """Return the padded length of a text of `tokens` tokens: the next step, at most `context_length`."""
    for length in _PADDED_LENGTHS:
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
    """Group texts by padded length, shortest first; within a length in the given order.

    Args:
        token_counts: number of tokens of each text.
        context_length: the longest padded length.
        tokens_per_device: rows x length on one device, as near as whole rows allow.
        devices: number of units in a batch.
        fixed_length: the single length of towers whose embeddings depend on padding (SigLIP), else None.
    """
    lengths = np.array([fixed_length or bucket_length(count, context_length) for count in token_counts], dtype=np.int64)
    for length in np.unique(lengths).tolist():
        unit = max(1, tokens_per_device // length)
        members = np.flatnonzero(lengths == length)
        for start in range(0, len(members), unit * devices):
            yield TextBatch(members[start : start + unit * devices], length, unit)


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
    """Yield each image as uint8 pixels of the model's size, or as float pixels that are already normalised.

    Raises InputError if this is not a list of images, float pixels have another size or range, or as `as_8bit`.
    """
    # The scale of float pixels is judged over all images of a call: one bright image may have no value below 0.
    float_images, is_normalised = 0, preprocessing.limits[0] >= 0
    for number, image in enumerate(separate_images(images)):
        pixels = _pixels(image, f"image {number}", preprocessing)
        if pixels.dtype != np.uint8 and not is_normalised:
            float_images += 1
            is_normalised = not _looks_unnormalised(pixels, preprocessing)
            if float_images == _FLOAT_IMAGES_TO_JUDGE and not is_normalised:
                break
        yield pixels
    if float_images and not is_normalised:
        problem = f"pixels of {float_images} images that were never normalised, such as from 0 to 1"
        expected = f"{_NORMALISED.format(*preprocessing.limits)}, as (255 * images).round().astype('uint8') makes them"
        raise InputError("images", "float pixels", problem, expected)


def separate_images(images: Any) -> Iterable[Any]:
    """Return the images of one array, of any framework, or of a sequence. Raises InputError for a single image."""
    if hasattr(images, "__array__"):
        images = np.asarray(images)
        if images.ndim != 4:
            raise InputError("images", "shape", images.shape, "(images, height, width, 3)")
    if isinstance(images, Image.Image | str) or not isinstance(images, Iterable):
        raise InputError("images", "type", f"one {type(images).__name__}", "a list of PIL images, or an array")
    return images


# Float pixels above this multiple of the normalised range were never normalised.
_MAX_RANGE_FACTOR = 10
# What interpolation adds to a range of 0 to 1.
_OVERSHOOT = 0.1
# A call is refused after so many float images that all look unnormalised, or at its end.
_FLOAT_IMAGES_TO_JUDGE = 64
_NORMALISED = "normalised values from {:.3g} to {:.3g}; uint8 pixels are normalised here"


def _pixels(image: Any, name: str, preprocessing: Preprocessing) -> np.ndarray:
    if isinstance(image, Image.Image):
        return preprocessing.resize(as_8bit(image, name))
    pixels, shape = np.asarray(image), preprocessing.pixel_shape
    if pixels.dtype == np.uint8 and pixels.shape == shape:
        return pixels
    if not jnp.issubdtype(pixels.dtype, jnp.floating):
        return preprocessing.resize(as_8bit(image, name))
    if pixels.shape != shape:
        raise InputError(name, "shape of float pixels", pixels.shape, f"{shape}, the model's input size")
    limit = max(map(abs, preprocessing.limits))
    if (largest := float(np.abs(_colours(pixels, preprocessing)).max())) > _MAX_RANGE_FACTOR * limit:
        raise InputError(name, "float pixels", f"values up to {largest:.4g}", _NORMALISED.format(*preprocessing.limits))
    return pixels


def _colours(pixels: np.ndarray, preprocessing: Preprocessing) -> np.ndarray:
    """Return the part of an image that holds colours: the last patch of a packed sequence holds the grid size."""
    return pixels if preprocessing.patch_size is None else pixels[: -preprocessing.patch_size]


def _looks_unnormalised(pixels: np.ndarray, preprocessing: Preprocessing) -> bool:
    """Return whether float pixels lie between 0 and 1, as torchvision's ToTensor gives them, or are whole numbers."""
    colours = np.asarray(_colours(pixels, preprocessing), np.float32)
    smallest, largest = colours.min(), colours.max()
    return bool(smallest >= -_OVERSHOOT and largest <= 1 + _OVERSHOOT) or bool(
        smallest >= 0 and (colours == np.rint(colours)).all()
    )


def token_ids(name: str, spec: TextSpec | None, tokenizer: Tokenizer | None, texts: Iterable[Any]) -> list[list[int]]:
    """Return the token ids of each text with their special tokens, for the model `name`.

    Args:
        name: the model's name, for errors.
        spec: the text tower.
        tokenizer: the model's tokenizer.
        texts: strings, or lists of token ids, which are checked.

    Raises:
        InputError: the model has no text tower or no tokenizer, a text has more tokens than its context, an id is not
            in the vocabulary, or the token is missing at which the tower pools.
    """
    if spec is None:
        raise InputError(name, "text tower", "none", "a model with a text tower")
    if tokenizer is None:
        expected = "a model that came with its tokenizer files, or `tokenizer`, another folder or hub name with them"
        raise InputError(name, "tokenizer", "none", expected)
    texts = list_of_texts(name, texts)
    if not texts:
        raise InputError(name, "texts", "none", "one or more")
    ids = tokenizer.encode(texts) if isinstance(texts[0], str) else [list(map(operator.index, row)) for row in texts]
    longest = max(map(len, ids))
    if longest > spec.context_length:
        raise InputError(name, "token ids", f"{longest} tokens", f"at most {spec.context_length}")
    for row in ids:
        if row and not 0 <= min(row) <= max(row) < spec.vocabulary_size:
            token_id = max(row) if min(row) >= 0 else min(row)
            raise InputError(name, "token ids", token_id, f"0 to {spec.vocabulary_size - 1}")
        if spec.pooling == "first_eos" and spec.eos_id not in row:
            raise InputError(name, "token ids", f"no {spec.eos_id} in a text", "every text ended by it")
    return ids


def list_of_texts(name: str, texts: Any) -> list[Any]:
    """Return texts of any iterable as a list. Raises InputError unless all are strings, or all lists of token ids."""
    expected = "strings, or lists of token ids"
    if isinstance(texts, str | bytes | Mapping | Set) or not isinstance(texts, Iterable):
        raise InputError(name, "texts", repr(texts)[:80], f"a non-empty sequence of {expected}")
    texts = list(texts)
    for number, text in enumerate(texts):
        is_list = isinstance(text, Iterable) and not isinstance(text, str | bytes)
        if isinstance(text, str) != isinstance(texts[0], str) or not (isinstance(text, str) or is_list):
            raise InputError(name, f"text {number}", repr(text)[:80], f"{expected}, one kind in a call")
        if is_list and not all(hasattr(token, "__index__") for token in text):
            raise InputError(name, f"text {number}", repr(text)[:80], "token ids, whole numbers")
        if isinstance(text, str) and not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InputError(name, f"text {number}", ascii(text)[:80], "Unicode: this text has half a character")
    return texts


_PROJECTED_ROWS = 256


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def image_features(mesh, graph, preprocessing: Preprocessing | None, products, state, images) -> jax.Array:
    """Return pooled features of the image tower.

    Mesh, graph, preprocessing and the precision of float32 products are static.
    """

    def encode(state, images) -> jax.Array:
        with float32_products(products):
            return merge_gathered(graph, state).image_features(_normalise(images, preprocessing))

    return on_each_device(mesh, encode, state, images)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def image_tokens(mesh, graph, preprocessing: Preprocessing | None, products, state, images) -> jax.Array:
    """Return the output of the image tower before pooling."""

    def encode(state, images) -> jax.Array:
        with float32_products(products):
            return merge_gathered(graph, state).vision.tokens(_normalise(images, preprocessing))

    return on_each_device(mesh, encode, state, images)


def _normalise(images: jax.Array, preprocessing: Preprocessing | None) -> jax.Array:
    return preprocessing.normalise(images) if images.dtype == jnp.uint8 else images.astype(jnp.float32)


@partial(jax.jit, static_argnums=(0, 1, 2))
def text_features(mesh, graph, products, state, ids, mask) -> jax.Array:
    """Return pooled features of the text tower."""

    def encode(state, ids, mask) -> jax.Array:
        with float32_products(products):
            return merge_gathered(graph, state).text_features(ids, mask)

    return on_each_device(mesh, encode, state, ids, mask)


@partial(jax.jit, static_argnums=(0, 1))
def matching_logits(mesh, graph, state, images, ids, mask) -> jax.Array:
    """Return the matching head's logits of groups of pairs: one image each, with its texts.

    The state is (parameters, image tokens); `images` are rows of the tokens.
    """

    def encode(state, images, ids, mask) -> jax.Array:
        parameters, tokens = state
        return merge_gathered(graph, parameters).matching_logits(tokens[images], ids, mask)

    return on_each_device(mesh, encode, state, images, ids, mask)


@partial(jax.jit, static_argnums=(0, 1))
def projected(graph, method: str, state, features) -> jax.Array:
    """Return unit vectors from features by a method of the module."""
    model = merge_gathered(graph, state)
    vectors = getattr(model, method)(features)
    if model.sharded_over is None:
        return vectors
    return jax.lax.with_sharding_constraint(vectors, NamedSharding(model.sharded_over, PartitionSpec()))


def project(mesh: Mesh, graph, state, method: str, features: np.ndarray) -> np.ndarray:
    """Call `projected` for any number of rows, a fixed number for each device at a time."""
    rows, sharding = _PROJECTED_ROWS * mesh.size, NamedSharding(mesh, PartitionSpec(AXES))
    outputs = []
    for start in range(0, len(features), rows):
        part = features[start : start + rows]
        padded = pad_rows(part, rows)
        on_devices = jax.make_array_from_callback(padded.shape, sharding, padded.__getitem__)
        outputs.append(np.asarray(projected(graph, method, state, on_devices))[: len(part)])
    return np.concatenate(outputs)
