"""The keys of a training config: default, meaning and, where not every value of the type will do, a check.

Keys of losses are declared in the files of the losses.
"""

import math
import re
from typing import Any

from ml_collections import FieldReference

from rococo_jax.losses import TERMS
from rococo_jax.losses.terms import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE, Check, Key, below_one, between, one_of
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
    "'' or four strengths from 0, as 0.4,0.4,0.4,0.1, the last one, of hue, at most 0.5",
)


def read_jitter(text: str) -> tuple[float, ...] | None:
    """The strengths of `data.color_jitter`, () for none, or None where it is something else."""
    try:
        strengths = tuple(float(each) for each in text.split(",")) if text else ()
    except ValueError:
        return None
    right = len(strengths) in (0, 4) and all(0 <= each < math.inf for each in strengths)
    return strengths if right and (not strengths or strengths[3] <= 0.5) else None


def profiled_steps(text: str) -> range | None:
    """Steps as Python counts a slice: `"10:13"` is the 11th to the 13th step, `""` none. None: this is no range."""
    if not text:
        return range(0)
    found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text)
    return range(int(found[1]), int(found[2])) if found else None


# Settings of an evaluation while training, by the names of the options of `rococo evaluate`.
_EVALUATE = {
    "data": "", "benchmarks": "", "data_dir": "", "images": "", "annotations": "", "tasks": "", "protocol": "paper",
    "mixed_galleries": "none", "seeds": "1,10,100", "corruptions": "none", "severities": "1,3,5",
    "corrupted_benchmarks": "", "templates": "80", "out_images": "", "limit": 0, "allow_missing_images": False,
}  # fmt: skip


