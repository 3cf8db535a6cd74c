"""Shared code of convolutional image towers: the convolution, stages of blocks, and the base of the towers.

Maps are channels last, `(batch, height, width, channels)`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.layers import REMAT_POLICIES, Stack
from rococo_jax.models.products import add_to_rows, convolution
from rococo_jax.models.spec import ConvolutionalSpec


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
