"""How many altered captions a caption (K) does SC need?

    rococo sweep --config configs/ablations/altered_captions.py --workdir runs/k --config.init.model=models/joined ...

All points draw from one pool of eight altered captions a caption.
"""

from pathlib import Path

from ml_collections import ConfigDict

from rococo_jax.training.config import read_config


def get_config():
    # The base of the ablation is plain training.
    plain = ("losses.sc.weight=0", "losses.grounding.weight=0", "losses.blind.weight=0", "optimizer.pull_to_start=0")
    config = read_config(Path(__file__).parents[1] / "coco_lit.py", plain)
    config.data.feature_pool.captions = 8
    config.losses.sc.weight = 2.0
    return config


def get_sweep():
    return ConfigDict(
        {
            "over": "losses.sc.count=1,2,3,4,8",
            "arms": ("sc: losses.vc.weight=0", "sc-vc: losses.vc.weight=2"),
        }
    )
