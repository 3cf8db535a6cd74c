"""Configuration of a training run: every key with its default, a reader for config files, and overrides.

A config file is Python with a function `get_config()` that starts from `default_config()` and returns an ml_collections
ConfigDict. Overrides are written `--config.losses.sc.weight=0.5`. A key that does not
exist is refused, and the nearest one that does is named.

The keys under `losses.NAME` are those of the loss terms, each declared in the file of its loss.
"""

import ast
import difflib
import json
import os
import runpy
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FieldReference

from rococo_jax.errors import InputError
from rococo_jax.losses.terms import all_terms
from rococo_jax.storage import read_json_object, write_json
from rococo_jax.training.config_checks import check_values

# What may change when a run goes on: where and in what parts it is computed, which changes no gradient, and what is
# written. `steps` may grow.
MAY_CHANGE = ("log.", "profile.", "checkpoint.", "eval.", "data.workers", "data.prefetch",
              "data.text_padding", "fsdp", "micro_batches", "kept_micro_batches",
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
            # Parts whose activations are kept until the loss is known; the others are embedded again.
            "kept_micro_batches": 1,
            "dtype": "float32",
            # What the backward pass of a block computes again instead of keeping it: "none", "dots" (all but products
            # with parameters) or "full".
            "remat": "none",
            # Devices that share a copy of the parameters.
            "fsdp": 1,
            # Decay a step of the debiased moving average of parameters that is saved instead of them; 0 for none:
            # the starting parameters have no share in it.
            "ema": 0.0,
            "init": {
                # A model directory, Hugging Face folder or hub name; or nothing, and the three below.
                "model": "",
                "spec": {},
                "preprocessing": {},
                "tokenizer": "",
                # Width of the residual MLP that is added to both heads; 0 for none.
                "residual_head_width": 0,
                # Pixels of a side that images have from here on, 0 for the model's own: positions are resampled.
                "image_size": 0,
            },
            # The share of an image's patches that the tower does not see in a step (FLIP).
            "patch_dropout": 0.0,
            # What is trained of each tower: "all", "last:N" blocks and the final norm, or "none"; and which
            # heads: "all", or that of "vision" or "text" alone.
            "train": {"vision": "all", "text": "all", "heads": "all"},
            "data": {
                "images": "",
                "captions": "",
                # Cross-fitting: 0 or 1 leaves out the images of that fold, a half by hash; -1 none.
                "left_out_fold": -1,
                # "shuffled": each image anywhere in an epoch; "shards": shards in another order every epoch, each
                # read from front to back, some side by side. And the share of the samples of each source, "0.7,0.3".
                "order": "shuffled",
                "weights": "",
                # "one": an image with one of its captions, drawn anew every epoch; "all": every pair once an epoch.
                "captions_per_image": "one",
                # Least fraction of an image's area in a random crop, 0 for no cropping; and mirroring.
                "random_crop_min_scale": 0.0,
                "flip": False,
                # Strengths of brightness, contrast, saturation and hue, as "0.4,0.4,0.4,0.1", how often they change,
                # and how often images become grey.
                "color_jitter": "",
                "color_jitter_prob": 0.8,
                "grayscale_prob": 0.0,
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
                # Frozen towers run once over everything; training reads their features. The image tower must be frozen;
                # where the text tower is not, texts are encoded at every step (LiT).
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
            # `wandb`: the name of a Weights & Biases project, "" for none.
            "log": {"every": 10, "tensorboard": True, "wandb": ""},
            # Steps to trace, as "10:13" for the 11th to the 13th.
            "profile": {"steps": ""},
            # Saved every so many steps, and minutes (0: not by time). Kept: the last few, the best, and those of every
            # `keep_every`-th step (0: none).
            "checkpoint": {"every": 200, "minutes": 0.0, "keep": 2, "keep_every": 0},
            # What `rococo evaluate` asks, by the names of its options: `data` and `benchmarks`, or `images` and
            # `annotations` of one; lists with commas.
            "eval": {
                "every": 0,
                "data": "",
                "benchmarks": "",
                "data_dir": "",
                "images": "",
                "annotations": "",
                "tasks": "",
                "protocol": "paper",
                "mixed_galleries": "none",
                "seeds": "1,10,100",
                "corruptions": "none",
                "severities": "1,3,5",
                "corrupted_benchmarks": "",
                "templates": "80",
                "out_images": "",
                "limit": 0,
                "allow_missing_images": False,
            },
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


def check_config(config: ConfigDict, source: object = "config") -> None:
    """Raises InputError for a key that does not exist, or a value out of range, alone or beside another."""
    _check_keys(source, config)
    check_values(config, flat(config), source)


def write_config(path: Path, config: ConfigDict) -> None:
    """The resolved config as JSON."""
    write_json(path, flat(config))


def refuse_other_config(path: Path, config: ConfigDict) -> dict[str, Any]:
    """The config kept in a working folder.

    Raises:
        InputError: it is not this one, `MAY_CHANGE` and more `steps` apart.
    """
    kept = read_json_object(path, "the config of a training run")
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
