"""Attention, and which implementation computes it.

    attention = softmax(Q K^T / sqrt(d) + mask) V                        (Vaswani et al., arXiv 1706.03762)

The einsum holds all weights, `(b, h, q, k)` in float32; it is the reference, and used on CPUs, in float32 and where the
weights are asked for. `fused_attention` chooses one that never holds them (Dao et al., arXiv 2205.14135), for towers in
bfloat16: cuDNN's on GPUs, the Pallas kernel of JAX (`splash_attention`) on TPUs.
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.models.layers import LayerNorm, Linear
from rococo_jax.models.positions import Rotary
from rococo_jax.models.products import precision_of

# True where a query may attend to a key; the axes broadcast.
MaskArray = Bool[Array, "#b #h #q k"]
# How many first keys of each sequence the queries see. Or which, for CoCa's texts alone: their mask goes by ids, and a
# token in the middle that has the id of the padding is hidden as well.
Lengths = Int[Array, " b"] | Bool[Array, "b k"]
# What JAX calls the platform of NVIDIA's and AMD's; a described one is "cuda".
GPUS = ("gpu", "cuda")
# Tokens from which the kernel is used on TPUs. Shorter weights stay on the chip between XLA's two products, and the
# kernel's padding (lengths to multiples of 128, heads to 128) costs more than it saves.
_SHORTEST_FOR_SPLASH = 512
_LANES = 128
# Channels of a head on every GPU that it runs on (256 from the H100 on).
_LARGEST_FOR_CUDNN = 128
# The compute capability from which cuDNN's runs; a T4 has 7.5.
_AMPERE = 8.0


def mask_of(tokens: int, causal: bool, lengths: Lengths | None) -> MaskArray | None:
    """What `causal` and `lengths` say, as one array; None where every query sees all keys."""
    parts = [jnp.tril(jnp.ones((tokens, tokens), bool))[None, None]] if causal else []
    if lengths is not None:
        keys = lengths if lengths.ndim == 2 else jnp.arange(tokens)[None] < lengths[:, None]
        parts.append(keys[:, None, None])
    return functools.reduce(jnp.logical_and, parts) if parts else None


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _product(left: Array, right: Array, subscripts: str, to_left: str, to_right: str) -> Float[Array, "b h q k"]:
    """A product in float32 of operands in a narrower dtype, whose gradient is a product in that dtype too.

    The transpose that JAX derives would multiply the float32 cotangent by the narrow operands in float32.
    """
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _product_forward(left, right, subscripts, to_left, to_right):
    return _product(left, right, subscripts, to_left, to_right), (left, right)


def _product_backward(subscripts, to_left, to_right, operands, cotangent):
    left, right = operands
    cotangent = cotangent.astype(left.dtype)
    return jnp.einsum(to_left, cotangent, right), jnp.einsum(to_right, cotangent, left)


_product.defvjp(_product_forward, _product_backward)


def attend(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k h d"],
    value: Float[Array, "b k h d"],
    mask: MaskArray | None,
) -> tuple[Float[Array, "b q h d"], Float[Array, "b h q k"]]:
    """The mixed values and the attention weights (float32). A query with no visible key attends to all keys equally."""
    precision = precision_of(query.dtype)
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    if query.dtype == jnp.float32:
        logits = jnp.einsum("bqhd,bkhd->bhqk", query, key, precision=precision, preferred_element_type=jnp.float32)
    else:
        logits = _product(query, key, "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bhqk,bqhd->bkhd")
    if mask is not None:
        logits = jnp.where(mask, logits, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(logits, axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value, precision=precision)
    return mixed, weights


def attend_all(
    query: Float[Array, "b q width"],
    key_value: Float[Array, "b k two_width"],
    heads: int,
    lengths: Lengths | None = None,
) -> tuple[Float[Array, "b q width"], Float[Array, "b h q k"]]:
    """As `attend`, of queries that see all keys, or those that `lengths` shows; keys and values are side by side."""
    queries, keys = (x.reshape(*x.shape[:2], -1, heads, query.shape[2] // heads) for x in (query, key_value))
    mask = mask_of(keys.shape[1], False, lengths)
    mixed, weights = attend(queries[:, :, 0], keys[:, :, 0], keys[:, :, 1], mask)
    return mixed.reshape(query.shape), weights


@dataclasses.dataclass(frozen=True)
class FusedAttention:
    """Attention that never holds its weights, on the devices of a mesh whose axes all share the batch.

    Attributes:
        kind: `cudnn` or `splash`.
        mesh: the mesh that the batch is sharded over.
        interpret: runs the Pallas kernel without a TPU, to test it.
    """

    kind: Literal["cudnn", "splash"]
    mesh: Mesh
    interpret: bool = False

    def takes(self, tokens: int, size: int, causal: bool, lengths: Lengths | None) -> bool:
        """Whether it is used for sequences of this many tokens, with heads of so many channels.

        Which keys are seen would be a bias of cuDNN's, an array of (b, h, q, k) whose gradient JAX (0.10) computes.
        """
        if self.kind == "cudnn":
            counted = lengths is None or lengths.ndim == 1
            return counted and tokens > 1 and size % 8 == 0 and size <= _LARGEST_FOR_CUDNN
        return not causal and lengths is None and tokens >= _SHORTEST_FOR_SPLASH

    def padding(self, tokens: int) -> int:
        """Tokens to add to so many: cuDNN's takes an even number (not 197, 257, 577 or 77) in a backward pass.

        JAX's check (0.10) holds every call there for one with a bias, for which cuDNN wants that.
        """
        return tokens % 2 if self.kind == "cudnn" else 0

    def __call__(
        self,
        query: Float[Array, "b t h d"],
        key: Float[Array, "b t h d"],
        value: Float[Array, "b t h d"],
        causal: bool = False,
        lengths: Lengths | None = None,
    ) -> Float[Array, "b t h d"]:
        """The mixed values, in the dtype of `query`. Rows without a visible key are undefined."""
        if self.kind == "cudnn":
            if lengths is not None:  # a text that is not there has none
                lengths = jnp.maximum(lengths, 1)
            return jax.nn.dot_product_attention(
                query, key, value, is_causal=causal, key_value_seq_lengths=lengths, implementation="cudnn"
            )
        rows = PartitionSpec(self.mesh.axis_names)
        splash = functools.partial(_splash, interpret=self.interpret)
        # XLA cannot split a Pallas kernel: each device runs its own rows, which inside `shard_map` it has.
        if jax.sharding.get_abstract_mesh().manual_axes:
            return splash(query, key, value)
        return jax.shard_map(splash, mesh=self.mesh, in_specs=rows, out_specs=rows, check_vma=False)(query, key, value)


def fused_attention(mesh: Mesh, dtype: DTypeLike) -> FusedAttention | None:
    """The implementation of attention on the devices of `mesh` in `dtype`; None for the einsum."""
    device = mesh.devices.flat[0]
    kind = {**dict.fromkeys(GPUS, "cudnn"), "tpu": "splash"}.get(device.platform)
    if kind is None or jnp.dtype(dtype) != jnp.bfloat16:
        return None
    if kind == "cudnn" and not is_ampere_or_later(device):
        return None
    return FusedAttention(kind, mesh)


def is_ampere_or_later(device: Any) -> bool:
    """Whether it is one of NVIDIA's GPUs that multiply bfloat16; a described one, which does not say, is."""
    # AMD's GPUs are "gpu" as well; their capability is a name ("gfx90a").
    capability = str(getattr(device, "compute_capability", _AMPERE))
    return device.platform in GPUS and capability[:1].isdigit() and float(capability) >= _AMPERE


