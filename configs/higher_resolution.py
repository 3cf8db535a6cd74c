"""Fine-tune a CLIP at a higher resolution: position embeddings are resampled once, then trained.

    rococo train --config configs/higher_resolution.py --workdir runs/336 \
        --config.init.model=openai/clip-vit-large-patch14 --config.data.images="pairs-{00000..00099}.tar"

One epoch at 336 pixels is what CLIP's largest model had (arXiv 2103.00020, section 2.5).
"""

from rococo_jax.training.config import default_config


def get_config():
    config = default_config()
    config.init.model = "openai/clip-vit-large-patch14"
    config.init.image_size = 336
    config.steps = 2000
    config.batch_size = 4096
    config.dtype = "bfloat16"
    config.remat = "dots"
    config.data.random_crop_min_scale = 0.9
    config.optimizer.learning_rate = 1e-5
    config.optimizer.warmup_steps = 100
    config.optimizer.layer_decay = 0.9
    config.checkpoint.every = 500
    return config
