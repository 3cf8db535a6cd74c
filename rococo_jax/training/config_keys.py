"""The keys of a training config, each with its default, help, check and what it affects (`config_fields.Key`).

Keys of losses are declared in the files of the losses.
"""

import functools
import math
import re
from typing import Any

from ml_collections import FieldReference

from rococo_jax.config_fields import FRACTION, NOT_NEGATIVE, POSITIVE, Check, Key, below_one, between, one_of
from rococo_jax.losses import TERMS
from rococo_jax.training.config_needs import (
    CACHED_TEXTS,
    COLOR_JITTER,
    DECAY,
    EVALUATION,
    EVALUATION_NEEDS,
    IMAGES_AT_EACH_STEP,
    IMAGES_IN_ORDER,
    LOADED_MODEL,
    NEW_TOWERS,
    NO_DECAY_YET,
    NO_WANDB,
    NO_WARMUP_STEPS,
    SEVERAL_VIEWS,
    TEXTS_AT_EACH_STEP,
    TRAINED_TOWER,
    pool_size,
    settings_of,
)  # fmt: skip
from rococo_jax.training.optimizer import SCHEDULES

SEED = Check(lambda value: 0 <= value < 2**32, "a whole number from 0 to 4294967295")
TRAINED = Check(
    lambda value: (
        value in ("all", "none") or (value.startswith("last:") and value[5:].isdecimal() and int(value[5:]) > 0)
    ),
    "'all', 'none' or 'last:N'",
)
WORKERS = Check(
    lambda value: value == "auto" or (type(value) is int and 0 <= value <= 1024), "'auto', or 0 or more (at most 1024)"
)
NO_CLIPPING = Check(NOT_NEGATIVE.holds, "0 (no clipping) or more")
JITTER = Check(
    lambda value: read_jitter(value) is not None,
    "'' or four strengths of 0 or more, such as 0.4,0.4,0.4,0.1, the last one (hue) at most 0.5",
)


def read_jitter(text: str) -> tuple[float, ...] | None:
    """Return the strengths in `data.color_jitter`, () if it is empty, None if it is malformed."""
    try:
        strengths = tuple(float(each) for each in text.split(",")) if text else ()
    except ValueError:
        return None
    is_valid = len(strengths) in (0, 4) and all(0 <= each < math.inf for each in strengths)
    return strengths if is_valid and (not strengths or strengths[3] <= 0.5) else None


def profiled_steps(text: str) -> range | None:
    """Return the steps in `profile.steps`, counted from 0 as in a Python slice; None if the text is malformed.

    >>> profiled_steps("10:13"), profiled_steps(""), profiled_steps("x")
    (range(10, 13), range(0, 0), None)
    """
    if not text:
        return range(0)
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text)
    return range(int(match[1]), int(match[2])) if match else None


# Settings of an evaluation during training, by the names of the options of `rococo evaluate`.
_EVALUATE = {
    "data": "", "benchmarks": "", "data_dir": "", "images": "", "annotations": "", "tasks": "", "protocol": "paper",
    "mixed_galleries": "none", "seeds": "1,10,100", "corruptions": "none", "severities": "1,3,5",
    "corrupted_benchmarks": "", "templates": "80", "out_images": "", "limit": 0, "allow_missing_images": False,
}  # fmt: skip


