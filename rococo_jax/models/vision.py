"""Vision transformers: image towers over patches, configured by `VisionSpec`.

    pixels -> [convolutions ->] patches -> [class token +] positions [+ registers] -> [norm] -> blocks -> norm ->
    pooling

Position embeddings for another image size are interpolated (`positions`).

A tower with a flexible grid (NaFlex) reads square images or *patch sequences*, which store images of all shapes in
arrays of one shape: (n + 1) p x p pixels with the patches of an image one below the other, row by row, followed by
padding, which is masked. The last patch stores the grid: its first two pixels are the numbers of rows and columns, each
as a high byte (red) and a low byte (green), not normalised.

Sources: Dosovitskiy et al. (arXiv 2010.11929), CLIP (2103.00020), SigLIP (2303.15343), DINOv2 (2304.07193), EVA-CLIP
(2303.15389), CLIPA (2305.07017), CoCa (2205.01917), MobileCLIP (2311.17049), ViTamin (2404.02132), PE (2504.13181).
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from rococo_jax.models.attention import attend_all
from rococo_jax.models.fused_attention import Lengths
from rococo_jax.models.layers import ACTIVATIONS, FrozenBatchNorm, LayerNorm, Linear, draw_normal
from rococo_jax.models.positions import positions_on_grid, positions_on_grids
from rococo_jax.models.products import add_to_rows, repeat_on_rows
from rococo_jax.models.spec import VisionSpec
from rococo_jax.models.stages import MbConvStem, check_size
from rococo_jax.models.transformer import Blocks, Mlp


def patches_of(pixels: Float[Array, "b h w c"], size: int) -> Float[Array, "b patches values"]:
    """Cut images into non-overlapping patches, row by row, each flattened as (row, column, channel).

    A convolution whose stride equals its kernel size is a product of these with a matrix, which is faster everywhere.
    """
    batch, height, width, channels = pixels.shape
    rows, columns = height // size, width // size
    pixels = pixels[:, : rows * size, : columns * size]
    patches = pixels.reshape(batch, rows, size, columns, size, channels).transpose(0, 1, 3, 2, 4, 5)
    return patches.reshape(batch, rows * columns, size * size * channels)


def map_patches(map_: Linear, x: Float[Array, "b h w c"], size: int) -> Float[Array, "b h2 w2 c2"]:
    """Apply a convolution whose stride equals its kernel size; remaining rows and columns are ignored."""
    batch, height, width, _ = x.shape
    return map_(patches_of(x, size)).reshape(batch, height // size, width // size, -1)


class AttentionPooling(nnx.Module):
    """Pooling of SigLIP: a learnt probe, mapped to a query, attends to all tokens; then a residual MLP."""

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
        """Return the weighted sum of the visible tokens' values, and the attention weights, which sum to 1."""
        width = tokens.shape[2]
        query = self.qkv(self.probe[...], slice(width))
        key_value = self.qkv(tokens, slice(width, 3 * width))
        return attend_all(repeat_on_rows(query[None], len(tokens), query.dtype), key_value, self.heads, lengths)


