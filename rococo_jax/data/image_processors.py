"""Read `preprocessor_config.json`, as old and new releases of `transformers` write it."""

import math
from collections.abc import Mapping
from typing import Any

from rococo_jax.errors import InputError, is_number

# Pillow's numbers of its filters, which `preprocessor_config.json` has, and their names.
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_HALF = (0.5, 0.5, 0.5)
_CROPPED = {
    "size": {"shortest_edge": 224},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": 224,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
}
_SQUARE = {
    "size": {"height": 224, "width": 224},
    "do_center_crop": False,
    "image_mean": _HALF,
    "image_std": _HALF,
}
_UNNORMALISED = {"do_center_crop": False, "do_normalize": False, "image_mean": None, "image_std": None}
# The defaults of each processor.
_DEFAULTS = {
    "CLIPImageProcessor": _CROPPED,
    "BitImageProcessor": _CROPPED,
    "SiglipImageProcessor": {**_SQUARE, "resample": 3},
    "Siglip2ImageProcessor": {**_SQUARE, "resample": 2, "patch_size": 16, "max_num_patches": 256},
    "ViTImageProcessor": {**_SQUARE, "resample": 2},
    "DINOv3ViTImageProcessor": {
        **_SQUARE,
        "resample": 2,
        "image_mean": _IMAGENET_MEAN,
        "image_std": _IMAGENET_STD,
    },
    "Tipsv2ImageProcessor": {"size": {"height": 448, "width": 448}, "resample": 2, **_UNNORMALISED},
}
# A `size` that is one number is a square for these processors, and the shortest edge for the others.
_NUMBER_IS_A_SQUARE = {f"{kind}ImageProcessor" for kind in ("ViT", "DINOv3ViT", "Tipsv2")}
_KNOWN_STEPS = {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"}


def read_image_processor(config: Any, source: object) -> dict[str, Any]:
    """Return the values of a `Preprocessing` in its JSON form, which still have to be checked."""
    config = config.get("image_processor", config) if isinstance(config, Mapping) else config
    if not isinstance(config, Mapping):
        raise InputError(source, "image processor", f"a JSON {type(config).__name__}", "an object")
    kind = str(config.get("image_processor_type", config.get("feature_extractor_type", "")))
    kind = kind.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
    if kind not in _DEFAULTS:
        raise InputError(source, "image_processor_type", kind or "none", f"one of {', '.join(_DEFAULTS)}")
    steps = {key for key, value in config.items() if key.startswith("do_") and value}
    if not steps <= _KNOWN_STEPS:
        raise InputError(source, "steps", sorted(steps - _KNOWN_STEPS), f"only {sorted(_KNOWN_STEPS)}")
    if config.get("do_resize") is False:
        raise InputError(source, "do_resize", "false", "a processor that resizes")
    config = _DEFAULTS[kind] | {key: value for key, value in config.items() if value is not None}
    is_square = kind in _NUMBER_IS_A_SQUARE
    if config.get("default_to_square", is_square) != is_square:
        raise InputError(source, "default_to_square", config["default_to_square"], f"{is_square}, as for a {kind}")
    number = config["resample"]
    resample = RESAMPLING.get(number) if isinstance(number, int) else None
    if resample is None:
        raise InputError(source, "resample", config["resample"], f"one of {sorted(RESAMPLING)}")

    patches = _read_patches(config, source) if kind == "Siglip2ImageProcessor" else {}
    if patches:  # this processor ignores `size` and `do_center_crop`
        side = math.isqrt(patches["max_patches"]) * patches["patch_size"]
        config |= {"size": {"height": side, "width": side}, "do_center_crop": False}
    shortest_edge, exact_size = _read_size(config["size"], is_square, source, "size")
    values = {"shortest_edge": shortest_edge, "exact_size": exact_size, "resample": resample, **patches}
    if config["do_center_crop"]:
        values["crop_size"] = _read_size(config.get("crop_size", 224), True, source, "crop_size")[1]
    values["rescale_factor"] = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    if config.get("do_normalize", True):
        values |= {"mean": _per_channel(config["image_mean"]), "std": _per_channel(config["image_std"])}
    return values


def _read_patches(config: Mapping[str, Any], source: object) -> dict[str, int]:
    sizes = {"patch_size": config["patch_size"], "max_patches": config["max_num_patches"]}
    if not all(type(size) is int and size > 0 for size in sizes.values()):
        problem = f"patch_size {config['patch_size']!r}, max_num_patches {config['max_num_patches']!r}"
        raise InputError(source, "max_num_patches", problem, "whole numbers, 1 or more")
    return sizes


def _read_size(size: Any, number_is_a_square: bool, source: object, field: str) -> tuple[Any, Any]:
    """Return (shortest edge, None) or (None, [height, width]); the numbers still have to be checked."""
    if isinstance(size, int):
        return (None, [size, size]) if number_is_a_square else (size, None)
    if isinstance(size, list | tuple) and len(size) == 2:
        return None, list(size)
    if isinstance(size, Mapping):
        sides = {key: value for key, value in size.items() if value is not None}
        if set(sides) == {"shortest_edge"}:
            return sides["shortest_edge"], None
        if set(sides) == {"height", "width"}:
            return None, [sides["height"], sides["width"]]
    raise InputError(source, field, size, "a number, {shortest_edge}, or {height, width}")


def _per_channel(value: Any) -> list:
    """Return three numbers; a single number applies to all channels."""
    return list(value) if isinstance(value, list | tuple) else [value] * 3


def is_colour(value: Any) -> bool:
    """Return whether a value is three numbers, of red, green and blue."""
    return isinstance(value, tuple) and len(value) == 3 and all(map(is_number, value))
