"""Reads `preprocessor_config.json`, in the spellings of old and new releases of `transformers`."""

import math
from collections.abc import Mapping
from typing import Any

from rococo_jax.errors import InputError, is_number

# Pillow's numbers, as used in `preprocessor_config.json`, and the names used here.
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}

_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_HALF = (0.5, 0.5, 0.5)
_CROPPING = {
    "size": {"shortest_edge": 224},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": 224,
    "image_mean": _CLIP_MEAN,
    "image_std": _CLIP_STD,
}
_SQUASHING = {"size": {"height": 224, "width": 224}, "do_center_crop": False, "image_mean": _HALF, "image_std": _HALF}
_UNNORMALISED = {"do_center_crop": False, "do_normalize": False, "image_mean": None, "image_std": None}
# What each processor does where its file says nothing.
_DEFAULTS = {
    "CLIPImageProcessor": _CROPPING,
    "BitImageProcessor": _CROPPING,
    "SiglipImageProcessor": {**_SQUASHING, "resample": 3},
    "Siglip2ImageProcessor": {**_SQUASHING, "resample": 2, "patch_size": 16, "max_num_patches": 256},
    "ViTImageProcessor": {**_SQUASHING, "resample": 2},
    "DINOv3ViTImageProcessor": {**_SQUASHING, "resample": 2, "image_mean": _IMAGENET_MEAN, "image_std": _IMAGENET_STD},
    "Tipsv2ImageProcessor": {"size": {"height": 448, "width": 448}, "resample": 2, **_UNNORMALISED},
    "EfficientNetImageProcessor": {
        **_SQUASHING,
        "size": {"height": 346, "width": 346},
        "crop_size": {"height": 289, "width": 289},
        "resample": 3,
        "include_top": True,
    },
}
# Of the other processors a `size` that is one number is the shortest edge.
_BARE_SIZE_IS_A_SQUARE = {f"{kind}ImageProcessor" for kind in ("ViT", "EfficientNet", "DINOv3ViT", "Tipsv2")}
# Of the other processors `rescale_offset` and `include_top` are no settings.
_SHIFTS_AND_DIVIDES_AGAIN = {"EfficientNetImageProcessor"}
_KEEPS_THE_SHAPE = {"Siglip2ImageProcessor"}
_KNOWN_STEPS = {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"}


def read_image_processor(config: Any, source: object) -> dict[str, Any]:
    """The values of a `Preprocessing` in its JSON form, not yet checked."""
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
    is_square = kind in _BARE_SIZE_IS_A_SQUARE
    if config.get("default_to_square", is_square) != is_square:
        raise InputError(source, "default_to_square", config["default_to_square"], f"{is_square}, as for a {kind}")
    number = config["resample"]
    resample = RESAMPLING.get(number) if isinstance(number, int) else None
    if resample is None:
        raise InputError(source, "resample", config["resample"], f"one of {sorted(RESAMPLING)}")

    patches = _read_patches(config, source) if kind in _KEEPS_THE_SHAPE else {}
    if patches:  # whose processor reads neither `size` nor `do_center_crop`
        side = math.isqrt(patches["max_patches"]) * patches["patch_size"]
        config |= {"size": {"height": side, "width": side}, "do_center_crop": False}
    shortest_edge, exact_size = _read_size(config["size"], is_square, source, "size")
    values = {"shortest_edge": shortest_edge, "exact_size": exact_size, "resample": resample, **patches}
    if config["do_center_crop"]:
        values["crop_size"] = _read_size(config.get("crop_size", 224), True, source, "crop_size")[1]
    values["rescale_factor"] = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    if config.get("do_normalize", True):
        values |= {"mean": _per_channel(config["image_mean"]), "std": _per_channel(config["image_std"])}
    return values | (_shifted(values, config, source) if kind in _SHIFTS_AND_DIVIDES_AGAIN else {})


def _read_patches(config: Mapping[str, Any], source: object) -> dict[str, int]:
    sizes = {"patch_size": config["patch_size"], "max_patches": config["max_num_patches"]}
    if not all(type(size) is int and size > 0 for size in sizes.values()):
        found = f"patch_size {config['patch_size']!r}, max_num_patches {config['max_num_patches']!r}"
        raise InputError(source, "max_num_patches", found, "whole numbers, 1 or more")
    return sizes


def _shifted(values: Mapping[str, Any], config: Mapping[str, Any], source: object) -> dict[str, list]:
    """The mean and std of EfficientNet's processor: `rescale_offset` subtracts 1 after rescaling, and `include_top`
    divides by the std once more, whether images were normalised or not.
    """
    mean, std = values.get("mean", [0.0] * 3), values.get("std", [1.0] * 3)
    again = _per_channel(config["image_std"]) if config["include_top"] else [1.0] * 3
    if not all(is_colour(tuple(colour)) for colour in (mean, std, again)):
        raise InputError(source, "mean and std", f"{mean}, {again}", "three numbers each, and no std of 0")
    offset = float(bool(config.get("rescale_offset")) and config.get("do_rescale", True))
    return {"mean": [m + offset for m in mean], "std": [s * t for s, t in zip(std, again, strict=True)]}


def _read_size(size: Any, bare_is_a_square: bool, source: object, field: str) -> tuple[Any, Any]:
    """(shortest edge, None) or (None, [height, width]), the numbers not yet checked."""
    if isinstance(size, int):
        return (None, [size, size]) if bare_is_a_square else (size, None)
    if isinstance(size, list | tuple) and len(size) == 2:
        return None, list(size)
    if isinstance(size, Mapping):
        given = {key: value for key, value in size.items() if value is not None}
        if set(given) == {"shortest_edge"}:
            return given["shortest_edge"], None
        if set(given) == {"height", "width"}:
            return None, [given["height"], given["width"]]
    raise InputError(source, field, size, "a number, {shortest_edge}, or {height, width}")


def _per_channel(value: Any) -> list:
    """Three numbers; a single number holds for all channels."""
    return list(value) if isinstance(value, list | tuple) else [value] * 3


def is_colour(value: Any) -> bool:
    """Whether a value is three numbers, of red, green and blue."""
    return isinstance(value, tuple) and len(value) == 3 and all(map(is_number, value))
