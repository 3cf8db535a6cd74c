"""Influence under a causal mask, where the tokens before a word are computed once for all words of a caption.

A caption of n tokens and its m shortened forms are packed into one row:

    whole caption | what follows word 1, moved up | what follows word 2, moved up | ...

A token of the k-th tail reads the whole caption up to word k and its own tail up to itself, which is all that a causal
tower would let it read in the shortened caption; its position is the one that it has there. So the row has about half
the tokens of m + 1 separate texts, and no padding between them. Of the last block only the end tokens are computed
beyond their keys and values, since nothing else is pooled.

What a tail reads is the packing of "tree attention" (Miao et al., SpecInfer, arXiv 2305.09781) for shared prefixes.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.alter.changed_text import embed_features
from rococo_jax.models import DualEncoder, TextSpec
from rococo_jax.models.attention import attend
from rococo_jax.models.text import TextTower

# Tokens of a packed row: steps of at most a fifth. A caption that needs more is packed into several rows.
_STEPS = (16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 144, 160, 176, 192, 224, 256)
_TAILS = (2, 4, 6, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 32, 64, 128, 256)


class PackedRow(NamedTuple):
    """A caption with some of its words to take out.

    Attributes:
        ids: its tokens without special ones, uncut.
        spans: for each of these words its first token and its number of tokens.
    """

    ids: Sequence[int]
    spans: tuple[tuple[int, int], ...]


def can_share_prefix(spec: TextSpec, prefix: Sequence[int], suffix: Sequence[int]) -> bool:
    """Whether a tower reads from left to right and is pooled at the one token that ends a text."""
    return spec.attention == "causal" and spec.pooling in ("first_eos", "highest_id") and len(suffix) == 1


def tail_length(row_ids: int, start: int, length: int, room: int) -> int:
    """Tokens that follow a word once it is taken out, the end token among them."""
    return min(row_ids - length, room) - start + 1


def pack(ids: Sequence[int], spans: Sequence[tuple[int, int]], prefix: int, room: int) -> Iterator[tuple[int, int]]:
    """Splits a caption's words into runs `(first, last)` whose packed rows are no longer than the longest step."""
    whole = prefix + min(len(ids), room) + 1
    first, used = 0, whole
    for number, (start, length) in enumerate(spans):
        tail = tail_length(len(ids), start, length, room)
        if number > first and used + tail > _STEPS[-1]:
            yield first, number
            first, used = number, whole
        used += tail
    if first < len(spans):
        yield first, len(spans)


def packed_length(row: PackedRow, prefix: int, room: int) -> int:
    """Tokens of a packed row."""
    tails = sum(tail_length(len(row.ids), start, length, room) for start, length in row.spans)
    return prefix + min(len(row.ids), room) + 1 + tails


