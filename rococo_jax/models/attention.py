"""Self-attention, with two implementations.

    attention = softmax(Q K^T / sqrt(d) + mask) V                        (Vaswani et al., arXiv 1706.03762)

The einsum stores all logits, `(b, h, q, k)`. It is the reference, and is used on CPUs and TPUs, in float32
and wherever the weights are requested. On GPUs, towers in bfloat16 use cuDNN's fused attention, which never stores the
weights (Dao et al., arXiv 2205.14135).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.models.layers import LayerNorm, Linear
from rococo_jax.models.positions import Rotary
from rococo_jax.models.products import precision_of

# True where a query may attend to a key; the axes broadcast.
MaskArray = Bool[Array, "#b #h #q k"]
# Number of visible keys of each sequence, counted from the first. Texts of CoCa have a mask of the keys instead: it
# hides every token with the id of the padding, even in the middle of a text.
Lengths = Int[Array, " b"] | Bool[Array, "b k"]
# Platform names of GPUs in JAX; that of a device description (ahead-of-time compilation) is "cuda".
GPUS = ("gpu", "cuda")
# Largest head size that cuDNN supports on all GPUs (256 from the H100 on).
_LARGEST_HEAD = 128
# Lowest compute capability for cuDNN's fused attention; a T4 has 7.5.
_AMPERE = 8.0


def mask_of(tokens: int, causal: bool, lengths: Lengths | None) -> MaskArray | None:
    """Combine `causal` and `lengths` into one mask; None if every query sees all keys."""
    parts = [jnp.tril(jnp.ones((tokens, tokens), bool))[None, None]] if causal else []
    if lengths is not None:
        keys = lengths if lengths.ndim == 2 else jnp.arange(tokens)[None] < lengths[:, None]
        parts.append(keys[:, None, None])
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


def cudnn_supports(tokens: int, head_size: int, lengths: Lengths | None) -> bool:
    """Return whether cuDNN's fused attention can be used for these sequences.

    A mask of keys is not supported: it would become a bias of shape (b, h, q, k), and JAX 0.10 computes the gradient of
    a bias.
    """
    has_key_mask = lengths is not None and lengths.ndim == 2
    return not has_key_mask and tokens > 1 and head_size % 8 == 0 and head_size <= _LARGEST_HEAD


def cudnn_padding(tokens: int) -> int:
    """Return how many tokens to append: 1 if the number is odd (197, 257, 577, 77), else 0.

    The backward pass needs an even number. cuDNN requires this only with a bias, but the check in JAX 0.10 applies to
    every call.
    """
    return tokens % 2


def cudnn_attention(
    query: Float[Array, "b t h d"],
    key: Float[Array, "b t h d"],
    value: Float[Array, "b t h d"],
    causal: bool = False,
    lengths: Int[Array, " b"] | None = None,
) -> Float[Array, "b t h d"]:
    """Compute attention by cuDNN, in the dtype of `query`. Rows without a visible key are undefined."""
    if lengths is not None:
        lengths = jnp.maximum(lengths, 1)  # a missing text has length 0
    return jax.nn.dot_product_attention(
        query, key, value, is_causal=causal, key_value_seq_lengths=lengths, implementation="cudnn"
    )


def is_ampere_or_later(device: Any) -> bool:
    """Return whether a device is an NVIDIA GPU that multiplies bfloat16.

    Device descriptions (ahead-of-time compilation) do not state their capability and are taken for one.
    """
    # AMD's GPUs are "gpu" as well; their capability is a name ("gfx90a").
    capability = str(getattr(device, "compute_capability", _AMPERE))
    return device.platform in GPUS and capability[:1].isdigit() and float(capability) >= _AMPERE


def has_cudnn_attention(mesh: Mesh, dtype: DTypeLike) -> bool:
    """Return whether towers of this dtype use cuDNN's fused attention on the devices of `mesh`."""
    return jnp.dtype(dtype) == jnp.bfloat16 and is_ampere_or_later(mesh.devices.flat[0])


def use_fused_attention(model: nnx.Module, mesh: Mesh, dtype: DTypeLike) -> None:
    """Let all self-attention of `model` use cuDNN if the devices of `mesh` and the dtype allow it."""
    use_cudnn = has_cudnn_attention(mesh, dtype)
    for _, module in nnx.iter_modules(model):
        if isinstance(module, SelfAttention):
            module.use_cudnn = use_cudnn


class SelfAttention(nnx.Module):
    """Self-attention with one kernel for queries, keys and values, concatenated in this order.

    Attributes:
        rotary: rotates queries and keys; None for none.
        norm: applied to the weighted values before the output map (sub-LN); None for none.
        use_cudnn: computes by cuDNN wherever it supports the sequences and no weights are requested.
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
        self.use_cudnn = False
        self.norm = None if inner_norm_eps is None else LayerNorm(width, inner_norm_eps)
        self.qkv = Linear(width, 3 * width, bias=bias, dtype=dtype, rngs=rngs)
        self.out = Linear(width, width, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: Float[Array, "b t width"], causal: bool, lengths: Lengths | None, mask: MaskArray | None = None
    ) -> Float[Array, "b t width"]:
        """Compute the new tokens. `mask` is `mask_of(causal, lengths)` if the caller has already built it."""
        query, key, value = self._project(x)
        if self.uses_cudnn(x, lengths):
            mixed = cudnn_attention(query, key, value, causal, lengths)
        else:
            if mask is None:
                mask = mask_of(x.shape[1], causal, lengths)
            mixed = attend(query, key, value, mask)
        return checkpoint_name(self._finish(mixed.reshape(x.shape)), "out")

    def uses_cudnn(self, x: Float[Array, "b t width"], lengths: Lengths | None) -> bool:
        """Return whether cuDNN computes the attention of these tokens."""
        _, tokens, width = x.shape
        return self.use_cudnn and cudnn_supports(tokens, width // self.heads, lengths)

    def with_weights(self, x: Float[Array, "b t width"]) -> tuple[Float[Array, "b t width"], Float[Array, "b h t t"]]:
        """Compute the new tokens and the attention weights without a mask."""
        mixed, weights = attend_with_weights(*self._project(x), None)
        return self._finish(mixed.reshape(x.shape)), weights

    def _finish(self, mixed: Float[Array, "b t width"]) -> Float[Array, "b t width"]:
        return self.out(mixed if self.norm is None else self.norm(mixed))

    def _project(self, x: Float[Array, "b t width"]) -> list[Float[Array, "b t h d"]]:
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
