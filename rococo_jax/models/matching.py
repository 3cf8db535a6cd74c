"""Image-text matching head of BLIP, which classifies whether a text describes an image (arXiv 2201.12086, section 3.2).

The text tower runs a second time, and in every block its tokens also attend to those of the image:

    x = norm1(x + attention(x, x));   x = norm(x + attention(x, image));   x = norm2(x + mlp(x))
    logits = W x[0] + b               0: no match, 1: a match

The attention to the image, its norm, `W` and `b` are parameters of the head; the others are those of the text tower.
The keys and values of an image are computed once for all texts with which it is scored in one call.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.models.attention import attend_all
from rococo_jax.models.layers import LayerNorm, Linear, Stack
from rococo_jax.models.spec import TextSpec
from rococo_jax.models.text import TextTower
from rococo_jax.models.transformer import Block


class CrossAttention(nnx.Module):
    """Attention of text tokens to the tokens of an image, with a residual connection and a norm after it."""

    def __init__(self, spec: TextSpec, image_width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.heads = spec.heads
        self.query = Linear(spec.width, spec.width, dtype=dtype, rngs=rngs)
        self.key_value = Linear(image_width, 2 * spec.width, dtype=dtype, rngs=rngs)
        self.out = Linear(spec.width, spec.width, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(spec.width, spec.norm_eps)

    def __call__(
        self, x: Float[Array, "images texts_tokens width"], image: Float[Array, "images tokens image_width"]
    ) -> Float[Array, "images texts_tokens width"]:
        """Compute the new tokens, in the dtype of `x`. The tokens of all texts of an image are one set of queries."""
        mixed, _ = attend_all(self.query(x), self.key_value(image), self.heads)
        return self.norm(x + self.out(mixed)).astype(x.dtype)


class MatchingHead(nnx.Module):
    """Matching head: one `CrossAttention` for each block of the text tower, and a classifier."""

    def __init__(self, spec: TextSpec, image_width: int, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        make = functools.partial(CrossAttention, spec, image_width, dtype=dtype)
        self.blocks = Stack(spec.layers, lambda rngs: make(rngs=rngs), rngs=rngs)
        self.head = Linear(spec.width, 2, dtype=jnp.float32, rngs=rngs)

    def __call__(
        self,
        text: TextTower,
        image_tokens: Float[Array, "images tokens image_width"],
        ids: Int[Array, "images texts t"],
        mask: Bool[Array, "images texts t"],
    ) -> Float[Array, "images texts 2"]:
        """Compute the logits of no match and of a match, float32, of each image with its texts.

        Args:
            text: the tower whose blocks are used.
            image_tokens: tokens of the image tower before pooling.
            ids: token ids of the texts of each image, with special tokens, padded at the end with any ids.
            mask: True at tokens, False at padding.
        """
        images, texts, length = ids.shape
        x = text.embed(ids.reshape(-1, length))
        lengths = mask.reshape(-1, length).sum(1, dtype=jnp.int32)
        block_graph, block_parameters = nnx.split(text.blocks.block)
        cross_graph, cross_parameters = nnx.split(self.blocks.block)

        def step(x: Array, layer: tuple[Any, Any]) -> tuple[Array, None]:
            block = text.blocks.block_of(block_graph, layer[0])
            cross_attention = self.blocks.block_of(cross_graph, layer[1])
            return _block(block, cross_attention, x, image_tokens, lengths), None

        x = jax.lax.scan(step, x, (block_parameters, cross_parameters))[0]
        return self.head(x[:, 0].astype(jnp.float32)).reshape(images, texts, 2)


def _block(
    block: Block,
    cross_attention: CrossAttention,
    x: Float[Array, "all_texts t width"],
    image_tokens: Float[Array, "images tokens image_width"],
    lengths: Int[Array, " all_texts"],
) -> Float[Array, "all_texts t width"]:
    """Run a post-norm block of the text tower, with the attention to the image between self-attention and MLP."""
    x = block.norm1(x + block.attention(x, False, lengths)).astype(x.dtype)
    x = cross_attention(x.reshape(len(image_tokens), -1, x.shape[2]), image_tokens).reshape(x.shape)
    return block.norm2(x + block.mlp(x)).astype(x.dtype)
