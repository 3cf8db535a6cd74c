"""Text towers: CLIP, CoCa, SigLIP and BERT, configured by `TextSpec`.

    ids -> [sqrt(width)] tokens + positions [+ types, norm] -> blocks -> [norm] -> pooling

Under a causal mask no token before the end of the text attends to what follows it; under a padding mask none attends to
the padding. So CLIP and BERT give the same vector for any amount of padding. SigLIP attends to its padding and was
trained on one length only, so its tower refuses any other.

CoCa appends a token of its own, which is the text's vector. In the published weights its mask is one place off: key k
is seen where token k - 1 is not padding. So the appended token sees the first token of padding, which stands right
after the text, and itself only where the text fills the context. Both are kept; more padding changes nothing.

A bag of words has no positions, and each of its tokens attends to itself alone: the order of the words changes nothing.

Sources: CLIP (arXiv 2103.00020), SigLIP (2303.15343), BERT (1810.04805), Sentence-BERT's pooling (1908.10084).
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.models.attention import Lengths
from rococo_jax.models.layers import LayerNorm
from rococo_jax.models.spec import TextSpec
from rococo_jax.models.transformer import Blocks

# Of the frequencies of sines and cosines.
_BASE = 10000.0


class TextTower(nnx.Module):
    """A text tower. Parameters: `words (vocabulary, width)`, `positions (context, width)`, `types`, norms, `blocks`."""

    def __init__(self, spec: TextSpec, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.spec, self.dtype = spec, dtype
        normal = jax.nn.initializers.normal(0.02)
        self.words = nnx.Param(normal(rngs.params(), (spec.vocabulary_size, spec.width), jnp.float32))
        appended = spec.pooling == "appended"
        places = spec.context_length + appended
        stored = spec.attention != "bag" and not spec.sine_positions
        self.positions = nnx.Param(normal(rngs.params(), (places, spec.width), jnp.float32)) if stored else None
        types = spec.token_types
        self.types = nnx.Param(normal(rngs.params(), (types, spec.width), jnp.float32)) if types else None
        self.appended = nnx.Param(normal(rngs.params(), (spec.width,), jnp.float32)) if appended else None
        self.blocks = Blocks(spec, dtype=dtype, rngs=rngs)
        # BERT norms the embeddings, the others the output of the last block.
        self.norm = LayerNorm(spec.width, spec.norm_eps)

    def __call__(self, ids: Int[Array, "b t"], mask: Bool[Array, "b t"]) -> Float[Array, "b features"]:
        """Pooled features, float32.

        `ids` have their special tokens in place and are padded at the end with anything; `mask` is True at tokens.
        """
        return self.pool(self.tokens(ids, mask), ids, mask)

    def tokens(self, ids: Int[Array, "b t"], mask: Bool[Array, "b t"]) -> Float[Array, "b tokens width"]:
        """The sequence after the last norm, an appended token after the text's, float32."""
        ids, mask = self._with_padding(ids, mask)
        x = self.embed(ids)
        if self.spec.attention == "bag":  # every token is a sequence of its own
            return self._finish(self.blocks(x.reshape(-1, 1, x.shape[2])).reshape(x.shape))
        return self._finish(self.blocks(x, self.spec.attention == "causal", self._lengths(ids, mask)))

    def embed(self, ids: Int[Array, "b t"]) -> Float[Array, "b tokens width"]:
        """The input of the first block. Raises ValueError for too many tokens, and (SigLIP) for any length
        but its own.
        """
        length, context = ids.shape[1], self.spec.context_length
        if length > context or (self.spec.attention == "full" and length != context):
            raise ValueError(f"{length} tokens for a text tower of {context}")
        x = self.words[...][ids] * (self.spec.width**0.5 if self.spec.scaled_words else 1)
        if self.positions is not None:
            x = x + self.positions[...][None, :length]
        if self.spec.sine_positions:
            x = x + jnp.asarray(sinusoids(0, length, self.spec.width))[None]
        if self.types is not None:
            x = x + self.types[...][0].reshape(1, 1, -1)
        if self.appended is not None:
            last = (self.appended[...] + self.positions[...][context]).reshape(1, 1, -1)
            x = jnp.concatenate([x, jnp.broadcast_to(last, (x.shape[0], 1, x.shape[2]))], axis=1)
        if self.spec.norm_after_blocks:
            x = self.norm(x)
        return x.astype(self.dtype)

    def _with_padding(
        self, ids: Int[Array, "b t"], mask: Bool[Array, "b t"]
    ) -> tuple[Int[Array, "b t2"], Bool[Array, "b t2"]]:
        """For an appended token: padding as it was trained, at least one where the context has room."""
        if self.appended is None:
            return ids, mask
        more = ((0, 0), (0, int(ids.shape[1] < self.spec.context_length)))
        return jnp.pad(jnp.where(mask, ids, self.spec.pad_id), more, constant_values=self.spec.pad_id), jnp.pad(
            mask, more
        )

    def _lengths(self, ids: Int[Array, "b t"], mask: Bool[Array, "b t"]) -> Lengths | None:
        if self.appended is not None:  # by ids, as it was trained: "!" has the id of the padding
            return jnp.pad(ids != self.spec.pad_id, ((0, 0), (1, 0)), constant_values=True)
        return mask.sum(1, dtype=jnp.int32) if self.spec.attention == "masked" else None

    def _finish(self, x: Float[Array, "b tokens width"]) -> Float[Array, "b tokens width"]:
        return x.astype(jnp.float32) if self.spec.norm_after_blocks else self.norm(x)

    def pool(
        self, tokens: Float[Array, "b tokens width"], ids: Int[Array, "b t"], mask: Bool[Array, "b t"]
    ) -> Float[Array, "b features"]:
        """One vector a text, float32."""
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
        else:  # highest_id: the end-of-text id was the last of the vocabulary when CLIP was published.
            end = jnp.argmax(jnp.where(mask, ids, -1), axis=1)
        return jnp.take_along_axis(tokens, end[:, None, None], axis=1)[:, 0]


def sinusoids(first: int, count: int, width: int) -> np.ndarray:
    """Positions (count, width) from number `first` on, float32: sines of all frequencies, then cosines."""
    half = width // 2
    steps = np.exp(np.arange(half, dtype=np.float32) * np.float32(-np.log(_BASE) / (half - 1)))
    angles = np.arange(first, first + count, dtype=np.float32)[:, None] * steps
    return np.concatenate([np.sin(angles), np.cos(angles), np.zeros((count, width % 2), np.float32)], axis=1)
