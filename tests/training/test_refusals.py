"""Test configs that no run can have: refused in one line, before anything is trained."""

import dataclasses
from pathlib import Path

import pytest

from rococo_jax.errors import InputError
from rococo_jax.training.config import check_config, default_config, read_config
from rococo_jax.training.inputs.batches import text_length
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
    f"data.flip=true {LIT}": "config.data.flip: found True; wanted none with config.data.cached_features",
    f"data.random_crop_min_scale=0.5 {FEATURES}": "data.random_crop_min_scale: found 0.5; wanted none with",
    "data.feature_noise=0.5": "0 unless config.data.cached_features",
    f"data.feature_noise=0.1 {LIT}": "config.data.feature_noise: found 0.1; wanted 0 unless",
    f"data.order=shards {LIT}": "config.data.order: found 'shards'; wanted the default with",
    f"data.weights=0.5,0.5 {LIT}": "config.data.weights: found '0.5,0.5'; wanted the default with",
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
def test_what_cannot_be_trained_is_refused_in_one_line(overrides, data, tmp_path, refusal):
    words = [f"--config.{each}" for each in overrides.format(folder=data).split()]
    error = refusal("train", "--config", data / "config.py", "--workdir", tmp_path / "run", *words)
    assert REFUSED[overrides] in error.splitlines()[-1]
    assert not (tmp_path / "run" / "checkpoints").exists()


def numbers() -> dict[str, type]:
    """The keys that are numbers, but for `seed`, with their type."""
    return {key: type(value) for key, value in DEFAULTS.items() if type(value) in (int, float) and key != "seed"}


@pytest.mark.parametrize("key", numbers())
def test_no_number_is_taken_whatever_it_is(key):
    """None may be negative, none is above what the step computes in."""
    for value in (-1, 2**31 if numbers()[key] is int else 1e39):
        config = default_config()
        config.update_from_flattened_dict({key: numbers()[key](value)})
        with pytest.raises(InputError, match=f"config.{key}"):
            check_config(config)


@pytest.mark.parametrize(
    "weight", ["sc.weight=1", "grounding.weight=1", "blind.weight=1", "contrastive.altered_columns=true"]
)
def test_a_model_with_random_parameters_does_not_choose_words_by_their_influence(weight):
    """All these terms read the altered captions that `losses.sc` configures."""
    weight = f"losses.{weight}"
    with pytest.raises(InputError, match=r"config\.losses\.sc\.select: found 'lowest'; wanted 'random' with"):
        read_config(CHECKOUT / "configs" / "web_pretrain.py", [weight])
    for other in ("losses.sc.select=random", "losses.sc.influence=table.jsonl", "init.model=models/clip"):
        read_config(CHECKOUT / "configs" / "web_pretrain.py", [weight, other])


def test_the_length_of_a_tower_of_one_length_is_no_choice():
    encoder = tiny_encoder()
    encoder.tokenizer.spec = dataclasses.replace(encoder.tokenizer.spec, context_length=24, fixed_length=24)
    assert [text_length(length, encoder) for length in (0, 24)] == [24, 24]
    with pytest.raises(
        InputError, match=r"config.data.text_length: found 16; wanted 0 or 24, the tower's fixed length"
    ):
        text_length(16, encoder)


@pytest.mark.parametrize(("file", "said"), [("no_config.py", "get_config"), ("none.py", "nothing there")])
def test_a_file_that_is_no_config_is_refused(file, said, data, tmp_path, refusal):
    assert said in refusal("train", "--config", data / file, "--workdir", tmp_path / "run").splitlines()[-1]
