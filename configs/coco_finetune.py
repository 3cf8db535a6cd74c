"""Fine-tune a converted CLIP on COCO captions: all blocks, or only the last ones.

    rococo train --config configs/coco_finetune.py --workdir runs/sc-vc \
        --config.init.model=openai/clip-vit-base-patch32 --config.data.images=coco/train2017 \
        --config.data.captions=captions_train.json
    ... --config.losses.sc.weight=0 --config.losses.grounding.weight=0 --config.losses.blind.weight=0 \
        --config.losses.vc.weight=0                                                  plain
    ... --config.train.vision=last:2 --config.train.text=last:2                      the last blocks
    ... --config.losses.hard_positives.weight=1 --config.losses.hard_positives.negatives=pairs.jsonl
"""

from rococo_jax.training.config import default_config


def get_config():
    config = default_config()
    config.init.model = "openai/clip-vit-base-patch32"
    config.steps = 2000
    config.batch_size = 512
    config.dtype = "bfloat16"
    config.remat = "dots"
    config.ema = 0.999
    config.data.random_crop_min_scale = 0.5
    config.optimizer.learning_rate = 1e-5
    config.optimizer.layer_decay = 0.8
    # The ratios of the weights are those of coco_lit.py, chosen with frozen towers; they were not compared here.
    config.losses.sc.weight = 1.0
    config.losses.grounding.weight = 0.5
    config.losses.blind.weight = 1.0
    config.losses.vc.weight = 1.0
    config.checkpoint.every = 500
    return config