def all_keys() -> dict[str, Any]:
    """Sections of keys, and keys."""
    return {
        "seed": Key(0, "Seed of everything that is drawn; the same seed gives the same bytes.", SEED),
        "steps": Key(1000, "Updates of the parameters; may grow when a run resumes.", POSITIVE),
        "batch_size": Key(256, "Pairs of a step, over all devices.", between(2, 2**24)),
        "micro_batches": Key(1, "Parts in which the contrastive batch goes through the towers (GradCache).", POSITIVE),
        "dtype": Key(
            "float32",
            "Of the towers' computation, `float32` or `bfloat16`; parameters, norms and similarities are float32.",
            one_of("float32", "bfloat16"),
        ),
        "remat": Key(
            "none",
            "What the backward pass of a block computes again instead of keeping it: `none`, `dots` (all but products "
            "with parameters) or `full`.",
            one_of("none", "dots", "full"),
        ),
        "fsdp": Key(1, "Devices that share a copy of the parameters.", POSITIVE),
        "ema": Key(
            0.0,
            "Decay a step of the debiased moving average of parameters that is saved instead of them; 0 for none. "
            "The starting parameters have no share in it.",
            below_one("decay"),
        ),
        "init": {
            "model": Key("", "A model directory, Hugging Face folder or hub name; or nothing, and the three below."),
            "spec": Key({}, "Sizes of new towers, with `init.preprocessing` and `init.tokenizer`."),
            "preprocessing": Key({}, "What new towers make of an image."),
            "tokenizer": Key(
                "",
                "The tokenizer of new towers: a folder or file that has one (tokenizer.json), a model, a hub name, or "
                "package.module:function.",
            ),
            "residual_head_width": Key(
                0, "Width of the residual MLP that is added to both heads; 0 for none.", between(0, 2**20)
            ),
            "image_size": Key(
                0,
                "Pixels of a side of images from here on, 0 for the model's own; positions are resampled.",
                between(0, 2**14),
            ),
        },
        "patch_dropout": Key(
            0.0, "Share of an image's patches that the tower does not see in a step (FLIP).", below_one("share")
        ),
        "train": {
            "vision": Key("all", "`all`, `last:N` blocks and the final norm, or `none`.", TRAINED),
            "text": Key("all", "`all`, `last:N` blocks and the final norm, or `none`.", TRAINED),
            "heads": Key("all", "Which heads: `all`, or that of `vision` or `text`.", one_of("all", "vision", "text")),
        },
        "data": {
            "images": Key("", "Folders of images, with commas between several; or `data.captions` holds them."),
            "captions": Key("", "Files of captions, with commas between several."),
            "split": Key("", "Splits of captions files that have them: `train+restval` of Karpathy's own; `all`."),
            "order": Key(
                "shuffled",
                "`shuffled`: each image anywhere in an epoch; `shards`: shards in another order every epoch, each "
                "read from front to back, some side by side.",
                one_of("shuffled", "shards"),
            ),
            "weights": Key("", "The share of the samples of each source, as `0.7,0.3`; by size by default."),
            "captions_per_image": Key(
                "one",
                "`one`: an image with one of its captions, drawn anew every epoch; `all`: its captions in turn.",
                one_of("one", "all"),
            ),
            "random_crop_min_scale": Key(
                0.0, "Least fraction of an image's area in a random crop, 0 for no cropping.", FRACTION
            ),
            "flip": Key(False, "Mirror half of the images."),
            "color_jitter": Key(
                "", "Strengths of brightness, contrast, saturation and hue, as `0.4,0.4,0.4,0.1`.", JITTER
            ),
            "color_jitter_prob": Key(0.8, "How often colours change.", FRACTION),
            "grayscale_prob": Key(0.0, "How often images become grey.", FRACTION),
            "resize_prob": Key(
                0.0,
                "How often an image is resized whole to the tower's size, as published mixed images are.",
                FRACTION,
            ),
            "on_decode_error": Key(
                "skip",
                "`skip` replaces an image that cannot be decoded and counts it, `raise` stops the run.",
                one_of("skip", "raise"),
            ),
            "text_length": Key(
                0,
                "Tokens that every text is padded to or cut at; 0: 48, or the tower's context where that is less. With "
                "features of both towers, and for towers of one length, 0.",
                NOT_NEGATIVE,
            ),
            "workers": Key(
                FieldReference("auto", field_type=object),
                "Processes that decode; 0 for threads. `auto`: a core each, and none for runs of a few images.",
                WORKERS,
            ),
            "prefetch": Key(
                2,
                "Batches that are made ahead; with features of both towers none is.",
                between(0, 1000),
            ),
            "cached_features": Key(
                False,
                "Frozen towers run once over everything, and training reads their features. The image tower must be "
                "frozen; where the text tower is not, texts are encoded at every step (LiT).",
            ),
            "feature_pool": {
                "captions": Key(4, "Altered captions a caption that are made beforehand.", COUNT),
                "mixed": Key(4, "Mixed images an image that are made beforehand.", COUNT),
            },
            "feature_noise": Key(
                0.0,
                "Noise on these features, in standard deviations of each; one draw for a caption and its altered "
                "ones, and for an image and its mixed ones.",
                NOT_NEGATIVE,
            ),
        },
        "losses": {term.name: dict(term.keys) for term in TERMS},
        "optimizer": {
            "moments": Key(
                "float32",
                "How first moments are kept: `float32`, or `bfloat16`, which halves them.",
                one_of("float32", "bfloat16"),
            ),
            "learning_rate": Key(1e-3, "The highest rate, after the warmup.", NOT_NEGATIVE),
            "schedule": Key("cosine", "`cosine`, `constant` or `rsqrt`.", one_of(*SCHEDULES)),
            "warmup_fraction": Key(0.05, "Fraction of the steps in which the rate rises.", FRACTION),
            "warmup_steps": Key(0, "Steps of the warmup, where not 0, instead of the fraction.", NOT_NEGATIVE),
            "final_lr_fraction": Key(0.0, "Fraction of the rate that is left at the end.", FRACTION),
            "cooldown_fraction": Key(
                0.0, "Fraction of the steps in which `constant` and `rsqrt` fall to that at the end.", FRACTION
            ),
            "b1": Key(0.9, "Decay of first moments.", below_one("number")),
            "b2": Key(0.98, "Decay of second moments.", below_one("number")),
            # With 0 a parameter without a gradient would be divided by 0.
            "eps": Key(1e-8, "Added to the root of second moments.", POSITIVE),
            "weight_decay": Key(0.05, "Decoupled decay of weights; biases and norms have none.", NOT_NEGATIVE),
            "pull_to_start": Key(0.0, "Decay towards the starting parameters.", NOT_NEGATIVE),
            "grad_clip_norm": Key(1.0, "The norm that gradients are cut to; 0 for no cutting.", NO_CLIPPING),
            "layer_decay": Key(1.0, "Factor from a block to the one below it; heads have the full rate.", FRACTION),
            "tower_lr_scale": Key(1.0, "Factor of the rate of towers against that of heads.", NOT_NEGATIVE),
        },
        "log": {
            "every": Key(10, "Steps between lines of metrics.jsonl.", POSITIVE),
            "tensorboard": Key(True, "Write TensorBoard's files too."),
            "wandb": Key("", "The name of a Weights & Biases project; nothing for none."),
        },
        "profile": {"steps": Key("", "Steps to trace, as `10:13` for the 11th to the 13th.")},
        "checkpoint": {
            "every": Key(200, "Steps between checkpoints.", POSITIVE),
            "minutes": Key(0.0, "Minutes between checkpoints; 0: not by time.", NOT_NEGATIVE),
            "keep": Key(2, "Checkpoints that are kept: the last few, and the best.", POSITIVE),
            "keep_every": Key(0, "Keep those of every so many steps, too; 0: none.", NOT_NEGATIVE),
        },
        "eval": {
            "every": Key(0, "Steps between evaluations, beside the one at the end; 0: at the end alone.", NOT_NEGATIVE),
            **{
                name: Key(
                    default,
                    f"`--{name.replace('_', '-')}` of `rococo evaluate`.",
                    NOT_NEGATIVE if name == "limit" else None,
                )
                for name, default in _EVALUATE.items()
            },
        },
    }
