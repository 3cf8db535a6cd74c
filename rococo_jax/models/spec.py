"""What a model is, as plain data: enough to build its towers, small enough to read in `model.json`.

The families differ in a handful of choices, and each choice is a field here:

    ============  ===========  ==========  ===========  ===========  =========  ==============
    image tower   class token  patch bias  norm before  layer scale  pooling    activation
    ============  ===========  ==========  ===========  ===========  =========  ==============
    CLIP ViT      yes          no          yes          no           cls        as configured
    SigLIP ViT    no           yes         no           no           attention  as configured
    DINOv2 ViT    yes          yes         no           yes          any        or gated (silu)
    ============  ===========  ==========  ===========  ===========  =========  ==============

CLIP's ResNets have a spec of their own, `ResNetSpec`.

    ============  ==========  ===============  =========================
    text tower    attention   norm             pooling
    ============  ==========  ===============  =========================
    CLIP          causal      before a block   first_eos, or highest_id
    SigLIP        full        before a block   last
    BERT, BLIP    masked      after a block    cls or mean
    ============  ==========  ===============  =========================
"""

import dataclasses
import math
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from rococo_jax.errors import InputError

# Of channels, tokens or pixels; a spec beyond it describes no model, and no array could have its shapes.
_LARGEST = 10**6

Activation = Literal["quick_gelu", "gelu", "gelu_tanh", "silu", "relu"]
VisionPooling = Literal["cls", "mean", "cls+mean", "attention"]
TextPooling = Literal["first_eos", "highest_id", "last", "cls", "mean"]
TextAttention = Literal["causal", "masked", "full"]
HeadKind = Literal["none", "linear", "mlp"]


