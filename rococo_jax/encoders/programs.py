"""The compiled programs of an encoder, over the devices of a mesh, and what they take: pixels, token ids, lengths.

Short captions are not padded to the whole context: under a causal mask or an attention mask padding never changes a
vector. Every bucket of lengths has one static shape, unit x length, whatever the number of texts: an element of a
matrix product has the same bits wherever it stands in an array of one shape, so a text's vector does not depend on its
neighbours.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from PIL import Image

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.encoders.device_steps import on_active_devices
from rococo_jax.errors import InputError
from rococo_jax.models import TextSpec
from rococo_jax.models.fsdp import merge_gathered
from rococo_jax.models.products import float32_products
from rococo_jax.runtime import AXES

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


def as_pixels(images: Any, image_size: int, preprocessing: Preprocessing) -> Iterator[np.ndarray]:
    """Image by image: uint8 as the model wants it, or float pixels of its size as they are.

    Raises:
        InputError: an array of another shape, or float pixels of another size.
    """
    if isinstance(images, np.ndarray | jax.Array):
        images = np.asarray(images)
        if images.ndim != 4 or images.shape[3] != 3:
            raise InputError("images", "shape", images.shape, "(images, height, width, 3)")
        size = (image_size,) * 2
        if images.dtype != np.uint8 and images.shape[1:3] != size:
            raise InputError("pixels", "size", images.shape[1:3], f"{size}, as the model sees them")
        if images.dtype == np.uint8 and images.shape[1:3] != size:
            images = (Image.fromarray(image) for image in images)
    return (x if isinstance(x, np.ndarray) else preprocessing.resize(x) for x in images)


def token_ids(name: str, spec: TextSpec | None, tokenizer: Tokenizer | None, texts: Sequence[Any]) -> list[list[int]]:
    """The ids of each text, strings or lists of ids, of the model `name`, special tokens in place.

    Raises:
        InputError: the model has no text tower or no tokenizer, a text has more tokens than its context, ids that a
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
