"""Shared code of convolutional image towers: the convolution, stages of blocks, and the base of the towers.

Maps are channels last, `(batch, height, width, channels)`.

The stem of ViTamin (arXiv 2404.02132) has two stages of inverted bottlenecks, whose cells are the patches of a ViT:

    pixels -> 3 x 3, stride 2 -> norm, GELU -> 3 x 3 -> two stages -> norm -> 3 x 3, stride 2
    block:  x + project(GELU(depthwise 3 x 3 (GELU(expand(norm(x))))))

The first block of a stage halves the map; its shortcut is the mean of those of 3 x 3 cells that are inside the map.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.layers import ACTIVATIONS, REMAT_POLICIES, LayerNorm, Linear, Stack
from rococo_jax.models.products import add_to_rows, convolution
from rococo_jax.models.spec import ConvolutionalSpec, MbConvSpec

_EXPANSION = 4


class Convolution(nnx.Module):
    """Convolution of maps, with `size // 2` zeros before and after a line, so that stride 1 keeps the size."""

    def __init__(
        self,
        size: int,
        inputs: int,
        outputs: int,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.stride, self.groups, self.dtype = stride, groups, dtype
        self.padding = (size // 2, size // 2)
        shape = (size, size, inputs // groups, outputs)
        initial = jax.nn.initializers.lecun_normal()(rngs.params(), shape, jnp.float32)
        self.kernel = nnx.Param(initial)
        self.bias = nnx.Param(jnp.zeros(outputs, jnp.float32)) if bias else None

    def __call__(self, x: Float[Array, "b h w inputs"]) -> Float[Array, "b h2 w2 outputs"]:
        padding = (self.padding,) * 2
        x = convolution(x, self.kernel[...], self.dtype, stride=self.stride, padding=padding, groups=self.groups)
        return x if self.bias is None else add_to_rows(x, self.bias[...])


class Stage(nnx.Module):
    """Stage of `layers` blocks, built by `make(is_first, rngs)`. Only the first may change the shape of a map.

    Attributes:
        remat: what the backward pass of the first block recomputes, a key of `REMAT_POLICIES`.
    """

    def __init__(self, layers: int, make: Callable[[bool, nnx.Rngs], nnx.Module], *, rngs: nnx.Rngs):
        self.remat = "none"
        self.first = make(True, rngs)
        self.blocks = Stack(layers - 1, lambda rngs: make(False, rngs), rngs=rngs) if layers > 1 else None

    def __call__(self, x: Float[Array, "b h w inputs"]) -> Float[Array, "b h2 w2 c"]:
        x = self._run_first(x)
        return x if self.blocks is None else self.blocks(x)

    def _run_first(self, x: Float[Array, "b h w inputs"]) -> Float[Array, "b h2 w2 c"]:
        if self.remat == "none":
            return self.first(x)
        graph, parameters = nnx.split(self.first)
        run = jax.checkpoint(lambda parameters, x: nnx.merge(graph, parameters)(x), policy=REMAT_POLICIES[self.remat])
        return run(parameters, x)


class ConvolutionalTower(nnx.Module):
    """Base of convolutional image towers, with the interface of `VisionTower`.

    A subclass defines `maps`, and `pool` if the pooling is not the mean.

    Attributes:
        stage1, stage2...: one stage for each entry of the spec's `stage_layers`.
        pooling: the pooling module; None for the mean.
        blocks: None; transformers have their stack here.
    """

    pooling: nnx.Module | None = None
    blocks: None = None

    def __init__(self, spec: ConvolutionalSpec, dtype: DTypeLike):
        self.spec, self.dtype = spec, dtype

    def add_stages(self, make: Callable[[int], nnx.Module]) -> None:
        """Set `stage1` to `make(0)`, `stage2` to `make(1)`, and so on."""
        for number in range(len(self.spec.stage_layers)):
            setattr(self, f"stage{number + 1}", make(number))

    def run_stages(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
        """Compute the map after all stages."""
        for number in range(len(self.spec.stage_layers)):
            x = getattr(self, f"stage{number + 1}")(x)
        return x

    def maps(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
        """Compute the last map."""
        raise NotImplementedError

    def __call__(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b features"]:
        """Compute pooled features, float32, from normalised pixels of the size in the spec."""
        return self.pool(self.tokens(pixels))

    def tokens(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b tokens c"]:
        """Compute the cells of the last map, row by row, float32. Raises ValueError: pixels have another size."""
        check_size(pixels, self.spec.image_size)
        x = self.maps(pixels)
        return x.astype(jnp.float32).reshape(x.shape[0], -1, x.shape[-1])

    def pool(self, tokens: Float[Array, "b tokens c"]) -> Float[Array, "b features"]:
        """Pool the tokens into one vector per image, float32."""
        return tokens.mean(1)


def check_size(pixels: Float[Array, "b h w 3"], size: int) -> None:
    """Raise ValueError if pixels have another size than the tower was built for."""
    if pixels.shape[1:3] != (size, size):
        raise ValueError(f"pixels of {pixels.shape[1]} x {pixels.shape[2]} for a tower of {size} x {size}")


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
