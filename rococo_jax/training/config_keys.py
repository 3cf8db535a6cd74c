"""The keys of a training config, each with its default and, where not every value of its type will do, a check.

Keys of losses are declared in the files of the losses.
"""

import math
from typing import Any

from ml_collections import FieldReference

from rococo_jax.losses import TERMS
from rococo_jax.losses.terms import FRACTION, NOT_NEGATIVE, POSITIVE, Check, Key, at_least, one_of
from rococo_jax.training.optimizer import SCHEDULES

SEED = Check(lambda value: 0 <= value < 2**32, "a whole number from 0 to 4294967295")
TRAINED = Check(
    lambda value: (
        value in ("all", "none") or (value.startswith("last:") and value[5:].isdecimal() and int(value[5:]) > 0)
    ),
    "'all', 'none' or 'last:N'",
)
WORKERS = Check(lambda value: value == "auto" or (type(value) is int and value >= 0), "'auto', or 0 or more")
JITTER = Check(
    lambda value: read_jitter(value) is not None,
    "'' or four strengths from 0, as 0.4,0.4,0.4,0.1, the last one, of hue, at most 0.5",
)


def below_one(noun: str) -> Check:
    """Refuses negative numbers, and 1 and more."""
    return Check(lambda value: 0 <= value < 1, f"a {noun} from 0 to 1 (excluded)")


def read_jitter(text: str) -> tuple[float, ...] | None:
    """The strengths of `data.color_jitter`, () for none, or None where it is something else."""
    try:
        strengths = tuple(float(each) for each in text.split(",")) if text else ()
    except ValueError:
        return None
    right = len(strengths) in (0, 4) and all(0 <= each < math.inf for each in strengths)
    return strengths if right and (not strengths or strengths[3] <= 0.5) else None


