"""Embed texts under a causal mask, with every common prefix computed once.

Under a causal mask a token's activations are the same in all texts with the same prefix: in a caption and the caption
without a later word, and in captions that begin alike ("a man riding a ..."). Sorted texts form a tree of tokens,
stored in preorder:

    a man on a bench   ->   a  man  on  a  bench .  |  near a  boat .  |  dog  on  a  bench .
    a man near a boat
    a dog on a bench        (each `|` returns to an ancestor)

A tree has at most half the tokens of its texts, and no padding inside. A token attends to its ancestors: in preorder,
token i is an ancestor of j if i <= j < stop(i), where stop(i) is the end of i's subtree. Attention processes tokens in
runs of `_RUN`; the keys of a run are the run itself and the ancestors of its first token. In the last block, everything
after attention is computed only for the last tokens of texts, since no other token is pooled.

Attention to ancestors alone is the "tree attention" of Miao et al. (SpecInfer, arXiv 2305.09781).
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.encoders import Encoder
from rococo_jax.encoders.programs import one_ahead
from rococo_jax.models import DualEncoder, TextSpec
from rococo_jax.models.attention import attend
from rococo_jax.models.transformer import Block
from rococo_jax.runtime import AXES

_RUN = 32
# Depths of trees. Texts of similar length share a tree, so that short texts do not attend to padding.
_DEPTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# A tree holds up to one text per this many tokens; a text of COCO captions adds about 7 tokens.
_TOKENS_PER_TEXT = 5
_CPU_TOKENS, _ACCELERATOR_TOKENS = 1024, 32768


class Tree(NamedTuple):
    """Texts in one row of tokens, as arrays of static shape.

    Attributes:
        ids, positions: `(n,)` tokens, and their positions in their texts.
        stops: `(n,)` index after a token's last descendant.
        paths: `(runs, depth)` indices of the ancestors of each run's first token, -1 for none.
        ends: `(e,)` indices of the texts' last tokens.
        texts: number of the text of each entry of `ends`; the remaining entries are unused.
    """

    ids: Int[np.ndarray, " n"]
    positions: Int[np.ndarray, " n"]
    stops: Int[np.ndarray, " n"]
    paths: Int[np.ndarray, "runs depth"]
    ends: Int[np.ndarray, " e"]
    texts: list[int]


def can_share_prefix(spec: TextSpec, prefix: Sequence[int], suffix: Sequence[int]) -> bool:
    """Return whether a tower is causal and pools at the single token that ends a text."""
    return spec.attention == "causal" and spec.pooling in ("first_eos", "highest_id") and len(suffix) == 1


class PrefixEncoder:
    """The text tower of an encoder for which `can_share_prefix` holds, placed on its mesh with the current weights."""

    def __init__(self, encoder: Encoder):
        self.encoder, self.mesh = encoder, encoder.mesh
        self.graph, state = nnx.split(encoder.model)
        self.state = jax.device_put(state, NamedSharding(self.mesh, PartitionSpec()))
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        self.tokens = _CPU_TOKENS if on_cpu else _ACCELERATOR_TOKENS

    def encode(self, texts: Sequence[list[int]]) -> Float[np.ndarray, "texts dim"]:
        """Return unit vectors of texts, float32; the last bits depend on the other texts, not on the devices.

        A text is its token ids with special tokens; the end token occurs only at its end.
        """
        output = np.empty((len(texts), self.encoder.spec.text_dim), np.float32)
        trees = build_prefix_trees(texts, self.tokens, self.encoder.tokenizer.spec.context_length)

        def run(batch: list[Tree]):
            inputs = [self._place(np.stack(arrays)) for arrays in zip(*(tree[:-1] for tree in batch), strict=True)]
            return batch, embed_trees(self.graph, self.state, *inputs)

        for batch, vectors in one_ahead(map(run, _batches_of_one_shape(trees, self.mesh.size))):
            for tree, values in zip(batch, np.asarray(vectors), strict=True):
                output[tree.texts] = values[: len(tree.texts)]
        return output

    def _place(self, rows: np.ndarray) -> jax.Array:
        return jax.device_put(rows, NamedSharding(self.mesh, PartitionSpec(AXES)))


def _batches_of_one_shape(trees: Iterable[Tree], count: int) -> Iterator[list[Tree]]:
    """Yield batches of `count` trees of one shape; a short batch repeats its first tree without texts."""
    for _, group in groupby(trees, key=lambda tree: tree.paths.shape):
        while batch := list(islice(group, count)):
            yield [*batch, *[batch[0]._replace(texts=[])] * (count - len(batch))]


def build_prefix_trees(texts: Sequence[Sequence[int]], tokens: int, context: int) -> Iterator[Tree]:
    """Yield trees of `tokens` tokens (a multiple of `_RUN`, at least `context`) that hold all texts, ordered by depth.

    Texts that do not fill a tree of their depth go into the trees of the next depth; only the last tree is not full.
    Texts are at most `context` token ids, with the end token at the end only.
    """
    by_depth: dict[int, list[int]] = {}
    for number, text in enumerate(texts):
        depth = next((step for step in _DEPTHS if len(text) <= step < context), context)
        by_depth.setdefault(depth, []).append(number)
    size = -(-max(tokens, context) // _RUN) * _RUN
    remaining: list[int] = []
    for depth in sorted(by_depth):
        members = sorted([*remaining, *by_depth[depth]], key=lambda number: texts[number])
        *full, last = _trees(texts, members, size, depth)
        yield from full
        remaining = last.texts
    if remaining:
        yield last


def _trees(texts: Sequence[Sequence[int]], members: Sequence[int], size: int, depth: int) -> Iterator[Tree]:
    """Yield trees, each filled until the next text does not fit."""
    first = 0
    while first < len(members):
        tree = _empty(size, depth)
        size_used, path, text = 0, [], ()
        for number in members[first:]:
            previous, text = text, texts[number]
            shared = _common_prefix_length(previous, text)
            new = len(text) - shared
            if size_used + new > size or len(tree.texts) == len(tree.ends):
                break
            tree.stops[path[shared:]] = size_used
            path[shared:] = range(size_used, size_used + new)
            tree.ids[size_used : size_used + new] = text[shared:]
            tree.positions[size_used : size_used + new] = range(shared, len(text))
            for start in range(-(-size_used // _RUN) * _RUN, size_used + new, _RUN):
                ancestors = path[: shared + start - size_used]
                tree.paths[start // _RUN, : len(ancestors)] = ancestors
            size_used += new
            tree.ends[len(tree.texts)] = path[-1]
            tree.texts.append(number)
        tree.stops[path] = size_used
        first += len(tree.texts)
        yield tree


def _empty(size: int, depth: int) -> Tree:
    # Padding attends to itself, so that it cannot produce NaN.
    zeros, stops = np.zeros((2, size), np.int32), np.arange(1, size + 1, dtype=np.int32)
    paths, ends = np.full((size // _RUN, depth), -1, np.int32), np.zeros(size // _TOKENS_PER_TEXT, np.int32)
    return Tree(zeros[0], zeros[1], stops, paths, ends, [])


def _common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two texts."""
    length = min(len(first), len(second))
    return next((k for k in range(length) if first[k] != second[k]), length)


