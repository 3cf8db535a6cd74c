"""The specification of a model, as plain data: enough to build its towers, small enough to read in `model.json`.

The families differ in a handful of choices, and each choice is a field here:

    ============  ===========  ==========  ===========  ===========  =========  ==============
    image tower   class token  patch bias  norm before  layer scale  pooling    activation
    ============  ===========  ==========  ===========  ===========  =========  ==============
    CLIP ViT      yes          no          yes          no           cls        as configured
    SigLIP ViT    no           yes         no           no           attention  as configured
    DINOv2 ViT    yes          yes         no           yes          any        or gated (silu)
    CLIPA ViT     yes          no          no           no           mean       as configured
    EVA, EVA02    yes          yes         no           no           cls        gelu, gated (silu)
    PE-Core       most         no          yes          no           attention  gelu
    CoCa ViT      yes          no          yes          no           cross      gelu
    ViTamin       no           yes         no           no           mean       gated (gelu)
    ============  ===========  ==========  ===========  ===========  =========  ==============

What one of them alone has is a field with a default: rotary positions and inner norms (EVA02), norms on what a block
adds (EVA02-E), a norm after the pooling (CLIPA), a stem of convolutions (MobileCLIP-B, ViTamin), a grid of patches that
follows the shape of each image (SigLIP 2 NaFlex). CLIP's ResNets, ConvNeXt and EfficientNet have specs of their own.

    ============  ==========  ===============  =========================
    text tower    attention   norm             pooling
    ============  ==========  ===============  =========================
    CLIP          causal      before a block   first_eos, or highest_id
    CoCa          causal      before a block   appended
    SigLIP        full        before a block   last
    BERT, BLIP    masked      after a block    cls or mean
    NLLB          masked      before a block   cls
    TIPSv2        masked      before a block   mean
    bag of words  bag         either           mean
    ============  ==========  ===============  =========================
"""

import dataclasses
from typing import ClassVar, Literal

from rococo_jax.errors import InputError
from rococo_jax.models.checked_spec import Activation, CheckedSpec, PositionRule, check_heads
from rococo_jax.models.convolutional_spec import (
    ConvNextSpec,
    ConvolutionalSpec,
    EfficientNetSpec,
    MbConvSpec,
    ResNetSpec,
)

VisionPooling = Literal["cls", "mean", "cls+mean", "attention", "cross"]
TextPooling = Literal["first_eos", "highest_id", "last", "cls", "mean", "appended"]
TextAttention = Literal["causal", "masked", "full", "bag"]
HeadKind = Literal["none", "linear", "mlp"]


@dataclasses.dataclass(frozen=True)
class RotarySpec(CheckedSpec):
    """Rotary positions of patches in every attention (`models.attention.Rotary`).

    `grid` is the side of the square that positions are scaled to, whatever the tower's own. Positions count from 1 with
    `from_one`, else from 0; with `columns_first` the first half of a head turns with the column, else with the row.
    `centred` (DINOv3), they are those of the middles of patches, from -2 pi at one end of `grid` to 2 pi at the other,
    and channel i of a head turns with i + d/2, not 2i with 2i + 1. `base` is that of the angles.
    """

    what: ClassVar[str] = "rotary"
    omit_if_default: ClassVar[frozenset[str]] = frozenset(("centred", "base"))

    grid: int
    from_one: bool = False
    columns_first: bool = False
    centred: bool = False
    base: int = 10000


