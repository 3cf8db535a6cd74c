"""Time a training step under recipes that save operations; print one JSON object.

    python perf/recipes.py [--pairs 32] [--rounds 5]

A small ViT (224 pixels, patches of 16) and a text tower of 32 tokens with random weights: the whole step, half of the
patches dropped, a locked image tower run at every step, and one whose features are cached (LiT). Steps take turns in
every round; `seconds` are medians, `share` is that of the whole step's time, `counted` that of its operations
(`training.throughput.step_flops`). Attention and norms have no part in the count that is as fast as the products, so
the shares of time lie a little higher.
"""

import argparse
import json
import statistics
import time

import jax
import numpy as np

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec
from rococo_jax.runtime import make_mesh
from rococo_jax.training.config import default_config
from rococo_jax.training.step import lower_step
from rococo_jax.training.throughput import step_flops

TOKENS = 32
RECIPES = {
    "whole": {},
    "half of the patches": {"patch_dropout": 0.5},
    "locked image tower": {"train.vision": "none"},
    "locked and cached": {"train.vision": "none", "data.cached_features": True},
}


def spec() -> ModelSpec:
    """Six blocks of 256 channels each."""
    common = {"width": 256, "layers": 6, "heads": 4, "mlp_width": 1024, "activation": "gelu", "norm_eps": 1e-5}
    vision = VisionSpec(
        image_size=224, patch_size=16, class_token=True, patch_bias=False, norm_before_blocks=True, layer_scale=False,
        pooling="cls", **common,
    )  # fmt: skip
    text = TextSpec(
        vocabulary_size=1000, context_length=TOKENS, attention="causal", norm_after_blocks=False, pooling="first_eos",
        eos_id=2, **common,
    )  # fmt: skip
    return ModelSpec(vision=vision, text=text, vision_head=HeadSpec("linear", 128), text_head=HeadSpec("linear", 128))


class Run:
    """A compiled step with its state."""

    def __init__(self, settings: dict, pairs: int):
        config = default_config()
        config.batch_size = pairs
        for key, value in settings.items():
            part, _, leaf = key.rpartition(".")
            (config[part] if part else config)[leaf] = value
        mesh = make_mesh(jax.devices()[:1])
        lowered = lower_step(config, spec(), Preprocessing(exact_size=(224, 224)), mesh, TOKENS)
        self.flops = step_flops(config, spec(), TOKENS).hardware
        self.step = lowered.compile()
        rng = np.random.default_rng(0)

        def drawn(leaf) -> jax.Array:
            if leaf.dtype == np.float32:
                return jax.numpy.asarray(0.02 * rng.normal(size=leaf.shape), leaf.dtype)
            return jax.numpy.ones(leaf.shape, leaf.dtype)

        (self.state, *self.rest), _ = jax.tree.map(drawn, lowered.in_avals)

    def __call__(self) -> float:
        start = time.perf_counter()
        self.state, metrics = self.step(self.state, *self.rest)
        jax.block_until_ready(metrics)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    runs = {name: Run(settings, arguments.pairs) for name, settings in RECIPES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.rounds + 1):
        for name, run in runs.items():
            seconds[name].append(run())
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
