"""Image and text towers and the dual encoder that joins them. Knows nothing of data or training."""

from rococo_jax.models.dual_encoder import DualEncoder, parameter_counts
from rococo_jax.models.spec import (
    ConvNextSpec,
    ConvolutionalSpec,
    EfficientNetSpec,
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
    "EfficientNetSpec",
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