@dataclasses.dataclass(frozen=True)
class VisionSpec(CheckedSpec):
    """A transformer over patches. Lengths in pixels, widths in channels.

    Attributes:
        position_grid: the side of the stored position embeddings where it is not `grid`: they are interpolated as the
            tower runs, so that a tower can be used at another size and still be written back as it came.
        position_rule: how; see `models.positions`.
        rotary: positions that turn queries and keys, beside the stored ones.
        inner_norms: norms of what attention mixed and of an MLP's hidden channels, before the maps that follow them.
        norm_changes: a block norms what attention and MLP give, not what they read.
        norm_after_pooling: the last norm is that of the pooled vector.
        class_position: the class token has a position embedding.
        stem_width: of two convolutions with batch norms before the patches' map; None for patches of pixels.
        mbconv: stages of convolutions whose cells are the patches.
        mlp_norms: an MLP norms what it reads, which the block has normed already.
        pooling_heads, pooling_mlp_width, pooling_width: of attention pooling, where they are not the blocks'.
        registers: tokens without positions after the class token, which no pooling reads (arXiv 2309.16588).
        stores_positions: it has position embeddings.
        flexible_grid: the grid of patches follows the shape of each image, and so do the positions, from those stored
            for `position_grid`; `image_size` is of squares, which the tower reads as well.
    """

    what: ClassVar[str] = "vision"
    omit_if_default: ClassVar[frozenset[str]] = frozenset(
        (
            "rotary", "inner_norms", "norm_changes", "norm_after_pooling", "class_position", "stem_width",
            "mbconv", "mlp_norms", "pooling_heads", "pooling_mlp_width", "pooling_width", "position_rule", "registers",
            "stores_positions", "flexible_grid",
        )
    )  # fmt: skip

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    mlp_width: int
    activation: Activation
    norm_eps: float
    class_token: bool
    patch_bias: bool
    norm_before_blocks: bool
    layer_scale: bool
    pooling: VisionPooling
    gated_mlp: bool = False
    qkv_bias: bool = True
    position_grid: int | None = None
    rotary: RotarySpec | None = None
    inner_norms: bool = False
    norm_changes: bool = False
    norm_after_pooling: bool = False
    class_position: bool = True
    stem_width: int | None = None
    mbconv: MbConvSpec | None = None
    mlp_norms: bool = False
    pooling_heads: int | None = None
    pooling_mlp_width: int | None = None
    pooling_width: int | None = None
    position_rule: PositionRule = "bicubic"
    registers: int = 0
    stores_positions: bool = True
    flexible_grid: bool = False

    # BERT's blocks alone norm after a sum.
    norm_after_blocks: ClassVar[bool] = False

    def __post_init__(self):
        check_heads("vision spec", self.width, self.heads)
        if "cls" in self.pooling and not self.class_token:
            raise InputError("vision spec", "pooling", repr(self.pooling), "a tower with a class token")
        if self.pooling in ("attention", "cross"):
            check_heads("vision spec", self.pooled_width, self.pooling_heads or self.heads)
        if self.norm_after_pooling and self.pooling not in ("cls", "mean"):
            raise InputError("vision spec", "norm_after_pooling", self.pooling, "pooling 'cls' or 'mean'")
        if self.rotary is not None and self.width // self.heads % 4:
            found = f"heads of {self.width // self.heads} channels"
            raise InputError("vision spec", "rotary", found, "a multiple of four: a sine and a cosine for each axis")
        if self.mbconv is not None and (self.patch_size != 16 or self.image_size % 16):
            found = f"images of {self.image_size} and patches of {self.patch_size} pixels"
            raise InputError("vision spec", "mbconv", found, "a multiple of 16, and 16")
        if self.flexible_grid and not self._can_be_flexible:
            wanted = "a position_grid, antialiased_linear, whole patches alone before the blocks, attention pooling"
            raise InputError("vision spec", "flexible_grid", "true", wanted)

    @property
    def _can_be_flexible(self) -> bool:
        alone = self.stem_width is self.mbconv is self.rotary is None
        alone = alone and not self.first_patch | self.norm_before_blocks | self.border_pixels and self.patch_size > 1
        stored = self.position_grid is not None and self.position_rule == "antialiased_linear"
        return alone and stored and self.stores_positions and self.pooling == "attention"

    @property
    def grid(self) -> int:
        """Patches along a side; pixels that fill no whole patch are left out at the right and bottom."""
        return self.image_size // self.patch_size

    @property
    def border_pixels(self) -> int:
        """Rows at the bottom, and columns at the right, that fill no patch and are not seen."""
        return self.image_size % self.patch_size

    @property
    def first_patch(self) -> int:
        """Tokens before those of the patches."""
        return self.class_token + self.registers

    @property
    def positioned_class(self) -> bool:
        """Whether the first of the position embeddings is the class token's."""
        return self.class_token and self.class_position

    @property
    def pooled_width(self) -> int:
        """Channels of attention pooling."""
        return self.pooling_width or self.width

    @property
    def features(self) -> int:
        """Length of the pooled vector."""
        return 2 * self.width if self.pooling == "cls+mean" else self.pooled_width


