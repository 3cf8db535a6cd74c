"""Kill an evaluation of many models and resume it; compare its files byte for byte with an undisturbed run.

    python experiments/kill_and_resume.py --images coco/images --annotations rococo/annotations --out DIR [--kills 3]

Writes six small models of different families and widths (random weights and the demo's tokenizer; one is the demo's
trained model) and a broken one. Runs `rococo evaluate` over all of them twice: once undisturbed, once with SIGKILL at
times drawn from the seed and the same command again, each with its own embedding cache. Prints as JSON the times of the
kills, whether every `results.json` and `per_query.parquet` has the same bytes, and the error line of the broken model.
"""

import argparse
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

FILES = ("results.json", "per_query.parquet")


def write_models(folder: Path) -> None:
    """Write six model directories and a broken one."""
    from flax import nnx

    from rococo_jax.checkpoints import save_model
    from rococo_jax.checkpoints.hub import shipped_models
    from rococo_jax.data.preprocessing import Preprocessing
    from rococo_jax.data.tokenizers import Tokenizer
    from rococo_jax.encoders import Encoder, load_model
    from rococo_jax.models import DualEncoder, HeadSpec, ModelSpec, ResNetSpec, TextSpec, VisionSpec

    shipped = shipped_models()["plain"]
    tokenizer = load_model(str(shipped)).tokenizer

    def vit(size: int, patch: int, width: int, layers: int, **choices):
        fixed = {"image_size": size, "patch_size": patch, "width": width, "layers": layers, "heads": width // 32}
        usual = {"activation": "gelu", "norm_eps": 1e-6, "class_token": True, "patch_bias": True, "pooling": "cls",
                 "norm_before_blocks": False, "layer_scale": False}  # fmt: skip
        return VisionSpec(**fixed, mlp_width=4 * width, **{**usual, **choices})

    def text(width: int, layers: int, **choices):
        fixed = {"context_length": 48, "width": width, "layers": layers, "heads": width // 32, "mlp_width": 4 * width}
        usual = {"activation": "gelu", "norm_eps": 1e-6, "attention": "causal", "norm_after_blocks": False,
                 "pooling": "first_eos", "eos_id": tokenizer.spec.eos_id}  # fmt: skip
        return TextSpec(vocabulary_size=tokenizer.rust.get_vocab_size(), **fixed, **{**usual, **choices})

    clip = {"activation": "quick_gelu", "norm_eps": 1e-5, "patch_bias": False, "norm_before_blocks": True}
    bert = {"attention": "masked", "norm_after_blocks": True, "pooling": "mean", "token_types": 2}
    towers = {
        "clip": (vit(64, 16, 64, 3, **clip), text(64, 3, activation="quick_gelu"), 64),
        "siglip": (vit(96, 16, 96, 2, class_token=False, pooling="attention"),
                   text(96, 2, attention="full", pooling="last"), 96),
        "dinov2-bert": (vit(70, 14, 64, 4, layer_scale=True, pooling="cls+mean"), text(128, 2, **bert), 48),
        "resnet": (ResNetSpec(image_size=64, width=16, stage_layers=(1, 1, 1, 1), heads=8), text(32, 2), 32),
        "gated": (vit(80, 16, 128, 2, activation="silu", gated_mlp=True), text(64, 4, **bert), 128),
    }  # fmt: skip
    for seed, (name, (vision, words, dim)) in enumerate(towers.items()):
        head = HeadSpec("linear", dim)
        model = DualEncoder(ModelSpec(vision, words, head, head), rngs=nnx.Rngs(seed))
        side = vision.image_size
        preprocessing = Preprocessing(shortest_edge=side, crop_size=(side, side), mean=(0.5,) * 3, std=(0.25,) * 3)
        # A text tower with full attention attends to padding, so its texts have a fixed length.
        length = words.context_length if words.attention == "full" else None
        padded = Tokenizer(tokenizer.rust, dataclasses.replace(tokenizer.spec, fixed_length=length))
        save_model(folder / name, Encoder(model, preprocessing, padded, name=name))
    shutil.copytree(shipped, folder / "scenes")
    shutil.copytree(folder / "clip", folder / "broken")
    (folder / "broken" / "model.json").write_text((folder / "broken" / "model.json").read_text()[:100])


def start(arguments: argparse.Namespace, name: str) -> subprocess.Popen:
    """Start `rococo evaluate` over all models; stderr goes to a file."""
    out = arguments.out / name
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "rococo_jax", "evaluate", f"{arguments.out}/models/*", "--allow-missing-images"]
    command += ["--images", arguments.images, "--annotations", arguments.annotations, "--out", str(out)]
    # A separate embedding cache, so that no run reads the other's embeddings; compiled programs may be shared.
    environment = {**os.environ, "ROCOCO_CACHE": str(out / "cache")}
    return subprocess.Popen(command, env=environment, stderr=(out / "stderr.txt").open("a"), stdout=subprocess.DEVNULL)


def files_of(folder: Path) -> dict[str, bytes]:
    """Path -> bytes of the result files."""
    found = sorted(path for path in folder.rglob("*") if path.name in FILES and "cache" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def main() -> None:
    """Run both and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", required=True)
    parser.add_argument("--annotations", required=True)
    parser.add_argument("--out", required=True, type=Path, help="a new folder")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    (arguments.out / "models").mkdir(parents=True)
    write_models(arguments.out / "models")
    began = time.perf_counter()
    undisturbed = start(arguments, "undisturbed").wait()
    whole = time.perf_counter() - began
    chance, killed_after, codes = random.Random(arguments.seed), [], []
    for _ in range(arguments.kills):
        run, wait = start(arguments, "killed"), chance.uniform(0.1, 0.25) * whole
        try:
            codes.append(run.wait(timeout=wait))
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
            codes.append(run.wait())
            killed_after.append(round(wait, 1))
    codes.append(start(arguments, "killed").wait())
    expected, found = (files_of(arguments.out / name) for name in ("undisturbed", "killed"))
    errors = (arguments.out / "killed" / "stderr.txt").read_text()
    report = {
        "seconds undisturbed": round(whole, 1),
        "exit code undisturbed": undisturbed,
        "killed after seconds": killed_after,
        "exit codes": codes,
        "files": len(found),
        "the same bytes": found == expected,
        "models with results": sorted({name.split("/")[0] for name in found}),
        "error line of the broken model": [line for line in errors.splitlines() if "broken" in line][-1],
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
