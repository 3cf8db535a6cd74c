"""Configuration of a training run: a reader for config files, overrides, and checks; `config_keys` declares the keys.

A config file is Python with a function `get_config()` that starts from `default_config()` and returns an ml_collections
ConfigDict. Overrides are written `--config.losses.sc.weight=0.5`. A key that does not exist is refused, and the nearest
one that does is named.
"""

import ast
import difflib
import json
import math
import os
import runpy
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.storage import read_json_object, write_json
from rococo_jax.training.config_keys import all_keys, profiled_steps
from rococo_jax.training.freezing import cached_sides

# What may change when a run resumes: where and in what parts it is computed, which changes no gradient beyond rounding,
# and what is written. `steps` may grow.
MAY_CHANGE = ("log.", "profile.", "checkpoint.", "eval.", "data.workers", "data.prefetch", "fsdp", "micro_batches",
              "remat")  # fmt: skip


# Of float32 and int32, which the step computes in.
_LARGEST_FLOAT, _LARGEST_INT = 3.4028234e38, 2**31 - 1


def default_config() -> ConfigDict:
    """All keys. Lengths in tokens or pixels, rates per step; "" stands for nothing given."""
    return ConfigDict(_defaults(all_keys()))


def _defaults(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _defaults(each) if isinstance(each, Mapping) else each.default for name, each in keys.items()}