class CrossPooling(nnx.Module):
    """Pooling of CoCa in open_clip: a normalised probe of `pooled_width` attends to all tokens; then a norm.

    CoCa (arXiv 2205.01917) has 256 probes for its decoder; the first one gives the contrastive embedding.
    """

    def __init__(self, spec: VisionSpec, *, dtype: DTypeLike, rngs: nnx.Rngs):
        width = spec.pooled_width
        self.heads = spec.pooling_heads or spec.heads
        initial = draw_normal(rngs.params(), (width,), 1.0)
        self.probe, self.probe_norm = nnx.Param(initial), LayerNorm(width, spec.norm_eps)
        self.query = Linear(width, width, bias=False, dtype=dtype, rngs=rngs)
        self.key_value = Linear(spec.width, 2 * width, bias=False, dtype=dtype, rngs=rngs)
        # Biases of query, keys and values, concatenated.
        self.bias = nnx.Param(jnp.zeros(3 * width, jnp.float32))
        self.out = Linear(width, width, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(width, spec.norm_eps)

    def __call__(self, tokens: Float[Array, "b t width"]) -> Float[Array, "b pooled_width"]:
        return self.norm(self.out(self.mix(tokens)[0][:, 0]))

    def mix(self, tokens: Float[Array, "b t width"]) -> tuple[Float[Array, "b 1 p"], Float[Array, "b h 1 t"]]:
        """Return the weighted sum of the tokens' values, and the attention weights, which sum to 1."""
        query, bias = self.query(self.probe_norm(self.probe[...])), self.bias[...]
        query = query + bias[: len(query)].astype(query.dtype)
        key_value = add_to_rows(self.key_value(tokens), bias[len(query) :])
        return attend_all(repeat_on_rows(query[None], len(tokens), query.dtype), key_value, self.heads)


_POOLINGS = {"attention": AttentionPooling, "cross": CrossPooling}


class ConvolutionStem(nnx.Module):
    """Stem of MobileCLIP-B: convolutions of 4 x 4 and 2 x 2 pixels, each with a batch norm and GELU.

    Their strides equal their kernel sizes, so that a product over patches computes each of them.
    """

    def __init__(self, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.map1 = Linear(3 * 16, width, bias=False, dtype=dtype, rngs=rngs)
        self.norm1 = FrozenBatchNorm(width)
        self.map2 = Linear(4 * width, width, bias=False, dtype=dtype, rngs=rngs)
        self.norm2 = FrozenBatchNorm(width)

    def __call__(self, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 width"]:
        """Compute feature maps of an eighth of the size."""
        x = pixels
        for size, map_, norm in ((4, self.map1, self.norm1), (2, self.map2, self.norm2)):
            x = ACTIVATIONS["gelu"](norm(map_patches(map_, x, size)))
        return x


def takes_patches(spec: object) -> bool:
    """Return whether a tower of this spec can read a subset of the patches of an image."""
    return isinstance(spec, VisionSpec) and spec.stem_width is spec.mbconv is spec.rotary is None


def _stem(spec: VisionSpec, dtype: DTypeLike, rngs: nnx.Rngs) -> ConvolutionStem | MbConvStem | None:
    if spec.mbconv is not None:
        return MbConvStem(spec.mbconv, spec.width, spec.norm_eps, dtype=dtype, rngs=rngs)
    return ConvolutionStem(spec.stem_width, dtype=dtype, rngs=rngs) if spec.stem_width else None


class VisionTower(nnx.Module):
    """Vision transformer.

    Parameters: `patch`, `positions (tokens, width)`, `class_token (width,)`, `registers (n, width)`, norms, `blocks`.
    """

    def __init__(self, spec: VisionSpec, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.spec, self.dtype = spec, dtype
        tokens = (spec.position_grid or spec.grid) ** 2 + spec.positioned_class
        self.stem = _stem(spec, dtype, rngs)
        values = 4 * spec.stem_width if spec.stem_width else 3 * spec.patch_size**2

        def parameter(*shape: int) -> nnx.Param:
            return nnx.Param(draw_normal(rngs.params(), shape, 0.02))

        self.patch = None if spec.mbconv else Linear(values, spec.width, bias=spec.patch_bias, dtype=dtype, rngs=rngs)
        self.positions = parameter(tokens, spec.width) if spec.stores_positions else None
        self.class_token = parameter(spec.width) if spec.class_token else None
        self.registers = parameter(spec.registers, spec.width) if spec.registers else None
        self.norm_before = LayerNorm(spec.width, spec.norm_eps) if spec.norm_before_blocks else None
        self.blocks = Blocks(spec, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(spec.width, spec.norm_eps)
        pooling = _POOLINGS.get(spec.pooling)
        self.pooling = None if pooling is None else pooling(spec, dtype=dtype, rngs=rngs)

    def __call__(
        self, pixels: Float[Array, "b h w 3"], patches: Int[Array, "b kept"] | None = None
    ) -> Float[Array, "b features"]:
        """Compute pooled features, float32, from normalised pixels, or from the patches with these indices only."""
        return self.pool(self.tokens(pixels, patches), self._lengths(pixels))

    def tokens(
        self, pixels: Float[Array, "b h w 3"], patches: Int[Array, "b kept"] | None = None
    ) -> Float[Array, "b tokens width"]:
        """Compute the tokens after the last norm, float32: class token, registers, then patches row by row.

        With `norm_after_pooling`, the norm is left to `pool`.
        """
        return self._finish(self.blocks(self.embed(pixels, patches), lengths=self._lengths(pixels)))

    def tokens_and_attention(
        self, pixels: Float[Array, "b h w 3"]
    ) -> tuple[Float[Array, "b tokens width"], Float[Array, "b heads tokens tokens"]]:
        """Compute `tokens` and the attention weights of the last block, for square images."""
        check_size(pixels, self.spec.image_size)
        x, weights = self.blocks.with_last_attention(self.embed(pixels))
        return self._finish(x), weights

    def _finish(self, x: Float[Array, "b tokens width"]) -> Float[Array, "b tokens width"]:
        return x.astype(jnp.float32) if self.spec.norm_after_pooling else self.norm(x)

    def embed(
        self, pixels: Float[Array, "b h w 3"], patches: Int[Array, "b kept"] | None = None
    ) -> Float[Array, "b tokens width"]:
        """Compute the input of the first block, from all patches or from those with the indices `patches`.

        Raises ValueError: pixels have another size than the tower was built for, or patches are selected for a tower
        with a stem, which reads neighbouring patches, or with rotary positions.
        """
        grids = self._grids(pixels)
        if grids is not None and patches is None:
            return self._embed_patch_sequences(pixels, grids)
        check_size(pixels, self.spec.image_size)
        if patches is not None and not takes_patches(self.spec):
            raise ValueError("a tower with a stem or rotary positions reads whole images")

        x = self._embed_patches(pixels, patches)
        if self.class_token is not None:
            class_token = repeat_on_rows(self.class_token[...][None], len(x), x.dtype)
            x = jnp.concatenate([class_token, x], axis=1)
        if self.positions is not None:
            x = add_to_rows(x, self._positions(patches))
        if self.registers is not None:
            registers = repeat_on_rows(self.registers[...], len(x), x.dtype)
            class_tokens = int(self.spec.class_token)
            x = jnp.concatenate([x[:, :class_tokens], registers, x[:, class_tokens:]], axis=1)
        return x if self.norm_before is None else self.norm_before(x).astype(x.dtype)

    def _embed_patches(
        self, pixels: Float[Array, "b h w 3"], patches: Int[Array, "b kept"] | None
    ) -> Float[Array, "b patches width"]:
        """Compute the embeddings of the patches, without positions."""
        if self.stem is None:
            x = patches_of(pixels, self.spec.patch_size)
            if patches is not None:
                x = jnp.take_along_axis(x, patches[..., None], axis=1)
            return self.patch(x)
        maps = self.stem(pixels)
        if self.patch is not None:
            return self.patch(patches_of(maps, 2))
        return maps.reshape(len(maps), -1, maps.shape[-1])

    def _positions(
        self, patches: Int[Array, "b kept"] | None
    ) -> Float[Array, "tokens width"] | Float[Array, "b tokens width"]:
        """Return the position embeddings of class token and patches, for each row if patches are selected."""
        class_tokens = int(self.spec.class_token)
        positions = positions_on_grid(self.positions[...], self.spec)
        if class_tokens and not self.spec.class_position:
            positions = jnp.pad(positions, ((1, 0), (0, 0)))
        if patches is None:
            return positions
        of_patches = positions[patches + class_tokens]
        of_class = jnp.broadcast_to(positions[None, :class_tokens], (len(patches), class_tokens, positions.shape[1]))
        return jnp.concatenate([of_class, of_patches], axis=1)

    def _embed_patch_sequences(
        self, pixels: Float[Array, "b h p 3"], grids: Int[Array, "b 2"]
    ) -> Float[Array, "b patches width"]:
        """Compute the input of the first block from patch sequences, whose last patch stores the grid."""
        x = self.patch(patches_of(pixels[:, : -self.spec.patch_size], self.spec.patch_size))
        return add_to_rows(x, positions_on_grids(self.positions[...], grids, x.shape[1]))

    def _grids(self, pixels: Float[Array, "b h w 3"]) -> Int[Array, "b 2"] | None:
        """Read the numbers of rows and columns of patches from patch sequences; None for square images."""
        size = self.spec.patch_size
        height, width = pixels.shape[1:3]
        is_patch_sequence = width == size and height % size == 0 and height != size
        if not self.spec.flexible_grid or not is_patch_sequence:
            return None
        grid_bytes = pixels[:, -size, :2, :2].astype(jnp.int32)  # (b, rows and columns, high and low byte)
        return 256 * grid_bytes[..., 0] + grid_bytes[..., 1]

    def _lengths(self, pixels: Float[Array, "b h w 3"]) -> Int[Array, " b"] | None:
        """Return the number of patches of each patch sequence, without padding; None for square images."""
        grids = self._grids(pixels)
        return None if grids is None else grids.prod(1)

    def pool(
        self, tokens: Float[Array, "b tokens width"], lengths: Lengths | None = None
    ) -> Float[Array, "b features"]:
        """Pool the tokens into one vector per image, float32.

        `lengths` masks the padding of patch sequences; only attention pooling supports it.
        """
        if self.pooling is not None:
            pooled = self.pooling(tokens) if lengths is None else self.pooling(tokens, lengths)
            return pooled.astype(jnp.float32)
        vectors = []
        if "cls" in self.spec.pooling:
            vectors.append(tokens[:, 0])
        if "mean" in self.spec.pooling:
            vectors.append(tokens[:, self.spec.first_patch :].mean(1))
        pooled = jnp.concatenate(vectors, axis=-1).astype(jnp.float32)
        return self.norm(pooled) if self.spec.norm_after_pooling else pooled
