"""Specification of convolutional image towers. Fields that `VisionSpec` has as well have the same meaning."""

import dataclasses
import math
from typing import ClassVar, Literal

from rococo_jax.errors import InputError
from rococo_jax.models.checked_spec import Activation, CheckedSpec, PositionRule, check_heads


class ConvolutionalSpec(CheckedSpec):
    """Base of the specs of convolutional image towers.

    Their blocks form several stages instead of one stack. One cell of the last map covers 32 x 32 pixels, except in
    EfficientNet.
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
class EfficientNetSpec(ConvolutionalSpec):
    """EfficientNet (`models.efficientnet`). Tuples have one entry per stage.

    Attributes:
        widths: output channels of a stage.
        strides: stride of the first block; 2 halves the map.
        expansions: ratio of the hidden channels of a block to its input channels.
        centred: a stride of 2 pads a map equally on all sides; else by one cell less at the top and left.
        squeeze: ratio of the channels from which the gates of a block are computed to its input channels.
    """

    image_size: int
    stem_width: int
    widths: tuple[int, ...]
    stage_layers: tuple[int, ...]
    kernel_sizes: tuple[int, ...]
    strides: tuple[int, ...]
    expansions: tuple[int, ...]
    centred: tuple[bool, ...]
    squeeze: float
    activation: Activation
    norm_eps: float
    pooling: Literal["mean", "max"]

    architecture: ClassVar[str] = "EfficientNet"

    def __post_init__(self):
        by_stage = (self.widths, self.kernel_sizes, self.strides, self.expansions, self.centred, self.stage_layers)
        if len({len(values) for values in by_stage}) > 1 or not self.widths:
            problem = f"lists of {', '.join(str(len(values)) for values in by_stage)}"
            raise InputError("vision spec", "stages", problem, "one entry for each stage in every list")
        super().__post_init__()
        if not set(self.strides) <= {1, 2}:
            raise InputError("vision spec", "strides", self.strides, "1 or 2 for each stage")
        if not all(size % 2 and size > 1 for size in self.kernel_sizes):
            raise InputError("vision spec", "kernel_sizes", self.kernel_sizes, "odd numbers, 3 or more")
        if self.grid < 1:
            raise InputError("vision spec", "image_size", self.image_size, "a size that leaves a cell of the last map")

    @property
    def patch_size(self) -> int:
        """Number of pixels along a side that one cell of the last map covers."""
        return 2 * math.prod(self.strides)

    @property
    def sides(self) -> list[int]:
        """List of the cells along a side of the maps, after the stem and after each stage."""
        sides = [(self.image_size + 1 - 3) // 2 + 1]
        for stage, (size, stride) in enumerate(zip(self.kernel_sizes, self.strides, strict=True)):
            sides.append((sides[-1] + sum(self.padding(stage)) - size) // stride + 1)
        return sides

    @property
    def grid(self) -> int:
        """Number of cells along a side of the last map."""
        return self.sides[-1]

    @property
    def features(self) -> int:
        """Length of the pooled vector, channels of the last stage."""
        return self.widths[-1]

    def padding(self, stage: int) -> tuple[int, int]:
        """Return the zeros before and after a line of the map for the first depthwise convolution of a stage."""
        half = self.kernel_sizes[stage] // 2
        is_symmetric = self.strides[stage] == 1 or self.centred[stage]
        return (half if is_symmetric else half - 1), half

    def inputs(self, stage: int) -> int:
        """Return the input channels of the first block of a stage."""
        return self.widths[stage - 1] if stage else self.stem_width

    def gate_width(self, inputs: int) -> int:
        """Return the channels from which the gates of a block with these input channels are computed."""
        return max(1, int(inputs * self.squeeze))


@dataclasses.dataclass(frozen=True)
class MbConvSpec(CheckedSpec):
    """Stem of convolutions before a transformer (`models.efficientnet`), which halves the map four times."""

    label: ClassVar[str] = "mbconv"

    stem_width: int
    widths: tuple[int, int]
    stage_layers: tuple[int, int]
