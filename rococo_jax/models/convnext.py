"""ConvNeXt (arXiv 2201.03545), configured by `ConvNextSpec`.

    pixels -> patches of 4 x 4, norm -> four stages, before each but the first: norm, patches of 2 x 2 -> mean -> norm
    block:  x + gamma mlp(norm(depthwise 7 x 7 (x)))

Channels last: a map is `(batch, height, width, channels)`, norms are over channels.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.layers import LayerNorm, Linear
from rococo_jax.models.products import add_to_rows, convolution, multiply_rows
from rococo_jax.models.spec import ConvNextSpec
from rococo_jax.models.stack import Stack
from rococo_jax.models.transformer import Mlp
from rococo_jax.models.vision import patches_of

_SIZE = 7


class ConvNextBlock(nnx.Module):
    """A depthwise convolution, a norm and an MLP, scaled, with a residual."""

    def __init__(self, width: int, norm_eps: float, *, dtype: DTypeLike, rngs: nnx.Rngs):
        initial = jax.nn.initializers.normal(0.02)(rngs.params(), (_SIZE, _SIZE, 1, width), jnp.float32)
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
    """Blocks on maps of one size, after a change of size (all stages but the first)."""

    def __init__(
        self, inputs: int, width: int, layers: int, norm_eps: float, halve: bool, *, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        self.norm = LayerNorm(inputs, norm_eps) if halve else None
        self.down = Linear(4 * inputs, width, dtype=dtype, rngs=rngs) if halve else None

        def make(rngs: nnx.Rngs) -> ConvNextBlock:
            return ConvNextBlock(width, norm_eps, dtype=dtype, rngs=rngs)

        self.blocks = Stack(layers, make, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w inputs"]) -> Float[Array, "b h2 w2 c"]:
        if self.down is not None:
            x = _on_patches(self.down, self.norm(x), 2)
        return self.blocks(x)


def _on_patches(map_: Linear, x: Float[Array, "b h w c"], size: int) -> Float[Array, "b h2 w2 c2"]:
    """A convolution whose stride is its kernel; rows and columns left over are not seen."""
    batch, height, width, _ = x.shape
    return map_(patches_of(x, size)).reshape(batch, height // size, width // size, -1)


class ConvNextTower(nnx.Module):
    """An image tower with the interface of `VisionTower`; tokens are the cells of the last map, row by row."""

    def __init__(self, spec: ConvNextSpec, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.spec, self.dtype, self.pooling = spec, dtype, None
        self.stem = Linear(3 * 16, spec.widths[0], dtype=dtype, rngs=rngs)
        self.stem_norm = LayerNorm(spec.widths[0], spec.norm_eps)
        stages, inputs = [], spec.widths[0]
        for number, (width, layers) in enumerate(zip(spec.widths, spec.stage_layers, strict=True)):
            stages.append(ConvNextStage(inputs, width, layers, spec.norm_eps, number > 0, dtype=dtype, rngs=rngs))
            inputs = width
        self.stage1, self.stage2, self.stage3, self.stage4 = stages
        self.norm = LayerNorm(inputs, spec.norm_eps)

    def __call__(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b features"]:
        """Pooled features, float32, from normalised pixels of the size in the spec."""
        return self.pool(self.tokens(pixels))

    def tokens(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b cells features"]:
        """The cells of the last map, float32, not normed. Raises ValueError for pixels of another size than the
        tower's.
        """
        size = self.spec.image_size
        if pixels.shape[1:3] != (size, size):
            raise ValueError(f"pixels of {pixels.shape[1]} x {pixels.shape[2]} for a tower of {size} x {size}")
        x = self.stem_norm(_on_patches(self.stem, pixels, 4)).astype(self.dtype)
        for stage in (self.stage1, self.stage2, self.stage3, self.stage4):
            x = stage(x)
        return x.astype(jnp.float32).reshape(x.shape[0], -1, x.shape[-1])

    def pool(self, tokens: Float[Array, "b cells features"]) -> Float[Array, "b features"]:
        """One vector an image, float32."""
        return self.norm(tokens.mean(1))