def all_keys() -> dict[str, Any]:
    """Return all sections and keys by name."""
    return {
        "seed": Key(0, "Seed of everything random; the same seed gives the same bytes.", SEED),
        "steps": _run_key(1000, "Updates of the parameters; may grow when a run resumes.", POSITIVE),
        "batch_size": _run_key(256, "Pairs in a step, over all devices.", between(2, 2**24)),
        "micro_batches": _free_key(
            1, "Parts into which the towers split the contrastive batch to save memory (GradCache).", POSITIVE
        ),
        "dtype": Key(
            "float32",
            "Dtype in which the towers compute, `float32` or `bfloat16`; parameters, norms and similarities are "
            "float32.",
            one_of("float32", "bfloat16"),
        ),
        "gradient_dtype": Key(
            "float32",
            "Dtype in which devices send their gradients to be summed, `float32` or `bfloat16`. `bfloat16` halves what "
            "is sent; every addition rounds to 8 bits.",
            one_of("float32", "bfloat16"),
        ),
        "remat": _free_key(
            "none",
            "What the backward pass of a block recomputes instead of storing it: `none`, `dots` (all but products with "
            "parameters) or `full`.",
            one_of("none", "dots", "full"),
            needs=(TRAINED_TOWER,),
        ),
        "unroll": _free_key(
            False,
            "Compile every block by itself, not a loop over blocks: fewer bytes cross the memory of a TPU, and "
            "compilation takes several times as long.",
            needs=(TRAINED_TOWER,),
        ),
        "fsdp": _free_key(1, "Devices that share one copy of the parameters.", POSITIVE),
        "ema": _run_key(
            0.0,
            "Decay per step of the debiased moving average of parameters, which is saved instead of them; 0 for none. "
            "The initial parameters are excluded from it.",
            below_one("decay"),
        ),
        "init": {
            "model": Key(
                "",
                "Model to start from: a model directory, Hugging Face folder or hub name; empty with the three keys "
                "below.",
            ),
            "spec": Key(
                {}, "Sizes of new towers, with `init.preprocessing` and `init.tokenizer`.", needs=(NEW_TOWERS,)
            ),
            "preprocessing": Key({}, "Preprocessing of new towers.", needs=(NEW_TOWERS,)),
            "tokenizer": Key(
                "",
                "Tokenizer of new towers: a folder or file with a tokenizer.json, a model, a hub name, or "
                "package.module:function.",
                needs=(NEW_TOWERS,),
            ),
            "residual_head_width": Key(
                0, "Width of a residual MLP that is added to both heads; 0 for none.", between(0, 2**20)
            ),
            "image_size": Key(
                0,
                "Side of the images in pixels, 0 for the model's own; position embeddings are resampled.",
                between(0, 2**14),
                needs=(LOADED_MODEL,),
            ),
        },
        "patch_dropout": Key(
            0.0,
            "Share of an image's patches that the tower does not see in a step (FLIP).",
            below_one("share"),
            needs=(IMAGES_AT_EACH_STEP,),
        ),
        "train": {
            "vision": Key("all", "Trained part: `all`, `last:N` blocks and the final norm, or `none`.", TRAINED),
            "text": Key("all", "Trained part: `all`, `last:N` blocks and the final norm, or `none`.", TRAINED),
            "heads": _run_key(
                "all", "Trained heads: `all`, or that of `vision` or `text`.", one_of("all", "vision", "text")
            ),
        },
        "data": {
            "images": Key(
                "", "Folders or tars of images, separated by commas; or tables, TFDS or hub data with captions."
            ),
            "captions": Key("", "Captions files, separated by commas."),
            "split": Key("", "Splits of captions files that have several, such as `train+restval`; or `all`."),
            "order": Key(
                "shuffled",
                "`shuffled`: every image can be anywhere in an epoch; `shards`: shards are in a new order every epoch "
                "and read from front to back, several at a time.",
                one_of("shuffled", "shards"),
                needs=(IMAGES_IN_ORDER,),
            ),
            "weights": Key(
                "",
                "Share of the samples that come from each source, as `0.7,0.3`; by size by default.",
                needs=(IMAGES_IN_ORDER,),
            ),
            "captions_per_image": Key(
                "one",
                "`one`: an image with one of its captions, drawn anew every epoch; `all`: its captions in turn.",
                one_of("one", "all"),
                needs=(TEXTS_AT_EACH_STEP,),
            ),
            "random_crop_min_scale": Key(
                0.0,
                "Smallest fraction of an image's area in a random crop; 0 for no cropping.",
                FRACTION,
                needs=(IMAGES_AT_EACH_STEP,),
            ),
            "flip": Key(False, "Mirror half of the images.", needs=(IMAGES_AT_EACH_STEP,)),
            "color_jitter": Key(
                "",
                "Strengths of brightness, contrast, saturation and hue, as `0.4,0.4,0.4,0.1`.",
                JITTER,
                needs=(IMAGES_AT_EACH_STEP,),
            ),
            "color_jitter_prob": Key(
                0.8,
                "Probability of changing the colors.",
                FRACTION,
                needs=(COLOR_JITTER,),
            ),
            "grayscale_prob": Key(
                0.0, "Probability of converting an image to grayscale.", FRACTION, needs=(IMAGES_AT_EACH_STEP,)
            ),
            "resize_prob": Key(
                0.0,
                "Probability of resizing an image to the tower's size without cropping, as published mixed images are.",
                FRACTION,
                needs=(SEVERAL_VIEWS,),
            ),
            "on_decode_error": Key(
                "skip",
                "`skip` replaces an image that cannot be decoded and counts it, `raise` stops the run.",
                one_of("skip", "raise"),
            ),
            "decode": _run_key(
                "exact",
                "`draft`: a JPEG is decoded at a half, quarter or eighth of its size where that is enough for the crop "
                "and the tower. Faster, with slightly other pixels than those of evaluation.",
                one_of("exact", "draft"),
                needs=(IMAGES_AT_EACH_STEP,),
            ),
            "text_length": Key(
                0,
                "Tokens to which every text is padded or cut; 0: 48, or the tower's context if it is shorter. It must "
                "be 0 with features of both towers, and for towers of one fixed length.",
                NOT_NEGATIVE,
                needs=(TEXTS_AT_EACH_STEP,),
            ),
            "workers": _free_key(
                FieldReference("auto", field_type=object),
                "Processes that decode images; 0 for threads. `auto`: one per core, and none for runs of few images.",
                WORKERS,
            ),
            "prefetch": _free_key(2, "Batches that are prepared in advance; 0 for none.", between(0, 1000)),
            "cached_features": Key(
                False,
                "Run frozen towers once over all data and train on their features. The image tower must be frozen; if "
                "the text tower is not, texts are encoded at every step (LiT).",
            ),
            "feature_pool": {
                "captions": pool_size("text", "Altered captions per caption that are encoded beforehand."),
                "mixed": pool_size("vision", "Mixed images per image that are encoded beforehand."),
            },
            "feature_noise": _run_key(
                0.0,
                "Noise on cached features, in standard deviations of each feature. A caption and its altered captions "
                "have the same noise, and so do an image and its mixed images.",
                NOT_NEGATIVE,
                needs=(CACHED_TEXTS,),
            ),
        },
        "losses": {term.name: settings_of(term) for term in TERMS},
        "optimizer": {
            "moments": _run_key(
                "float32",
                "Dtype in which AdamW stores first moments: `float32`, or `bfloat16`, which takes half the memory.",
                one_of("float32", "bfloat16"),
            ),
            "learning_rate": _run_key(1e-3, "Highest learning rate, after the warmup.", NOT_NEGATIVE),
            "schedule": _run_key("cosine", "`cosine`, `constant` or `rsqrt`.", one_of(*SCHEDULES)),
            "warmup_fraction": _run_key(
                0.05,
                "Fraction of the steps in which the learning rate rises.",
                FRACTION,
                needs=(NO_WARMUP_STEPS,),
            ),
            "warmup_steps": _run_key(0, "Steps of the warmup; 0: by `warmup_fraction`.", NOT_NEGATIVE),
            "final_lr_fraction": _run_key(
                0.0,
                "Fraction of the learning rate that remains at the end, after the decay of `cosine` or the cooldown.",
                FRACTION,
                needs=(DECAY,),
            ),
            "cooldown_fraction": _run_key(
                0.0,
                "Fraction of the steps, at the end, in which `constant` and `rsqrt` fall to that.",
                FRACTION,
                needs=(NO_DECAY_YET,),
            ),
            "b1": _run_key(0.9, "Decay of first moments.", below_one("number")),
            "b2": _run_key(0.98, "Decay of second moments.", below_one("number")),
            # With 0 a parameter without a gradient would be divided by 0.
            "eps": _run_key(1e-8, "Added to the square root of second moments.", POSITIVE),
            "weight_decay": _run_key(0.05, "Decoupled decay of weights; biases and norms do not decay.", NOT_NEGATIVE),
            "pull_to_start": _run_key(0.0, "Decay towards the initial parameters (L2-SP).", NOT_NEGATIVE),
            "grad_clip_norm": _run_key(
                1.0, "Norm to which larger gradients are scaled down; 0 for no clipping.", NO_CLIPPING
            ),
            "layer_decay": _run_key(
                1.0,
                "Factor of the learning rate from a block to the one below it; heads have the full rate.",
                FRACTION,
                needs=(TRAINED_TOWER,),
            ),
            "tower_lr_scale": _run_key(
                1.0, "Learning rate of the towers relative to that of heads.", NOT_NEGATIVE, needs=(TRAINED_TOWER,)
            ),
        },
        "log": {
            "every": _free_key(10, "Steps between lines of metrics.jsonl.", POSITIVE),
            "tensorboard": _free_key(
                True,
                "Write TensorBoard's files too.",
                needs=(NO_WANDB,),
            ),
            "wandb": _free_key("", "Name of a Weights & Biases project; empty for none."),
        },
        "profile": {"steps": _free_key("", "Steps to trace, as `10:13` for the 11th to the 13th.")},
        "checkpoint": {
            "every": _free_key(200, "Steps between checkpoints.", POSITIVE),
            "minutes": _free_key(0.0, "Minutes between checkpoints; 0: not by time.", NOT_NEGATIVE),
            "keep": _free_key(2, "Number of latest checkpoints to keep, besides the best.", POSITIVE),
            "keep_every": _free_key(0, "Keep the checkpoint of every so many steps for good; 0: none.", NOT_NEGATIVE),
        },
        "eval": {
            "every": _free_key(
                0,
                "Steps between evaluations, besides the one at the end; 0: only at the end.",
                NOT_NEGATIVE,
                needs=(EVALUATION,),
            ),
            **{
                name: _free_key(
                    default,
                    f"`--{name.replace('_', '-')}` of `rococo evaluate`.",
                    NOT_NEGATIVE if name == "limit" else None,
                    needs=() if name in ("data", "images") else (EVALUATION, *EVALUATION_NEEDS.get(name, ())),
                )
                for name, default in _EVALUATE.items()
            },
        },
    }


# The run, but not the features of frozen towers.
_run_key = functools.partial(Key, affects="run")
# Nothing but where, how fast and with which files the run is computed.
_free_key = functools.partial(Key, affects="nothing")
