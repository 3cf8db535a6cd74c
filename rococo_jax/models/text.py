"""Text towers of CLIP, CoCa, SigLIP and BERT, configured by `TextSpec`.

    ids -> [sqrt(width)] tokens + positions [+ types, norm] -> blocks -> [norm] -> pooling

With a causal mask, tokens up to the end of the text do not attend to the padding; with a padding mask, no token does.
So the embeddings of CLIP and BERT do not depend on the amount of padding. SigLIP attends to its padding and was trained
with one length only, so its tower refuses any other length.

CoCa appends a token, whose output is the embedding of the text. In the published weights its mask is shifted by one:
key k is visible if token k - 1 is not padding. So the appended token attends to the first token of padding, which
follows the text, and to itself only if the text fills the context. This is reproduced; more padding changes nothing.

A bag of words has no positions, and each of its tokens attends only to itself: the order of words has no effect.

Sources: CLIP (arXiv 2103.00020), SigLIP (2303.15343), BERT (1810.04805), Sentence-BERT's pooling (1908.10084).
"""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.models.fused_attention import Lengths
from rococo_jax.models.layers import LayerNorm, draw_normal
from rococo_jax.models.spec import TextSpec
from rococo_jax.models.transformer import Blocks

# Base of the frequencies of sine positions.
_BASE = 10000.0


class TextTower(nnx.Module):
    """Text transformer.

    Parameters: `words (vocabulary, width)`, `positions (context, width)`, `types`, `appended`, norms, `blocks`.
    """

    def __init__(self, spec: TextSpec, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.spec, self.dtype = spec, dtype
        appends_token = spec.pooling == "appended"
        stores_positions = spec.attention != "bag" and not spec.sine_positions

        def parameter(*shape: int) -> nnx.Param:
            return nnx.Param(draw_normal(rngs.params(), shape, 0.02))

        self.words = parameter(spec.vocabulary_size, spec.width)
        self.positions = parameter(spec.context_length + appends_token, spec.width) if stores_positions else None
        self.types = parameter(spec.token_types, spec.width) if spec.token_types else None
        self.appended = parameter(spec.width) if appends_token else None
        self.blocks = Blocks(spec, dtype=dtype, rngs=rngs)
        # BERT normalises the input of the first block, the others the output of the last block.
        self.norm = LayerNorm(spec.width, spec.norm_eps)

    def __call__(self, ids: Int[Array, "b t"], mask: Bool[Array, "b t"]) -> Float[Array, "b features"]:
        """Compute pooled features, float32.

        `ids` contain the special tokens and are padded at the end with any ids; `mask` is True at tokens.
        """
        return self.pool(self.tokens(ids, mask), ids, mask)

    def tokens(self, ids: Int[Array, "b t"], mask: Bool[Array, "b t"]) -> Float[Array, "b tokens width"]:
        """Compute the tokens after the last norm, float32; an appended token is the last one."""
        ids, mask = self._with_padding(ids, mask)
        x = self.embed(ids)
        if self.spec.attention == "bag":
            one_token_sequences = x.reshape(-1, 1, x.shape[2])
            return self._finish(self.blocks(one_token_sequences).reshape(x.shape))
        is_causal = self.spec.attention == "causal"
        return self._finish(self.blocks(x, is_causal, self._lengths(ids, mask)))

    def embed(self, ids: Int[Array, "b t"]) -> Float[Array, "b tokens width"]:
        """Compute the input of the first block.

        Raises ValueError: the text has too many tokens, or (SigLIP) another length than the tower's.
        """
        length, context = ids.shape[1], self.spec.context_length
        if length > context or (self.spec.attention == "full" and length != context):
            raise ValueError(f"{length} tokens for a text tower of {context}")
        x = self.words[...][ids] * (self.spec.width**0.5 if self.spec.scaled_words else 1)
        if self.positions is not None:
            x = x + self.positions[...][None, :length]
        if self.spec.sine_positions:
            x = x + jnp.asarray(sinusoids(length, self.spec.width))[None]
        if self.types is not None:
            x = x + self.types[...][0].reshape(1, 1, -1)
        if self.appended is not None:
            appended = (self.appended[...] + self.positions[...][context]).reshape(1, 1, -1)
            x = jnp.concatenate([x, jnp.broadcast_to(appended, (x.shape[0], 1, x.shape[2]))], axis=1)
        if self.spec.norm_after_blocks:
            x = self.norm(x)
        return x.astype(self.dtype)

    def _with_padding(
        self, ids: Int[Array, "b t"], mask: Bool[Array, "b t"]
    ) -> tuple[Int[Array, "b t2"], Bool[Array, "b t2"]]:
        """Pad texts for an appended token as in its training: with `pad_id`, at least once if the context allows it."""
        if self.appended is None:
            return ids, mask
        has_room = ids.shape[1] < self.spec.context_length
        padding = ((0, 0), (0, int(has_room)))
        padded_ids = jnp.pad(jnp.where(mask, ids, self.spec.pad_id), padding, constant_values=self.spec.pad_id)
        return padded_ids, jnp.pad(mask, padding)

    def _lengths(self, ids: Int[Array, "b t"], mask: Bool[Array, "b t"]) -> Lengths | None:
        if self.appended is not None:
            # The mask depends on the ids, as in the training of the published weights: "!" has the id of the padding.
            return jnp.pad(ids != self.spec.pad_id, ((0, 0), (1, 0)), constant_values=True)
        return mask.sum(1, dtype=jnp.int32) if self.spec.attention == "masked" else None

    def _finish(self, x: Float[Array, "b tokens width"]) -> Float[Array, "b tokens width"]:
        return x.astype(jnp.float32) if self.spec.norm_after_blocks else self.norm(x)

    def pool(
        self, tokens: Float[Array, "b tokens width"], ids: Int[Array, "b t"], mask: Bool[Array, "b t"]
    ) -> Float[Array, "b features"]:
        """Pool the tokens into one vector per text, float32."""
        pooling = self.spec.pooling
        if pooling == "mean":
            weights = mask.astype(jnp.float32)[..., None]
            return (tokens * weights).sum(1) / jnp.maximum(weights.sum(1), 1.0)
        if pooling == "cls":
            return tokens[:, 0]
        if pooling in ("last", "appended"):
            return tokens[:, -1]
        if pooling == "first_eos":
            end = jnp.argmax((ids == self.spec.eos_id) & mask, axis=1)
        else:  # highest_id: when CLIP was published, the end-of-text id was the last of the vocabulary
            end = jnp.argmax(jnp.where(mask, ids, -1), axis=1)
        return jnp.take_along_axis(tokens, end[:, None, None], axis=1)[:, 0]


def sinusoids(count: int, width: int) -> np.ndarray:
    """Compute `count` sine positions, float32: sines of all frequencies, then cosines."""
    half = width // 2
    steps = np.exp(np.arange(half, dtype=np.float32) * np.float32(-np.log(_BASE) / (half - 1)))
    angles = np.arange(count, dtype=np.float32)[:, None] * steps
    return np.concatenate([np.sin(angles), np.cos(angles), np.zeros((count, width % 2), np.float32)], axis=1)
