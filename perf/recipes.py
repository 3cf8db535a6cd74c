"""Time a training step under recipes that save operations; print one JSON object.

    python perf/recipes.py [--pairs 32] [--rounds 5]

A small ViT (224 pixels, patches of 16) and a text tower of 32 tokens with random weights: the whole step, half of the
patches dropped, a locked image tower run at every step, and one whose features are cached (LiT). Steps take turns in
every round; `seconds` are medians, `share` is that of the whole step's time, `counted` that of its operations
(`training.program.step_flops`). Attention and norms have no part in the count that is as fast as the products, so
the shares of time lie a little higher.
"""

import json
import statistics

import jax
import measuring

from rococo_jax.models import ModelSpec
from rococo_jax.runtime import make_mesh
from rococo_jax.training.config import default_config

TOKENS = 32
RECIPES = {
    "whole": {},
    "half of the patches": {"patch_dropout": 0.5},
    "locked image tower": {"train.vision": "none"},
    "locked and cached": {"train.vision": "none", "data.cached_features": True},
}


def spec() -> ModelSpec:
    """Six blocks of 256 channels each."""
    common = {"width": 256, "layers": 6}
    text = {"vocabulary_size": 1000, "context_length": TOKENS, **common}
    return measuring.clip_spec({"patch_size": 16, **common}, text, 128)


def compiled(settings: dict, pairs: int) -> measuring.CompiledStep:
    """The step under a recipe."""
    config = default_config()
    config.batch_size = pairs
    for key, value in settings.items():
        part, _, leaf = key.rpartition(".")
        (config[part] if part else config)[leaf] = value
    return measuring.CompiledStep(config, spec(), make_mesh(jax.devices()[:1]), TOKENS)


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    runs = {name: compiled(settings, arguments.pairs) for name, settings in RECIPES.items()}
    times = measuring.in_turns(runs, arguments.rounds + 1)
    seconds = {name: [each.seconds for each in of_run] for name, of_run in times.items()}
    whole, counted = seconds["whole"], runs["whole"].flops
    figures = {
        name: {
            "seconds": round(statistics.median(each[1:]), 3),
            "share": round(statistics.median(a / b for a, b in zip(each[1:], whole[1:], strict=True)), 3),
            "counted": round(runs[name].flops / counted, 3),
        }
        for name, each in seconds.items()
    }
    print(json.dumps({"pairs": arguments.pairs, **figures}))


if __name__ == "__main__":
    main()
