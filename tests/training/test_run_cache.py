"""What runs of a sweep share: features are made anew where a key decides them, and shared where it does not."""

import pytest

from rococo_jax.training.config import default_config, flat
from rococo_jax.training.inputs.feature_pool import Features
from rococo_jax.training.setup import RunCache
from tests.support.tiny_runs import changed

# By key another value: of those that decide the features of frozen towers or the pools that are drawn from.
DECIDES = {
    "dtype": "bfloat16", "init.model": "other", "init.tokenizer": "other", "init.residual_head_width": 8,
    "data.images": "other", "data.captions": "other", "data.split": "train",
    "data.random_crop_min_scale": 0.5, "data.flip": True,
    "data.color_jitter": "0.1,0,0,0", "data.color_jitter_prob": 0.5, "data.grayscale_prob": 0.5, "init.image_size": 64,
    "data.resize_prob": 0.5, "data.on_decode_error": "raise", "data.feature_pool.captions": 5,
    "data.feature_pool.mixed": 5, "losses.sc.weight": 0.0, "losses.vc.weight": 0.0,
    "losses.sc.variants": "danger", "losses.sc.select": "random", "losses.sc.influence": "other.jsonl",
    "losses.sc.lexicon": "other.json", "losses.sc.fit_article": True,
    "losses.hard_positives.weight": 1.0, "losses.vc.methods": "mixup",
    "losses.vc.ratio": 0.5, "losses.vc.views": "resize",
}  # fmt: skip
# Of those that decide how features are trained on.
SHARED = {
    "seed": 7, "steps": 5, "batch_size": 64, "micro_batches": 2, "remat": "full", "fsdp": 2, "ema": 0.9,
    "data.workers": 3, "data.prefetch": 5, "data.feature_noise": 0.5,
    "losses.sc.weight": 0.5, "losses.sc.count": 3,
    "losses.sc.scope": "local", "losses.vc.weight": 0.5, "losses.vc.scope": "local",
    "optimizer.learning_rate": 1.0, "optimizer.b1": 0.5,
    "log.every": 3, "checkpoint.every": 3, "checkpoint.keep": 5, "eval.every": 3,
}  # fmt: skip


def config_with(key: str = "", value: object = None):
    settings = {"init.model": "model", "data.images": "images", "losses.sc.weight": 1.0, "losses.vc.weight": 1.0}
    return changed(default_config(), **settings | ({key: value} if key else {}))


def is_made_anew(first, second) -> bool:
    cache, made = RunCache(), []
    for config in (first, second):
        cache.features(config, lambda: made.append(1) or object.__new__(Features))
    return len(made) == 2


CASES = [(*each, True) for each in DECIDES.items()] + [(*each, False) for each in SHARED.items()]


@pytest.mark.parametrize(("key", "value", "decides"), CASES)
def test_features_are_made_anew_where_a_key_decides_them_and_shared_elsewhere(key, value, decides):
    assert is_made_anew(config_with(), config_with(key, value)) == decides


def test_features_of_random_towers_are_those_of_a_seed():
    first, second = config_with("init.model", ""), changed(config_with("init.model", ""), seed=1)
    assert is_made_anew(first, second) and not is_made_anew(first, config_with("init.model", ""))


def test_every_key_of_the_data_and_of_both_altered_losses_is_in_one_of_the_tables():
    """Others, new ones among them, count as deciding."""
    left = {f"data.{name}" for name in ("cached_features", "captions_per_image", "order", "weights", "text_length")}
    keys = {key for key in flat(default_config()) if key.startswith(("data.", "losses.sc.", "losses.vc."))}
    assert keys - left - {"losses.vc.partner_group"} <= DECIDES.keys() | SHARED.keys()
