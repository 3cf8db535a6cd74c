"""Test configs that no run can have: refused in one line, before anything is trained."""

import dataclasses
from pathlib import Path

import pytest

from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.cli.main import main
from rococo_jax.errors import InputError
from rococo_jax.losses.altered import ALTERATIONS
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.perturb.text.kinds import KINDS
from rococo_jax.training.config import check_config, default_config, read_config
from rococo_jax.training.freezing import split_parameters
from rococo_jax.training.inputs.batches import text_length
from rococo_jax.training.optimizer import make_optimizer
from tests.support.paths import CHECKOUT
from tests.support.tiny import tiny_encoder
from tests.support.tiny_runs import CAPTIONS, DEFAULTS, write_config_file
from tests.support.world import write_world

LIT = "train.vision=none data.cached_features=true"
FEATURES = f"{LIT} train.text=none"
# By overrides what is said of them.
REFUSED = {
    "batch_sise=8": "did you mean 'batch_size'?",
    "losses.sc.wieght=1": "did you mean 'losses.sc.weight'?",
    "batch_size=eight": "a whole number",
    "batch_size=12": "a multiple of 8",
    "batch_size=64": "batch_size",
    "fsdp=3": "a divisor of 8",
    "patch_dropout=1.0": "config.patch_dropout: found 1.0; wanted a share from 0 to 1 (excluded)",
    f"patch_dropout=0.5 {LIT}": "config.patch_dropout: found 0.5; wanted 0 with config.data.cached_features",
    "train.vision=last:7": "at most 'last:2'",
    "init.model=nowhere": "nowhere",
    "init.model=": "init.model",
    "data.images=": "data.images",
    "data.captions=nowhere.json": "nowhere.json",
    "data.captions={folder}/empty.json": "empty.json",
    f"data.captions_per_image=all {FEATURES}": "'one' with",
    "data.color_jitter=0.4,0.4": "config.data.color_jitter: found '0.4,0.4'; wanted '' or four strengths",
    "data.color_jitter=1,1,1,0.6": "the last one (hue) at most 0.5",
    "data.cached_features=true": "config.data.cached_features: found true, and the towers train 'all'",
    f"data.flip=true {LIT}": "config.data.flip: found True; wanted False with config.data.cached_features",
    f"data.random_crop_min_scale=0.5 {FEATURES}": "data.random_crop_min_scale: found 0.5; wanted 0 with",
    "data.feature_noise=0.5": "0 unless config.data.cached_features",
    f"data.feature_noise=0.1 {LIT}": "config.data.feature_noise: found 0.1; wanted 0 unless",
    f"data.order=shards {LIT}": "config.data.order: found 'shards'; wanted 'shuffled' with",
    f"data.weights=0.5,0.5 {LIT}": "config.data.weights: found '0.5,0.5'; wanted '' with",
    "losses.contrastive.kind=sigmoid": "logit bias",
    "losses.sc.scope=all": "'local' or 'global'",
    f"losses.vc.weight=1 {LIT}": "config.losses.vc.weight: found 1.0; wanted 0.0 with",
    "losses.hard_positives.weight=1": "negatives",
    f"losses.hard_positives.weight=1 losses.hard_positives.count=9 {FEATURES}": "of a pool of",
    "losses.hard_positives.count=0": "losses.hard_positives.count: found 0; wanted a whole number from 1 to 1000",
    "losses.hard_positives.count=-3": "losses.hard_positives.count: found -3; wanted a whole number from 1 to 1000",
    "losses.hard_positives.negative_weight=-1": "losses.hard_positives.negative_weight: found -1.0; wanted 0 or more",
    "losses.hard_positives.weight=1 losses.contrastive.kind=sigmoid": "which has no columns for hard negatives",
    "losses.vc.ratio=1.0": "config.losses.vc.ratio: found 1.0; wanted a share from 0 to 1 (excluded)",
    "data.text_length=1000": "config.data.text_length: found 1000; wanted 0, or 2 to 24, the tower's context",
    f"data.text_length=8 {FEATURES}": "config.data.text_length: found 8; wanted 0 with config.data.cached_features",
    f"data.workers=2 {FEATURES}": "config.data.workers: found 2; wanted 'auto' or 0 with config.data.cached_features",
    "steps=99999999999": "config.steps: found 99999999999; wanted at most 2147483647",
    "optimizer.learning_rate=1e39": "a finite number in the range of float32",
    "optimizer.moments=float16": "config.optimizer.moments: found 'float16'; wanted 'float32' or 'bfloat16'",
    "optimizer.schedule=step": "'cosine' or 'constant' or 'rsqrt'",
    "optimizer.warmup_steps=-1": "0 or more",
    "optimizer.warmup_steps=1000000": "at most 6, the number of steps",
    "optimizer.cooldown_fraction=1.5": "from 0 to 1",
    "optimizer.cooldown_fraction=0.2": "0 with the schedule 'cosine', which has its own decay",
    **{f"profile.steps={steps}": f"config.profile.steps: found '{steps}'; wanted '' or FIRST:END"
       for steps in ("3:2", "2:2", "4:7", "x", "1:")},
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_world(folder, [CAPTIONS[:3]] * 24, start=tiny_encoder(name="start"))
    for name, text in {"empty.json": "[]", "no_config.py": "x = 1\n"}.items():
        (folder / name).write_text(text)
    return write_config_file(folder, steps=6, batch_size=16)


@pytest.mark.parametrize("overrides", REFUSED)
def test_configs_that_cannot_be_trained_are_refused_in_one_line(overrides, data, tmp_path, refusal):
    words = [f"--config.{each}" for each in overrides.format(folder=data).split()]
    error = refusal("train", "--config", data / "config.py", "--workdir", tmp_path / "run", *words)
    assert REFUSED[overrides] in error.splitlines()[-1]
    assert not (tmp_path / "run" / "checkpoints").exists()


def numbers() -> dict[str, type]:
    """The keys that are numbers, but for `seed`, with their type."""
    return {key: type(value) for key, value in DEFAULTS.items() if type(value) in (int, float) and key != "seed"}


@pytest.mark.parametrize("key", numbers())
def test_numbers_out_of_range_are_refused(key):
    """None may be negative, none is above what the step computes in."""
    for value in (-1, 2**31 if numbers()[key] is int else 1e39):
        config = default_config()
        config.update_from_flattened_dict({key: numbers()[key](value)})
        with pytest.raises(InputError, match=f"config.{key}"):
            check_config(config)


@pytest.mark.parametrize(
    "weight", ["sc.weight=1", "grounding.weight=1", "blind.weight=1", "contrastive.altered_columns=true"]
)
def test_choosing_words_by_influence_needs_a_trained_model(weight):
    """All these terms read the altered captions that `losses.sc` configures."""
    weight = f"losses.{weight}"
    with pytest.raises(InputError, match=r"config\.losses\.sc\.select: found 'lowest'; wanted 'random' with"):
        read_config(CHECKOUT / "configs" / "web_pretrain.py", [weight])
    for other in ("losses.sc.select=random", "losses.sc.influence=table.jsonl", "losses.sc.variants=attribute,order"):
        read_config(CHECKOUT / "configs" / "web_pretrain.py", [weight, other])


# Settings that would have no effect, by config and overrides, with what is wanted.
WITHOUT_EFFECT = {
    "scenes_tiny init.model=demo:plain": "config.init.spec: found .*; wanted {} with config.init.model",
    "scenes_tiny init.model=demo:plain init.spec={}": "config.init.preprocessing: .*; wanted {} with config.init.model",
    "lit_text init.tokenizer=demo:plain": "config.init.tokenizer: found 'demo:plain'; wanted '' with config.init.model",
    "scenes_tiny init.image_size=96": "config.init.image_size: found 96; wanted 0 without config.init.model",
    "coco_lit remat=full": "config.remat: found 'full'; wanted 'none' with .* no block is trained",
    "coco_lit optimizer.layer_decay=0.5": "config.optimizer.layer_decay: found 0.5; wanted 1 with .* no block",
    "coco_lit optimizer.tower_lr_scale=0.5": "config.optimizer.tower_lr_scale: found 0.5; wanted 1 with .* no block",
    "coco_lit losses.vc.partner_group=16": "config.losses.vc.partner_group: found 16; wanted 8 with .*cached_features",
    "lit_text data.feature_pool.captions=9": "config.data.feature_pool.captions: found 9; wanted 4 unless",
    "scenes_tiny data.feature_pool.mixed=9": "config.data.feature_pool.mixed: found 9; wanted 4 unless",
    "lit_text data.resize_prob=0.5": "config.data.resize_prob: found 0.5; wanted 0 with .* of images alone",
    "scenes_tiny data.color_jitter_prob=0.3": "found 0.3; wanted 0.8 without config.data.color_jitter",
    "scenes_tiny optimizer.schedule=constant optimizer.final_lr_fraction=0.1": "final_lr_fraction: found 0.1; wanted 0",
    "scenes_tiny optimizer.warmup_steps=5 optimizer.warmup_fraction=0.9": "warmup_fraction: found 0.9; wanted 0.05",
    "scenes_tiny log.wandb=project log.tensorboard=false": "config.log.tensorboard: found False; wanted True",
    "scenes_tiny eval.every=10": "config.eval.every: found 10; wanted 0 without config.eval.data",
    "scenes_tiny eval.limit=5": "config.eval.limit: found 5; wanted 0 without config.eval.data",
    "scenes_tiny eval.annotations=folder": "config.eval.annotations: found 'folder'; wanted '' without",
    "scenes_tiny losses.sc.variants=nonsense": "config.losses.sc.variants: found 'nonsense'; wanted names among same",
}  # fmt: skip


@pytest.mark.parametrize("words", WITHOUT_EFFECT)
def test_a_setting_without_effect_is_refused_when_the_config_is_read(words):
    config, *overrides = words.split()
    with pytest.raises(InputError, match=WITHOUT_EFFECT[words]):
        read_config(config, overrides)


def test_settings_of_a_disabled_loss_are_accepted_with_a_warning(tmp_path, capsys, monkeypatch):
    """Configs preset them for runs that enable the loss; settings on the command line cause a warning."""
    monkeypatch.setattr("rococo_jax.cli.train._run", lambda config, workdir: 0)
    words = ["--config.losses.vc.scope=local", "--config.losses.sc.fit_article=false"]
    assert main(["train", "--config", "scenes_tiny", "--workdir", str(tmp_path), *words]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "config.losses.vc.scope has no effect with config.losses.vc.weight=0"
    ]
    words.append("--config.losses.vc.weight=1")
    assert main(["train", "--config", "scenes_tiny", "--workdir", str(tmp_path), *words]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize("trained", [("all", "all"), ("last:2", "none"), ("last:1", "none"), ("none", "last:1")])
def test_layer_decay_requires_a_trained_block_above_another_trained_parameter(trained):
    config = default_config()
    config.train.vision, config.train.text = trained
    config.optimizer.layer_decay = 0.5
    encoder = tiny_encoder()
    parameters, _ = split_parameters(parameters_of(encoder.model), encoder.spec, config.train)
    if "last:1" in trained:
        with pytest.raises(InputError, match=r"config.optimizer.layer_decay: found 0.5; wanted 1"):
            make_optimizer(config.optimizer, 5, encoder.spec, parameters)
    else:
        make_optimizer(config.optimizer, 5, encoder.spec, parameters)


def test_configs_accept_the_same_alterations_as_perturb_text():
    assert (*VARIANTS, *KINDS) == ALTERATIONS


def test_the_text_length_of_a_tower_with_a_fixed_length_cannot_be_changed():
    encoder = tiny_encoder()
    encoder.tokenizer.spec = dataclasses.replace(encoder.tokenizer.spec, context_length=24, fixed_length=24)
    assert [text_length(length, encoder) for length in (0, 24)] == [24, 24]
    with pytest.raises(
        InputError, match=r"config.data.text_length: found 16; wanted 0 or 24, the tower's fixed length"
    ):
        text_length(16, encoder)


@pytest.mark.parametrize(("file", "said"), [("no_config.py", "get_config"), ("none.py", "nothing there")])
def test_a_file_without_a_config_is_refused(file, said, data, tmp_path, refusal):
    assert said in refusal("train", "--config", data / file, "--workdir", tmp_path / "run").splitlines()[-1]
