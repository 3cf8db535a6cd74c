"""How much weight do the defences need, each alone and both together?

    rococo sweep --config configs/ablations/weights.py --workdir runs/weights --config.init.model=models/joined ...

At weight 0 the three arms are one run, which is made once.
"""

from pathlib import Path

from ml_collections import ConfigDict

from rococo_jax.training.config import read_config


def get_config():
    # The base of the ablation is plain training.
    plain = ("losses.sc.weight=0", "losses.grounding.weight=0", "losses.blind.weight=0", "optimizer.pull_to_start=0")
    return read_config(Path(__file__).parents[1] / "coco_lit.py", plain)


def get_sweep():
    return ConfigDict(
        {
            "over": "losses.sc.weight+losses.vc.weight=0,0.25,0.5,1,2,4",
            # An arm comes after what is swept: what it sets to 0 stays 0.
            "arms": ("sc: losses.vc.weight=0", "vc: losses.sc.weight=0", "sc-vc:"),
        }
    )
