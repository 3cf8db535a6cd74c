"""Multi-head attention: `softmax(Q K^T / sqrt(d) + mask) V` (Vaswani et al., arXiv 1706.03762), softmax in float32."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from rococo_jax.models.layers import Linear, precision_of

# True where a query may look at a key. The axes broadcast: (1, 1, q, k) for a causal mask, (b, 1, 1, k) for padding.
AttentionMask = Bool[Array, "#b #h #q k"]


def attend(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k h d"],
    value: Float[Array, "b k h d"],
    mask: AttentionMask | None,
) -> tuple[Float[Array, "b q h d"], Float[Array, "b h q k"]]:
    """The mixed values and the attention weights (float32). A query that may look nowhere looks everywhere alike."""
    precision = precision_of(query.dtype)
    scale = jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    logits = jnp.einsum("bqhd,bkhd->bhqk", query * scale, key, precision=precision, preferred_element_type=jnp.float32)
    if mask is not None:
        logits = jnp.where(mask, logits, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(logits, axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value, precision=precision)
    return mixed, weights


class SelfAttention(nnx.Module):
    """Queries, keys and values from one fused product; the kernel holds them side by side in this order."""

    def __init__(self, width: int, heads: int, *, bias: bool = True, dtype: DTypeLike, rngs: nnx.Rngs):
        self.heads = heads
        self.qkv = Linear(width, 3 * width, bias=bias, dtype=dtype, rngs=rngs)
        self.out = Linear(width, width, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: Float[Array, "b t width"], mask: AttentionMask | None
    ) -> tuple[Float[Array, "b t width"], Float[Array, "b h t t"]]:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        mixed, weights = attend(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], mask)
        return self.out(mixed.reshape(batch, tokens, width)), weights
