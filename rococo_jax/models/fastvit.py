"""FastViT (arXiv 2303.14189) as MobileCLIP's image towers MCi0 to MCi4 have it (2311.17049, 2508.20691).

    pixels -> 3 x 3, stride 2 -> depthwise 3 x 3, stride 2 -> 1 x 1 -> stages -> depthwise 3 x 3, gates -> mean
    stage:  [7 x 7, stride 2, gates -> 1 x 1] -> [depthwise 7 x 7] -> blocks
    block:  y = depthwise 3 x 3 (x),  or  y = x + scale attention(norm(x)) in the last stages;  y + scale mlp(y)
    mlp:    depthwise 7 x 7 -> 1 x 1 -> GELU -> 1 x 1

What training sums over branches (convolutions of other sizes, identities, batch norms) is one convolution with a bias
here: converting adds the branches up, as the paper does for inference. GELU follows the convolutions of stem, end and
changes of size.
"""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.attention import SelfAttention
from rococo_jax.models.layers import ACTIVATIONS, FrozenBatchNorm, LayerNorm, Linear
from rococo_jax.models.products import multiply_rows
from rococo_jax.models.spec import FastVitSpec
from rococo_jax.models.stages import Convolution, ConvolutionalTower, Gates, Stack

_NORM_EPS = 1e-5


def _depthwise(size: int, inputs: int, outputs: int | None = None, *, stride: int = 1, dtype: DTypeLike, rngs):
    return Convolution(size, inputs, outputs or inputs, stride=stride, groups=inputs, bias=True, dtype=dtype, rngs=rngs)


class FastVitBlock(nnx.Module):
    """A mixer of cells, then an MLP whose first map is a depthwise convolution."""

    def __init__(self, spec: FastVitSpec, stage: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        width, ones = spec.widths[stage], jnp.ones(spec.widths[stage], jnp.float32)
        self.attends = spec.attends(stage)
        if self.attends:
            norm = LayerNorm if spec.layer_norm else FrozenBatchNorm
            self.norm, self.scale1 = norm(width, _NORM_EPS), nnx.Param(ones)
            heads = width // spec.head_width
            self.mixer = SelfAttention(width, heads, bias=False, dtype=dtype, rngs=rngs)
        else:
            self.mixer = _depthwise(3, width, dtype=dtype, rngs=rngs)
        self.depthwise = _depthwise(7, width, dtype=dtype, rngs=rngs)
        self.up = Linear(width, spec.mlp_ratio * width, dtype=dtype, rngs=rngs)
        self.down = Linear(spec.mlp_ratio * width, width, dtype=dtype, rngs=rngs)
        self.scale2 = nnx.Param(ones)

    def __call__(self, x: Float[Array, "b h w width"]) -> Float[Array, "b h w width"]:
        if self.attends:
            cells = self.norm(x).reshape(x.shape[0], -1, x.shape[-1]).astype(x.dtype)
            # A map has few cells: the weights are small, and no fused kernel has to take their number.
            mixed, _ = self.mixer.with_weights(cells, None)
            x = x + multiply_rows(mixed.reshape(x.shape), self.scale1[...])
        else:
            x = self.mixer(x)
        change = self.down(ACTIVATIONS["gelu"](self.up(self.depthwise(x))))
        return x + multiply_rows(change, self.scale2[...])


class FastVitStage(nnx.Module):
    """Blocks on maps of one size, after a change of size in all stages but the first."""

    def __init__(self, spec: FastVitSpec, stage: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        inputs, width = spec.widths[max(stage - 1, 0)], spec.widths[stage]
        self.down = _depthwise(7, inputs, width, stride=2, dtype=dtype, rngs=rngs) if stage else None
        gates = spec.squeezed[stage]
        self.gates = Gates(width, width // 4, dtype=dtype, rngs=rngs) if gates else None
        self.point = Convolution(1, width, width, bias=True, dtype=dtype, rngs=rngs) if stage else None
        self.positions = _depthwise(7, width, dtype=dtype, rngs=rngs) if spec.attends(stage) else None

        def make(rngs: nnx.Rngs) -> FastVitBlock:
            return FastVitBlock(spec, stage, dtype=dtype, rngs=rngs)

        self.blocks = Stack(spec.stage_layers[stage], make, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w inputs"]) -> Float[Array, "b h2 w2 width"]:
        gelu = ACTIVATIONS["gelu"]
        if self.down is not None:
            x = self.down(x)
            x = gelu(self.point(gelu(x if self.gates is None else self.gates(x))))
        return self.blocks(x if self.positions is None else self.positions(x))


class FastVitTower(ConvolutionalTower):
    """Tokens are the cells of the last map."""

    def __init__(self, spec: FastVitSpec, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        super().__init__(spec, dtype)
        width, last = spec.widths[0], spec.widths[-1]
        self.stem1 = Convolution(3, 3, width, stride=2, bias=True, dtype=dtype, rngs=rngs)
        self.stem2 = _depthwise(3, width, stride=2, dtype=dtype, rngs=rngs)
        self.stem3 = Convolution(1, width, width, bias=True, dtype=dtype, rngs=rngs)
        self.add_stages(lambda stage: FastVitStage(spec, stage, dtype=dtype, rngs=rngs))
        self.end = _depthwise(3, last, spec.features, dtype=dtype, rngs=rngs)
        self.gates = Gates(spec.features, spec.features // 16, dtype=dtype, rngs=rngs)

    def maps(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 features"]:
        """The last map."""
        gelu, x = ACTIVATIONS["gelu"], pixels
        for stem in (self.stem1, self.stem2, self.stem3):
            x = gelu(stem(x))
        return gelu(self.gates(self.end(self.through_stages(x))))
