"""Time a training step with the defence and a plain one, and optionally open_clip's.

    python perf/train.py [--model s32|b32|b16|l14] [--batch 32] [--rounds 5] [--open-clip]

The synthetic input lies on the device, so that only the step is timed. The defence (SC with one altered caption, VC
with one mixed image) adds passes through the towers; `time ratio / FLOP ratio` is its cost relative to those passes.
FLOPs are those of `rococo_jax.training.program.step_flops`. `--open-clip` also times open_clip's model and loss in
torch: same sizes, batch and precision.
"""

import argparse
import functools
import json
import statistics
from collections.abc import Callable

import jax
import measuring

from rococo_jax.models import ModelSpec
from rococo_jax.runtime import make_mesh
from rococo_jax.training.config import default_config

TOKENS, VOCABULARY = 32, 8192
# Width and layers of the image tower and of the text tower, patch size.
SIZES = {
    "s32": (384, 6, 256, 6, 32),
    "b32": (768, 12, 512, 12, 32),
    "b16": (768, 12, 512, 12, 16),
    "l14": (1024, 24, 768, 12, 14),
}


def spec_of(size: str) -> ModelSpec:
    """CLIP's architecture in one of the sizes."""
    width, layers, text_width, text_layers, patch = SIZES[size]
    vision = {"width": width, "layers": layers, "patch_size": patch}
    text = {"width": text_width, "layers": text_layers, "vocabulary_size": VOCABULARY, "context_length": TOKENS}
    return measuring.clip_spec(vision, text, text_width)


def compiled(size: str, rows: int, dtype: str, defended: bool) -> measuring.CompiledStep:
    """A plain or a defended step."""
    config = default_config()
    config.batch_size, config.steps, config.dtype = rows, 1000, dtype
    config.losses.sc.weight = config.losses.vc.weight = float(defended)
    return measuring.CompiledStep(config, spec_of(size), make_mesh(), TOKENS)


def open_clip_step(size: str, rows: int, dtype: str) -> Callable[[int], None]:
    """open_clip's step of the same sizes."""
    import open_clip
    import torch

    width, layers, text_width, text_layers, patch = SIZES[size]
    vision = {"image_size": 224, "layers": layers, "width": width, "patch_size": patch}
    text = {"context_length": TOKENS, "vocab_size": VOCABULARY, "width": text_width, "heads": text_width // 64}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = open_clip.model.CLIP(text_width, vision, {**text, "layers": text_layers}).to(device)
    loss_of = open_clip.loss.ClipLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    pixels = torch.rand((rows, 3, 224, 224), device=device)
    ids = torch.randint(3, VOCABULARY, (rows, TOKENS), device=device)

    def step(steps: int) -> None:
        for _ in range(steps):
            with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
                images, texts, scale = model(pixels, ids)[:3]
                loss = loss_of(images, texts, scale)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def main() -> None:
    """Print one JSON object; the fastest round of each counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SIZES, default="s32")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps per round")
    parser.add_argument("--open-clip", action="store_true", help="also time open_clip's plain step")
    arguments = parser.parse_args()
    sizes = (arguments.model, arguments.batch, arguments.dtype)
    arms = {"plain": compiled(*sizes, defended=False), "sc+vc": compiled(*sizes, defended=True)}
    steps = arms | ({"open_clip": open_clip_step(*sizes)} if arguments.open_clip else {})
    for step in steps.values():
        step(1)
    turns = {name: functools.partial(step, arguments.steps) for name, step in steps.items()}
    taken = measuring.in_turns(turns, arguments.rounds)
    rounds = {name: [each.seconds / arguments.steps for each in times] for name, times in taken.items()}
    best = {name: min(times) for name, times in rounds.items()}
    by_time, by_flops = best["sc+vc"] / best["plain"], arms["sc+vc"].flops / arms["plain"].flops
    figures = {
        "device": jax.devices()[0].device_kind,
        **vars(arguments),
        "seconds a step": {name: round(value, 4) for name, value in best.items()},
        "median": {name: round(statistics.median(times), 4) for name, times in rounds.items()},
        "images a second": {name: round(arguments.batch / value, 2) for name, value in best.items()},
        "TFLOP a step": {name: round(arm.flops / 1e12, 4) for name, arm in arms.items()},
        "time ratio": round(by_time, 3),
        "FLOP ratio": round(by_flops, 3),
        "time ratio / FLOP ratio": round(by_time / by_flops, 3),
    }
    if "open_clip" in best:
        figures["open_clip's time / ours"] = round(best["open_clip"] / best["plain"], 3)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
