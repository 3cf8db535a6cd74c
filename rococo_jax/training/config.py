"""Configuration of a training run: every key with its default, a reader for config files, and overrides.

A config file is Python with a function `get_config()` that starts from `default_config()` and returns an ml_collections
ConfigDict. Overrides are written `--config.losses.sc.weight=0.5`. Nothing is silently ignored: a key that does not
exist is refused, and the nearest one that does is named.
"""

import ast
import difflib
import json
import os
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rococo_jax.errors import InputError

# What may change when a run goes on: nothing of it touches the parameters.
MAY_CHANGE = ("log", "checkpoint", "eval", "data.workers", "data.prefetch", "fsdp")


def default_config() -> ConfigDict:
    """All keys. Lengths in tokens or pixels, rates per step; "" stands for nothing given."""
    return ConfigDict(
        {
            "seed": 0,
            "steps": 1000,
            "batch_size": 256,
            # The contrastive batch goes through the towers in so many parts (gradient cache).
            "micro_batches": 1,
            "dtype": "float32",
            "remat": False,
            # Devices that share a copy of the parameters.
            "fsdp": 1,
            # Decay of the moving average of parameters that is saved instead of them; 0 for none.
            "ema": 0.0,
            "init": {
                # A model directory, Hugging Face folder or hub name; or nothing, and the three below.
                "model": "",
                "spec": {},
                "preprocessing": {},
                "tokenizer": "",
                # Width of the residual MLP that is added to both heads; 0 for none.
                "head_hidden": 0,
            },
            # What is trained of each tower: "all", "last:N" blocks and the final norm, or "none". Heads always are.
            "train": {"vision": "all", "text": "all"},
            "data": {
                "images": "",
                "captions": "",
                # "one": an image with one of its captions, drawn anew every epoch; "all": every pair once an epoch.
                "captions_per_image": "one",
                # Least share of an image in a random crop, 0 for no cropping; and mirroring.
                "crop": 0.0,
                "flip": False,
                # The share of images that are squashed whole to the tower's size, as published mixed images are.
                "squash": 0.0,
                "on_broken_image": "skip",
                # 0: the smaller of the tower's context and 64 tokens.
                "text_length": 0,
                "workers": 0,
                "prefetch": 2,
                # Frozen towers run once over everything; training reads their features.
                "cached_features": False,
                # Of which so many altered captions a caption, mixed images an image, and (with crop or flip) views of
                # it are made beforehand.
                "cached_altered": 4,
                "cached_mixed": 4,
                "cached_views": 4,
                # Noise on these features, in standard deviations of each; one draw for a caption and its altered ones,
                # and for an image and its mixed ones.
                "feature_noise": 0.0,
            },
            "losses": {
                "contrastive": {"kind": "softmax"},
                "sc": {
                    "weight": 0.0,
                    "scope": "batch",
                    "count": 1,
                    "variants": "same_concept,diff_concept,rand_voca",
                    "select": "lowest",
                    # JSONL of `rococo influence`; made once where it is not given.
                    "influence": "",
                    "lexicon": "",
                    # "a" and "an" before the altered word have to fit the new one.
                    "fit_article": False,
                },
                "vc": {
                    "weight": 0.0,
                    "scope": "batch",
                    "methods": "mix,patch",
                    "ratio": 0.9,
                    # What is mixed: images as they are trained on, images squashed whole, or both in turns.
                    "views": "cropped",
                    # Partners come from runs of so many images, which a device must hold whole.
                    "group": 8,
                },
                # One file with everything as `negatives`, or the two published ones.
                "hard_positives": {
                    "weight": 0.0,
                    "negative_weight": 1.0,
                    "count": 1,
                    "positives": "",
                    "negatives": "",
                },
            },
            "optimizer": {
                "learning_rate": 1e-3,
                "warmup": 0.05,
                "final": 0.0,
                "b1": 0.9,
                "b2": 0.98,
                "eps": 1e-8,
                "weight_decay": 0.05,
                "clip": 1.0,
                # Factor from a block to the one below it; heads have the full rate.
                "layer_decay": 1.0,
                "tower_rate": 1.0,
            },
            "similarities": {"route": "auto", "tile_rows": 0},
            "log": {"every": 10, "tensorboard": True},
            "checkpoint": {"every": 200, "keep": 2},
            "eval": {"every": 0, "images": "", "annotations": "", "protocol": "paper", "mixes": "none"},
        }
    )


