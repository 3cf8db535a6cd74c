"""Effect of the share of the original image in a mixed image on VC. The benchmark's galleries have 0.9.

    rococo sweep --config configs/ablations/mixing_ratio.py --workdir runs/ratio --config.init.model=models/joined ...

Mixed images of every ratio go through the frozen tower once, which is most of the time that this takes.
"""

from pathlib import Path

from ml_collections import ConfigDict

from rococo_jax.training.config import read_config


def get_config():
    # The base of the ablation is plain training.
    plain = ("losses.sc.weight=0", "losses.grounding.weight=0", "losses.blind.weight=0", "optimizer.pull_to_start=0")
    config = read_config(Path(__file__).parents[1] / "coco_lit.py", plain)
    config.losses.sc.weight = config.losses.vc.weight = 2.0
    return config


def get_sweep():
    return ConfigDict(
        {
            "over": "losses.vc.ratio=0.5,0.6,0.7,0.8,0.9,0.95",
            "arms": (
                "mixup: losses.vc.methods=mixup",
                "cutmix: losses.vc.methods=cutmix",
                "both: losses.vc.methods=mixup,cutmix",
            ),
        }
    )
