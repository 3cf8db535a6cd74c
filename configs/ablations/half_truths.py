"""Half-truths on words that training used as false words, and on words that it never used: five arms.

    python experiments/half_truth_words.py prepare --data DATA --out half
    rococo sweep --config configs/ablations/half_truths.py --workdir runs/half --seeds 0,1,2 --data half/data \
        --benchmarks choices --config.init.model=models/joined --config.data.images=coco/images \
        --config.data.captions=coco/captions_train.json

The arms with `-held` take the lexicon half/held.json; `docs/research/half_truths.md` describes it.
"""

from pathlib import Path

from ml_collections import ConfigDict

from rococo_jax.training.config import read_config

SC = "losses.sc.weight=1.5"
RECIPE = "losses.sc.weight=2 losses.grounding.weight=1 losses.blind.weight=2 optimizer.pull_to_start=20"
HELD = "losses.sc.lexicon=half/held.json"


def get_config():
    # The base is plain training.
    plain = ("losses.sc.weight=0", "losses.grounding.weight=0", "losses.blind.weight=0", "optimizer.pull_to_start=0")
    config = read_config(Path(__file__).parents[1] / "coco_lit.py", plain)
    config.init.residual_head_width = 512
    config.steps, config.batch_size = 200, 256
    config.losses.sc.variants = "same_concept,diff_concept"
    config.losses.sc.select = "random"
    config.losses.sc.count = 2
    config.data.feature_pool.captions = 2  # one of each variant
    config.data.feature_pool.mixed = 1
    return config


def get_sweep():
    arms = ("plain:", f"sc: {SC}", f"sc-held: {SC} {HELD}", f"recipe: {RECIPE}", f"recipe-held: {RECIPE} {HELD}")
    return ConfigDict({"over": "steps=200", "arms": arms})
