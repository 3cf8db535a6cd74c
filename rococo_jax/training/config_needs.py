"""What keys of a training config need to have an effect (`config_fields.Need`)."""

import dataclasses

from ml_collections import ConfigDict

from rococo_jax.config_fields import COUNT, Key, Need
from rococo_jax.losses import active_fields
from rococo_jax.losses.terms import LossTerm
from rococo_jax.training.freezing import SIDES


def cached_sides(config: ConfigDict) -> tuple[str, ...]:
    """Return the towers whose features are computed once: none, "vision" (LiT, arXiv 2111.07991), or both."""
    if not config.data.cached_features:
        return ()
    return SIDES if config.train.text == "none" else ("vision",)


NEW_TOWERS = Need(lambda config: not config.init.model, "with config.init.model, which has its own")
TRAINED_TOWER = Need(
    lambda config: (config.train.vision, config.train.text) != ("none", "none"),
    "with config.train.vision and .text 'none': no block is trained",
)
# Training on cached features of images, or of images and texts, cannot do what these keys describe.
IMAGES_AT_EACH_STEP = Need(
    lambda config: not config.data.cached_features, "with config.data.cached_features: an image has one feature"
)
IMAGES_IN_ORDER = Need(
    lambda config: not config.data.cached_features,
    "with config.data.cached_features, which holds all features in memory",
)
TEXTS_AT_EACH_STEP = Need(
    lambda config: "text" not in cached_sides(config),
    "with config.data.cached_features of both towers, which are features of whole texts",
)
CACHED_TEXTS = Need(
    lambda config: "text" in cached_sides(config), "unless config.data.cached_features holds both towers' features"
)
EVALUATION = Need(
    lambda config: config.eval.data or config.eval.images,
    "without config.eval.data, or .images and .annotations",
)


def _unless_none(name: str, allows_presets: bool = False) -> Need:
    return Need(lambda config: config.eval[name] != "none", f"with config.eval.{name} 'none'", allows_presets)


# What keys of the section `eval` need besides data. Configs preset seeds and severities for galleries and corruptions
# that a command line may turn off.
EVALUATION_NEEDS = {
    "seeds": (_unless_none("mixed_galleries", allows_presets=True),),
    "severities": (_unless_none("corruptions", allows_presets=True),),
    "corrupted_benchmarks": (_unless_none("corruptions"),),
}


LOADED_MODEL = Need(
    lambda config: config.init.model, "without config.init.model: config.init.spec has an image size of its own"
)
COLOR_JITTER = Need(lambda config: config.data.color_jitter, "without config.data.color_jitter")
SEVERAL_VIEWS = Need(
    lambda config: cached_sides(config) != ("vision",),
    "with config.data.cached_features of images alone: an image has one feature",
)
NO_WARMUP_STEPS = Need(lambda config: not config.optimizer.warmup_steps, "with config.optimizer.warmup_steps")
DECAY = Need(
    lambda config: config.optimizer.schedule == "cosine" or config.optimizer.cooldown_fraction,
    "with the schedules 'constant' and 'rsqrt' without config.optimizer.cooldown_fraction",
)
NO_DECAY_YET = Need(
    lambda config: config.optimizer.schedule != "cosine", "with the schedule 'cosine', which has its own decay"
)
NO_WANDB = Need(lambda config: not config.log.wandb, "with config.log.wandb, which reads these files")


def settings_of(term: LossTerm) -> dict[str, Key]:
    """Return the keys of a loss. Those besides its weight need an active loss that reads the same fields."""
    if "weight" not in term.keys:
        return dict(term.keys)

    def is_read(config: ConfigDict) -> bool:
        return bool(config.losses[term.name].weight) or not set(term.reads).isdisjoint(active_fields(config.losses))

    need = Need(is_read, f"with config.losses.{term.name}.weight=0", allows_presets=True)
    return {
        name: key if name == "weight" else dataclasses.replace(key, needs=(*key.needs, need))
        for name, key in term.keys.items()
    }


def pool_size(tower: str, help_text: str) -> Key:
    """Return the key of the size of a pool of features, which needs a loss that draws from it."""
    need = Need(
        lambda config: any(field.tower == tower for field in active_fields(config.losses)),
        "without a loss that draws from this pool",
        allows_presets=True,
    )
    return Key(4, help_text, COUNT, needs=(CACHED_TEXTS, need))