def next_step(number: int, steps: Sequence[int]) -> int:
    """The least step that is not smaller; beyond the last one a multiple of it."""
    return next((step for step in steps if step >= number), -(-number // steps[-1]) * steps[-1])


def static_shape(row: PackedRow, prefix: int, room: int) -> tuple[int, int]:
    """Tokens and tails of the padded row that a packed row goes into."""
    return next_step(packed_length(row, prefix, room), _STEPS), next_step(len(row.spans), _TAILS)


def arrays(rows: Sequence[PackedRow], tails: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bodies `(b, width)`, their lengths `(b,)`, and spans `(b, tails, 2)`, (0, -1) where there is none."""
    bodies = np.zeros((len(rows), width), np.int32)
    spans = np.tile(np.array([0, -1], np.int32), (len(rows), tails, 1))
    for i, row in enumerate(rows):
        bodies[i, : min(len(row.ids), width)] = row.ids[:width]
        spans[i, : len(row.spans)] = row.spans
    return bodies, np.array([len(row.ids) for row in rows], np.int32), spans


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def packed_influence(
    graph: nnx.GraphDef,
    length: int,
    room: int,
    prefix: tuple[int, ...],
    end_id: int,
    state: nnx.State,
    bodies: Int[Array, "b n"],
    counts: Int[Array, " b"],
    spans: Int[Array, "b tails 2"],
) -> Float[Array, "b tails"]:
    """The influence of the words at `spans`, float32; meaningless where a span's length is -1.

    Args:
        graph: of the `DualEncoder`, with `state`.
        length: tokens of a packed row.
        room: tokens of a body that the tower reads at most.
        prefix: special tokens before a body.
        end_id: the end token.
        state: the parameters.
        bodies: token ids, uncut.
        counts: tokens of each body.
        spans: each word's first token and its number of tokens.
    """
    model: DualEncoder = nnx.merge(graph, state)
    ids, positions, mask, ends = _packing(length, room, prefix, end_id, bodies, counts, spans)
    tokens = _end_tokens(model.text, ids, positions, mask, ends)
    vectors = embed_features(model, model.text.norm(tokens))
    return jnp.square(vectors[:, 1:] - vectors[:, :1]).sum(-1) / 2


def _packing(
    length: int, room: int, prefix: tuple[int, ...], end_id: int, bodies: Array, counts: Array, spans: Array
) -> tuple[Int[Array, "b t"], Int[Array, "b t"], Bool[Array, "b 1 t t"], Int[Array, "b segments"]]:
    """Ids, positions, who reads whom, and where the end tokens stand: the whole caption's first, then the tails'."""
    first = len(prefix)
    count, starts, lengths = counts[:, None], spans[..., 0], spans[..., 1]
    # Segment 0 is the whole caption: a tail that starts at the first token, of a word without tokens.
    starts = jnp.pad(starts, ((0, 0), (1, 0)))
    lengths = jnp.pad(lengths, ((0, 0), (1, 0)))
    sizes = jnp.where(lengths < 0, 0, jnp.minimum(count - lengths, room) - starts + 1)
    sizes = sizes.at[:, 0].add(first)
    stops = jnp.cumsum(sizes, axis=1)
    place = jnp.arange(length, dtype=jnp.int32)
    segment = (place[None, :, None] >= stops[:, None, :]).sum(-1)
    padding = segment == sizes.shape[1]
    segment = jnp.minimum(segment, sizes.shape[1] - 1)

    def of_segment(values: Array) -> Array:
        return jnp.take_along_axis(values, segment, axis=1)

    within = place[None] - of_segment(stops - sizes)
    # Where the token stands in its own text's body: prefix tokens have negative places.
    own = jnp.where(segment == 0, within - first, within + of_segment(starts))
    source = own + jnp.maximum(of_segment(lengths), 0)
    ids = jnp.take_along_axis(bodies, jnp.clip(source, 0, bodies.shape[1] - 1), axis=1)
    ids = jnp.where(within == of_segment(sizes) - 1, end_id, ids)
    for offset, token in enumerate(prefix):
        ids = jnp.where((segment == 0) & (within == offset), token, ids)
    positions = jnp.where(padding, 0, own + first)

    same = (segment[:, :, None] == segment[:, None, :]) & (place[:, None] >= place[None, :])[None]
    before = (segment == 0)[:, None, :] & (place[None, None, :] < (of_segment(starts) + first)[:, :, None])
    mask = same | before & (segment > 0)[:, :, None]
    return ids, positions, mask[:, None], jnp.maximum(stops - 1, 0)


def _end_tokens(tower: TextTower, ids: Array, positions: Array, mask: Array, ends: Array) -> Float[Array, "b s width"]:
    """What leaves the last block at the end tokens, float32."""
    # Not `tower.embed`: a packed row may be longer than the context, its positions never are.
    x = (tower.words[...][ids] + tower.positions[...][positions]).astype(tower.dtype)
    graph, parameters = nnx.split(tower.blocks.block)

    def step(x: Array, layer: nnx.State) -> tuple[Array, None]:
        return nnx.merge(graph, layer)(x, mask)[0], None

    x, _ = jax.lax.scan(step, x, jax.tree.map(lambda stack: stack[:-1], parameters))
    last = nnx.merge(graph, jax.tree.map(lambda stack: stack[-1], parameters))
    normed = last.norm1(x)
    width, heads = x.shape[-1], last.attention.heads
    at_ends = partial(jnp.take_along_axis, indices=ends[..., None], axis=1)

    def by_head(y: Array) -> Array:
        return y.reshape(*y.shape[:2], heads, -1)

    query = by_head(last.attention.qkv.columns(0, width)(at_ends(normed)))
    key = by_head(last.attention.qkv.columns(width, 2 * width)(normed))
    value = by_head(last.attention.qkv.columns(2 * width, 3 * width)(normed))
    mixed, _ = attend(query, key, value, jnp.take_along_axis(mask, ends[:, None, :, None], axis=2))
    x = at_ends(x)
    x = x + last.attention.out(mixed.reshape(x.shape))
    return (x + last.mlp(last.norm2(x))).astype(jnp.float32)
