"""EfficientNet, and the stem of ViTamin.

EfficientNet (arXiv 1905.11946) without its head, with the padding of `transformers`, configured by `EfficientNetSpec`:

    pixels -> 3 x 3 convolution, stride 2 -> stages of inverted bottlenecks -> mean or maximum of the last map
    block:  [expand 1 x 1] -> depthwise -> times gates of its mean -> project 1 x 1 [+ x]

The first block of a stage has no shortcut, even if its shapes would allow one. A convolution of stride 2 pads one zero
less before a line than after it, which equals TensorFlow's "SAME" for an even number of cells but not for an odd one.
Batch norms are frozen (`layers.FrozenBatchNorm`). Channels are last.

The stem of ViTamin (arXiv 2404.02132) has two stages of inverted bottlenecks, whose cells are the patches of a ViT:

    pixels -> 3 x 3, stride 2 -> norm, GELU -> 3 x 3 -> two stages -> norm -> 3 x 3, stride 2
    block:  x + project(GELU(depthwise 3 x 3 (GELU(expand(norm(x))))))

The first block of a stage halves the map; its shortcut is the mean of those of 3 x 3 cells that are inside the map.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.layers import ACTIVATIONS, FrozenBatchNorm, LayerNorm, Linear
from rococo_jax.models.spec import EfficientNetSpec, MbConvSpec
from rococo_jax.models.stages import Convolution, ConvolutionalTower, Stage


class InvertedBottleneck(nnx.Module):
    """Depthwise convolution between two linear maps of channels, with squeeze and excitation (arXiv 1709.01507)."""

    def __init__(self, spec: EfficientNetSpec, stage: int, first: bool, *, dtype: DTypeLike, rngs: nnx.Rngs):
        width, size, eps = spec.widths[stage], spec.kernel_sizes[stage], spec.norm_eps
        inputs = spec.inputs(stage) if first else width
        inner, gates = inputs * spec.expansions[stage], spec.gate_width(inputs)
        stride, padding = (spec.strides[stage], spec.padding(stage)) if first else (1, None)
        self.activation, self.shortcut, self.dtype = spec.activation, not first, dtype
        expands = spec.expansions[stage] > 1
        self.expand = Linear(inputs, inner, bias=False, dtype=dtype, rngs=rngs) if expands else None
        self.expand_norm = FrozenBatchNorm(inner, eps) if expands else None
        self.depthwise = Convolution(
            size, inner, inner, stride=stride, groups=inner, padding=padding, dtype=dtype, rngs=rngs
        )
        self.depthwise_norm = FrozenBatchNorm(inner, eps)
        self.squeeze = Linear(inner, gates, dtype=dtype, rngs=rngs)
        self.excite = Linear(gates, inner, dtype=dtype, rngs=rngs)
        self.project = Linear(inner, width, bias=False, dtype=dtype, rngs=rngs)
        self.project_norm = FrozenBatchNorm(width, eps)

    def __call__(self, x: Float[Array, "b h w inputs"]) -> Float[Array, "b h2 w2 width"]:
        act = ACTIVATIONS[self.activation]
        y = x if self.expand is None else act(self.expand_norm(self.expand(x)))
        y = act(self.depthwise_norm(self.depthwise(y)))
        gates = jax.nn.sigmoid(self.excite(act(self.squeeze(y.mean((1, 2), keepdims=True)))))
        y = self.project_norm(self.project(y * gates.astype(jnp.float32)))
        return (y + x.astype(jnp.float32) if self.shortcut else y).astype(self.dtype)


class EfficientNetTower(ConvolutionalTower):
    """EfficientNet tower. Its tokens are the cells of the last map."""

    def __init__(self, spec: EfficientNetSpec, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        super().__init__(spec, dtype)
        self.stem = Convolution(3, 3, spec.stem_width, stride=2, padding=(0, 1), dtype=dtype, rngs=rngs)
        self.stem_norm = FrozenBatchNorm(spec.stem_width, spec.norm_eps)

        def stage(number: int) -> Stage:
            def block(first: bool, rngs: nnx.Rngs) -> InvertedBottleneck:
                return InvertedBottleneck(spec, number, first, dtype=dtype, rngs=rngs)

            return Stage(spec.stage_layers[number], block, rngs=rngs)

        self.add_stages(stage)

    def maps(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
        """Compute the last map."""
        x = ACTIVATIONS[self.spec.activation](self.stem_norm(self.stem(pixels))).astype(self.dtype)
        return self.run_stages(x)

    def pool(self, tokens: Float[Array, "b cells features"]) -> Float[Array, "b features"]:
        """Pool the tokens into one vector per image, float32."""
        return tokens.mean(1) if self.spec.pooling == "mean" else tokens.max(1)


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
