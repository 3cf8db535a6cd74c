"""Image towers that are transformers over patches, configured by `VisionSpec`.

    pixels -> [convolutions ->] patches -> [class token +] positions [+ registers] -> [norm] -> blocks -> norm ->
    pooling

Position embeddings for another image size are interpolated (`positions`).

A tower with a flexible grid reads strips beside squares, so that images of all shapes are arrays of one: (n + 1) p x p
pixels, the patches of an image row by row, one below the other, then padding, which no token sees. The last patch holds
the grid: its first two pixels are the rows and the columns, each as (high, low) byte in red and green, not normalised.

Sources: Dosovitskiy et al. (arXiv 2010.11929), CLIP (2103.00020), SigLIP (2303.15343), DINOv2 (2304.07193), EVA-CLIP
(2303.15389), CLIPA (2305.07017), CoCa (2205.01917), MobileCLIP (2311.17049), ViTamin (2404.02132), PE (2504.13181).
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from rococo_jax.models.attention import Lengths, attend_all
from rococo_jax.models.efficientnet import MbConvStem
from rococo_jax.models.layers import ACTIVATIONS, FrozenBatchNorm, LayerNorm, Linear
from rococo_jax.models.positions import positions_on_grid, positions_on_grids
from rococo_jax.models.products import add_to_rows, repeat_on_rows
from rococo_jax.models.spec import VisionSpec
from rococo_jax.models.stages import check_size
from rococo_jax.models.transformer import Blocks, Mlp


def patches_of(pixels: Float[Array, "b h w c"], size: int) -> Float[Array, "b patches values"]:
    """Non-overlapping patches in row order, each flattened as (row, column, channel).

    A convolution whose stride is its kernel is a matrix product over these, which every backend does faster.
    """
    batch, height, width, channels = pixels.shape
    rows, columns = height // size, width // size
    pixels = pixels[:, : rows * size, : columns * size]
    patches = pixels.reshape(batch, rows, size, columns, size, channels).transpose(0, 1, 3, 2, 4, 5)
    return patches.reshape(batch, rows * columns, size * size * channels)


def map_patches(map_: Linear, x: Float[Array, "b h w c"], size: int) -> Float[Array, "b h2 w2 c2"]:
    """A convolution whose stride is its kernel; rows and columns left over are not seen."""
    batch, height, width, _ = x.shape
    return map_(patches_of(x, size)).reshape(batch, height // size, width // size, -1)


class AttentionPooling(nnx.Module):
    """SigLIP's head: a learnt probe, mapped to a query, attends to all tokens; then a residual MLP."""

    def __init__(self, spec: VisionSpec, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.heads, self.dtype = spec.pooling_heads or spec.heads, dtype
        hidden = spec.pooling_mlp_width or spec.mlp_width
        initial = jax.nn.initializers.lecun_normal()(rngs.params(), (1, spec.width), jnp.float32)
        self.probe = nnx.Param(initial[0])
        self.qkv = Linear(spec.width, 3 * spec.width, dtype=dtype, rngs=rngs)
        self.out = Linear(spec.width, spec.width, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(spec.width, spec.norm_eps)
        self.mlp = Mlp(spec.width, hidden, spec.activation, dtype=dtype, rngs=rngs)

    def __call__(self, tokens: Float[Array, "b t width"], lengths: Lengths | None = None) -> Float[Array, "b width"]:
        x = self.out(self.mix(tokens, lengths)[0][:, 0])
        return x + self.mlp(self.norm(x))

    def mix(
        self, tokens: Float[Array, "b t width"], lengths: Lengths | None = None
    ) -> tuple[Float[Array, "b 1 width"], Float[Array, "b h 1 t"]]:
        """The mixed values of the tokens that `lengths` shows, and their attention weights, which sum to 1."""
        width = tokens.shape[2]
        query = self.qkv(self.probe[...], slice(width))
        key_value = self.qkv(tokens, slice(width, 3 * width))
        return attend_all(repeat_on_rows(query[None], len(tokens), query.dtype), key_value, self.heads, lengths)


class CrossPooling(nnx.Module):
    """CoCa's head as open_clip has it: a normed probe, `pooled_width` wide, attends to all tokens; then a norm.

    CoCa (arXiv 2205.01917) has 256 probes for its decoder; the first is the one that gives the contrastive vector.
    """

    def __init__(self, spec: VisionSpec, *, dtype: DTypeLike, rngs: nnx.Rngs):
        width = spec.pooled_width
        self.heads = spec.pooling_heads or spec.heads
        initial = jax.nn.initializers.normal(1.0)(rngs.params(), (width,), jnp.float32)
        self.probe, self.probe_norm = nnx.Param(initial), LayerNorm(width, spec.norm_eps)
        self.query = Linear(width, width, bias=False, dtype=dtype, rngs=rngs)
        self.key_value = Linear(spec.width, 2 * width, bias=False, dtype=dtype, rngs=rngs)
        # Of query, keys and values, side by side.
        self.bias = nnx.Param(jnp.zeros(3 * width, jnp.float32))
        self.out = Linear(width, width, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(width, spec.norm_eps)

    def __call__(self, tokens: Float[Array, "b t width"]) -> Float[Array, "b pooled_width"]:
        return self.norm(self.out(self.mix(tokens)[0][:, 0]))

    def mix(self, tokens: Float[Array, "b t width"]) -> tuple[Float[Array, "b 1 p"], Float[Array, "b h 1 t"]]:
        """The mixed values of the tokens, and their attention weights, which sum to 1."""
        query, bias = self.query(self.probe_norm(self.probe[...])), self.bias[...]
        query = query + bias[: len(query)].astype(query.dtype)
        key_value = add_to_rows(self.key_value(tokens), bias[len(query) :])
        return attend_all(repeat_on_rows(query[None], len(tokens), query.dtype), key_value, self.heads)


_POOLINGS = {"attention": AttentionPooling, "cross": CrossPooling}


class ConvolutionStem(nnx.Module):
    """MobileCLIP-B's: two convolutions of 4 x 4 and 2 x 2 pixels, each with a batch norm and GELU, strides as large, so
    that a product over patches computes each.
    """

    def __init__(self, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.map1 = Linear(3 * 16, width, bias=False, dtype=dtype, rngs=rngs)
        self.norm1 = FrozenBatchNorm(width)
        self.map2 = Linear(4 * width, width, bias=False, dtype=dtype, rngs=rngs)
        self.norm2 = FrozenBatchNorm(width)

    def __call__(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 width"]:
        """Maps of an eighth of the size."""
        x = pixels
        for size, map_, norm in ((4, self.map1, self.norm1), (2, self.map2, self.norm2)):
            x = ACTIVATIONS["gelu"](norm(map_patches(map_, x, size)))
        return x


def takes_patches(spec: object) -> bool:
    """Whether a tower of this spec can read some patches of an image alone."""
    return isinstance(spec, VisionSpec) and spec.stem_width is spec.mbconv is spec.rotary is None


def _stem(spec: VisionSpec, dtype: DTypeLike, rngs: nnx.Rngs) -> ConvolutionStem | MbConvStem | None:
    if spec.mbconv is not None:
        return MbConvStem(spec.mbconv, spec.width, spec.norm_eps, dtype=dtype, rngs=rngs)
    return ConvolutionStem(spec.stem_width, dtype=dtype, rngs=rngs) if spec.stem_width else None


class VisionTower(nnx.Module):
    """An image tower. Parameters: `patch`, `positions (tokens, width)`, `class_token (width,)`, `registers (n, width)`,
    norms, `blocks`.
    """

    def __init__(self, spec: VisionSpec, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.spec, self.dtype = spec, dtype
        normal = jax.nn.initializers.normal(0.02)
        tokens = (spec.position_grid or spec.grid) ** 2 + spec.positioned_class
        self.stem = _stem(spec, dtype, rngs)
        values = 4 * spec.stem_width if spec.stem_width else 3 * spec.patch_size**2
        patch = None if spec.mbconv else Linear(values, spec.width, bias=spec.patch_bias, dtype=dtype, rngs=rngs)
        self.patch = patch
        stored = spec.stores_positions
        self.positions = nnx.Param(normal(rngs.params(), (tokens, spec.width), jnp.float32)) if stored else None
        class_token, registers = spec.class_token, (spec.registers, spec.width)
        self.class_token = nnx.Param(normal(rngs.params(), (spec.width,), jnp.float32)) if class_token else None
        self.registers = nnx.Param(normal(rngs.params(), registers, jnp.float32)) if spec.registers else None
        self.norm_before = LayerNorm(spec.width, spec.norm_eps) if spec.norm_before_blocks else None
        self.blocks = Blocks(spec, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(spec.width, spec.norm_eps)
        pooling = _POOLINGS.get(spec.pooling)
        self.pooling = None if pooling is None else pooling(spec, dtype=dtype, rngs=rngs)

    def __call__(
        self, pixels: Float[Array, "b h w 3"], patches: Int[Array, "b kept"] | None = None
    ) -> Float[Array, "b features"]:
        """Pooled features, float32, from normalised pixels of the size in the spec, or from some of their patches."""
        return self.pool(self.tokens(pixels, patches), self._lengths(pixels))

    def tokens(
        self, pixels: Float[Array, "b h w 3"], patches: Int[Array, "b kept"] | None = None
    ) -> Float[Array, "b tokens width"]:
        """The sequence after the last norm (class token first, then registers, then patches row by row), float32. Not
        normed where the norm is that of the pooled vector.
        """
        return self._finish(self.blocks(self.embed(pixels, patches), lengths=self._lengths(pixels)))

    def tokens_and_attention(
        self, pixels: Float[Array, "b h w 3"]
    ) -> tuple[Float[Array, "b tokens width"], Float[Array, "b heads tokens tokens"]]:
        """`tokens` and the attention weights of the last block, of squares."""
        check_size(pixels, self.spec.image_size)
        x, weights = self.blocks.with_last_attention(self.embed(pixels))
        return self._finish(x), weights

    def _finish(self, x: Float[Array, "b tokens width"]) -> Float[Array, "b tokens width"]:
        return x.astype(jnp.float32) if self.spec.norm_after_pooling else self.norm(x)

    def embed(
        self, pixels: Float[Array, "b h w 3"], patches: Int[Array, "b kept"] | None = None
    ) -> Float[Array, "b tokens width"]:
        """The input of the first block, of the `patches` alone where they are given.

        Raises ValueError for pixels of another size than the tower was built for, and for some patches of a tower that
        reads neighbours (a stem) or turns tokens by their place (rotary positions).
        """
        grids, size = self._grids(pixels), self.spec.patch_size
        if grids is not None and patches is None:
            x = self.patch(patches_of(pixels[:, :-size], size))
            return add_to_rows(x, positions_on_grids(self.positions[...], grids, x.shape[1]))
        check_size(pixels, self.spec.image_size)
        if patches is not None and not takes_patches(self.spec):
            raise ValueError("a tower with a stem or rotary positions reads whole images")
        if self.stem is None:
            x = patches_of(pixels, size)
            x = self.patch(x if patches is None else jnp.take_along_axis(x, patches[..., None], axis=1))
        else:
            x = self.stem(pixels)
            x = x.reshape(len(x), -1, x.shape[-1]) if self.patch is None else self.patch(patches_of(x, 2))
        before = int(self.spec.class_token)
        if self.class_token is not None:
            x = jnp.concatenate([repeat_on_rows(self.class_token[...][None], len(x), x.dtype), x], axis=1)
        if self.positions is not None:
            positions = positions_on_grid(self.positions[...], self.spec)
            if before and not self.spec.class_position:
                positions = jnp.pad(positions, ((1, 0), (0, 0)))
            if patches is not None:
                first = jnp.broadcast_to(positions[None, :before], (len(x), before, positions.shape[1]))
                positions = jnp.concatenate([first, positions[patches + before]], axis=1)
            x = add_to_rows(x, positions)
        if self.registers is not None:
            registers = repeat_on_rows(self.registers[...], len(x), x.dtype)
            x = jnp.concatenate([x[:, :before], registers, x[:, before:]], axis=1)
        return x if self.norm_before is None else self.norm_before(x).astype(x.dtype)

    def _grids(self, pixels: Float[Array, "b h w 3"]) -> Int[Array, "b 2"] | None:
        """Rows and columns of patches of the images of strips; None for squares."""
        size = self.spec.patch_size
        if not self.spec.flexible_grid or pixels.shape[2] != size or pixels.shape[1] % size or pixels.shape[1] == size:
            return None
        bytes_ = pixels[:, -size, :2, :2].astype(jnp.int32)
        return 256 * bytes_[..., 0] + bytes_[..., 1]

    def _lengths(self, pixels: Float[Array, "b h w 3"]) -> Int[Array, " b"] | None:
        """How many first tokens count; None for all."""
        grids = self._grids(pixels)
        return None if grids is None else grids.prod(1)

    def pool(
        self, tokens: Float[Array, "b tokens width"], lengths: Lengths | None = None
    ) -> Float[Array, "b features"]:
        """One vector an image, float32, of the tokens that `lengths` shows, which attention pooling alone takes."""
        if self.pooling is not None:
            return self.pooling(tokens, *([] if lengths is None else [lengths])).astype(jnp.float32)
        parts = []
        if "cls" in self.spec.pooling:
            parts.append(tokens[:, 0])
        if "mean" in self.spec.pooling:
            parts.append(tokens[:, self.spec.first_patch :].mean(1))
        pooled = jnp.concatenate(parts, axis=-1).astype(jnp.float32)
        return self.norm(pooled) if self.spec.norm_after_pooling else pooled
