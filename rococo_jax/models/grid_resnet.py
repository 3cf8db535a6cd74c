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
from rococo_jax.models.resnet import Convolution
from rococo_jax.models.spec import GridResNetSpec
from rococo_jax.models.stack import Stack

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


class GridStage(nnx.Module):
    """Blocks on maps of one size; the first has a projection in its shortcut."""

    def __init__(
        self, spec: GridResNetSpec, inputs: int, channels: int, layers: int, stride: int, *, dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        self.first = GridBottleneck(spec, inputs, channels, first=True, stride=stride, dtype=dtype, rngs=rngs)

        def make(rngs: nnx.Rngs) -> GridBottleneck:
            return GridBottleneck(spec, _EXPANSION * channels, channels, dtype=dtype, rngs=rngs)

        self.blocks = Stack(layers - 1, make, rngs=rngs) if layers > 1 else None

    def __call__(self, x: Float[Array, "b h w inputs"]) -> Float[Array, "b h2 w2 outputs"]:
        x = self.first(x)
        return x if self.blocks is None else self.blocks(x)


class GridResNetTower(nnx.Module):
    """An image tower with the interface of `VisionTower`; tokens are the cells of the last map, row by row."""

    def __init__(self, spec: GridResNetSpec, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.spec, self.dtype = spec, dtype
        self.stem = Convolution(7, 3, spec.width, stride=2, dtype=dtype, rngs=rngs)
        self.stem_norm = FrozenBatchNorm(spec.width)
        stages, inputs = [], spec.width
        for number, layers in enumerate(spec.stage_layers):
            channels = spec.width << number
            stages.append(GridStage(spec, inputs, channels, layers, 1 + (number > 0), dtype=dtype, rngs=rngs))
            inputs = _EXPANSION * channels
        self.stage1, self.stage2, self.stage3, self.stage4 = stages
        self.pooling = GeneralizedPooling(inputs, spec.pooling_width, dtype=dtype, rngs=rngs)

    def __call__(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b features"]:
        """Pooled features, float32, from normalised pixels of the size in the spec."""
        return self.pool(self.tokens(pixels))

    def tokens(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b cells channels"]:
        """The cells of the last map, float32. Raises ValueError for pixels of another size than the tower's."""
        size = self.spec.image_size
        if pixels.shape[1:3] != (size, size):
            raise ValueError(f"pixels of {pixels.shape[1]} x {pixels.shape[2]} for a tower of {size} x {size}")
        x = jax.nn.relu(self.stem_norm(self.stem(pixels))).astype(self.dtype)
        before = 0 if self.spec.caffe else 1
        after = (x.shape[1] + before - 3) % 2 if self.spec.caffe else 1
        around = ((0, 0), (before, after), (before, after), (0, 0))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), around)
        for stage in (self.stage1, self.stage2, self.stage3, self.stage4):
            x = stage(x)
        return x.astype(jnp.float32).reshape(x.shape[0], -1, x.shape[-1])

    def pool(self, tokens: Float[Array, "b cells channels"]) -> Float[Array, "b features"]:
        """One vector an image, float32."""
        return self.pooling(tokens)
