"""Bottleneck ResNets (arXiv 1512.03385) with the modifications of CLIP (arXiv 2103.00020, section 2.4; its release).

    stem                 three 3 x 3 convolutions (the first with stride 2), then a 2 x 2 average
    strides              a 2 x 2 average before a convolution of stride 1, in the block and in its shortcut
    pooling              attention of the mean of the last map, which is put before its cells as a token

Batch norms are frozen (`layers.FrozenBatchNorm`).
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.attention import attend_all
from rococo_jax.models.layers import FrozenBatchNorm, Linear, draw_normal
from rococo_jax.models.positions import positions_on_grid
from rococo_jax.models.spec import ResNetSpec
from rococo_jax.models.stages import Convolution, ConvolutionalTower, Stage

_EXPANSION = 4


def _average(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """Average 2 x 2 cells; an odd last row or column is left out."""
    batch, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2].reshape(batch, height // 2, 2, width // 2, 2, channels)
    return x.mean((2, 4))


class Bottleneck(nnx.Module):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1 with a shortcut; the first block of a stage projects its shortcut.

    With `average`, 2 x 2 means halve the map before the third convolution.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        outputs: int,
        *,
        first: bool = False,
        average: bool = False,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        make, self.average = partial(Convolution, dtype=dtype, rngs=rngs), average
        self.conv1 = make(1, inputs, width)
        self.conv2 = make(3, width, width)
        self.conv3 = make(1, width, outputs)
        self.norm1, self.norm2, self.norm3 = FrozenBatchNorm(width), FrozenBatchNorm(width), FrozenBatchNorm(outputs)
        self.shortcut = make(1, inputs, outputs) if first else None
        self.shortcut_norm = FrozenBatchNorm(outputs) if first else None

    def __call__(self, x: Float[Array, "b h w inputs"]) -> Float[Array, "b h2 w2 outputs"]:
        y = jax.nn.relu(self.norm1(self.conv1(x)))
        y = jax.nn.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(_average(y) if self.average else y))
        if self.shortcut is not None:
            x = self.shortcut_norm(self.shortcut(_average(x) if self.average else x))
        return jax.nn.relu(y + x.astype(jnp.float32)).astype(self.conv1.dtype)


class MeanQueryPooling(nnx.Module):
    """Attention pooling with the first token as query. The model's head is its output map."""

    def __init__(self, width: int, heads: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.heads = heads
        self.qkv = Linear(width, 3 * width, dtype=dtype, rngs=rngs)

    def __call__(self, tokens: Float[Array, "b t width"]) -> Float[Array, "b width"]:
        return self.mix(tokens)[0][:, 0]

    def mix(self, tokens: Float[Array, "b t width"]) -> tuple[Float[Array, "b 1 width"], Float[Array, "b h 1 t"]]:
        """Return the weighted sum of the tokens' values, and the attention weights, which sum to 1."""
        width = tokens.shape[2]
        query, key_value = self.qkv(tokens[:, :1], slice(width)), self.qkv(tokens, slice(width, 3 * width))
        return attend_all(query, key_value, self.heads)


class ResNetTower(ConvolutionalTower):
    """ResNet of CLIP. Its tokens are the mean of the last map, followed by the cells of the map."""

    def __init__(self, spec: ResNetSpec, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        super().__init__(spec, dtype)
        half, width = spec.width // 2, spec.width
        self.stem1 = Convolution(3, 3, half, stride=2, dtype=dtype, rngs=rngs)
        self.stem2 = Convolution(3, half, half, dtype=dtype, rngs=rngs)
        self.stem3 = Convolution(3, half, width, dtype=dtype, rngs=rngs)
        self.norm1, self.norm2, self.norm3 = FrozenBatchNorm(half), FrozenBatchNorm(half), FrozenBatchNorm(width)

        def block(number: int, first: bool, rngs: nnx.Rngs) -> Bottleneck:
            width, follows_stage = spec.width * 2**number, first and number > 0
            outputs = _EXPANSION * width
            inputs = outputs // 2 if follows_stage else spec.width if first else outputs
            return Bottleneck(inputs, width, outputs, first=first, average=follows_stage, dtype=dtype, rngs=rngs)

        self.add_stages(lambda number: Stage(spec.stage_layers[number], partial(block, number), rngs=rngs))
        count = (spec.position_grid or spec.grid) ** 2 + 1
        initial = draw_normal(rngs.params(), (count, spec.features), 0.02)
        self.positions = nnx.Param(initial)
        self.pooling = MeanQueryPooling(spec.features, spec.heads, dtype=dtype, rngs=rngs)

    def maps(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 width"]:
        """Compute the last map."""
        x = pixels
        for stem, norm in ((self.stem1, self.norm1), (self.stem2, self.norm2), (self.stem3, self.norm3)):
            x = jax.nn.relu(norm(stem(x)))
        return self.run_stages(_average(x))

    def tokens(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b tokens width"]:
        """Compute the tokens before pooling, with positions, float32. Raises ValueError: pixels have another size."""
        cells = super().tokens(pixels)
        tokens = jnp.concatenate([cells.mean(1, keepdims=True), cells], axis=1)
        return tokens + positions_on_grid(self.positions[...], self.spec)[None]

    def tokens_and_attention(
        self, pixels: Float[Array, "b h w 3"]
    ) -> tuple[Float[Array, "b tokens width"], Float[Array, "b heads 1 tokens"]]:
        """Compute `tokens` and the attention weights of the pooling."""
        tokens = self.tokens(pixels)
        return tokens, self.pooling.mix(tokens)[1]

    def pool(self, tokens: Float[Array, "b tokens width"]) -> Float[Array, "b features"]:
        """Pool the tokens into one vector per image, float32."""
        return self.pooling(tokens).astype(jnp.float32)
