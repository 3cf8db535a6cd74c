"""Time a training step with the defence and a plain one, and optionally open_clip's.

    python perf/train.py [--model s32|b32|b16|l14] [--batch 32] [--rounds 5] [--open-clip]

The synthetic input lies on the device, so that only the step is timed. The defence (SC with one altered caption, VC
with one mixed image) adds passes through the towers; `time ratio / FLOP ratio` is its cost relative to those passes.
FLOPs are those of `rococo_jax.training.throughput.step_flops`. `--open-clip` also times open_clip's model and loss in
torch: same sizes, batch and precision.
"""

import argparse
import json
import statistics
import time

import jax
import measuring
import numpy as np
from flax import nnx

from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.losses.altered import ALTERED
from rococo_jax.models import DualEncoder, ModelSpec
from rococo_jax.runtime import make_mesh
from rococo_jax.training.batch import Batch, batch_from_arrays, place_batch
from rococo_jax.training.config import default_config
from rococo_jax.training.freezing import split_parameters
from rococo_jax.training.optimizer import make_optimizer
from rococo_jax.training.state import make_state
from rococo_jax.training.step import make_step
from rococo_jax.training.throughput import step_flops

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


def batch_of(rows: int, defended: bool) -> Batch:
    """Random pixels and ids."""
    rng = np.random.default_rng(0)

    def texts(*shape: int) -> np.ndarray:
        ids = rng.integers(3, VOCABULARY, (*shape, TOKENS), np.int32)
        ids[..., -1] = 2
        return ids

    batch = {
        "pixels": rng.integers(0, 256, (rows, 224, 224, 3), np.uint8),
        "ids": texts(rows),
        "text_mask": np.ones((rows, TOKENS), bool),
        "image_id": np.arange(rows, dtype=np.int32),
    }
    if defended:
        batch |= {"altered_ids": texts(rows, 1), "altered_text_mask": np.ones((rows, 1, TOKENS), bool)}
        batch["altered_valid"] = np.ones((rows, 1), bool)
    return batch_from_arrays(batch, (ALTERED,) if defended else ())


class Trained:
    """A model with its compiled step."""

    def __init__(self, size: str, rows: int, dtype: str, defended: bool):
        self.config = config = default_config()
        config.batch_size, config.steps, config.dtype = rows, 1000, dtype
        config.losses.sc.weight = config.losses.vc.weight = float(defended)
        spec, mesh = spec_of(size), make_mesh()
        model = DualEncoder(spec, rngs=nnx.Rngs(0))
        trained, self.frozen = split_parameters(parameters_of(model), spec, config.train)
        optimizer = make_optimizer(config.optimizer, config.steps, spec, trained)
        preprocessing = Preprocessing(shortest_edge=224, crop_size=(224, 224), mean=(0.5,) * 3, std=(0.25,) * 3)
        self.state = make_state(trained, optimizer, mesh, averaged=False)
        self.batch = place_batch(batch_of(rows, defended), mesh)
        step = make_step(config, spec, preprocessing, optimizer, mesh)
        self.step = step.lower(self.state, self.frozen, self.batch).compile()
        self.flops = step_flops(config, spec, TOKENS).hardware

    def seconds(self, steps: int) -> float:
        """Mean seconds per step over `steps` steps."""
        start = time.perf_counter()
        for _ in range(steps):
            self.state, metrics = self.step(self.state, self.frozen, self.batch)
        jax.block_until_ready(metrics)
        return (time.perf_counter() - start) / steps


def open_clip_seconds(size: str, rows: int, dtype: str):
    """Return a function that times open_clip's step of the same sizes."""
    import open_clip
    import torch

    width, layers, text_width, text_layers, patch = SIZES[size]
    vision = {"image_size": 224, "layers": layers, "width": width, "patch_size": patch}
    text = {"context_length": TOKENS, "vocab_size": VOCABULARY, "width": text_width, "heads": text_width // 64}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = open_clip.model.CLIP(text_width, vision, {**text, "layers": text_layers}).to(device)
    loss_of = open_clip.loss.ClipLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    source = batch_of(rows, defended=False)
    pixels = torch.tensor(source.images.pixels, device=device).permute(0, 3, 1, 2).float() / 255
    ids = torch.tensor(source.texts.ids, device=device).long()

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            images, texts, scale = model(pixels, ids)[:3]
            loss = loss_of(images, texts, scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def seconds(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps

    return seconds


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
    arms = {"plain": Trained(*sizes, defended=False), "sc+vc": Trained(*sizes, defended=True)}
    timed = {name: arm.seconds for name, arm in arms.items()}
    if arguments.open_clip:
        timed["open_clip"] = open_clip_seconds(*sizes)
    rounds = {name: [] for name in timed}
    for seconds in timed.values():
        seconds(1)
    for _ in range(arguments.rounds):
        for name, seconds in timed.items():
            rounds[name].append(seconds(arguments.steps))
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
