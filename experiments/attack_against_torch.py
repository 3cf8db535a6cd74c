"""Compare APGD with that of torchattacks on random CLIP models of `transformers`: R@1 under attack.

    pip install --no-deps --target LIBS torchattacks
    python experiments/attack_against_torch.py --libraries LIBS [--images 128] [--steps 20]

Each model has random weights of its own size and seed; the text that ranks first for an image is taken as true, so R@1
before is 100 %. Both sides maximise two losses one after the other, without rounding: ours the cross-entropy and the
margin, torchattacks the cross-entropy and DLR.
"""

import argparse
import functools
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rococo_jax import load_model
from rococo_jax.attacks.pixels import Best, Target, apgd_stage, evaluator, random_start, stages

TEXTS = 64
RADII = {"linf": (0.125 / 255, 0.25 / 255, 0.5 / 255), "l2": (0.025, 0.05, 0.1)}


class Size(NamedTuple):
    """Shape of a random image tower."""

    seed: int
    image: int
    patch: int
    width: int
    layers: int


SIZES = (Size(11, 32, 8, 64, 2), Size(12, 48, 12, 96, 3), Size(13, 32, 8, 128, 4))


def make_reference(size: Size, folder: Path):
    """Return a small random CLIP of `transformers`, and save it to a folder with a tokenizer and its image settings."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(size.seed)
    tower = dict(hidden_size=size.width, intermediate_size=2 * size.width, num_hidden_layers=size.layers)
    tower["num_attention_heads"] = 4
    config = transformers.CLIPConfig(
        vision_config={**tower, "image_size": size.image, "patch_size": size.patch},
        text_config={**tower, "vocab_size": 110, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1},
        projection_dim=48,
    )
    model = transformers.CLIPModel(config).eval()
    with torch.no_grad():  # random models separate images by little: sharper weights do
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(1.5)
    model.save_pretrained(folder)
    rust = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(99)}, unk_token="w0"))
    rust.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    rust.post_processor = tokenizers.processors.TemplateProcessing(
        single="w1 $A w2", special_tokens=[("w1", 1), ("w2", 2)]
    )
    rust.save(str(folder / "tokenizer.json"))
    square = {"height": size.image, "width": size.image}
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"size": square, "crop_size": square, "do_resize": True,
                    "image_processor_type": "CLIPImageProcessor", "image_mean": [0.48, 0.46, 0.41],
                    "image_std": [0.27, 0.26, 0.28], "resample": 3, "do_center_crop": True, "do_normalize": True,
                    "do_rescale": True, "rescale_factor": 1 / 255})
    )  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer"}))
    return model


@functools.cache
def stage_program(encoder, norm: str, loss: str):
    """Return a compiled stage of our attack."""
    graph, _ = nnx.split(encoder.model)

    @jax.jit
    def stage(state, target_texts, original, is_true, x, best, radius, length, limit, done):
        def embed(pixels):
            with jax.default_matmul_precision("highest"):
                return nnx.merge(graph, state).image_embeddings(encoder.preprocessing.normalise(pixels))

        evaluate, _ = evaluator(embed, Target(target_texts, is_true), original, radius, norm, loss, 100.0, rounds=False)
        return apgd_stage(evaluate, x, original, best, radius, norm, length, limit, done)

    return stage


def ours(encoder, texts, images, labels, radius, norm, steps) -> np.ndarray:
    """Return which images stay right under our attack."""
    state, right = nnx.split(encoder.model)[1], []
    for start in range(0, len(images), 32):
        original = jnp.asarray(images[start : start + 32], jnp.float32)
        is_true = jnp.asarray(np.eye(len(texts), dtype=bool)[labels[start : start + 32]])
        keys = jax.random.split(jax.random.key(start), len(original))
        scaled = jnp.float32(255 * radius)
        best = Best(original, jnp.full(len(original), -1.0), jnp.zeros(len(original), jnp.int32))
        for loss in ("ce", "margin"):
            stage, x = stage_program(encoder, norm, loss), random_start(keys, original, scaled, norm)
            for numbers in stages(steps):
                x, best = stage(state, jnp.asarray(texts), original, is_true, x, best, scaled, *map(jnp.int32, numbers))
        right.append(np.asarray(best.margin) < 0)
    return np.concatenate(right)


def theirs(model, texts, images, labels, radius, norm, steps) -> np.ndarray:
    """Return which images stay right under the APGD of torchattacks on the cross-entropy, and on DLR (the stronger)."""
    import torch
    import torchattacks

    mean, std = (torch.tensor(values)[None, :, None, None] for values in ([0.48, 0.46, 0.41], [0.27, 0.26, 0.28]))
    matrix = torch.tensor(texts)

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, pixels):
            features = self.inner.get_image_features(pixel_values=(pixels - mean) / std)
            features = getattr(features, "pooler_output", features)
            return 100 * torch.nn.functional.normalize(features, dim=-1) @ matrix.T

    pixels = torch.tensor(images.transpose(0, 3, 1, 2) / 255, dtype=torch.float32)
    right = np.ones(len(images), bool)
    for loss in ("ce", "dlr"):
        attack = torchattacks.APGD(
            Classifier(), norm={"linf": "Linf", "l2": "L2"}[norm], eps=radius, steps=steps, loss=loss, seed=1
        )
        attacked = attack(pixels, torch.tensor(labels))
        with torch.no_grad():
            right &= Classifier()(attacked).argmax(1).numpy() == labels
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", type=Path, help="folder with torchattacks; without it only ours runs")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", default="11,12,13", help="seeds of the models")
    parser.add_argument("--folder", type=Path, default=Path("attack_reference"))
    arguments = parser.parse_args()
    if arguments.libraries:
        sys.path.append(str(arguments.libraries))
    for size in (size for size in SIZES if str(size.seed) in arguments.seeds.split(",")):
        folder = arguments.folder / str(size.seed)
        folder.mkdir(parents=True, exist_ok=True)
        reference = make_reference(size, folder)
        encoder = load_model(folder)
        generator = np.random.default_rng(size.seed)
        coarse = generator.integers(0, 256, (arguments.images, 8, 8, 3))
        images = coarse.repeat(size.image // 8, 1).repeat(size.image // 8, 2).astype(np.uint8)
        # Texts of a random tower are all alike; directions between images stand in for them.
        other = generator.integers(0, 256, (TEXTS, size.image, size.image, 3)).astype(np.uint8)
        texts = encoder.encode_image(list(other)) - encoder.encode_image(list(images)).mean(axis=0)
        texts = (texts / np.linalg.norm(texts, axis=1, keepdims=True)).astype(np.float32)
        labels = (encoder.encode_image(list(images)) @ texts.T).argmax(axis=1)
        print(f"{size}: {len(set(labels.tolist()))} of {TEXTS} texts rank first", flush=True)
        for norm, radii in RADII.items():
            for radius in radii:
                begin = time.process_time()
                by_us = ours(encoder, texts, images, labels, radius, norm, arguments.steps)
                middle = time.process_time()
                row = {"model": size.seed, "norm": norm, "radius": f"{radius:.3g}", "ours": 100 * by_us.mean()}
                if arguments.libraries:
                    start = time.process_time()
                    by_them = theirs(reference, texts, images, labels, radius, norm, arguments.steps)
                    row |= {"torchattacks": 100 * by_them.mean(), "only_ours": int((~by_us & by_them).sum()),
                            "only_theirs": int((by_us & ~by_them).sum()),
                            "processor_s": [round(middle - begin), round(time.process_time() - start)]}  # fmt: skip
                print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}), flush=True)


if __name__ == "__main__":
    main()
