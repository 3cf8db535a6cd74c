"""Effect of the batch size, and of captions that name more colours, on models trained from scratch on drawn scenes.

    python experiments/batch_size.py data --out pairs
    rococo sweep --config ablations/batch_size_scenes --workdir runs/batch-scenes --seeds 1,2,3 \
        --data pairs/test --data-dir coco/images=pairs/test/images --data-dir choices/images=pairs/test/images \
        --benchmarks rococo,choices --mixed-galleries none

The captions are read from `pairs/train`. Every run sees 196,608 pairs with the same learning rate.
`docs/research/batch_size.md` has the results of more pairs for larger batches and a rate that was searched for each.
"""

from pathlib import Path

from ml_collections import ConfigDict

from rococo_jax.training.config import read_config


def get_config():
    config = read_config(Path(__file__).parents[1] / "scenes_tiny.py", ())
    # Towers of two blocks of width 96, and images of 16 patches.
    config.init.spec.vision.image_size = 64
    config.init.preprocessing.exact_size = (64, 64)
    config.init.spec.vision.width, config.init.spec.vision.mlp_width, config.init.spec.vision.layers = 96, 192, 2
    config.init.spec.text.layers = 2
    config.data.images = "pairs/train/images"
    config.data.text_length = 20
    config.data.workers = 0
    config.batch_size, config.steps = 64, 3072
    config.optimizer.learning_rate = 2e-3
    config.checkpoint.every = 100_000
    return config


def get_sweep():
    return ConfigDict(
        {
            "over": "batch_size=16,64,256,1024",
            "arms": tuple(f"{name}: data.captions=pairs/train/{name}.json" for name in ("sparse", "dense")),
            "keep": "samples",
        }
    )
