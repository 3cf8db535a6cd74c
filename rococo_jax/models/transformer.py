"""Transformer blocks, and the stack of them that is a tower's."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.attention import Lengths, MaskArray, SelfAttention, mask_of
from rococo_jax.models.layers import ACTIVATIONS, LayerNorm, Linear, Stack
from rococo_jax.models.positions import Rotary
from rococo_jax.models.products import multiply_rows
from rococo_jax.models.spec import TextSpec, VisionSpec


class Mlp(nnx.Module):
    """Two layers with an activation between; gated, `(f(x A) * x B) C`, the first kernel holds A and B side by side.

    With `norm_eps` the hidden channels are normed before the last map, with `input_norm_eps` what it reads.
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
        hidden = checkpoint_name(self.up(x if self.input_norm is None else self.input_norm(x)), "up")
        if self.gated:
            gate, value = jnp.split(hidden, 2, axis=-1)
            hidden = activation(gate) * value
        else:
            hidden = activation(hidden)
        return self.down(hidden if self.norm is None else self.norm(hidden))


class Block(nnx.Module):
    """Attention and an MLP with residuals; norms before them, after the sum (BERT), or of what is added (EVA02-E)."""

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
        """The new tokens, in the dtype of `x`."""
        return self._change(x, self.attention(self._attended(x), causal, lengths, mask))

    def with_weights(self, x: Float[Array, "b t width"]) -> tuple[Float[Array, "b t width"], Float[Array, "b h t t"]]:
        """The new tokens and the attention weights."""
        change, weights = self.attention.with_weights(self._attended(x))
        return self._change(x, change), weights

    def _attended(self, x: Array) -> Array:
        return x if self.norm_after or self.norm_changes else self.norm1(x)

    def _change(self, x: Array, change: Array) -> Array:
        """`x` with what attention gave, and then the MLP."""
        if self.norm_after:
            x = self.norm1(x + change).astype(x.dtype)
            return self.norm2(x + self.mlp(x)).astype(x.dtype)
        if self.norm_changes:
            x = x + self.norm1(change).astype(x.dtype)
            return x + self.norm2(self.mlp(x)).astype(x.dtype)
        x = x + _scaled(change, self.scale1)
        return x + _scaled(self.mlp(self.norm2(x)), self.scale2)


def _scaled(x: Float[Array, "... width"], scale: nnx.Param | None) -> Float[Array, "... width"]:
    return x if scale is None else multiply_rows(x, scale[...])


# What the backward pass finds of a block beside its input, and does not compute again: everything, the products of
# matrices with parameters (by the names they are given in `attention` and here), nothing.
REMATERIALISE = {
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.save_only_these_names("norm", "qkv", "out", "up"),
    "full": jax.checkpoint_policies.save_only_these_names("norm"),
}


class Blocks(Stack):
    """The stack of blocks of a tower.

    `rematerialise` ("none"): what the backward pass computes again instead of keeping it, a key of `REMATERIALISE`.
    `frozen_layers` (0): no gradient goes through this many first blocks.
    `prepare_layer` (None): applied to the parameters of a block just before use; FSDP all-gathers them there.
    """

    def __init__(self, spec: VisionSpec | TextSpec, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.layers, self.rematerialise, self.frozen_layers = spec.layers, "none", 0
        self.prepare_layer: Callable[[Any], Any] | None = None
        super().__init__(spec.layers, lambda rngs: Block(spec, dtype=dtype, rngs=rngs), rngs=rngs)

    def __call__(
        self, x: Float[Array, "b t width"], causal: bool = False, lengths: Lengths | None = None
    ) -> Float[Array, "b t width"]:
        """The new tokens, of which each sees those up to its own place (`causal`), and those that `lengths` shows."""
        return self._scan(*nnx.split(self.block), x, causal, lengths)

    def with_last_attention(
        self, x: Float[Array, "b t width"]
    ) -> tuple[Float[Array, "b t width"], Float[Array, "b h t t"]]:
        """As the call where every token sees all, with the attention weights of the last block beside the tokens."""
        graph, parameters = nnx.split(self.block)
        x = self._scan(graph, jax.tree.map(lambda stack: stack[:-1], parameters), x, False, None)
        return nnx.merge(graph, jax.tree.map(lambda stack: stack[-1], parameters)).with_weights(x)

    def _scan(self, graph: Any, parameters: Any, x: Array, causal: bool, lengths: Lengths | None) -> Array:
        attention, tokens = self.block.attention, x.shape[1]
        if more := attention.fused.padding(tokens) if attention.uses_fused(x, causal, lengths) else 0:
            # Once for all blocks: a padded token costs less than a copy of queries, keys and values in each.
            x = jnp.pad(x, ((0, 0), (0, more), (0, 0)))
            if not causal and lengths is None:
                lengths = jnp.full(len(x), tokens, jnp.int32)
        return self._scan_padded(graph, parameters, x, causal, lengths)[:, :tokens]

    def _scan_padded(self, graph: Any, parameters: Any, x: Array, causal: bool, lengths: Lengths | None) -> Array:
        # Once for all blocks: made inside the loop, a step with FSDP hung on eight CPU devices.
        fused = self.block.attention.uses_fused(x, causal, lengths)
        mask = None if fused else mask_of(x.shape[1], causal, lengths)

        def step(x: Array, layer: Any) -> tuple[Array, None]:
            if self.prepare_layer is not None:
                layer = self.prepare_layer(layer)
            return nnx.merge(graph, layer)(x, causal, lengths, mask), None

        if frozen := self.frozen_layers:
            x = jax.lax.scan(step, x, jax.tree.map(lambda stack: stack[:frozen], parameters))[0]
            x, parameters = jax.lax.stop_gradient(x), jax.tree.map(lambda stack: stack[frozen:], parameters)
            if frozen == self.layers:
                return x
        if self.rematerialise != "none":
            # A loop's body is compiled apart from its backward pass: the compiler cannot merge the two computations.
            step = jax.checkpoint(step, policy=REMATERIALISE[self.rematerialise], prevent_cse=False)
        return jax.lax.scan(step, x, parameters)[0]