def read_config(path: str | os.PathLike, overrides: Sequence[str] = ()) -> ConfigDict:
    """The config of a file with overrides (`config.key=value`, dashes before it or not) applied and checked.

    Raises:
        InputError: no such file, no `get_config` in it, an unknown key, or a value of another type.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(path, "config", "nothing there", "a Python file with get_config()")
    names = runpy.run_path(str(path))
    if "get_config" not in names:
        raise InputError(path, "get_config", "no such function", "a function that returns a ConfigDict")
    config = names["get_config"]()
    if not isinstance(config, ConfigDict):
        raise InputError(path, "get_config", type(config).__name__, "a ConfigDict, from default_config()")
    _check_keys(path, config)
    known = flat(default_config())
    for override in overrides:
        key, separator, value = override.lstrip("-").removeprefix("config.").partition("=")
        if not separator:
            raise InputError(override, "override", "no '='", "--config.key=value")
        _check_key(override, key, known)
        _set(config, key, _parsed(override, value, known.get(key)))
    check_config(config, path)
    return config


def _check_keys(source: object, config: ConfigDict) -> None:
    known = flat(default_config())
    for key in flat(config):
        _check_key(source, key, known)


def _check_key(source: object, key: str, known: Mapping[str, Any]) -> None:
    if key in known or any(key.startswith(f"{free}.") for free in ("init.spec", "init.preprocessing")):
        return
    near = difflib.get_close_matches(key, known, 1, cutoff=0.4)
    leaf = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    wanted = f"a key of the config; did you mean {(leaf or near)[0]!r}?" if leaf or near else "a key of the config"
    raise InputError(source, "config key", repr(key), wanted)


_TYPES = {int: "a whole number", float: "a number", bool: "true or false"}


def _parsed(source: str, text: str, default: Any) -> Any:
    """`text` as the type of `default`."""
    if isinstance(default, str):
        return text
    try:
        value = (
            {"true": True, "false": False}.get(text.lower()) if isinstance(default, bool) else ast.literal_eval(text)
        )
    except (ValueError, SyntaxError):
        value = None
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if default is not None and type(value) is not type(default):
        raise InputError(source, "value", repr(text), _TYPES[type(default)])
    return value


def _set(config: ConfigDict, key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        config = config[parent]
    config[last] = value


def flat(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key. `init.spec` and `init.preprocessing` count as leaves."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, ConfigDict | Mapping) and path not in ("init.spec", "init.preprocessing"):
            leaves |= flat(value, f"{path}.")
        else:
            leaves[path] = value.to_dict() if isinstance(value, ConfigDict) else value
    return leaves


# Key: (is it good?, what was wanted).
_POSITIVE = (lambda value: value > 0, "a positive number")
_NOT_NEGATIVE = (lambda value: value >= 0, "0 or more")
_SHARE = (lambda value: 0 <= value <= 1, "a number from 0 to 1")


def _one_of(*names: str):
    return (lambda value: value in names, " or ".join(map(repr, names)))


_TRAINED = (
    lambda value: (
        value in ("all", "none") or (value.startswith("last:") and value[5:].isdecimal() and int(value[5:]) > 0)
    ),
    "'all', 'none' or 'last:N'",
)
_RULES = {
    "steps": _POSITIVE,
    "batch_size": (lambda value: value >= 2, "at least 2"),
    "micro_batches": _POSITIVE,
    "dtype": _one_of("float32", "bfloat16"),
    "fsdp": _POSITIVE,
    "ema": (lambda value: 0 <= value < 1, "a decay from 0 to 1 (excluded)"),
    "train.vision": _TRAINED,
    "train.text": _TRAINED,
    "data.captions_per_image": _one_of("one", "all"),
    "data.on_broken_image": _one_of("skip", "stop"),
    "data.crop": _SHARE,
    "data.squash": _SHARE,
    "data.cached_altered": _POSITIVE,
    "data.cached_mixed": _POSITIVE,
    "data.cached_views": _POSITIVE,
    "data.feature_noise": _NOT_NEGATIVE,
    "losses.contrastive.kind": _one_of("softmax", "sigmoid"),
    "losses.sc.weight": _NOT_NEGATIVE,
    "losses.sc.scope": _one_of("own", "batch"),
    "losses.sc.count": _POSITIVE,
    "losses.sc.select": _one_of("lowest", "highest", "random"),
    "losses.vc.weight": _NOT_NEGATIVE,
    "losses.vc.scope": _one_of("own", "batch"),
    "losses.vc.methods": _one_of("mix", "patch", "mix,patch"),
    "losses.vc.ratio": _SHARE,
    "losses.vc.views": _one_of("cropped", "squashed", "cropped,squashed"),
    "losses.vc.group": (lambda value: value >= 2, "at least 2"),
    "losses.hard_positives.weight": _NOT_NEGATIVE,
    "optimizer.learning_rate": _NOT_NEGATIVE,
    "optimizer.warmup": _SHARE,
    "optimizer.layer_decay": _SHARE,
    "log.every": _POSITIVE,
    "checkpoint.every": _POSITIVE,
    "checkpoint.keep": _POSITIVE,
    "eval.every": _NOT_NEGATIVE,
    "similarities.route": _one_of("auto", "gather", "ring"),
}


def check_config(config: ConfigDict, source: object = "config") -> None:
    """Raises InputError for a key that does not exist, or a value that makes no sense, alone or beside another."""
    _check_keys(source, config)
    leaves = flat(config)
    for key, (good, wanted) in _RULES.items():
        if not good(leaves[key]):
            raise InputError(source, f"config.{key}", repr(leaves[key]), wanted)
    if config.batch_size % config.micro_batches:
        found = f"{config.batch_size} in {config.micro_batches} parts"
        raise InputError(source, "config.micro_batches", found, "a divisor of batch_size")
    if config.data.cached_features and (config.train.vision, config.train.text) != ("none", "none"):
        found = f"true, and the towers train {config.train.vision!r} and {config.train.text!r}"
        raise InputError(source, "config.data.cached_features", found, "config.train.vision and .text 'none'")
    for key, of_pools in {"losses.hard_positives.weight": 0.0, "data.captions_per_image": "one"}.items():
        if config.data.cached_features and leaves[key] != of_pools:
            wanted = f"{of_pools!r} with config.data.cached_features, which knows no other"
            raise InputError(source, f"config.{key}", repr(leaves[key]), wanted)
    if config.data.feature_noise and not config.data.cached_features:
        raise InputError(source, "config.data.feature_noise", leaves["data.feature_noise"], "0 without cached_features")
    sc = config.losses.sc
    if config.data.cached_features and sc.weight and sc.count > config.data.cached_altered:
        found = f"{sc.count} of a pool of {config.data.cached_altered}"
        raise InputError(source, "config.losses.sc.count", found, "at most config.data.cached_altered")


def write_config(path: Path, config: ConfigDict) -> None:
    """The resolved config as JSON."""
    from rococo_jax.storage import write_json

    write_json(path, flat(config))


def refuse_other_config(path: Path, config: ConfigDict) -> None:
    """Raises InputError where the config kept in a working folder is not this one (`MAY_CHANGE` apart)."""
    from rococo_jax.storage import read_json

    kept = read_json(path, "the config of a training run")
    ours = json.loads(json.dumps(flat(config)))
    for key in sorted(kept.keys() | ours.keys()):
        if kept.get(key) != ours.get(key) and not key.startswith(MAY_CHANGE):
            wanted = f"{kept.get(key)!r}, with which this folder was begun, or another --workdir"
            raise InputError(path.parent, f"config.{key}", repr(ours.get(key)), wanted)