def all_keys() -> dict[str, Any]:
    """All keys, with a check where not every value of the type will do."""
    return {
        "seed": Key(0, SEED),
        "steps": Key(1000, POSITIVE),
        "batch_size": Key(256, at_least(2)),
        # The contrastive batch goes through the towers in so many parts (gradient cache).
        "micro_batches": Key(1, POSITIVE),
        # Parts whose activations are kept until the loss is known; the others are embedded again.
        "kept_micro_batches": Key(1, POSITIVE),
        "dtype": Key("float32", one_of("float32", "bfloat16")),
        # What the backward pass of a block computes again instead of keeping it: "none", "dots" (all but products
        # with parameters) or "full".
        "remat": Key("none", one_of("none", "dots", "full")),
        # Devices that share a copy of the parameters.
        "fsdp": Key(1, POSITIVE),
        # Decay a step of the debiased moving average of parameters that is saved instead of them; 0 for none:
        # the starting parameters have no share in it.
        "ema": Key(0.0, below_one("decay")),
        "init": {
            # A model directory, Hugging Face folder or hub name; or nothing, and the three below.
            "model": "",
            "spec": {},
            "preprocessing": {},
            "tokenizer": "",
            # Width of the residual MLP that is added to both heads; 0 for none.
            "residual_head_width": Key(0, NOT_NEGATIVE),
            # Pixels of a side that images have from here on, 0 for the model's own: positions are resampled.
            "image_size": Key(0, NOT_NEGATIVE),
        },
        # The share of an image's patches that the tower does not see in a step (FLIP).
        "patch_dropout": Key(0.0, below_one("share")),
        # What is trained of each tower: "all", "last:N" blocks and the final norm, or "none"; and which
        # heads: "all", or that of "vision" or "text" alone.
        "train": {
            "vision": Key("all", TRAINED),
            "text": Key("all", TRAINED),
            "heads": Key("all", one_of("all", "vision", "text")),
        },
        "data": {
            "images": "",
            "captions": "",
            # Of captions that tell splits: train+restval of Karpathy's files; "all".
            "split": "",
            # "shuffled": each image anywhere in an epoch; "shards": shards in another order every epoch, each
            # read from front to back, some side by side. And the share of the samples of each source, "0.7,0.3".
            "order": Key("shuffled", one_of("shuffled", "shards")),
            "weights": "",
            # "one": an image with one of its captions, drawn anew every epoch; "all": its captions in turn.
            "captions_per_image": Key("one", one_of("one", "all")),
            # Least fraction of an image's area in a random crop, 0 for no cropping; and mirroring.
            "random_crop_min_scale": Key(0.0, FRACTION),
            "flip": False,
            # Strengths of brightness, contrast, saturation and hue, as "0.4,0.4,0.4,0.1", how often they change,
            # and how often images become grey.
            "color_jitter": Key("", JITTER),
            "color_jitter_prob": Key(0.8, FRACTION),
            "grayscale_prob": Key(0.0, FRACTION),
            # How often an image is resized whole to the tower's size, as published mixed images are.
            "resize_prob": Key(0.0, FRACTION),
            # "skip" replaces an image that cannot be decoded and counts it, "raise" stops the run.
            "on_decode_error": Key("skip", one_of("skip", "raise")),
            # 0: the smaller of the tower's context and 64 tokens.
            "text_length": Key(0, NOT_NEGATIVE),
            # "batch" pads texts to the bucket of the longest text of the global batch, "whole" to text_length.
            "text_padding": Key("batch", one_of("batch", "whole")),
            # Processes that decode; 0 for threads. "auto": a core each, and none for runs of a few images.
            "workers": Key(FieldReference("auto", field_type=object), WORKERS),
            "prefetch": Key(2, NOT_NEGATIVE),
            # Frozen towers run once over everything; training reads their features. The image tower must be frozen;
            # where the text tower is not, texts are encoded at every step (LiT).
            "cached_features": False,
            # Altered captions a caption and mixed images an image that are made beforehand.
            "feature_pool": {each: Key(4, POSITIVE) for each in ("captions", "mixed")},
            # Noise on these features, in standard deviations of each; one draw for a caption and its altered ones,
            # and for an image and its mixed ones.
            "feature_noise": Key(0.0, NOT_NEGATIVE),
        },
        "losses": {term.name: dict(term.keys) for term in TERMS},
        "optimizer": {
            # "adamw", "lion" or "adafactor"; and how first moments are kept: "float32" or "bfloat16".
            "name": Key("adamw", one_of("adamw", "lion", "adafactor")),
            "moments": Key("float32", one_of("float32", "bfloat16")),
            "learning_rate": Key(1e-3, NOT_NEGATIVE),
            # "cosine", "linear", "constant" or "rsqrt".
            "schedule": Key("cosine", one_of(*SCHEDULES)),
            # Fraction of the steps that the rate rises, or how many steps where that is not 0; and the fraction of
            # the rate that is left at the end.
            "warmup_fraction": Key(0.05, FRACTION),
            "warmup_steps": Key(0, NOT_NEGATIVE),
            "final_lr_fraction": Key(0.0, FRACTION),
            # Fraction of the steps in which "constant" and "rsqrt" fall to that at the end.
            "cooldown_fraction": Key(0.0, FRACTION),
            "b1": Key(0.9, below_one("number")),
            "b2": Key(0.98, below_one("number")),
            # With 0 a parameter without a gradient would be divided by 0.
            "eps": Key(1e-8, POSITIVE),
            "weight_decay": Key(0.05, NOT_NEGATIVE),
            # Decay towards the starting parameters.
            "pull_to_start": Key(0.0, NOT_NEGATIVE),
            "grad_clip_norm": Key(1.0, Check(lambda value: value >= 0, "0 (no clipping) or more")),
            # Factor from a block to the one below it; heads have the full rate.
            "layer_decay": Key(1.0, FRACTION),
            "tower_lr_scale": Key(1.0, NOT_NEGATIVE),
        },
        # `wandb`: the name of a Weights & Biases project, "" for none.
        "log": {"every": Key(10, POSITIVE), "tensorboard": True, "wandb": ""},
        # Steps to trace, as "10:13" for the 11th to the 13th.
        "profile": {"steps": ""},
        # Saved every so many steps, and minutes (0: not by time). Kept: the last few, the best, and those of every
        # `keep_every`-th step (0: none).
        "checkpoint": {
            "every": Key(200, POSITIVE),
            "minutes": Key(0.0, NOT_NEGATIVE),
            "keep": Key(2, POSITIVE),
            "keep_every": Key(0, NOT_NEGATIVE),
        },
        # What `rococo evaluate` asks, by the names of its options: `data` and `benchmarks`, or `images` and
        # `annotations` of one; lists with commas.
        "eval": {
            "every": Key(0, NOT_NEGATIVE),
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
