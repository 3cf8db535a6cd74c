"""A few steps with whole images after `web_pretrain.py`: FLIP's unmasked tuning (arXiv 2212.00794, section 4.3).

rococo train --config configs/web_unmasked.py --workdir runs/web-whole --config.init.model=runs/web/model
"""

from rococo_jax.training.config import default_config


def get_config():
    config = default_config()
    config.init.model = "runs/web/model"
    config.steps = 5000
    config.batch_size = 16_384
    config.dtype = "bfloat16"
    config.remat = "dots"
    config.data.images = "cc12m-{00000..01242}.tar"
    config.data.order = "shards"
    config.data.text_length = 32
    config.optimizer.learning_rate = 5e-5
    config.optimizer.warmup_steps = 200
    config.optimizer.weight_decay = 0.2
    config.checkpoint.every = 1000
    return config
