"""A population of small models of known make: which choices of architecture go with robustness?

    rococo demo --out demo-out
    D=demo-out/250-scenes-seed-1
    rococo sweep --config configs/ablations/population.py --workdir runs/population \\
        --data $D/questions --benchmarks rococo,choices,classes --data-dir coco/images=$D/benchmark/images \\
        --data-dir rococo/annotations=$D/benchmark/annotations --data-dir choices/images=$D/benchmark/images \\
        --data-dir classes/images=$D/benchmark/images --templates 5 --mixing-seeds 1 \\
        --corruptions gaussian_noise,fog --severities 3

30 arms of two seeds, a fraction of a grid of 5 image towers x 3 text towers x loss x size x amount of data. Each image
tower meets each text tower twice, with all three of the other factors at opposite levels, so that each of these is
balanced within every pair of towers. Of the four such pairs of opposite corners each is used three or four times.

The published study (docs/research/appendix_scenes.md) had a sixth image tower, an EfficientNet, which commit 769447e
has and later ones do not.
"""

import itertools

from ml_collections import ConfigDict

from rococo_jax.demo.training_scenes import demo_preprocessing, demo_spec
from rococo_jax.training.config import default_config

IMAGE_SIZE = 64
TEXTS = ("causal", "masked", "bag")
SIZES, LOSSES, SCENES = ("small", "large"), ("softmax", "sigmoid"), (1000, 4000)
# Levels of size, loss and data in the first of a pair of arms; the second has the others.
CORNERS = ((0, 0, 0), (0, 1, 1), (0, 0, 1), (0, 1, 0))


def _vit(pooling, size):
    wide = size == "large"
    return {
        "image_size": IMAGE_SIZE, "patch_size": 16, "width": 96 if wide else 48, "layers": 3 if wide else 2,
        "heads": 4, "mlp_width": 192 if wide else 96, "activation": "gelu", "norm_eps": 1e-6,
        "class_token": pooling == "cls", "patch_bias": True, "norm_before_blocks": False, "layer_scale": False,
        "pooling": pooling,
    }  # fmt: skip


def _resnet(size):
    layers = [2, 2, 2, 2] if size == "large" else [1, 1, 1, 1]
    return {"image_size": IMAGE_SIZE, "width": 8 if size == "large" else 4, "stage_layers": layers, "heads": 4,
            "pooling": "attention"}  # fmt: skip


def _convnext(size):
    widths, layers = ([16, 32, 64, 128], [1, 1, 2, 1]) if size == "large" else ([8, 16, 32, 64], [1, 1, 1, 1])
    return {"image_size": IMAGE_SIZE, "widths": widths, "stage_layers": layers, "norm_eps": 1e-6, "pooling": "mean"}


def _text(attention, size):
    wide = size == "large"
    sizes = {"width": 96, "layers": 3, "mlp_width": 192} if wide else {"width": 48, "layers": 2, "mlp_width": 96}
    return demo_spec().text.to_json() | sizes | {"attention": attention}


IMAGES = {
    "vit_cls": lambda size: _vit("cls", size),
    "vit_mean": lambda size: _vit("mean", size),
    "vit_attention": lambda size: _vit("attention", size),
    "resnet": _resnet,
    "convnext": _convnext,
}


def get_config():
    config = default_config()
    spec = demo_spec().to_json()
    config.init.spec = spec | {"vision": _vit("mean", "small"), "text": _text("masked", "small")}
    config.init.preprocessing = demo_preprocessing().to_json() | {"exact_size": [IMAGE_SIZE, IMAGE_SIZE]}
    config.init.tokenizer = "demo:plain"
    config.data.images = "scenes:1000"
    config.data.text_length = 24
    config.data.workers = 0
    config.steps = 300
    config.batch_size = 128
    config.optimizer.learning_rate = 2e-3
    config.log.every = 50
    config.checkpoint.every = 300
    return config


def _arms():
    for place, (image, text) in enumerate(itertools.product(IMAGES, TEXTS)):
        for levels in (CORNERS[place % 4], tuple(1 - level for level in CORNERS[place % 4])):
            size, loss, scenes = (each[level] for each, level in zip((SIZES, LOSSES, SCENES), levels, strict=True))
            settings = {
                "init.spec.vision": IMAGES[image](size), "init.spec.text": _text(text, size),
                "init.spec.logit_bias": loss == "sigmoid", "losses.contrastive.kind": loss,
                "data.images": f"scenes:{scenes}",
            }  # fmt: skip
            words = " ".join(f"{key}={str(value).replace(' ', '')}" for key, value in settings.items())
            yield f"{image}+{text}+{size}+{loss}+{scenes}: {words}"


def get_sweep():
    # All that is swept is in the arms; an axis of one value is the length of all runs.
    return ConfigDict({"over": "steps=300", "arms": tuple(_arms()), "seeds": "0,1"})
