"""Former names of config keys and values. They are still read, and one line on stderr names the present one.

Read are config files, overrides, the axes and arms of a sweep, and `config.json` of runs that began under former names.
"""

import functools
import sys
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from rococo_jax.errors import InputError

# Former key: present key.
KEYS = {
    "data.crop": "data.random_crop_min_scale",
    "data.squash": "data.resize_prob",
    "data.on_broken_image": "data.on_decode_error",
    "data.cached_altered": "data.feature_pool.captions",
    "data.cached_mixed": "data.feature_pool.mixed",
    "data.cached_views": "data.feature_pool.views",
    "init.head_hidden": "init.residual_head_width",
    "losses.vc.group": "losses.vc.partner_group",
    "optimizer.clip": "optimizer.grad_clip_norm",
    "optimizer.final": "optimizer.final_lr_fraction",
    "optimizer.tower_rate": "optimizer.tower_lr_scale",
    "optimizer.warmup": "optimizer.warmup_fraction",
    "similarities.route": "logits.strategy",
    "similarities.tile_rows": "logits.block_rows",
}
_SCOPES = {"own": "local", "batch": "global"}
# Present key: former value: present value. Values that are lists are renamed item by item.
VALUES = {
    "data.on_decode_error": {"stop": "raise"},
    "init.tokenizer": {"rococo_jax.demo.make_tokenizer:make_tokenizer": "demo:plain"},
    "logits.strategy": {"gather": "all_gather"},
    "losses.sc.scope": _SCOPES,
    "losses.vc.scope": _SCOPES,
    "losses.vc.methods": {"mix": "mixup", "patch": "cutmix"},
    "losses.vc.views": {"cropped": "crop", "squashed": "resize"},
    "remat": {False: "none", True: "full"},
}


def current_key(key: str) -> str:
    """The present name of a key."""
    if key in KEYS:
        _tell(f"config key {key!r} is now {KEYS[key]!r}")
    return KEYS.get(key, key)


def current_value(key: str, value: Any) -> Any:
    """The present name of a value of a present key."""
    if key not in VALUES or not isinstance(value, str | bool):
        return value
    names = VALUES[key]
    if True in names and str(value).lower() in ("true", "false"):  # an override's word
        value = str(value).lower() == "true"
    present = _renamed(names, value)
    if present != value:
        _tell(f"config value {key}={value!r} is now {present!r}")
    return present


def current_leaves(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by dotted key, under present names."""
    named = {current_key(key): value for key, value in leaves.items()}
    return {key: current_value(key, value) for key, value in named.items()}


def former_leaves(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves under their former names, the ones that hashes of settings are made of."""
    keys = {present: former for former, present in KEYS.items()}
    values = {key: {present: former for former, present in names.items()} for key, names in VALUES.items()}
    return {
        keys.get(key, key): _renamed(values[key], value) if key in values else value for key, value in leaves.items()
    }


def rename_in_place(source: object, config: ConfigDict) -> None:
    """Moves values under former keys to the present ones, and renames former values.

    Raises:
        InputError: the value under a former key has another type than the present key.
    """
    for former, present in KEYS.items():
        parent, leaf = _parent(config, former)
        if parent is not None and leaf in parent:
            current_key(former)
            _set(source, config, present, parent[leaf])
            del parent[leaf]
    for key in VALUES:
        parent, leaf = _parent(config, key)
        if parent is not None and leaf in parent:
            _set(source, config, key, current_value(key, parent[leaf]))


def _parent(config: ConfigDict, key: str) -> tuple[ConfigDict | None, str]:
    *parents, leaf = key.split(".")
    for parent in parents:
        config = config.get(parent) if isinstance(config, ConfigDict) else None
    return (config if isinstance(config, ConfigDict) else None), leaf


def _set(source: object, config: ConfigDict, key: str, value: Any) -> None:
    parent, leaf = _parent(config, key)
    if parent is None:
        return
    try:
        parent[leaf] = value
    except TypeError:
        wanted = f"a value of type {type(parent[leaf]).__name__}"
        raise InputError(source, f"config.{key}", repr(value), wanted) from None


def _renamed(names: Mapping[Any, Any], value: Any) -> Any:
    if value in names or not isinstance(value, str):
        return names.get(value, value)
    return ",".join(names.get(part, part) for part in value.split(","))


@functools.cache
def _tell(line: str) -> None:
    print(f"rococo: {line}", file=sys.stderr)