def read_config(path: str | os.PathLike, overrides: Sequence[str] = ()) -> ConfigDict:
    """The config of a file with overrides (`config.key=value`, dashes before it or not) applied and checked.

    Raises InputError: no such file, no `get_config` in it, an unknown key, or a value of another type.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(path, "config", "nothing there", "a Python file with get_config()")
    config = _run_config(path)
    if not isinstance(config, ConfigDict):
        raise InputError(path, "get_config", type(config).__name__, "a ConfigDict, from default_config()")
    _check_keys(path, config)
    known = flat(default_config())
    for override in _joined(overrides):
        key, separator, text = override.lstrip("-").removeprefix("config.").partition("=")
        if not separator:
            raise InputError(override, "override", "no '='", "--config.key=value")
        _check_key(override, key, known)
        _set(config, key, _parsed(override, text, known.get(key)))
    check_config(config, path)
    return config


def _joined(overrides: Sequence[str]) -> list[str]:
    """`--config.key value` as `--config.key=value`.

    >>> _joined(["--config.steps", "5", "--config.seed=1"])
    ['--config.steps=5', '--config.seed=1']
    """
    found: list[str] = []
    for word in overrides:
        if found and found[-1].startswith("--config.") and "=" not in found[-1] and not word.startswith("--"):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _run_config(path: Path) -> Any:
    """What `get_config` of a Python file returns; whatever the file raises is bad input."""
    try:
        names = runpy.run_path(str(path))
        if "get_config" not in names:
            raise InputError(path, "get_config", "no such function", "a function that returns a ConfigDict")
        return names["get_config"]()
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # it may call sys.exit, too
        lines = [entry.lineno for entry in traceback.extract_tb(error.__traceback__) if entry.filename == str(path)]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
        found = f"{type(error).__name__}: {error}" + (f" (line {line})" if line else "")
        raise InputError(path, "config", found, "a Python file whose get_config() returns a ConfigDict") from None


def _check_keys(source: object, config: ConfigDict) -> None:
    known = flat(default_config())
    for key in flat(config):
        _check_key(source, key, known)
    if missing := sorted(known.keys() - flat(config).keys()):
        raise InputError(source, "config key", f"no {missing[0]!r}", "all keys; start from default_config()")


def _check_key(source: object, key: str, known: Mapping[str, Any]) -> None:
    if key in known or any(key.startswith(f"{free}.") for free in ("init.spec", "init.preprocessing")):
        return
    near = difflib.get_close_matches(key, known, 1, cutoff=0.4)
    leaf = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    wanted = f"a key of the config; did you mean {(leaf or near)[0]!r}?" if leaf or near else "a key of the config"
    raise InputError(source, "config key", repr(key), wanted)


_TYPES = {int: "a whole number", float: "a number", bool: "true or false"}


def _parsed(source: str, text: str, default: Any) -> Any:
    """`text` as the type of `default`. Without one (below `init.spec`) what is no literal is a string.

    >>> _parsed("", "causal", None), _parsed("", "[1, 2]", None), _parsed("", "true", None)
    ('causal', [1, 2], True)
    """
    if isinstance(default, str):
        # "auto" stands beside numbers.
        return int(text) if default == "auto" and text.isdecimal() else text
    switches = {"true": True, "false": False}
    try:
        value = switches.get(text.lower()) if isinstance(default, bool) else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = switches.get(text.lower(), text) if default is None else None
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


def check_config(config: ConfigDict, source: object = "config") -> None:
    """Raises InputError for a key that does not exist, or a value out of range, alone or beside another."""
    _check_keys(source, config)
    leaves = flat(config)
    for key, value in leaves.items():
        if isinstance(value, float) and not (math.isfinite(value) and abs(value) <= _LARGEST_FLOAT):
            raise InputError(source, f"config.{key}", value, "a finite number, which float32 holds")
        if isinstance(value, int) and key != "seed" and abs(value) > _LARGEST_INT:
            raise InputError(source, f"config.{key}", value, f"at most {_LARGEST_INT}")
    for name, key in flat(all_keys()).items():
        if key.check is not None and not key.check.holds(leaves[name]):
            raise InputError(source, f"config.{name}", repr(leaves[name]), key.check.wanted)
    _check_combinations(source, config)
    # It imports encoders, which reading other modules of this room does not need.
    from rococo_jax.training.inputs import check_inputs

    check_inputs(source, config)


def _check_combinations(source: object, config: ConfigDict) -> None:
    """Raises InputError for a value that does not go with another."""
    data, optimizer, train, leaves = config.data, config.optimizer, config.train, flat(config)

    def require(key: str, holds: Any, wanted: str, found: str = "") -> None:
        if not holds:
            raise InputError(source, f"config.{key}", found or repr(leaves[key]), wanted)

    steps = profiled_steps(config.profile.steps)
    inside = steps is not None and (steps or not config.profile.steps) and steps.stop <= config.steps
    wanted = f"'' or FIRST:END with FIRST < END <= {config.steps}, the number of steps"
    require("profile.steps", inside, wanted)
    parts = config.micro_batches
    found = f"{config.batch_size} in {parts} parts"
    require("micro_batches", config.batch_size % parts == 0, "a divisor of batch_size", found)
    evaluates = config.eval.data or config.eval.images
    require(
        "eval.every", evaluates or not config.eval.every, "0 without eval.data, or eval.images and eval.annotations"
    )
    at_most = f"at most {config.steps}, the number of steps"
    require("optimizer.warmup_steps", optimizer.warmup_steps <= config.steps, at_most)
    is_level = optimizer.schedule in ("constant", "rsqrt")
    wanted = f"0 with the schedule {optimizer.schedule!r}, which falls by itself"
    require("optimizer.cooldown_fraction", is_level or not optimizer.cooldown_fraction, wanted)
    is_sigmoid = config.losses.contrastive.kind == "sigmoid"
    wanted = "0.0 with config.losses.contrastive.kind 'sigmoid', which has no columns for hard negatives"
    require("losses.hard_positives.weight", not (is_sigmoid and config.losses.hard_positives.weight), wanted)
    wanted = "false with config.losses.contrastive.kind 'sigmoid', which has no columns for altered captions"
    require(
        "losses.contrastive.altered_columns", not (is_sigmoid and leaves["losses.contrastive.altered_columns"]), wanted
    )
    sides = cached_sides(config)
    wanted = "0 unless config.data.cached_features holds both towers' features"
    require("data.feature_noise", "text" in sides or not data.feature_noise, wanted)
    if not sides:
        return
    among = "with config.data.cached_features"
    found = f"true, and the towers train {train.vision!r} and {train.text!r}"
    wanted = "config.train.vision 'none', and .text too for features of both"
    require("data.cached_features", train.vision == "none", wanted, found)
    require("patch_dropout", not config.patch_dropout, f"0 {among}")
    one_feature = f"none {among}: an image has one feature"
    for key in ("random_crop_min_scale", "flip", "color_jitter", "grayscale_prob"):
        require(f"data.{key}", not data[key], one_feature)
    resizes = data.resize_prob and "text" not in sides
    require("data.resize_prob", not resizes, f"{one_feature} where the text tower trains")
    if "text" in sides:
        of_both = "with config.data.cached_features of both towers"
        require("data.text_length", not data.text_length, f"0 {of_both}, which are of whole texts")
        require("data.workers", data.workers in ("auto", 0), f"'auto' or 0 {of_both}: no images are decoded")
        default = default_config().data.prefetch
        require("data.prefetch", data.prefetch in (0, default), f"{default} or 0 {of_both}: no batch is made ahead")
    in_memory = f"the default {among}, which holds all features in memory"
    require("data.order", data.order == "shuffled", in_memory)
    require("data.weights", not data.weights, in_memory)
    is_one = data.captions_per_image == "one" or "text" not in sides
    require("data.captions_per_image", is_one, f"'one' {among}, which knows no other")


def write_config(path: Path, config: ConfigDict) -> None:
    """The resolved config as JSON."""
    write_json(path, flat(config))


def check_same_config(path: Path, config: ConfigDict) -> dict[str, Any]:
    """The config kept in a working folder.

    Raises InputError: it is not this one, `MAY_CHANGE` and more `steps` apart.
    """
    kept = read_json_object(path, "the config of a training run")
    # Keys that are younger than the folder have their defaults there.
    kept = {**flat(default_config()), **kept}
    ours = json.loads(json.dumps(flat(config)))
    for key in sorted(kept.keys() | ours.keys()):
        if kept.get(key) != ours.get(key) and not key.startswith(MAY_CHANGE):
            begun = f"{kept.get(key)!r}, with which this folder was begun"
            if key != "steps":
                raise InputError(path.parent, f"config.{key}", repr(ours.get(key)), f"{begun}, or another workdir")
            if ours[key] < kept[key]:
                raise InputError(path.parent, "config.steps", ours[key], f"{begun}, or more, or another workdir")
    return kept
