"""Self-attention, computed by einsums or by a fused kernel (`fused_attention`).

    attention = softmax(Q K^T / sqrt(d) + mask) V                        (Vaswani et al., arXiv 1706.03762)

The einsums store all logits, `(b, h, q, k)`. They are the reference, and are used on CPUs, on TPUs for usual numbers of
tokens, in float32 and wherever the weights are requested.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from rococo_jax.models.fused_attention import FusedAttention, Lengths, fused_attention_on, visible_keys
from rococo_jax.models.layers import LayerNorm, Linear
from rococo_jax.models.positions import Rotary
from rococo_jax.models.products import precision_of

# True where a query may attend to a key; the axes broadcast.
MaskArray = Bool[Array, "#b #h #q k"]


def mask_of(tokens: int, causal: bool, lengths: Lengths | None) -> MaskArray | None:
    """Combine `causal` and `lengths` into one mask; None if every query sees all keys."""
    parts = [jnp.tril(jnp.ones((tokens, tokens), bool))[None, None]] if causal else []
    if lengths is not None:
        parts.append(visible_keys(tokens, lengths)[:, None, None])
    return functools.reduce(jnp.logical_and, parts) if parts else None


def attend(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k h d"],
    value: Float[Array, "b k h d"],
    mask: MaskArray | None,
) -> Float[Array, "b q h d"]:
    """Return the weighted sums of the values. A query without a visible key attends to all keys equally.

    In float32, JAX derives the gradients. In bfloat16 they are written out below, so that only the logits are stored,
    in bfloat16: they are what a device without fused attention reads and writes most.
    """
    if query.dtype == jnp.float32:
        return attend_with_weights(query, key, value, mask)[0]
    return _attend_narrow(query, key, value, mask)


def attend_with_weights(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k h d"],
    value: Float[Array, "b k h d"],
    mask: MaskArray | None,
) -> tuple[Float[Array, "b q h d"], Float[Array, "b h q k"]]:
    """Compute `attend`; return the attention weights (float32), too."""
    weights = jax.nn.softmax(_logits(_products(query, key), query.shape[-1], mask), axis=-1)
    return _mix(weights, value), weights


def _products(query: Float[Array, "b q h d"], key: Float[Array, "b k h d"]) -> Float[Array, "b h q k"]:
    return jnp.einsum("bqhd,bkhd->bhqk", query, key, precision=precision_of(query.dtype))


def _logits(products: Array, size: int, mask: MaskArray | None) -> Float[Array, "b h q k"]:
    """Return scaled and masked products in float32; scaled before, a bfloat16 query would be rounded again."""
    logits = products.astype(jnp.float32) * size**-0.5
    return logits if mask is None else jnp.where(mask, logits, jnp.finfo(jnp.float32).min)


def _mix(weights: Float[Array, "b h q k"], value: Float[Array, "b k h d"]) -> Float[Array, "b q h d"]:
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value, precision=precision_of(value.dtype))


@jax.custom_vjp
def _attend_narrow(query: Array, key: Array, value: Array, mask: MaskArray | None) -> Array:
    """Compute `attend` in bfloat16, with a softmax in float32.

    The backward pass computes the weights P again from the logits and the log of their sum. With the output O = P V and
    its cotangent dO, the cotangent of the logits is

        dS = P * (dO V^T - rowsum(dO * O))

    since rowsum(dO * O) = rowsum(dO V^T * P) (Dao et al., arXiv 2205.14135, appendix B.2): nothing but the products of
    queries and keys, of dO and V, and dS crosses memory, each in bfloat16.
    """
    return _attend_narrow_forward(query, key, value, mask)[0]


def _attend_narrow_forward(
    query: Array, key: Array, value: Array, mask: MaskArray | None
) -> tuple[Array, tuple[Array | None, ...]]:
    products = _products(query, key)
    logits = _logits(products, query.shape[-1], mask)
    largest = logits.max(axis=-1, keepdims=True)
    log_sums = jnp.log(jnp.exp(logits - largest).sum(axis=-1, keepdims=True))
    norm = largest + log_sums
    rest = log_sums - (norm - largest)  # what the sum lost: all of `log_sums` where all keys are hidden
    mixed = _mix(jnp.exp(logits - norm - rest), value)
    return mixed, (query, key, value, mask, products, norm, rest, mixed)


def _attend_narrow_backward(residuals: tuple[Any, ...], cotangent: Array) -> tuple[Array | None, ...]:
    query, key, value, mask, products, norm, rest, mixed = residuals
    size = query.shape[-1]
    weights = jnp.exp(_logits(products, size, mask) - norm - rest)
    to_value = jnp.einsum("bhqk,bqhd->bkhd", weights.astype(value.dtype), cotangent)
    to_weights = jnp.einsum("bqhd,bkhd->bhqk", cotangent, value).astype(jnp.float32)
    sums = (cotangent.astype(jnp.float32) * mixed.astype(jnp.float32)).sum(-1)
    to_logits = weights * (to_weights - jnp.swapaxes(sums, 1, 2)[..., None])
    to_products = (to_logits * size**-0.5).astype(query.dtype)
    to_query = jnp.einsum("bhqk,bkhd->bqhd", to_products, key)
    to_key = jnp.einsum("bhqk,bqhd->bkhd", to_products, query)
    return to_query, to_key, to_value, None


_attend_narrow.defvjp(_attend_narrow_forward, _attend_narrow_backward)


def attend_all(
    query: Float[Array, "b q width"],
    key_value: Float[Array, "b k two_width"],
    heads: int,
    lengths: Lengths | None = None,
) -> tuple[Float[Array, "b q width"], Float[Array, "b h q k"]]:
    """Compute `attend_with_weights` without a causal mask, from keys and values concatenated along the width."""
    batch, tokens, width = query.shape
    head_size = width // heads
    queries = query.reshape(batch, tokens, heads, head_size)
    keys_values = key_value.reshape(batch, key_value.shape[1], 2, heads, head_size)
    mask = mask_of(key_value.shape[1], False, lengths)
    mixed, weights = attend_with_weights(queries, keys_values[:, :, 0], keys_values[:, :, 1], mask)
    return mixed.reshape(query.shape), weights


def use_fused_attention(model: nnx.Module, mesh: Mesh, dtype: DTypeLike) -> None:
    """Let self-attention of `model` use the fused kernel for this dtype of the devices of `mesh`, if there is one."""
    fused = fused_attention_on(mesh, dtype)
    for _, module in nnx.iter_modules(model):
        if isinstance(module, SelfAttention):
            module.fused = fused


class SelfAttention(nnx.Module):
    """Self-attention with one kernel for queries, keys and values, concatenated in this order.

    Attributes:
        rotary: rotates queries and keys; None for none.
        norm: applied to the weighted values before the output map (sub-LN); None for none.
        fused: kernel that computes attention wherever it supports the sequences and no weights are requested.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        bias: bool = True,
        rotary: Rotary | None = None,
        inner_norm_eps: float | None = None,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.heads, self.rotary = heads, rotary
        self.fused: FusedAttention | None = None
        self.norm = None if inner_norm_eps is None else LayerNorm(width, inner_norm_eps)
        self.qkv = Linear(width, 3 * width, bias=bias, dtype=dtype, rngs=rngs)
        self.out = Linear(width, width, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: Float[Array, "b t width"], causal: bool, lengths: Lengths | None, mask: MaskArray | None = None
    ) -> Float[Array, "b t width"]:
        """Compute the new tokens. `mask` is `mask_of(causal, lengths)` if the caller has already built it."""
        query, key, value = self.project(x)
        if fused := self.fused_for(x, lengths):
            mixed = fused(query, key, value, causal, lengths)
        else:
            if mask is None:
                mask = mask_of(x.shape[1], causal, lengths)
            mixed = attend(query, key, value, mask)
        return checkpoint_name(self._finish(mixed.reshape(x.shape)), "out")

    def fused_for(self, x: Float[Array, "b t width"], lengths: Lengths | None) -> FusedAttention | None:
        """Return the kernel that computes the attention of these tokens; None for einsums."""
        _, tokens, width = x.shape
        fused = self.fused
        return fused if fused is not None and fused.supports(tokens, width // self.heads, lengths) else None

    def with_weights(self, x: Float[Array, "b t width"]) -> tuple[Float[Array, "b t width"], Float[Array, "b h t t"]]:
        """Compute the new tokens and the attention weights without a mask."""
        mixed, weights = attend_with_weights(*self.project(x), None)
        return self._finish(mixed.reshape(x.shape)), weights

    def _finish(self, mixed: Float[Array, "b t width"]) -> Float[Array, "b t width"]:
        return self.out(mixed if self.norm is None else self.norm(mixed))

    def project(self, x: Float[Array, "b t width"]) -> list[Float[Array, "b t h d"]]:
        """Compute query, key and value by three products.

        Attention takes whole arrays, so that slices of one product would have to be copied.
        """
        batch, tokens, width = x.shape
        x = x.astype(self.qkv.dtype)  # rounded once for all three
        columns = [slice(start, start + width) for start in (0, width, 2 * width)]
        projections = [checkpoint_name(self.qkv(x, each), "qkv") for each in columns]
        query, key, value = (each.reshape(batch, tokens, self.heads, -1) for each in projections)
        if self.rotary is not None:
            query, key = self.rotary(query), self.rotary(key)
        return [query, key, value]
