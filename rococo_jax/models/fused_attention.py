"""Kernels that compute attention without storing its logits (Dao et al., arXiv 2205.14135), in bfloat16.

    GPUs    cuDNN, from Ampere on
    TPUs    JAX's splash attention, from 1,024 tokens on. With fewer, a compiled program moves as many bytes as with
            einsums: the kernel takes copies that are padded to blocks, and stores sums in 128 lanes.

docs/research/compiled.md has the numbers.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

# Number of visible keys of each sequence, counted from the first. Texts of CoCa have a mask of the keys instead: it
# hides every token with the id of the padding, even in the middle of a text.
Lengths = Int[Array, " b"] | Bool[Array, "b k"]
# Platform names of GPUs in JAX; that of a device description (ahead-of-time compilation) is "cuda".
GPUS = ("gpu", "cuda")
# Largest head size that cuDNN supports on all GPUs (256 from the H100 on).
_LARGEST_HEAD = 128
# Lowest compute capability for cuDNN's fused attention; a T4 has 7.5.
_AMPERE = 8.0
# Tokens in a block of splash attention; the first that divides the tokens is taken.
_BLOCKS = (512, 384, 256, 128)


def visible_keys(tokens: int, lengths: Lengths) -> Bool[Array, "b k"]:
    """Return the mask of the keys, True where they are visible."""
    return lengths if lengths.ndim == 2 else jnp.arange(tokens)[None] < lengths[:, None]


@dataclasses.dataclass(frozen=True)
class CudnnAttention:
    """cuDNN's attention."""

    def supports(self, tokens: int, head_size: int, lengths: Lengths | None) -> bool:
        """Return whether cuDNN can be used for these sequences.

        A mask of keys is not supported: it would become a bias of shape (b, h, q, k), and JAX 0.10 computes the
        gradient of a bias.
        """
        has_key_mask = lengths is not None and lengths.ndim == 2
        return not has_key_mask and tokens > 1 and head_size % 8 == 0 and head_size <= _LARGEST_HEAD

    def padding(self, tokens: int) -> int:
        """Return how many tokens to append, once for all blocks of a tower: 1 if their number is odd (197, 77), else 0.

        The backward pass needs an even number. cuDNN requires this only with a bias, but the check in JAX 0.10 applies
        to every call.
        """
        return tokens % 2

    def __call__(
        self,
        query: Float[Array, "b t h d"],
        key: Float[Array, "b t h d"],
        value: Float[Array, "b t h d"],
        causal: bool = False,
        lengths: Lengths | None = None,
    ) -> Float[Array, "b t h d"]:
        """Return the weighted sums of the values, in the dtype of `query`."""
        if lengths is not None:
            lengths = jnp.maximum(lengths, 1)  # a missing text has length 0
        return jax.nn.dot_product_attention(
            query, key, value, is_causal=causal, key_value_seq_lengths=lengths, implementation="cudnn"
        )


@dataclasses.dataclass(frozen=True)
class SplashAttention:
    """JAX's splash attention for TPUs.

    Attributes:
        least_tokens: shorter sequences are left to einsums.
        interpret: run the kernel without a TPU, slowly.
    """

    least_tokens: int = 1024
    interpret: bool = False

    def supports(self, tokens: int, head_size: int, lengths: Lengths | None) -> bool:
        """Return whether the sequences are long enough."""
        return tokens >= self.least_tokens

    def padding(self, tokens: int) -> int:
        """Return 0: only queries, keys and values are padded."""
        return 0

    def __call__(
        self,
        query: Float[Array, "b t h d"],
        key: Float[Array, "b t h d"],
        value: Float[Array, "b t h d"],
        causal: bool = False,
        lengths: Lengths | None = None,
    ) -> Float[Array, "b t h d"]:
        """Return the weighted sums of the values, in the dtype of `query`."""
        # Imported where it is used: Pallas takes most of a second.
        from jax.experimental.pallas.ops.tpu import splash_attention

        batch, tokens, heads, size = query.shape
        length = tokens + -tokens % _BLOCKS[-1]
        block = next(each for each in _BLOCKS if length % each == 0)
        sizes = splash_attention.BlockSizes(
            block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, use_fused_bwd_kernel=True
        )
        kind = splash_attention.CausalMask if causal else splash_attention.FullMask
        mask = splash_attention.MultiHeadMask([kind((length, length))] * heads)
        kernel = splash_attention.make_splash_mha_single_device(mask, block_sizes=sizes, interpret=self.interpret)

        def pad(x: Array) -> Float[Array, "b h t d"]:
            return jnp.pad(jnp.swapaxes(x, 1, 2), ((0, 0), (0, 0), (0, length - tokens), (0, 0)))

        visible = visible_keys(tokens, jnp.full(batch, tokens) if lengths is None else lengths)
        # A query attends to the keys of its segment.
        keys = jnp.pad(visible, ((0, 0), (0, length - tokens))).astype(jnp.int32)
        segments = splash_attention.SegmentIds(jnp.ones_like(keys), keys)
        operands = (pad(query * jnp.asarray(size**-0.5, query.dtype)), pad(key), pad(value))
        mixed = jax.vmap(lambda q, k, v, ids: kernel(q, k, v, segment_ids=ids))(*operands, segments)
        return jnp.swapaxes(mixed, 1, 2)[:, :tokens].astype(query.dtype)


# Rows without a visible key are undefined.
FusedAttention = CudnnAttention | SplashAttention


def is_ampere_or_later(device: Any) -> bool:
    """Return whether a device is an NVIDIA GPU that multiplies bfloat16.

    Device descriptions (ahead-of-time compilation) do not state their capability and are taken for one.
    """
    # AMD's GPUs are "gpu" as well; their capability is a name ("gfx90a").
    capability = str(getattr(device, "compute_capability", _AMPERE))
    return device.platform in GPUS and capability[:1].isdigit() and float(capability) >= _AMPERE


def fused_attention_on(mesh: Mesh, dtype: DTypeLike) -> FusedAttention | None:
    """Return the kernel of towers of this dtype on the devices of `mesh`; None for none."""
    device = mesh.devices.flat[0]
    if jnp.dtype(dtype) != jnp.bfloat16:
        return None
    if is_ampere_or_later(device):
        return CudnnAttention()
    return SplashAttention() if device.platform == "tpu" else None
