"""A locked image tower, whose features are computed once, and a text tower trained to it: LiT (arXiv 2111.07991).

    rococo join VISION TEXT models/joined --images coco/images --captions captions.json
    rococo train --config configs/lit_text.py --workdir runs/lit --config.init.model=models/joined \
        --config.data.images=coco/images --config.data.captions=captions.json

The image tower runs once over the data; a step costs the texts and the heads. `coco_lit.py` locks both towers.
"""

from rococo_jax.training.config import default_config


def get_config():
    config = default_config()
    config.init.model = "models/joined"
    config.train.vision = "none"
    config.train.text = "all"
    config.data.cached_features = True
    config.steps = 2000
    config.batch_size = 1024
    config.dtype = "bfloat16"
    config.optimizer.learning_rate = 5e-5
    config.optimizer.warmup_steps = 100
    config.checkpoint.every = 500
    return config
