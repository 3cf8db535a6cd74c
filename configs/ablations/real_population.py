"""A population on real towers: three kinds of heads x seven losses, on frozen towers and one budget.

    rococo join towers/dinov2_vits14 towers/minilm_l6_v2 models/fit --images coco/images --captions split/fit.json
    rococo sweep --config configs/ablations/real_population.py --workdir runs/real --data DATA \
        --benchmarks rococo,sugarcrepe,sugarcrepe_pp,cue_conflict --allow-missing-images --mixing-seeds 1 \
        --templates 5 --corruptions gaussian_noise,fog --severities 3 --corrupted-benchmarks rococo \
        --config.init.model=models/fit --config.data.images=coco/images --config.data.captions=split/fit.json
    rococo correlate runs/real/points --factors heads,loss --out real --metrics M

M, fixed before any model was evaluated: image_to_text/clean/r1 (held constant); drop, fr1, blind and grounding of
image_to_text/same_concept; fr1 of image_to_text/diff_concept, rand_voca and danger; fr1 of text_to_image/mix_0.9;
ota and grounding of sugarcrepe/mean; ata and brittleness of sugarcrepe_pp/mean; drop and ras of
text_to_image/corruptions_3; cue_conflict/clean/shape_bias; and the ECE of a benchmark of photographs of ImageNet in 16
coarse classes, which commit 90ce318 has and later ones do not.

DATA/cue_conflict holds every fourth of the 1,280 stimuli, by name. Images, base and weights are those of `defence.py`
and of `docs/research/appendix_photographs.md`; none was chosen for this study. The joined model has no logit bias, so
that the sigmoid loss is not among them.
"""

from pathlib import Path

from ml_collections import ConfigDict

from rococo_jax.training.config import read_config

HEADS = {
    "mlp": "init.residual_head_width=512",
    "linear": "init.residual_head_width=0",
    "text": "init.residual_head_width=0 train.heads=text",  # LABCLIP
}
KINDS = "losses.sc.variants=same_concept,diff_concept,rand_voca,attribute,relation,count,order,negation,addition"
GROUNDED = "losses.grounding.weight=1 losses.blind.weight=2 optimizer.pull_to_start=20"
VC = "losses.vc.weight=7 data.resize_prob=0.5"
LOSSES = {
    "plain": "",
    "negclip": "losses.contrastive.altered_columns=true",
    "sc": "losses.sc.weight=1.5",
    "vc": VC,
    "sc_vc": f"losses.sc.weight=1.5 {VC}",
    "recipe": f"losses.sc.weight=2 {GROUNDED}",
    "kinds": f"{KINDS} {GROUNDED}",
}


def get_config():
    return read_config(Path(__file__).with_name("defence.py"))


def get_sweep():
    arms = (f"{head}+{loss}: {HEADS[head]} {LOSSES[loss]}".rstrip() for loss in LOSSES for head in HEADS)
    return ConfigDict({"over": "steps=200", "arms": tuple(arms), "seeds": "0,1"})
