"""Fine-tune a SigLIP or a SigLIP 2 on captions of your own by its sigmoid loss.

    rococo train --config configs/siglip_finetune.py --workdir runs/siglip \
        --config.init.model=google/siglip-base-patch16-224 \
        --config.data.images=photos --config.data.captions=captions.csv
    ... --config.train.vision=none --config.data.cached_features=true                 the text tower alone: images once

The image size and the cleaning of texts are the model's own; texts are padded to its 64 tokens, which it attends to.
Logit scale (about 112 in the released models) and bias are trained without a bound. Decay and betas are SigLIP's (arXiv
2303.15343, section 4.1), the rate is a usual one for fine-tuning; none was compared here.
"""

from rococo_jax.training.config import default_config


def get_config():
    config = default_config()
    config.init.model = "google/siglip-base-patch16-224"
    config.losses.contrastive.kind = "sigmoid"
    config.steps = 1000
    config.batch_size = 256
    config.dtype = "bfloat16"
    config.remat = "dots"
    config.data.text_length = 64
    config.optimizer.learning_rate = 1e-5
    config.optimizer.warmup_fraction = 0.1
    config.optimizer.weight_decay = 1e-4
    config.optimizer.b2 = 0.95
    config.checkpoint.every = 250
    return config
