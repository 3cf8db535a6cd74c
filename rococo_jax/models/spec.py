"""Specification of a model as plain data: everything that is needed to build its towers, stored in `model.json`.

Model families differ in a few choices, and each choice is a field:

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

A property of a single family is a field with a default: rotary positions and inner norms (EVA02), norms of the
residual branches (EVA02-E), a norm after the pooling (CLIPA), a stem of convolutions (MobileCLIP-B, ViTamin), a grid of
patches that follows the shape of each image (SigLIP 2 NaFlex). CLIP's ResNets and ConvNeXt have separate specs.

    ============  ==========  ===============  =========================
    text tower    attention   norm             pooling
    ============  ==========  ===============  =========================
    CLIP          causal      before a block   first_eos, or highest_id
    CoCa          causal      before a block   appended
    SigLIP        full        before a block   last
    BERT, BLIP    masked      after a block    cls or mean
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
    MbConvSpec,
    ResNetSpec,
)
from rococo_jax.models.rotary_spec import RotarySpec

VisionPooling = Literal["cls", "mean", "cls+mean", "attention", "cross"]
TextPooling = Literal["first_eos", "highest_id", "last", "cls", "mean", "appended"]
TextAttention = Literal["causal", "masked", "full", "bag"]
HeadKind = Literal["none", "linear", "mlp"]


@dataclasses.dataclass(frozen=True)
class VisionSpec(CheckedSpec):
    """Vision transformer. Lengths are in pixels, widths in channels.

    Attributes:
        position_grid: side of the stored position embeddings if it is not `grid`. They are interpolated when the tower
            runs, so that a tower used at another size can still be exported unchanged.
        position_rule: method of the interpolation; see `models.positions`.
        rotary: rotary positions of queries and keys, in addition to the stored ones.
        inner_norms: norms of the attention output and of the MLP's hidden channels, before their output maps (sub-LN).
        norm_changes: the norms of a block act on the outputs of attention and MLP (EVA02-E), not on their inputs.
        norm_after_pooling: the last norm acts on the pooled vector.
        class_position: the class token has a position embedding.
        stem_width: channels of two convolutions with batch norms before the patch map; None for patches of pixels.
        mbconv: stages of convolutions whose output cells are the patches.
        mlp_norms: an additional norm of the input of each MLP.
        pooling_heads, pooling_mlp_width, pooling_width: sizes of attention pooling that differ from the blocks' sizes.
        registers: number of tokens without positions after the class token, ignored by pooling (arXiv 2309.16588).
        stores_positions: the tower has position embeddings.
        flexible_grid: the grid of patches follows the shape of each image, with positions interpolated from those of
            `position_grid`. The tower reads square images of `image_size` as well.
    """

    label: ClassVar[str] = "vision"
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

    # Only text towers (BERT) have norms after the residual sums.
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
            problem = f"heads of {self.width // self.heads} channels"
            raise InputError("vision spec", "rotary", problem, "a multiple of four: a sine and a cosine for each axis")
        if self.mbconv is not None and (self.patch_size != 16 or self.image_size % 16):
            problem = f"images of {self.image_size} and patches of {self.patch_size} pixels"
            raise InputError("vision spec", "mbconv", problem, "a multiple of 16, and 16")
        if self.flexible_grid and not self._can_be_flexible:
            expected = (
                "a position_grid, position_rule antialiased_linear, attention pooling, and nothing but whole patches "
                "before the blocks"
            )
            raise InputError("vision spec", "flexible_grid", "true", expected)

    @property
    def _can_be_flexible(self) -> bool:
        has_other_tokens = self.first_patch > 0
        has_other_layers = self.norm_before_blocks or any(
            each is not None for each in (self.stem_width, self.mbconv, self.rotary)
        )
        has_whole_patches = not self.border_pixels and self.patch_size > 1
        interpolates = self.stores_positions and self.position_grid is not None
        return (
            has_whole_patches
            and not has_other_tokens
            and not has_other_layers
            and interpolates
            and self.position_rule == "antialiased_linear"
            and self.pooling == "attention"
        )

    @property
    def grid(self) -> int:
        """Number of patches along a side, without the incomplete ones at the right and bottom."""
        return self.image_size // self.patch_size

    @property
    def border_pixels(self) -> int:
        """Number of pixel rows at the bottom (columns at the right) outside all patches, which the tower ignores."""
        return self.image_size % self.patch_size

    @property
    def first_patch(self) -> int:
        """Index of the first patch token."""
        return self.class_token + self.registers

    @property
    def positioned_class(self) -> bool:
        """True if the first position embedding is that of the class token."""
        return self.class_token and self.class_position

    @property
    def pooled_width(self) -> int:
        """Width of attention pooling."""
        return self.pooling_width or self.width

    @property
    def features(self) -> int:
        """Length of the pooled vector."""
        return 2 * self.width if self.pooling == "cls+mean" else self.pooled_width


@dataclasses.dataclass(frozen=True)
class TextSpec(CheckedSpec):
    """Text tower.

    Attributes:
        pad_id: id of the padding, for pooling `appended` (CoCa). There the embedding is that of a token appended to the
            text, which attends to the first token of padding and not to itself.
        scaled_words: word embeddings are multiplied by the square root of the width.
        sine_positions: positions are sines and cosines instead of parameters.
    """

    label: ClassVar[str] = "text"
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

    # Properties of blocks that only image towers may have.
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
            expected = "'mean' for a bag of words, which has no order"
            raise InputError("text spec", "pooling", repr(self.pooling), expected)
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
    """Map of pooled features to an embedding: none, an affine map into `dim` dimensions, or an MLP.

    With `hidden`, the kind `linear` has an additional residual MLP of that width: `x A + a + mlp(norm(x))`. The kind
    `mlp` is `gelu(x A + a) B` with `hidden` channels (open_clip); `hidden_bias` adds `a`.
    """

    label: ClassVar[str] = "head"
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
    """Head that scores pairs of an image and a text (`models.matching`), with the sizes of the towers.

    `first_id` is the id of the token that begins a text for this head; None if it is the tower's.
    """

    label: ClassVar[str] = "matching"

    first_id: int | None = None


@dataclasses.dataclass(frozen=True)
class ModelSpec(CheckedSpec):
    """Dual encoder, or a single tower if the other is None; a few models also have a matching head."""

    label: ClassVar[str] = "model"
    omit_if_default: ClassVar[frozenset[str]] = frozenset(("matching",))

    vision: VisionSpec | ResNetSpec | ConvNextSpec | None
    text: TextSpec | None
    vision_head: HeadSpec = HeadSpec()
    text_head: HeadSpec = HeadSpec()
    logit_bias: bool = False
    matching: MatchingSpec | None = None

    def __post_init__(self):
        if self.vision is None and self.text is None:
            raise InputError("model spec", "towers", "neither vision nor text", "at least one tower")
        if self.matching is not None:
            _check_matching(self.vision, self.text, self.matching)
        dims = {self.vision_dim, self.text_dim} - {None}
        if len(dims) > 1:
            problem = f"images in {self.vision_dim} and texts in {self.text_dim} dimensions"
            raise InputError("model spec", "heads", problem, "embeddings of one length")

    @property
    def vision_dim(self) -> int | None:
        """Length of image embeddings; None without an image tower."""
        return None if self.vision is None else self.vision_head.dim or self.vision.features

    @property
    def text_dim(self) -> int | None:
        """Length of text embeddings; None without a text tower."""
        return None if self.text is None else self.text_head.dim or self.text.features

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self.vision_dim or self.text_dim


def _check_matching(
    vision: VisionSpec | ConvolutionalSpec | None, text: TextSpec | None, matching: MatchingSpec
) -> None:
    """Raise InputError if the matching head cannot read the tokens of these towers."""
    is_bert = text is not None and text.norm_after_blocks and text.attention == "masked"
    if not isinstance(vision, VisionSpec) or not is_bert:
        problem = "other towers, or only one of the two"
        raise InputError("model spec", "matching", problem, "a matching head on a ViT and a BERT")
    if matching.first_id is not None and not 0 <= matching.first_id < text.vocabulary_size:
        raise InputError("matching spec", "first_id", matching.first_id, f"an id below {text.vocabulary_size}")
