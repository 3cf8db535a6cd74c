"""The recipe against plain training, with all parameters of both towers trained, on drawn scenes.

    python experiments/end_to_end.py data --out scenes
    rococo sweep --config ablations/end_to_end --workdir runs/end-to-end --seeds 1,2,3,4,5 \
        --images scenes/images --annotations scenes/seen --mixed-galleries none \
        --config.losses.sc.lexicon=scenes/lexicon.json

All runs start from the plain model of the demo. `docs/research/appendix_scenes.md` has the setting and the results.
"""

from pathlib import Path

from ml_collections import ConfigDict

from rococo_jax.training.config import read_config


def get_config():
    config = read_config(Path(__file__).parents[1] / "scenes_tiny.py", ())
    config.init.model = "demo:plain"
    for key in ("spec", "preprocessing"):
        config.init[key] = ConfigDict()
    config.init.tokenizer = ""
    config.optimizer.learning_rate = 3e-4
    # Only nouns of the lexicon are inserted, so that the nouns left out of it are never seen.
    config.losses.sc.variants = "same_concept,diff_concept"
    config.checkpoint.every = 1000
    return config


def get_sweep():
    return ConfigDict(
        {
            "over": "steps=60",
            "arms": (
                "plain:",
                "recipe: losses.sc.weight=2 losses.grounding.weight=1 losses.blind.weight=2",
            ),
        }
    )