@partial(jax.jit, static_argnums=0)
def embed_trees(
    graph: nnx.GraphDef,
    state: nnx.State,
    ids: Int[Array, "b n"],
    positions: Int[Array, "b n"],
    stops: Int[Array, "b n"],
    paths: Int[Array, "b runs depth"],
    ends: Int[Array, "b e"],
) -> Float[Array, "b e dim"]:
    """Return unit vectors of the texts of a batch of trees, float32.

    Graph and state are those of a `DualEncoder`; the other arguments are stacked fields of `Tree`.
    """
    model: DualEncoder = nnx.merge(graph, state)
    tower = model.text
    # `TextTower.embed` does not fit: a tree is longer than the context, though its positions are not.
    x = (tower.words[...][ids] + tower.positions[...][positions]).astype(tower.dtype)
    mask = _mask(stops, paths)
    blocks, parameters = nnx.split(tower.blocks.block)

    def layer(number: int | Array) -> Block:
        return nnx.merge(blocks, jax.tree.map(lambda stack: stack[number], parameters))

    def step(number: Array, x: Array) -> Array:
        block = layer(number)
        x = x + block.attention.out(_mix(block, x, mask, paths))
        return x + block.mlp(block.norm2(x))

    # A loop over indices: a scan over all layers but the last would copy their parameters.
    last = tower.spec.layers - 1
    x = jax.lax.fori_loop(0, last, step, x)
    x = _last_block(layer(last), x, mask, paths, ends).astype(jnp.float32)
    return model.project_text(tower.norm(x))


def _last_block(block: Block, x: Array, mask: Array, paths: Array, ends: Array) -> Float[Array, "b e width"]:
    at_ends = partial(jnp.take_along_axis, indices=ends[..., None], axis=1)
    mixed = at_ends(_mix(block, x, mask, paths))
    x = at_ends(x) + block.attention.out(mixed)
    return x + block.mlp(block.norm2(x))


def _mask(stops: Int[Array, "b n"], paths: Int[Array, "b runs depth"]) -> Bool[Array, "b_runs 1 run keys"]:
    """Return the attention mask of each run's tokens over the ancestors of its first token, then over the run."""
    batch, runs, depth = paths.shape
    index = jnp.arange(stops.shape[1], dtype=jnp.int32).reshape(1, runs, _RUN, 1)
    run_keys = jnp.broadcast_to(jnp.swapaxes(index, 2, 3), (batch, runs, 1, _RUN))
    keys = jnp.concatenate([paths[:, :, None], run_keys], axis=3)
    stop = jnp.take_along_axis(stops, jnp.maximum(keys, 0).reshape(batch, -1), axis=1).reshape(keys.shape)
    mask = (keys >= 0) & (keys <= index) & (index < stop)
    return mask.reshape(batch * runs, 1, _RUN, depth + _RUN)


def _mix(block: Block, x: Array, mask: Array, paths: Array) -> Float[Array, "b n width"]:
    """Return the attention output of every token before the output projection."""
    batch, runs, depth = paths.shape
    width, heads = x.shape[-1], block.attention.heads
    query, key, value = (each.reshape(x.shape) for each in block.attention.project(block.norm1(x)))
    ancestors = jnp.maximum(paths, 0).reshape(batch, runs * depth, 1)

    def by_run(y: Array, count: int) -> Array:
        return y.reshape(batch * runs, count, heads, width // heads)

    def with_ancestors(y: Array) -> Array:
        return jnp.concatenate([by_run(jnp.take_along_axis(y, ancestors, axis=1), depth), by_run(y, _RUN)], axis=1)

    mixed = attend(by_run(query, _RUN), with_ancestors(key), with_ancestors(value), mask)
    return mixed.reshape(x.shape)
