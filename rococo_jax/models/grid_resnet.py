"""ResNets whose last map is a grid of features, pooled by GPO: the image towers of VSE-infinity (arXiv 2011.04305).

    pixels -> 7 x 7 convolution, stride 2 -> maximum of 3 x 3, stride 2 -> four stages of bottlenecks -> GPO

Two forms: `caffe`, with the stride in a block's first convolution and a maximum without padding (ResNet-50 to -152 of
detectors and ImageNet in that release), and torchvision's, with the stride in the 3 x 3 convolution (ResNeXt-101
32x8d, arXiv 1611.05431). Batch norms are frozen (`layers.FrozenBatchNorm`).
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.generalized_pooling import GeneralizedPooling
from rococo_jax.models.layers import FrozenBatchNorm
from rococo_jax.models.spec import GridResNetSpec
from rococo_jax.models.stages import Convolution, ConvolutionalTower, Stage

_EXPANSION = 4


class GridBottleneck(nnx.Module):
    """1 x 1, 3 x 3 (in groups) and 1 x 1 convolutions beside a shortcut."""

    def __init__(
        self,
        spec: GridResNetSpec,
        inputs: int,
        channels: int,
        *,
        first: bool = False,
        stride: int = 1,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        width, outputs = spec.inner_width(channels), _EXPANSION * channels
        make = partial(Convolution, dtype=dtype, rngs=rngs)
        self.conv1 = make(1, inputs, width, stride=stride if spec.caffe else 1)
        self.conv2 = make(3, width, width, stride=1 if spec.caffe else stride, groups=spec.groups)
        self.conv3 = make(1, width, outputs)
        self.norm1, self.norm2, self.norm3 = FrozenBatchNorm(width), FrozenBatchNorm(width), FrozenBatchNorm(outputs)
        self.shortcut = make(1, inputs, outputs, stride=stride) if first else None
        self.shortcut_norm = FrozenBatchNorm(outputs) if first else None

    def __call__(self, x: Float[Array, "b h w inputs"]) -> Float[Array, "b h2 w2 outputs"]:
        y = jax.nn.relu(self.norm1(self.conv1(x)))
        y = jax.nn.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        if self.shortcut is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return jax.nn.relu(y + x.astype(jnp.float32)).astype(self.conv1.dtype)


class GridResNetTower(ConvolutionalTower):
    """Tokens are the cells of the last map."""

    def __init__(self, spec: GridResNetSpec, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        super().__init__(spec, dtype)
        self.stem = Convolution(7, 3, spec.width, stride=2, dtype=dtype, rngs=rngs)
        self.stem_norm = FrozenBatchNorm(spec.width)

        def stage(number: int) -> Stage:
            channels = spec.width << number
            before, stride = (_EXPANSION * channels // 2, 2) if number else (spec.width, 1)

            def block(first: bool, rngs: nnx.Rngs) -> GridBottleneck:
                inputs, step = (before, stride) if first else (_EXPANSION * channels, 1)
                return GridBottleneck(spec, inputs, channels, first=first, stride=step, dtype=dtype, rngs=rngs)

            return Stage(spec.stage_layers[number], block, rngs=rngs)

        self.add_stages(stage)
        outputs = _EXPANSION * (spec.width << (len(spec.stage_layers) - 1))
        self.pooling = GeneralizedPooling(outputs, spec.pooling_width, dtype=dtype, rngs=rngs)

    def maps(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 channels"]:
        """The last map."""
        x = jax.nn.relu(self.stem_norm(self.stem(pixels))).astype(self.dtype)
        before = 0 if self.spec.caffe else 1
        after = (x.shape[1] + before - 3) % 2 if self.spec.caffe else 1
        around = ((0, 0), (before, after), (before, after), (0, 0))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), around)
        return self.through_stages(x)

    def pool(self, tokens: Float[Array, "b cells channels"]) -> Float[Array, "b features"]:
        """One vector an image, float32."""
        return self.pooling(tokens)
