"""Text towers: CLIP, SigLIP and BERT, configured by `TextSpec`.

    ids -> tokens + positions [+ types, norm] -> blocks -> [norm] -> pooling

Under a causal mask no token before the end of the text attends to what follows it; under a padding mask none attends to
the padding. So CLIP and BERT give the same vector for any amount of padding. SigLIP attends to its padding and was
trained on one length only, so its tower refuses any other.

Sources: CLIP (arXiv 2103.00020), SigLIP (2303.15343), BERT (1810.04805), Sentence-BERT's pooling (1908.10084).
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.models.attention import AttentionMask
from rococo_jax.models.layers import LayerNorm
from rococo_jax.models.spec import TextSpec
from rococo_jax.models.transformer import Blocks


class TextTower(nnx.Module):
    """A text tower. Parameters: `words (vocabulary, width)`, `positions (context, width)`, `types`, norms, `blocks`."""

    def __init__(self, spec: TextSpec, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.spec, self.dtype = spec, dtype
        normal = jax.nn.initializers.normal(0.02)
        self.words = nnx.Param(normal(rngs.params(), (spec.vocabulary_size, spec.width), jnp.float32))
        self.positions = nnx.Param(normal(rngs.params(), (spec.context_length, spec.width), jnp.float32))
        types = spec.token_types
        self.types = nnx.Param(normal(rngs.params(), (types, spec.width), jnp.float32)) if types else None
        self.blocks = Blocks(spec, dtype=dtype, rngs=rngs)
        # BERT norms the embeddings, the others the output of the last block.
        self.norm = LayerNorm(spec.width, spec.norm_eps)

    def __call__(
        self,
        ids: Int[Array, "b t"],
        mask: Bool[Array, "b t"],
        positions: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b width"]:
        """Pooled features, float32.

        `ids` have their special tokens in place and are padded at the end with anything; `mask` is True at tokens;
        `positions` tell where each token stands in its text, 0, 1, 2... by default.
        """
        return self.pool(self.tokens(ids, mask, positions), ids, mask)

    def tokens(
        self, ids: Int[Array, "b t"], mask: Bool[Array, "b t"], positions: Int[Array, "b t"] | None = None
    ) -> Float[Array, "b t width"]:
        """The sequence after the last norm, float32."""
        return self._finish(self.blocks(self.embed(ids, positions), self._attention_mask(mask)))

    def tokens_and_attention(
        self, ids: Int[Array, "b t"], mask: Bool[Array, "b t"], positions: Int[Array, "b t"] | None = None
    ) -> tuple[Float[Array, "b t width"], Float[Array, "b heads t t"]]:
        """`tokens` and the attention weights of the last block."""
        x, weights = self.blocks.with_last_attention(self.embed(ids, positions), self._attention_mask(mask))
        return self._finish(x), weights

    def embed(self, ids: Int[Array, "b t"], positions: Int[Array, "b t"] | None = None) -> Float[Array, "b t width"]:
        """The input of the first block. Raises ValueError for too many tokens, and (SigLIP) for any length
        but its own.
        """
        length, context = ids.shape[1], self.spec.context_length
        if length > context or (self.spec.pooling == "last" and length != context):
            raise ValueError(f"{length} tokens for a text tower of {context}")
        table = self.positions[...]
        x = self.words[...][ids] + (table[None, :length] if positions is None else table[positions])
        if self.types is not None:
            x = x + self.types[...][0].reshape(1, 1, -1)
        if self.spec.norm_after_blocks:
            x = self.norm(x)
        return x.astype(self.dtype)

    def _attention_mask(self, mask: Bool[Array, "b t"]) -> AttentionMask | None:
        if self.spec.attention == "causal":
            length = mask.shape[1]
            return jnp.tril(jnp.ones((length, length), bool))[None, None]
        return mask[:, None, None, :] if self.spec.attention == "masked" else None

    def _finish(self, x: Float[Array, "b t width"]) -> Float[Array, "b t width"]:
        return x.astype(jnp.float32) if self.spec.norm_after_blocks else self.norm(x)

    def pool(
        self, tokens: Float[Array, "b t width"], ids: Int[Array, "b t"], mask: Bool[Array, "b t"]
    ) -> Float[Array, "b width"]:
        """One vector a text, float32."""
        pooling = self.spec.pooling
        if pooling == "mean":
            weights = mask.astype(jnp.float32)[..., None]
            return (tokens * weights).sum(1) / jnp.maximum(weights.sum(1), 1.0)
        if pooling == "cls":
            return tokens[:, 0]
        if pooling == "last":
            return tokens[:, -1]
        if pooling == "first_eos":
            end = jnp.argmax((ids == self.spec.eos_id) & mask, axis=1)
        else:  # highest_id: the end-of-text id was the last of the vocabulary when CLIP was published.
            end = jnp.argmax(jnp.where(mask, ids, -1), axis=1)
        return jnp.take_along_axis(tokens, end[:, None, None], axis=1)[:, 0]
