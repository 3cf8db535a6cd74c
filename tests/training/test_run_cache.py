"""Test that runs of a sweep share features, and make them anew where a key decides them."""

from rococo_jax.training.config import default_config, flat
from rococo_jax.training.inputs.feature_pool import Features
from rococo_jax.training.setup import RunCache
from tests.support.tiny_runs import changed

SETTINGS = {"init.model": "model", "data.images": "images", "losses.sc.weight": 1.0, "losses.vc.weight": 1.0}
CONFIG = changed(default_config(), **SETTINGS)
# These decide how features are trained on. All others, new ones among them, count as deciding what they are.
SHARED = (
    "seed", "steps", "batch_size", "micro_batches", "remat", "unroll", "fsdp", "ema", "optimizer.", "log.", "profile.",
    "checkpoint.", "eval.", "data.workers", "data.prefetch", "data.decode", "data.feature_noise", "train.heads",
    "losses.contrastive.kind", "losses.hard_positives.count", "losses.hard_positives.negative_weight",
    "losses.sc.scope", "losses.sc.count", "losses.vc.scope",
)  # fmt: skip


def is_made_anew(first, second) -> bool:
    cache, made = RunCache(), []
    for config in (first, second):
        cache.features(config, lambda: made.append(1) or object.__new__(Features))
    return len(made) == 2


def test_runs_share_cached_features_unless_a_key_that_affects_them_differs():
    values, anew = {key: each for key, each in flat(CONFIG).items() if isinstance(each, int | float | str)}, []
    for key, value in values.items():
        other = f"{value}other" if isinstance(value, str) else not value if isinstance(value, bool) else 1 - value
        if other != value and is_made_anew(CONFIG, changed(CONFIG, **{key: type(value)(other)})):
            anew.append(key)
    assert anew == [key for key in values if not key.startswith(SHARED)]


def test_all_loss_weights_above_zero_share_cached_features():
    assert not is_made_anew(CONFIG, changed(CONFIG, losses__sc__weight=0.5, losses__vc__weight=0.1))


def test_features_of_random_towers_depend_on_the_seed():
    first = changed(CONFIG, init__model="")
    assert is_made_anew(first, changed(first, seed=1)) and not is_made_anew(first, changed(CONFIG, init__model=""))
