"""What values the keys of a training config may have, alone and beside each other."""

import math
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.losses.terms import FRACTION, NOT_NEGATIVE, POSITIVE, Check, all_terms, at_least, one_of
from rococo_jax.training.freezing import cached_sides
from rococo_jax.training.hooks.profile import profiled_steps
from rococo_jax.training.optimizer import SCHEDULES

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
    "kept_micro_batches": POSITIVE,
    "dtype": one_of("float32", "bfloat16"),
    "remat": one_of("none", "dots", "full"),
    "fsdp": POSITIVE,
    "ema": Check(lambda value: 0 <= value < 1, "a decay from 0 to 1 (excluded)"),
    "train.vision": _TRAINED,
    "train.text": _TRAINED,
    "train.heads": one_of("all", "vision", "text"),
    "optimizer.pull_to_start": NOT_NEGATIVE,
    "data.captions_per_image": one_of("one", "all"),
    "data.left_out_fold": Check(lambda value: value in (-1, 0, 1), "0 or 1, or -1 for none"),
    "data.order": one_of("shuffled", "shards"),
    "data.on_decode_error": one_of("skip", "raise"),
    "data.random_crop_min_scale": FRACTION,
    "data.resize_prob": FRACTION,
    "data.color_jitter": Check(
        lambda value: read_jitter(value) is not None,
        "'' or four strengths from 0, as 0.4,0.4,0.4,0.1, the last one, of hue, at most 0.5",
    ),
    "data.color_jitter_prob": FRACTION,
    "data.grayscale_prob": FRACTION,
    "patch_dropout": Check(lambda value: 0 <= value < 1, "a share from 0 to 1 (excluded)"),
    "init.image_size": NOT_NEGATIVE,
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


def read_jitter(text: str) -> tuple[float, ...] | None:
    """The strengths of `data.color_jitter`, () for none, or None where it is something else."""
    try:
        strengths = tuple(float(each) for each in text.split(",")) if text else ()
    except ValueError:
        return None
    right = len(strengths) in (0, 4) and all(0 <= each < math.inf for each in strengths)
    return strengths if right and (not strengths or strengths[3] <= 0.5) else None


def _checks() -> dict[str, Check]:
    of_terms = {
        f"losses.{term.name}.{name}": key.check
        for term in all_terms()
        for name, key in term.keys.items()
        if key.check is not None
    }
    return {**_CHECKS, **of_terms}


def check_values(config: ConfigDict, leaves: Mapping[str, Any], source: object) -> None:
    """Raises InputError for a value out of range, alone or beside another; `leaves` are those of `config`."""
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
    if config.kept_micro_batches > config.micro_batches:
        wanted = f"at most the {config.micro_batches} of micro_batches"
        raise InputError(source, "config.kept_micro_batches", config.kept_micro_batches, wanted)
    if config.eval.every and not (config.eval.data or config.eval.images):
        wanted = "0 without eval.data, or eval.images and eval.annotations"
        raise InputError(source, "config.eval.every", config.eval.every, wanted)
    if config.optimizer.cooldown_fraction and config.optimizer.schedule not in ("constant", "rsqrt"):
        wanted = f"0 with the schedule {config.optimizer.schedule!r}, which falls by itself"
        raise InputError(source, "config.optimizer.cooldown_fraction", config.optimizer.cooldown_fraction, wanted)
    if config.optimizer.warmup_steps > config.steps:
        wanted = f"at most {config.steps}, the number of steps"
        raise InputError(source, "config.optimizer.warmup_steps", config.optimizer.warmup_steps, wanted)
    _check_cached(config, source)
    if "text" in cached_sides(config) and config.data.captions_per_image != "one":
        wanted = "'one' with config.data.cached_features, which knows no other"
        raise InputError(source, "config.data.captions_per_image", repr(config.data.captions_per_image), wanted)
    if "text" not in cached_sides(config) and config.data.feature_noise:
        wanted = "0 unless config.data.cached_features holds both towers' features"
        raise InputError(source, "config.data.feature_noise", leaves["data.feature_noise"], wanted)
    from rococo_jax.training.inputs.loss_input import (
        check_inputs,  # imports encoders, which reading a config does not need
    )

    check_inputs(source, config)


def _check_cached(config: ConfigDict, source: object) -> None:
    """Raises InputError for what does not go with features of a frozen image tower."""
    if not config.data.cached_features:
        return
    if config.train.vision != "none":
        found = f"true, and the towers train {config.train.vision!r} and {config.train.text!r}"
        wanted = "config.train.vision 'none', and .text too for features of both"
        raise InputError(source, "config.data.cached_features", found, wanted)
    if config.patch_dropout:
        raise InputError(source, "config.patch_dropout", config.patch_dropout, "0 with config.data.cached_features")
    if "text" not in cached_sides(config):
        for key in ("random_crop_min_scale", "flip", "resize_prob", "color_jitter", "grayscale_prob"):
            if config.data[key]:
                wanted = "none with config.data.cached_features and a trained text tower: an image has one feature"
                raise InputError(source, f"config.data.{key}", repr(config.data[key]), wanted)
    if config.data.cached_features and (config.data.order != "shuffled" or config.data.weights):
        key = "order" if config.data.order != "shuffled" else "weights"
        wanted = "the default with config.data.cached_features, which holds all features in memory"
        raise InputError(source, f"config.data.{key}", repr(config.data[key]), wanted)