@dataclasses.dataclass(frozen=True)
class TextSpec(CheckedSpec):
    """A text tower.

    `pad_id` is the id of padding, for pooling `appended`: of the token that is appended to a text's tokens, and that
    (CoCa's quirk) sees the first token of padding and not itself. `scaled_words` are multiplied by the root of the
    width; `sine_positions` are sines and cosines, and no parameters.
    """

    what: ClassVar[str] = "text"
    omit_if_default: ClassVar[frozenset[str]] = frozenset(("pad_id", "scaled_words", "sine_positions"))

    vocabulary_size: int
    context_length: int
    width: int
    layers: int
    heads: int
    mlp_width: int
    activation: Activation
    norm_eps: float
    attention: TextAttention
    norm_after_blocks: bool
    pooling: TextPooling
    eos_id: int | None = None
    token_types: int = 0
    pad_id: int | None = None
    scaled_words: bool = False
    sine_positions: bool = False

    # The parts of blocks that image towers alone may have.
    layer_scale: ClassVar[bool] = False
    gated_mlp: ClassVar[bool] = False
    qkv_bias: ClassVar[bool] = True
    rotary: ClassVar[None] = None
    inner_norms: ClassVar[bool] = False
    norm_changes: ClassVar[bool] = False
    mlp_norms: ClassVar[bool] = False

    def __post_init__(self):
        check_heads("text spec", self.width, self.heads)
        if self.attention == "bag" and self.pooling != "mean":
            wanted = "'mean' for a bag of words, which has no last token"
            raise InputError("text spec", "pooling", repr(self.pooling), wanted)
        if (self.pooling == "appended") != (self.pad_id is not None):
            raise InputError("text spec", "pad_id", self.pad_id, "the padding id, for pooling 'appended' alone")
        if self.pooling == "first_eos" and self.eos_id is None:
            raise InputError("text spec", "eos_id", None, "the end-of-text id, for pooling 'first_eos'")

    @property
    def features(self) -> int:
        """Length of the pooled vector."""
        return self.width


@dataclasses.dataclass(frozen=True)
class HeadSpec(CheckedSpec):
    """From pooled features to an embedding: no map, an affine map into `dim` dimensions, or an MLP.

    With `hidden`, a residual MLP of that width stands beside the affine map: `x A + a + mlp(norm(x))`.
    The kind `mlp` is `gelu(x A + a) B` with `hidden` channels between (open_clip's; `hidden_bias` for the `a` of its
    image towers).
    """

    what: ClassVar[str] = "head"
    omit_if_default: ClassVar[frozenset[str]] = frozenset(("hidden_bias",))

    kind: HeadKind = "none"
    dim: int | None = None
    bias: bool = False
    hidden: int | None = None
    hidden_bias: bool = False

    def __post_init__(self):
        if self.kind == "none" and self.hidden is not None:
            raise InputError("head spec", "hidden", self.hidden, "null for kind 'none'")
        if self.kind == "mlp" and self.hidden is None:
            raise InputError("head spec", "hidden", None, "a number of channels for kind 'mlp'")
        if (self.kind == "none") != (self.dim is None):
            raise InputError("head spec", "dim", self.dim, "null for kind 'none', a number of dimensions otherwise")


@dataclasses.dataclass(frozen=True)
class MatchingSpec(CheckedSpec):
    """A head that scores pairs of an image and a text (`models.matching`); its sizes are those of the towers.

    `first_id` is the token that begins a text for it, where that is not the one which begins a text for the tower.
    """

    what: ClassVar[str] = "matching"

    first_id: int | None = None


@dataclasses.dataclass(frozen=True)
class ModelSpec(CheckedSpec):
    """A dual encoder, or a single tower where the other is None. Few models have a matching head beside it."""

    what: ClassVar[str] = "model"
    omit_if_default: ClassVar[frozenset[str]] = frozenset(("matching",))

    vision: VisionSpec | ResNetSpec | ConvNextSpec | EfficientNetSpec | None
    text: TextSpec | None
    vision_head: HeadSpec = HeadSpec()
    text_head: HeadSpec = HeadSpec()
    logit_bias: bool = False
    matching: MatchingSpec | None = None

    def __post_init__(self):
        if self.vision is None and self.text is None:
            raise InputError("model spec", "towers", "neither vision nor text", "at least one tower")
        if self.matching is not None:
            _can_match(self.vision, self.text, self.matching)
        dims = {self.vision_dim, self.text_dim} - {None}
        if len(dims) > 1:
            found = f"images in {self.vision_dim} and texts in {self.text_dim} dimensions"
            raise InputError("model spec", "heads", found, "embeddings of one length")

    @property
    def vision_dim(self) -> int | None:
        """Length of image embeddings, None without an image tower."""
        return None if self.vision is None else self.vision_head.dim or self.vision.features

    @property
    def text_dim(self) -> int | None:
        """Length of text embeddings, None without a text tower."""
        return None if self.text is None else self.text_head.dim or self.text.features

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self.vision_dim or self.text_dim


def _can_match(vision: VisionSpec | ConvolutionalSpec | None, text: TextSpec | None, matching: MatchingSpec) -> None:
    """Refuses towers whose tokens the matching head cannot read."""
    if not isinstance(vision, VisionSpec) or text is None or not text.norm_after_blocks or text.attention != "masked":
        found = "towers of another kind, or one of them alone"
        raise InputError("model spec", "matching", found, "a matching head on a ViT and a BERT")
    if matching.first_id is not None and not 0 <= matching.first_id < text.vocabulary_size:
        raise InputError("matching spec", "first_id", matching.first_id, f"an id below {text.vocabulary_size}")
