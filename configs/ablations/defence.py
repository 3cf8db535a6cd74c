"""Transfer of defences to alterations that they were not trained on: arms of one budget, heads on frozen towers.

    rococo join towers/dinov2_vits14 towers/minilm_l6_v2 models/fit --images coco/images --captions split/fit.json
    rococo make-benchmark --images coco/images --captions split/held.json --name held --out HELD
    rococo sweep --config configs/ablations/defence.py --workdir runs/defence --seeds 0,1,2 --data HELD \
        --benchmarks held,choices --config.init.model=models/fit --config.data.images=coco/images \
        --config.data.captions=split/fit.json

`docs/research/appendix_photographs.md` says which images these are, and what was fixed for the test.
"""

from pathlib import Path

from ml_collections import ConfigDict

from rococo_jax.training.config import read_config

KINDS = "losses.sc.variants=same_concept,diff_concept,rand_voca,attribute,relation,count,order,negation,addition"
TERMS = "losses.grounding.weight={} losses.blind.weight={} optimizer.pull_to_start=20"
RECIPE = f"losses.sc.weight=2 {TERMS.format(1, 2)}"
VC = "losses.vc.weight=7 data.resize_prob=0.5"


def get_config():
    # The base is plain training.
    plain = ("losses.sc.weight=0", "losses.grounding.weight=0", "losses.blind.weight=0", "optimizer.pull_to_start=0")
    config = read_config(Path(__file__).parents[1] / "coco_lit.py", plain)
    config.init.residual_head_width = 512
    config.steps, config.batch_size = 200, 256
    config.losses.sc.select = "random"
    config.losses.sc.count = 3
    config.data.feature_pool.captions = 9  # one of each kind
    config.data.feature_pool.mixed = 1
    return config


def get_sweep():
    return ConfigDict(
        {
            "over": "steps=200",
            "arms": (
                "plain:",
                f"recipe: {RECIPE}",
                f"kinds: {KINDS} {RECIPE}",
                f"kinds-no-sc: {KINDS} {TERMS.format(1, 2)}",
                f"kinds-strong: {KINDS} losses.sc.weight=3 {TERMS.format(2, 4)}",
                f"kinds-more: {KINDS} losses.sc.weight=3 {TERMS.format(2, 4)} losses.sc.count=6",
                f"vc: {VC}",
            ),
        }
    )