def use_fused_attention(model: nnx.Module, mesh: Mesh, dtype: DTypeLike) -> None:
    """Makes all self-attention of `model` use what `fused_attention` chooses."""
    fused = fused_attention(mesh, dtype)
    for _, module in nnx.iter_modules(model):
        if isinstance(module, SelfAttention):
            module.fused = fused


def _splash(query: Array, key: Array, value: Array, *, interpret: bool) -> Array:
    """Pads tokens and heads to what the kernel takes; padded keys are a segment of their own, which no query sees."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    tokens, heads, size = query.shape[1:]
    padded = tokens + -tokens % _LANES
    blocks = padded // _LANES
    block = _LANES * max(divisor for divisor in range(1, 7) if blocks % divisor == 0)
    names = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
    mask = splash_attention_mask.MultiHeadMask([splash_attention_mask.FullMask((padded, padded))] * heads)
    kernel = splash_attention_kernel.make_splash_mha_single_device(
        mask, block_sizes=splash_attention_kernel.BlockSizes(**dict.fromkeys(names, block)), interpret=interpret
    )
    segment = jnp.asarray(np.arange(padded) >= tokens, jnp.int32)
    segments = splash_attention_kernel.SegmentIds(segment, segment)

    def by_head(array: Array) -> Float[Array, "b h t d"]:
        array = jnp.pad(array, ((0, 0), (0, padded - tokens), (0, 0), (0, -size % _LANES)))
        return array.transpose(0, 2, 1, 3)

    scaled = query * jnp.asarray(size**-0.5, query.dtype)
    mixed = jax.vmap(kernel, (0, 0, 0, None))(by_head(scaled), by_head(key), by_head(value), segments)
    return mixed.transpose(0, 2, 1, 3)[:, :tokens, :, :size]


class SelfAttention(nnx.Module):
    """Queries, keys and values from one fused product; the kernel holds them side by side in this order.

    `rotary` turns queries and keys; with `inner_norm_eps` the mixed values are normed before the last map.
    `fused` (None): what computes it where the weights are not asked for; None for the einsum.
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
        """The new tokens. `mask` is `mask_of` of the two, where it was made once for all blocks."""
        if self.uses_fused(x, causal, lengths):
            mixed = self.fused(*self._project(x, together=self.fused.kind != "cudnn"), causal, lengths)
        else:
            mixed, _ = attend(*self._project(x), mask_of(x.shape[1], causal, lengths) if mask is None else mask)
        return checkpoint_name(self._finish(mixed.reshape(x.shape)), "out")

    def uses_fused(self, x: Float[Array, "b t width"], causal: bool, lengths: Lengths | None) -> bool:
        """Whether `fused` computes it."""
        return self.fused is not None and self.fused.takes(x.shape[1], x.shape[2] // self.heads, causal, lengths)

    def with_weights(self, x: Float[Array, "b t width"]) -> tuple[Float[Array, "b t width"], Float[Array, "b h t t"]]:
        """The new tokens and the attention weights, where every token sees all."""
        mixed, weights = attend(*self._project(x), None)
        return self._finish(mixed.reshape(x.shape)), weights

    def _finish(self, mixed: Float[Array, "b t width"]) -> Float[Array, "b t width"]:
        return self.out(mixed if self.norm is None else self.norm(mixed))

    def _project(self, x: Float[Array, "b t width"], *, together: bool = True) -> list[Float[Array, "b t h d"]]:
        """By one product, or by three: a kernel that XLA does not fuse into takes whole arrays, not parts of one."""
        batch, tokens, width = x.shape
        if together:
            qkv = checkpoint_name(self.qkv(x), "qkv").reshape(batch, tokens, 3, self.heads, width // self.heads)
            query, key, value = (qkv[:, :, part] for part in range(3))
        else:
            x = x.astype(self.qkv.dtype)  # rounded once for all three
            columns = (slice(start, start + width) for start in (0, width, 2 * width))
            parts = (checkpoint_name(self.qkv(x, each), "qkv") for each in columns)
            query, key, value = (part.reshape(batch, tokens, self.heads, -1) for part in parts)
        return [query, key, value] if self.rotary is None else [self.rotary(query), self.rotary(key), value]
