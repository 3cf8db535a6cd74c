"""Are altered captions and mixed images negatives of their own pair alone, or of the whole batch?

rococo sweep --config configs/ablations/negative_scope.py --workdir runs/scope --config.init.model=models/joined ...
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
            "over": "losses.sc.scope+losses.vc.scope=local,global",
            "arms": (
                "sc: losses.sc.weight=2 losses.vc.weight=0",
                "vc: losses.sc.weight=0 losses.vc.weight=2",
                "sc-vc: losses.sc.weight=2 losses.vc.weight=2",
            ),
        }
    )
