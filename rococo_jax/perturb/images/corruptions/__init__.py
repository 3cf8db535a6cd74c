"""The nineteen image corruptions of ImageNet-C, jitted, batched and sharded."""

from rococo_jax.perturb.images.corruptions.registry import (
    CORRUPTIONS,
    SEVERITIES,
    Corruption,
    check_images,
    check_severity,
    corrupt,
    find_corruption,
)

__all__ = ["CORRUPTIONS", "SEVERITIES", "Corruption", "check_images", "check_severity", "corrupt", "find_corruption"]
