"""Effect of the batch size on a dual encoder that is trained from scratch on drawn scenes, with global negatives.

    rococo demo --out demo-out --scenes 1000
    rococo sweep --config ablations/batch_size_scenes --workdir runs/batch-scenes --seeds 0,1,2 \
        --images demo-out/1000-scenes-seed-1/benchmark/images \
        --annotations demo-out/1000-scenes-seed-1/benchmark/annotations

Both towers are trained. Every run sees the same 49,152 samples, so a batch of 64 takes 768 steps and one of 4,096 takes
12. The learning rate is 1e-3 at 256 and follows the square root of the batch size.
"""

from pathlib import Path

from ml_collections import ConfigDict

from rococo_jax.training.config import read_config


def get_config():
    config = read_config(Path(__file__).parents[1] / "scenes_tiny.py", ())
    # Patches of 24 x 24 pixels instead of 16 x 16: 16 patches, less than half of the work.
    config.init.spec.vision.patch_size = 24
    config.batch_size, config.steps = 256, 192
    config.checkpoint.every = 1000
    return config


def get_sweep():
    return ConfigDict(
        {
            "over": "batch_size=64,256,1024,4096",
            "arms": ("plain:",),
            "keep": "samples",
            "lr_scaling": "square-root",
        }
    )
