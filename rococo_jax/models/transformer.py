"""Transformer blocks, and the stack of blocks of a tower."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.attention import MaskArray, SelfAttention, mask_of
from rococo_jax.models.fused_attention import Lengths
from rococo_jax.models.layers import ACTIVATIONS, LayerNorm, Linear, Stack
from rococo_jax.models.positions import Rotary
from rococo_jax.models.products import multiply_rows
from rococo_jax.models.spec import TextSpec, VisionSpec


class Mlp(nnx.Module):
    """Two linear maps with an activation f between them, `f(x A) C`, or gated, `(f(x A) * x B) C`.

    A gated MLP concatenates A and B in the kernel `up`. With `norm_eps` the hidden channels are normalised before
    `down`; with `input_norm_eps` the input is normalised.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: str,
        *,
        gated: bool = False,
        norm_eps: float | None = None,
        input_norm_eps: float | None = None,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.activation, self.gated = activation, gated
        self.norm = None if norm_eps is None else LayerNorm(hidden, norm_eps)
        self.input_norm = None if input_norm_eps is None else LayerNorm(width, input_norm_eps)
        self.up = Linear(width, 2 * hidden if gated else hidden, dtype=dtype, rngs=rngs)
        self.down = Linear(hidden, width, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        activation = ACTIVATIONS[self.activation]
        if self.input_norm is not None:
            x = self.input_norm(x)
        hidden = checkpoint_name(self.up(x), "up")
        if self.gated:
            gate, value = jnp.split(hidden, 2, axis=-1)
            hidden = activation(gate) * value
        else:
            hidden = activation(hidden)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return self.down(hidden)


class Block(nnx.Module):
    """Attention and an MLP, each with a residual connection.

    The norms act on the inputs of both (pre-norm), on the sums (post-norm: BERT, `norm_after_blocks`), or on the
    outputs that are added to the residual branch (EVA02-E, `norm_changes`).
    """

    def __init__(self, spec: VisionSpec | TextSpec, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.norm_after, self.norm_changes = spec.norm_after_blocks, spec.norm_changes
        inner = spec.norm_eps if spec.inner_norms else None
        self.norm1 = LayerNorm(spec.width, spec.norm_eps)
        self.attention = SelfAttention(
            spec.width,
            spec.heads,
            bias=spec.qkv_bias,
            rotary=None if spec.rotary is None else Rotary(spec.rotary, spec.grid, spec.first_patch),
            inner_norm_eps=inner,
            dtype=dtype,
            rngs=rngs,
        )
        self.norm2 = LayerNorm(spec.width, spec.norm_eps)
        self.mlp = Mlp(
            spec.width,
            spec.mlp_width,
            spec.activation,
            gated=spec.gated_mlp,
            norm_eps=inner,
            input_norm_eps=spec.norm_eps if spec.mlp_norms else None,
            dtype=dtype,
            rngs=rngs,
        )
        self.scale1 = nnx.Param(jnp.ones(spec.width, jnp.float32)) if spec.layer_scale else None
        self.scale2 = nnx.Param(jnp.ones(spec.width, jnp.float32)) if spec.layer_scale else None

    def __call__(
        self, x: Float[Array, "b t width"], causal: bool, lengths: Lengths | None, mask: MaskArray | None
    ) -> Float[Array, "b t width"]:
        """Compute the new tokens, in the dtype of `x`."""
        return self._residual_update(x, self.attention(self._attention_input(x), causal, lengths, mask))

    def with_weights(self, x: Float[Array, "b t width"]) -> tuple[Float[Array, "b t width"], Float[Array, "b h t t"]]:
        """Compute the new tokens and the attention weights."""
        attended, weights = self.attention.with_weights(self._attention_input(x))
        return self._residual_update(x, attended), weights

    def _attention_input(self, x: Array) -> Array:
        return x if self.norm_after or self.norm_changes else self.norm1(x)

    def _residual_update(self, x: Array, attended: Array) -> Array:
        """Add the output of attention to `x`, then that of the MLP."""
        if self.norm_after:
            x = self.norm1(x + attended).astype(x.dtype)
            return self.norm2(x + self.mlp(x)).astype(x.dtype)
        if self.norm_changes:
            x = x + self.norm1(attended).astype(x.dtype)
            return x + self.norm2(self.mlp(x)).astype(x.dtype)
        x = x + _apply_scale(attended, self.scale1)
        return x + _apply_scale(self.mlp(self.norm2(x)), self.scale2)


def _apply_scale(x: Float[Array, "... width"], scale: nnx.Param | None) -> Float[Array, "... width"]:
    return x if scale is None else multiply_rows(x, scale[...])


class Blocks(Stack):
    """Stack of the blocks of a tower, computed by a loop.

    Attributes:
        frozen_layers: number of first blocks without a gradient.
    """

    def __init__(self, spec: VisionSpec | TextSpec, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.frozen_layers = 0
        super().__init__(spec.layers, lambda rngs: Block(spec, dtype=dtype, rngs=rngs), rngs=rngs)

    def __call__(
        self, x: Float[Array, "b t width"], causal: bool = False, lengths: Lengths | None = None
    ) -> Float[Array, "b t width"]:
        """Compute the new tokens.

        A token attends to the keys that `lengths` makes visible; with `causal`, to none after its own position.
        """
        return self._scan(*nnx.split(self.block), x, causal, lengths)

    def with_last_attention(
        self, x: Float[Array, "b t width"]
    ) -> tuple[Float[Array, "b t width"], Float[Array, "b h t t"]]:
        """Compute the new tokens without a mask, and the attention weights of the last block."""
        graph, parameters = nnx.split(self.block)
        all_but_last = jax.tree.map(lambda stack: stack[:-1], parameters)
        last = jax.tree.map(lambda stack: stack[-1], parameters)
        x = self._scan(graph, all_but_last, x, False, None)
        return nnx.merge(graph, last).with_weights(x)

    def _scan(self, graph: Any, parameters: Any, x: Array, causal: bool, lengths: Lengths | None) -> Array:
        tokens = x.shape[1]
        fused = self.block.attention.fused_for(x, lengths)
        padding = 0 if fused is None else fused.padding(tokens)
        if padding:
            # Once for all blocks: a padded token costs less than copies of queries, keys and values in each block.
            x = jnp.pad(x, ((0, 0), (0, padding), (0, 0)))
            if not causal and lengths is None:
                lengths = jnp.full(len(x), tokens, jnp.int32)
        return self._scan_padded(graph, parameters, x, causal, lengths)[:, :tokens]

    def _scan_padded(self, graph: Any, parameters: Any, x: Array, causal: bool, lengths: Lengths | None) -> Array:
        # Built once for all blocks: built inside the loop, a step with FSDP hung on eight CPU devices.
        fused = self.block.attention.fused_for(x, lengths)
        mask = mask_of(x.shape[1], causal, lengths) if fused is None else None

        def step(x: Array, layer: Any) -> tuple[Array, None]:
            return self.block_of(graph, layer)(x, causal, lengths, mask), None

        if self.frozen_layers:
            frozen_layers = jax.tree.map(lambda stack: stack[: self.frozen_layers], parameters)
            parameters = jax.tree.map(lambda stack: stack[self.frozen_layers :], parameters)
            x, _ = jax.lax.scan(step, x, frozen_layers)
            x = jax.lax.stop_gradient(x)
            if self.frozen_layers == self.layers:
                return x
        return self.scan(step, x, parameters)
