"""Reads `preprocessor_config.json`, as the image processors of `transformers` write it, in old and new spellings."""

from collections.abc import Mapping
from typing import Any

from rococo_jax.data.preprocessing import RESAMPLING
from rococo_jax.errors import InputError

_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
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
# What each processor does where its file is silent.
_DEFAULTS = {
    "CLIPImageProcessor": _CROPPING,
    "BitImageProcessor": _CROPPING,
    "SiglipImageProcessor": {**_SQUASHING, "resample": 3},
    "ViTImageProcessor": {**_SQUASHING, "resample": 2},
}
# Elsewhere a `size` that is a bare number is the shortest edge.
_BARE_SIZE_IS_A_SQUARE = {"ViTImageProcessor"}
_KNOWN_STEPS = {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"}


def read_preprocessor_config(config: Mapping[str, Any], source: object) -> dict[str, Any]:
    """The values of a `Preprocessing` in its JSON form, not yet checked.

    Raises:
        InputError: the processor is of an unknown kind, or takes a step that is not known here. It names `source`.
    """
    config = config.get("image_processor", config)
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
    resample = RESAMPLING.get(config["resample"])
    if resample is None:
        raise InputError(source, "resample", config["resample"], f"one of {sorted(RESAMPLING)}")

    shortest_edge, exact_size = _read_size(config["size"], kind in _BARE_SIZE_IS_A_SQUARE, source, "size")
    values = {"shortest_edge": shortest_edge, "exact_size": exact_size, "resample": resample}
    if config["do_center_crop"]:
        values["crop_size"] = _read_size(config.get("crop_size", 224), True, source, "crop_size")[1]
    values["rescale_factor"] = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    if config.get("do_normalize", True):
        values |= {"mean": _per_channel(config["image_mean"]), "std": _per_channel(config["image_std"])}
    return values


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
    """One number, as the processors also take it, stands for all three channels."""
    return list(value) if isinstance(value, list | tuple) else [value] * 3
