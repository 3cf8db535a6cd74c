"""The demo's models: about a million parameters, trained from scratch on drawn scenes.

    rococo train --config configs/scenes_tiny.py --workdir runs/plain
    rococo train --config configs/scenes_tiny.py --workdir runs/sc-vc \
        --config.losses.sc.weight=1 --config.losses.vc.weight=1
    rococo train --config configs/scenes_tiny.py --workdir runs/grounded \
        --config.losses.sc.weight=2 --config.losses.vc.weight=1 \
        --config.losses.grounding.weight=1 --config.losses.blind.weight=2
"""

from rococo_jax.demo.training_scenes import demo_preprocessing, demo_spec
from rococo_jax.training.config import default_config


def get_config():
    config = default_config()
    config.init.spec = demo_spec().to_json()
    config.init.preprocessing = demo_preprocessing().to_json()
    config.init.tokenizer = "demo:plain"
    config.data.images = "scenes:12000"
    # Captions have 13 tokens on average; the few above 24 lose their end.
    config.data.text_length = 24
    config.data.workers = 1
    config.steps = 1000
    config.batch_size = 128
    config.optimizer.learning_rate = 1e-3
    # Influence needs a trained model, and this one starts from random parameters: the word is drawn.
    config.losses.sc.select = "random"
    config.losses.sc.lexicon = "demo"
    config.losses.sc.fit_article = True
    config.log.every = 20
    config.checkpoint.every = 200
    return config
