"""A text with one word removed, masked or replaced by the mean embedding, made and embedded on the device.

Rows come as uncut bodies (token ids without special tokens) with the span that changes; what the tower reads is

    prefix  body, changed and cut to the room  suffix  padding

which is what the tokenizer gives for the shortened caption.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.models import DualEncoder


class Layout(NamedTuple):
    """What surrounds a body.

    Attributes:
        length: tokens of a padded row.
        room: tokens of a body that the tower reads at most.
        prefix, suffix: special tokens.
        pad_id: what fills a row up.
        reads_padding: whether the tower reads padding like text (SigLIP).
    """

    length: int
    room: int
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad_id: int
    reads_padding: bool


def lay_out(
    layout: Layout, bodies: Int[Array, "b n"], spans: Int[Array, "b 3"], removes: bool
) -> tuple[Int[Array, "b t"], Bool[Array, "b t"], Bool[Array, "b t"]]:
    """Token ids, mask, and which tokens are the word's (none where it is removed).

    Args:
        layout: what surrounds the bodies.
        bodies: token ids.
        spans: for each row the tokens of the body, the word's first token, and the word's number of tokens.
        removes: whether the word goes.
    """
    count, start, length = spans[:, 0:1], spans[:, 1:2], spans[:, 2:3]
    kept = jnp.minimum(count - length if removes else count, layout.room)
    place = jnp.arange(layout.length, dtype=jnp.int32)[None]
    inside = jnp.broadcast_to(place - len(layout.prefix), (bodies.shape[0], layout.length))
    source = jnp.where(inside >= start, inside + length, inside) if removes else inside
    ids = jnp.take_along_axis(bodies, jnp.clip(source, 0, bodies.shape[1] - 1), axis=1)
    ids = jnp.where(inside < kept, ids, layout.pad_id)
    for offset, token in enumerate(layout.suffix):
        ids = jnp.where(inside == kept + offset, token, ids)
    for offset, token in enumerate(layout.prefix):
        ids = jnp.where(place == offset, token, ids)
    mask = jnp.full(ids.shape, True) if layout.reads_padding else inside < kept + len(layout.suffix)
    in_word = (inside >= start) & (inside < jnp.minimum(start + length, kept))
    return ids, mask, jnp.zeros_like(in_word) if removes else in_word


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def embed_changed(
    graph: nnx.GraphDef,
    layout: Layout,
    method: str,
    mask_id: int,
    state: nnx.State,
    bodies: Int[Array, "b n"],
    spans: Int[Array, "b 3"],
) -> Float[Array, "b dim"]:
    """Unit vectors of the changed texts, float32. `method` is `remove`, `mask` or `mean`; see `lay_out`."""
    model: DualEncoder = nnx.merge(graph, state)
    ids, mask, in_word = lay_out(layout, bodies, spans, method == "remove")
    if method == "remove":
        return model.text_embeddings(ids, mask)
    if method == "mask":
        return model.text_embeddings(jnp.where(in_word, mask_id, ids), mask)
    return embed_pooled(model, _tokens_with_mean(model, ids, mask, in_word), ids, mask)


def _tokens_with_mean(model: DualEncoder, ids: Array, mask: Array, in_word: Array) -> Float[Array, "b t width"]:
    """The tower's output tokens, with the mean of its table of tokens in place of the word's."""
    table = model.text.words[...]
    model.text.words = nnx.Param(jnp.concatenate([table, table.mean(0, keepdims=True)]))
    return model.text.tokens(jnp.where(in_word, table.shape[0], ids), mask)


def embed_pooled(model: DualEncoder, tokens: Float[Array, "b t width"], ids: Array, mask: Array) -> Array:
    """Unit vectors from the tower's output tokens."""
    return embed_features(model, model.text.pool(tokens, ids, mask))


def embed_features(model: DualEncoder, features: Float[Array, "... width"]) -> Float[Array, "... dim"]:
    """Unit vectors from pooled features, through the model's head; a zero vector stays zero."""
    vectors = features if model.text_head is None else model.text_head(features)
    squares = jnp.square(vectors).sum(-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, jnp.finfo(jnp.float32).tiny))