class CheckedSpec:
    """The base of the spec dataclasses."""

    what: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values, one entry a field; tuples become lists."""
        return _as_json(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, value: Any, source: object = "spec") -> "CheckedSpec":
        """The inverse of `to_json`. Raises InputError, which names `source`, for fields that are missing, unknown or
        wrong.
        """
        if not isinstance(value, dict):
            raise InputError(source, cls.what, type(value).__name__, "a JSON object")
        types = get_type_hints(cls)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(value) - set(fields)):
            raise InputError(source, cls.what, f"unknown fields {unknown}", f"only {sorted(fields)}")
        required = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
        if missing := sorted(required - set(value)):
            raise InputError(source, cls.what, f"no fields {missing}", f"all of {sorted(required)}")
        return cls(**{name: _checked(source, f"{cls.what}.{name}", types[name], item) for name, item in value.items()})


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _checked(source: object, field: str, wanted: Any, value: Any) -> Any:
    if get_origin(wanted) is Literal:
        if value not in get_args(wanted):
            raise InputError(source, field, repr(value), f"one of {list(get_args(wanted))}")
        return value
    if get_origin(wanted) is tuple:
        kinds = get_args(wanted)
        if not isinstance(value, list | tuple) or len(value) != len(kinds):
            raise InputError(source, field, repr(value), f"a list of {len(kinds)}")
        return tuple(_checked(source, field, kind, item) for kind, item in zip(kinds, value, strict=True))
    choices = get_args(wanted) or (wanted,)
    if value is None and type(None) in choices:
        return None
    if specs := [choice for choice in choices if dataclasses.is_dataclass(choice)]:
        # Towers of different kinds share few fields: the kind is the one with the most in common.
        return max(specs, key=lambda spec: _fields_in_common(spec, value)).from_json(value, source)
    for choice in choices:
        if choice is float and isinstance(value, int | float) and not isinstance(value, bool):
            if not (math.isfinite(value) and 0 < value < 1):
                raise InputError(source, field, value, "a number between 0 and 1")
            return float(value)
        if isinstance(value, choice) and isinstance(value, bool) == (choice is bool):
            least = 0 if field.endswith(("_id", ".token_types")) else 1
            if choice is int and not least <= value <= _LARGEST:
                raise InputError(source, field, value, f"a whole number from {least} to {_LARGEST:,}")
            return value
    names = " or ".join("null" if choice is type(None) else choice.__name__ for choice in choices)
    raise InputError(source, field, repr(value), names)


def _fields_in_common(spec: Any, value: Any) -> int:
    return len({field.name for field in dataclasses.fields(spec)} & set(value)) if isinstance(value, dict) else 0


def _divides(what: str, width: int, heads: int) -> None:
    if width % heads:
        raise InputError(what, "heads", f"{heads} heads for a width of {width}", "a divisor of the width")


@dataclasses.dataclass(frozen=True)
class VisionSpec(CheckedSpec):
    """A transformer over patches. Lengths in pixels, widths in channels.

    `position_grid` is the side of the stored position embeddings where it is not `grid`: they are interpolated as the
    tower runs, so that a tower can be used at another size and still be written back as it came.
    """

    what: ClassVar[str] = "vision"

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

    def __post_init__(self):
        _divides("vision spec", self.width, self.heads)
        if "cls" in self.pooling and not self.class_token:
            raise InputError("vision spec", "pooling", repr(self.pooling), "a tower with a class token")

    @property
    def grid(self) -> int:
        """Patches along a side; pixels that fill no whole patch are left out at the right and bottom."""
        return self.image_size // self.patch_size

    @property
    def features(self) -> int:
        """Length of the pooled vector."""
        return 2 * self.width if self.pooling == "cls+mean" else self.width


@dataclasses.dataclass(frozen=True)
class ResNetSpec(CheckedSpec):
    """CLIP's ResNet with attention pooling (arXiv 2103.00020, section 2.4); what the field names share with
    `VisionSpec` means the same."""

    what: ClassVar[str] = "vision"

    image_size: int
    width: int
    stage_layers: tuple[int, int, int, int]
    heads: int
    position_grid: int | None = None
    pooling: Literal["attention"] = "attention"

    # The mean of the last map is a token before the others, as a class token is; one token stands for 32 x 32 pixels.
    class_token: ClassVar[bool] = True
    patch_size: ClassVar[int] = 32

    def __post_init__(self):
        _divides("vision spec", self.features, self.heads)
        if min(self.stage_layers) < 1:
            raise InputError("vision spec", "stage_layers", self.stage_layers, "at least one block a stage")

    @property
    def grid(self) -> int:
        """Tokens along a side."""
        return self.image_size // 32

    @property
    def features(self) -> int:
        """Length of the pooled vector, channels of the last stage."""
        return 32 * self.width


@dataclasses.dataclass(frozen=True)
class TextSpec(CheckedSpec):
    """A text tower."""

    what: ClassVar[str] = "text"

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

    def __post_init__(self):
        _divides("text spec", self.width, self.heads)
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
    The kind `mlp` is `gelu(x A) B` with `hidden` channels between and no biases (open_clip's, for text towers).
    """

    what: ClassVar[str] = "head"

    kind: HeadKind = "none"
    dim: int | None = None
    bias: bool = False
    hidden: int | None = None

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

    vision: VisionSpec | ResNetSpec | None
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

    def to_json(self) -> dict[str, Any]:
        """As of any spec; models without a matching head lack its key, so that their hashes stay the same."""
        value = super().to_json()
        return {key: item for key, item in value.items() if key != "matching" or item is not None}

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


def _can_match(vision: VisionSpec | ResNetSpec | None, text: TextSpec | None, matching: MatchingSpec) -> None:
    """Refuses towers whose tokens the matching head cannot read."""
    if not isinstance(vision, VisionSpec) or text is None or not text.norm_after_blocks or text.attention != "masked":
        found = "towers of another kind, or one of them alone"
        raise InputError("model spec", "matching", found, "a matching head on a ViT and a BERT")
    if matching.first_id is not None and not 0 <= matching.first_id < text.vocabulary_size:
        raise InputError("matching spec", "first_id", matching.first_id, f"an id below {text.vocabulary_size}")
