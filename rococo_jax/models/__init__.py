"""Image towers, text towers and the dual encoder. This package does not depend on data or training."""

from rococo_jax.models.dual_encoder import DualEncoder, parameter_counts
from rococo_jax.models.spec import (
    ConvNextSpec,
    ConvolutionalSpec,
    HeadSpec,
    MatchingSpec,
    MbConvSpec,
    ModelSpec,
    ResNetSpec,
    RotarySpec,
    TextSpec,
    VisionSpec,
)

__all__ = [
    "ConvNextSpec",
    "ConvolutionalSpec",
    "DualEncoder",
    "HeadSpec",
    "MatchingSpec",
    "MbConvSpec",
    "ModelSpec",
    "ResNetSpec",
    "RotarySpec",
    "TextSpec",
    "VisionSpec",
    "parameter_counts",
]
