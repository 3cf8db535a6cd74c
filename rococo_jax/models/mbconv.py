"""Stem of ViTamin (arXiv 2404.02132): two stages of inverted bottlenecks, whose cells are the patches of a ViT.

    pixels -> 3 x 3, stride 2 -> norm, GELU -> 3 x 3 -> two stages -> norm -> 3 x 3, stride 2
    block:  x + project(GELU(depthwise 3 x 3 (GELU(expand(norm(x))))))

The first block of a stage halves the map; its shortcut is the mean of those of 3 x 3 cells that are inside the map.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.layers import ACTIVATIONS, LayerNorm, Linear
from rococo_jax.models.spec import MbConvSpec
from rococo_jax.models.stages import Convolution, Stage

_EXPANSION = 4


class MbConvBlock(nnx.Module):
    """Inverted bottleneck with a layer norm before it."""

    def __init__(self, inputs: int, width: int, norm_eps: float, halve: bool, *, dtype: DTypeLike, rngs: nnx.Rngs):
        hidden, self.halve, self.dtype = _EXPANSION * width, halve, dtype
        self.norm = LayerNorm(inputs, norm_eps)
        self.expand = Linear(inputs, hidden, dtype=dtype, rngs=rngs)
        stride = 1 + halve
        self.depthwise = Convolution(3, hidden, hidden, stride=stride, groups=hidden, bias=True, dtype=dtype, rngs=rngs)
        self.project = Linear(hidden, width, dtype=dtype, rngs=rngs)
        self.shortcut = None if inputs == width else Linear(inputs, width, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w inputs"]) -> Float[Array, "b h2 w2 width"]:
        gelu = ACTIVATIONS["gelu"]
        change = self.project(gelu(self.depthwise(gelu(self.expand(self.norm(x))))))
        x = _means(x) if self.halve else x
        return (x if self.shortcut is None else self.shortcut(x)) + change


def _means(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """Average 3 x 3 cells with stride 2, leaving out cells outside the map."""

    def sums(values: Array) -> Array:
        padding = ((0, 0), (1, 1), (1, 1), (0, 0))
        return jax.lax.reduce_window(values, 0.0, jax.lax.add, (1, 3, 3, 1), (1, 2, 2, 1), padding)

    wide = x.astype(jnp.float32)
    return (sums(wide) / sums(jnp.ones((1, *x.shape[1:3], 1), jnp.float32))).astype(x.dtype)


class MbConvStem(nnx.Module):
    """Stem that computes the patches of a transformer of `width` channels from pixels."""

    def __init__(self, spec: MbConvSpec, width: int, norm_eps: float, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.conv1 = Convolution(3, 3, spec.stem_width, stride=2, bias=True, dtype=dtype, rngs=rngs)
        self.norm1 = LayerNorm(spec.stem_width, norm_eps)
        self.conv2 = Convolution(3, spec.stem_width, spec.stem_width, bias=True, dtype=dtype, rngs=rngs)

        def stage(inputs: int, channels: int, layers: int) -> Stage:
            def block(first: bool, rngs: nnx.Rngs) -> MbConvBlock:
                return MbConvBlock(inputs if first else channels, channels, norm_eps, first, dtype=dtype, rngs=rngs)

            return Stage(layers, block, rngs=rngs)

        self.stage1 = stage(spec.stem_width, spec.widths[0], spec.stage_layers[0])
        self.stage2 = stage(*spec.widths, spec.stage_layers[1])
        self.norm2 = LayerNorm(spec.widths[1], norm_eps)
        self.conv3 = Convolution(3, spec.widths[1], width, stride=2, bias=True, dtype=dtype, rngs=rngs)

    def __call__(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 width"]:
        """Compute feature maps of a sixteenth of the size."""
        x = self.conv2(ACTIVATIONS["gelu"](self.norm1(self.conv1(pixels))))
        return self.conv3(self.norm2(self.stage2(self.stage1(x))))
