"""Configuration of a training run: every key with its default, a reader for config files, and overrides.

A config file is Python with a function `get_config()` that starts from `default_config()` and returns an ml_collections
ConfigDict. Overrides are written `--config.losses.sc.weight=0.5`. A key that does not
exist is refused, and the nearest one that does is named. Former names of keys are read too (`config_renames`).

The keys under `losses.NAME` are those of the loss terms, each declared in the file of its loss.
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

from ml_collections import ConfigDict, FieldReference

from rococo_jax.errors import InputError
from rococo_jax.losses.terms import FRACTION, NOT_NEGATIVE, POSITIVE, Check, all_terms, at_least, one_of
from rococo_jax.storage import read_json_object, write_json
from rococo_jax.training.config_renames import current_key, current_leaves, current_value, rename_in_place
from rococo_jax.training.profiling import profiled_steps
from rococo_jax.training.schedule import SCHEDULES

# What may change when a run goes on: where and in what parts it is computed, which changes no gradient, and what is
# written. `steps` may grow.
MAY_CHANGE = ("log.", "profile.", "checkpoint.", "eval.", "data.workers", "data.prefetch",
              "data.text_padding", "fsdp", "micro_batches",
              "remat", "logits.", "optimizer.skip_nonfinite")  # fmt: skip


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
            # What the backward pass of a block computes again instead of keeping it: "none", "dots" (all but products
            # with parameters) or "full". Takes the former True and False, too.
            "remat": FieldReference("none", field_type=object),
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
                "residual_head_width": 0,
            },
            # What is trained of each tower: "all", "last:N" blocks and the final norm, or "none"; and which
            # heads: "all", or that of "vision" or "text" alone.
            "train": {"vision": "all", "text": "all", "heads": "all"},
            "data": {
                "images": "",
                "captions": "",
                # "shuffled": each image anywhere in an epoch; "shards": shards in another order every epoch, each
                # read from front to back, some side by side. And the share of the samples of each source, "0.7,0.3".
                "order": "shuffled",
                "weights": "",
                # "one": an image with one of its captions, drawn anew every epoch; "all": every pair once an epoch.
                "captions_per_image": "one",
                # Least fraction of an image's area in a random crop, 0 for no cropping; and mirroring.
                "random_crop_min_scale": 0.0,
                "flip": False,
                # How often an image is resized whole to the tower's size, as published mixed images are.
                "resize_prob": 0.0,
                # "skip" replaces an image that cannot be decoded and counts it, "raise" stops the run.
                "on_decode_error": "skip",
                # 0: the smaller of the tower's context and 64 tokens.
                "text_length": 0,
                # "batch" pads texts to the bucket of the longest text of the global batch, "whole" to text_length.
                "text_padding": "batch",
                # Processes that decode; 0 for threads. "auto": a core each, and none for runs of a few images.
                "workers": FieldReference("auto", field_type=object),
                "prefetch": 2,
                # Frozen towers run once over everything; training reads their features.
                "cached_features": False,
                # Altered captions a caption, mixed images an image and (with crop or flip) views of an image that are
                # made beforehand.
                "feature_pool": {"captions": 4, "mixed": 4, "views": 4},
                # Noise on these features, in standard deviations of each; one draw for a caption and its altered ones,
                # and for an image and its mixed ones.
                "feature_noise": 0.0,
            },
            "losses": {term.name: {key: each.default for key, each in term.keys.items()} for term in all_terms()},
            "optimizer": {
                # "adamw", "lion" or "adafactor"; and how first moments are kept: "float32" or "bfloat16".
                "name": "adamw",
                "moments": "float32",
                "learning_rate": 1e-3,
                # "cosine", "linear", "constant" or "rsqrt".
                "schedule": "cosine",
                # Fraction of the steps that the rate rises, or how many steps where that is not 0; and the fraction of
                # the rate that is left at the end.
                "warmup_fraction": 0.05,
                "warmup_steps": 0,
                "final_lr_fraction": 0.0,
                # Fraction of the steps in which "constant" and "rsqrt" fall to that at the end.
                "cooldown_fraction": 0.0,
                "b1": 0.9,
                "b2": 0.98,
                "eps": 1e-8,
                "weight_decay": 0.05,
                # Decay towards the starting parameters.
                "pull_to_start": 0.0,
                "grad_clip_norm": 1.0,
                # So many updates of a run may have no finite loss or gradient; they are left out and counted.
                "skip_nonfinite": 0,
                # Factor from a block to the one below it; heads have the full rate.
                "layer_decay": 1.0,
                "tower_lr_scale": 1.0,
            },
            # Pairwise logits: "all_gather" holds all keys on every device, "ring" passes them on, "auto" decides by
            # size; rows of a block, 0 for as many as fit.
            "logits": {"strategy": "auto", "block_rows": 0},
            # Takes the former `similarities.route` and `similarities.tile_rows`.
            "similarities": {},
            # `wandb`: the name of a Weights & Biases project, "" for none.
            "log": {"every": 10, "tensorboard": True, "wandb": ""},
            # Steps to trace, as "10:13" for the 11th to the 13th.
            "profile": {"steps": ""},
            # Saved every so many steps, and minutes (0: not by time). Kept: the last few, the best, and those of every
            # `keep_every`-th step (0: none).
            "checkpoint": {"every": 200, "minutes": 0.0, "keep": 2, "keep_every": 0},
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
    config = _run_config(path)
    if not isinstance(config, ConfigDict):
        raise InputError(path, "get_config", type(config).__name__, "a ConfigDict, from default_config()")
    rename_in_place(path, config)
    _check_keys(path, config)
    known = flat(default_config())
    for override in _joined(overrides):
        key, separator, text = override.lstrip("-").removeprefix("config.").partition("=")
        if not separator:
            raise InputError(override, "override", "no '='", "--config.key=value")
        key = current_key(key)
        _check_key(override, key, known)
        _set(config, key, current_value(key, _parsed(override, text, known.get(key))))
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
    """`text` as the type of `default`."""
    if isinstance(default, str):
        # "auto" stands beside numbers.
        return int(text) if default == "auto" and text.isdecimal() else text
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


_TRAINED = Check(
    lambda value: (
        value in ("all", "none") or (value.startswith("last:") and value[5:].isdecimal() and int(value[5:]) > 0)
    ),
    "'all', 'none' or 'last:N'",
)
_NOT_ONE = Check(lambda value: 0 <= value < 1, "a number from 0 to 1 (excluded)")
_CHECKS = {
    "seed": Check(lambda value: 0 <= value < 2**32, "a whole number from 0 to 4294967295"),
    "init.residual_head_width": NOT_NEGATIVE,
    "data.text_length": NOT_NEGATIVE,
    "data.text_padding": one_of("batch", "whole"),
    "data.workers": Check(lambda value: value == "auto" or (type(value) is int and value >= 0), "'auto', or 0 or more"),
    "data.prefetch": NOT_NEGATIVE,
    "optimizer.b1": _NOT_ONE,
    "optimizer.b2": _NOT_ONE,
    # With 0 a parameter without a gradient would be divided by 0.
    "optimizer.eps": POSITIVE,
    "optimizer.weight_decay": NOT_NEGATIVE,
    "optimizer.grad_clip_norm": Check(lambda value: value >= 0, "0 (no clipping) or more"),
    "optimizer.final_lr_fraction": FRACTION,
    "optimizer.tower_lr_scale": NOT_NEGATIVE,
    "logits.block_rows": NOT_NEGATIVE,
    "steps": POSITIVE,
    "batch_size": at_least(2),
    "micro_batches": POSITIVE,
    "dtype": one_of("float32", "bfloat16"),
    "remat": one_of("none", "dots", "full"),
    "fsdp": POSITIVE,
    "ema": Check(lambda value: 0 <= value < 1, "a decay from 0 to 1 (excluded)"),
    "train.vision": _TRAINED,
    "train.text": _TRAINED,
    "train.heads": one_of("all", "vision", "text"),
    "optimizer.pull_to_start": NOT_NEGATIVE,
    "data.captions_per_image": one_of("one", "all"),
    "data.order": one_of("shuffled", "shards"),
    "data.on_decode_error": one_of("skip", "raise"),
    "data.random_crop_min_scale": FRACTION,
    "data.resize_prob": FRACTION,
    "data.feature_pool.captions": POSITIVE,
    "data.feature_pool.mixed": POSITIVE,
    "data.feature_pool.views": POSITIVE,
    "data.feature_noise": NOT_NEGATIVE,
    "optimizer.learning_rate": NOT_NEGATIVE,
    "optimizer.warmup_fraction": FRACTION,
    "optimizer.warmup_steps": NOT_NEGATIVE,
    "optimizer.cooldown_fraction": FRACTION,
    "optimizer.name": one_of("adamw", "lion", "adafactor"),
    "optimizer.moments": one_of("float32", "bfloat16"),
    "optimizer.schedule": one_of(*SCHEDULES),
    "optimizer.layer_decay": FRACTION,
    "log.every": POSITIVE,
    "checkpoint.every": POSITIVE,
    "checkpoint.minutes": NOT_NEGATIVE,
    "checkpoint.keep": POSITIVE,
    "checkpoint.keep_every": NOT_NEGATIVE,
    "optimizer.skip_nonfinite": NOT_NEGATIVE,
    "eval.every": NOT_NEGATIVE,
    "logits.strategy": one_of("auto", "all_gather", "ring"),
}


def _checks() -> dict[str, Check]:
    of_terms = {
        f"losses.{term.name}.{name}": key.check
        for term in all_terms()
        for name, key in term.keys.items()
        if key.check is not None
    }
    return {**_CHECKS, **of_terms}


def check_config(config: ConfigDict, source: object = "config") -> None:
    """Raises InputError for a key that does not exist, or a value out of range, alone or beside another."""
    _check_keys(source, config)
    leaves = flat(config)
    for key, value in leaves.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(source, f"config.{key}", value, "a finite number")
    for key, check in _checks().items():
        if not check.holds(leaves[key]):
            raise InputError(source, f"config.{key}", repr(leaves[key]), check.wanted)
    steps = profiled_steps(config.profile.steps)
    if steps is None or (config.profile.steps and not steps) or steps.stop > config.steps:
        wanted = f"'' or FIRST:END with FIRST < END <= {config.steps}, the number of steps"
        raise InputError(source, "config.profile.steps", repr(config.profile.steps), wanted)
    if config.batch_size % config.micro_batches:
        found = f"{config.batch_size} in {config.micro_batches} parts"
        raise InputError(source, "config.micro_batches", found, "a divisor of batch_size")
    if config.eval.every and not (config.eval.images and config.eval.annotations):
        raise InputError(source, "config.eval.every", config.eval.every, "0 without eval.images and eval.annotations")
    if config.optimizer.cooldown_fraction and config.optimizer.schedule not in ("constant", "rsqrt"):
        wanted = f"0 with the schedule {config.optimizer.schedule!r}, which falls by itself"
        raise InputError(source, "config.optimizer.cooldown_fraction", config.optimizer.cooldown_fraction, wanted)
    if config.optimizer.warmup_steps > config.steps:
        wanted = f"at most {config.steps}, the number of steps"
        raise InputError(source, "config.optimizer.warmup_steps", config.optimizer.warmup_steps, wanted)
    if config.data.cached_features and (config.train.vision, config.train.text) != ("none", "none"):
        found = f"true, and the towers train {config.train.vision!r} and {config.train.text!r}"
        raise InputError(source, "config.data.cached_features", found, "config.train.vision and .text 'none'")
    if config.data.cached_features and config.data.captions_per_image != "one":
        wanted = "'one' with config.data.cached_features, which knows no other"
        raise InputError(source, "config.data.captions_per_image", repr(config.data.captions_per_image), wanted)
    if config.data.cached_features and (config.data.order != "shuffled" or config.data.weights):
        key = "order" if config.data.order != "shuffled" else "weights"
        wanted = "the default with config.data.cached_features, which holds all features in memory"
        raise InputError(source, f"config.data.{key}", repr(config.data[key]), wanted)
    if config.data.feature_noise and not config.data.cached_features:
        raise InputError(source, "config.data.feature_noise", leaves["data.feature_noise"], "0 without cached_features")
    from rococo_jax.training.inputs.loss_input import (
        check_inputs,  # imports encoders, which reading a config does not need
    )

    check_inputs(source, config)


def write_config(path: Path, config: ConfigDict) -> None:
    """The resolved config as JSON."""
    write_json(path, flat(config))


def refuse_other_config(path: Path, config: ConfigDict) -> dict[str, Any]:
    """The config kept in a working folder.

    Raises:
        InputError: it is not this one, `MAY_CHANGE` and more `steps` apart.
    """
    kept = current_leaves(read_json_object(path, "the config of a training run"))
    # Keys that are younger than the folder have their defaults there.
    kept = {**flat(default_config()), **kept}
    ours = json.loads(json.dumps(flat(config)))
    for key in sorted(kept.keys() | ours.keys()):
        if kept.get(key) != ours.get(key) and not key.startswith(MAY_CHANGE):
            begun = f"{kept.get(key)!r}, with which this folder was begun"
            if key != "steps":
                raise InputError(path.parent, f"config.{key}", repr(ours.get(key)), f"{begun}, or another --workdir")
            if ours[key] < kept[key]:
                raise InputError(path.parent, "config.steps", ours[key], f"{begun}, or more, or another --workdir")
    return kept
