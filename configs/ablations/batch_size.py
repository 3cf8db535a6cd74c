"""Effect of the batch size: 32 to 2,048 by doublings, plain and with SC + VC.

    rococo sweep --config configs/ablations/batch_size.py --workdir runs/batch --seeds 0,1,2 \
        --config.init.model=models/joined --config.data.images=... --config.data.captions=... \
        --images coco/images --annotations rococo/annotations

Every point sees the same 102,400 samples (200 steps of 512), so a batch of half the size takes twice the steps. The
learning rate is the config's 2e-4 at 512 and follows the square root of the batch size, the rule for Adam (arXiv
2205.10287, without its change of the betas); warmup is 5 % of the steps. Weight decay goes with the rate, so over a
whole run it shrinks with the square root of the batch size.
"""

from pathlib import Path

from ml_collections import ConfigDict

from rococo_jax.training.config import read_config


def get_config():
    # The base of the ablation is plain training.
    plain = ("losses.sc.weight=0", "losses.grounding.weight=0", "losses.blind.weight=0", "optimizer.pull_to_start=0")
    config = read_config(Path(__file__).parents[1] / "coco_lit.py", plain)
    config.steps = 200  # the largest batch takes an even share of its samples
    return config


def get_sweep():
    return ConfigDict(
        {
            "over": "batch_size=32,64,128,256,512,1024,2048",
            "arms": (
                "plain: losses.sc.weight=0 losses.vc.weight=0",
                "sc-vc: losses.sc.weight=2 losses.vc.weight=2",
            ),
            "keep": "samples",
            "lr_scaling": "square-root",
        }
    )
