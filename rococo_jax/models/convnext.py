"""ConvNeXt (arXiv 2201.03545), configured by `ConvNextSpec`.

    pixels -> patches of 4 x 4, norm -> four stages, before each but the first: norm, patches of 2 x 2 -> mean -> norm
    block:  x + gamma mlp(norm(depthwise 7 x 7 (x)))

Channels last: a map is `(batch, height, width, channels)`, norms are over channels.
"""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.layers import LayerNorm, Linear, Stack, draw_normal
from rococo_jax.models.products import add_to_rows, convolution, multiply_rows
from rococo_jax.models.spec import ConvNextSpec
from rococo_jax.models.stages import ConvolutionalTower
from rococo_jax.models.transformer import Mlp
from rococo_jax.models.vision import map_patches

_SIZE = 7


class ConvNextBlock(nnx.Module):
    """Depthwise convolution, norm and MLP, scaled, with a residual connection."""

    def __init__(self, width: int, norm_eps: float, *, dtype: DTypeLike, rngs: nnx.Rngs):
        initial = draw_normal(rngs.params(), (_SIZE, _SIZE, 1, width), 0.02)
        self.kernel, self.bias, self.dtype = nnx.Param(initial), nnx.Param(jnp.zeros(width, jnp.float32)), dtype
        self.norm = LayerNorm(width, norm_eps)
        self.mlp = Mlp(width, 4 * width, "gelu", dtype=dtype, rngs=rngs)
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        around = ((_SIZE // 2, _SIZE // 2),) * 2
        y = convolution(x, self.kernel[...], self.dtype, padding=around, groups=x.shape[-1])
        y = self.mlp(self.norm(add_to_rows(y, self.bias[...])))
        return x + multiply_rows(y, self.scale[...])


class ConvNextStage(nnx.Module):
    """Stage of blocks on maps of one size. All stages except the first halve the map before their blocks."""

    def __init__(
        self, inputs: int, width: int, layers: int, norm_eps: float, halve: bool, *, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        self.norm = LayerNorm(inputs, norm_eps) if halve else None
        self.down = Linear(4 * inputs, width, dtype=dtype, rngs=rngs) if halve else None
        self.blocks = Stack(layers, lambda rngs: ConvNextBlock(width, norm_eps, dtype=dtype, rngs=rngs), rngs=rngs)

    def __call__(self, x: Float[Array, "b h w inputs"]) -> Float[Array, "b h2 w2 c"]:
        if self.down is not None:
            x = map_patches(self.down, self.norm(x), 2)
        return self.blocks(x)


class ConvNextTower(ConvolutionalTower):
    """ConvNeXt tower. Its tokens are the cells of the last map, before the norm."""

    def __init__(self, spec: ConvNextSpec, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        super().__init__(spec, dtype)
        self.stem = Linear(3 * 16, spec.widths[0], dtype=dtype, rngs=rngs)
        self.stem_norm = LayerNorm(spec.widths[0], spec.norm_eps)

        def stage(number: int) -> ConvNextStage:
            inputs, width, layers = spec.widths[max(number - 1, 0)], spec.widths[number], spec.stage_layers[number]
            return ConvNextStage(inputs, width, layers, spec.norm_eps, number > 0, dtype=dtype, rngs=rngs)

        self.add_stages(stage)
        self.norm = LayerNorm(spec.features, spec.norm_eps)

    def maps(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
        """Compute the last map."""
        return self.run_stages(self.stem_norm(map_patches(self.stem, pixels, 4)).astype(self.dtype))

    def pool(self, tokens: Float[Array, "b cells features"]) -> Float[Array, "b features"]:
        """Pool the tokens into one vector per image, float32."""
        return self.norm(tokens.mean(1))
