"""Specification of convolutional image towers. Fields that `VisionSpec` has as well have the same meaning."""

import dataclasses
from typing import ClassVar, Literal

from rococo_jax.errors import InputError
from rococo_jax.models.checked_spec import CheckedSpec, PositionRule, check_heads


class ConvolutionalSpec(CheckedSpec):
    """Base of the specs of convolutional image towers.

    Their blocks form several stages instead of one stack. One cell of the last map covers 32 x 32 pixels.
    """

    label: ClassVar[str] = "vision"
    architecture: ClassVar[str] = "ResNet"
    patch_size: ClassVar[int] = 32
    # Number of blocks in one stack, of which the last ones can be trained alone.
    layers: ClassVar[int] = 0
    # Only the pooling of ResNets stores positions. Towers without positions read images of any size.
    class_token: ClassVar[bool] = False
    position_grid: ClassVar[int | None] = None
    stores_positions: ClassVar[bool] = False
    flexible_grid: ClassVar[bool] = False

    def __post_init__(self):
        if min(self.stage_layers) < 1:
            raise InputError("vision spec", "stage_layers", self.stage_layers, "at least one block per stage")

    @property
    def grid(self) -> int:
        """Number of cells along a side of the last map, rounded down."""
        return self.image_size // self.patch_size

    @property
    def border_pixels(self) -> int:
        """Number of pixel rows at the bottom (columns at the right) that no cell covers: 0 with padding."""
        return 0


@dataclasses.dataclass(frozen=True)
class ResNetSpec(ConvolutionalSpec):
    """ResNet of CLIP with attention pooling (arXiv 2103.00020, section 2.4)."""

    omit_if_default: ClassVar[frozenset[str]] = frozenset(("position_rule",))

    image_size: int
    width: int
    stage_layers: tuple[int, int, int, int]
    heads: int
    position_grid: int | None = None
    pooling: Literal["attention"] = "attention"
    position_rule: PositionRule = "bicubic"

    # The mean of the last map is the first token, like a class token.
    class_token: ClassVar[bool] = True
    first_patch: ClassVar[int] = 1
    positioned_class: ClassVar[bool] = True
    stores_positions: ClassVar[bool] = True

    def __post_init__(self):
        check_heads("vision spec", self.features, self.heads)
        super().__post_init__()

    @property
    def features(self) -> int:
        """Length of the pooled vector, channels of the last stage."""
        return 32 * self.width


@dataclasses.dataclass(frozen=True)
class ConvNextSpec(ConvolutionalSpec):
    """ConvNeXt (arXiv 2201.03545)."""

    image_size: int
    widths: tuple[int, int, int, int]
    stage_layers: tuple[int, int, int, int]
    norm_eps: float
    pooling: Literal["mean"] = "mean"

    architecture: ClassVar[str] = "ConvNeXt"

    @property
    def border_pixels(self) -> int:
        return self.image_size % self.patch_size

    @property
    def features(self) -> int:
        """Length of the pooled vector, channels of the last stage."""
        return self.widths[3]


@dataclasses.dataclass(frozen=True)
class MbConvSpec(CheckedSpec):
    """Stem of convolutions before a transformer (`models.stages`), which halves the map four times."""

    label: ClassVar[str] = "mbconv"

    stem_width: int
    widths: tuple[int, int]
    stage_layers: tuple[int, int]
