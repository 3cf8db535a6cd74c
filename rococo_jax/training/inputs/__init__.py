"""The inputs of losses: `INPUTS` has one object for each kind, which makes the fields that losses read."""

from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.losses import active_fields, active_terms
from rococo_jax.losses.terms import Field
from rococo_jax.training.freezing import cached_sides
from rococo_jax.training.inputs.altered_captions import AlteredCaptions
from rococo_jax.training.inputs.hard_positives import HardPositives
from rococo_jax.training.inputs.loss_input import LossInput
from rococo_jax.training.inputs.mixed_images import MixedImages

INPUTS: tuple[LossInput, ...] = (AlteredCaptions(), MixedImages(), HardPositives())


def _input_of(field: Field) -> LossInput:
    return next(each for each in INPUTS if field in each.fields)


def active_inputs(losses: ConfigDict) -> tuple[LossInput, ...]:
    """Return the inputs whose fields active terms read, each once, in the order of the terms."""
    return tuple(dict.fromkeys(_input_of(field) for field in active_fields(losses)))


def items_per_pair(config: ConfigDict) -> dict[Field, tuple[int, ...]]:
    """Return the number of items per pair of each field that active terms read: () for one, (k,) for k."""
    items = {name: shape for each in active_inputs(config.losses) for name, shape in each.items(config).items()}
    return {field: items[field.name] for field in active_fields(config.losses)}


def check_inputs(source: object, config: ConfigDict) -> None:
    """Raise InputError if an input that an active term reads cannot be made as the config says."""
    for term in active_terms(config.losses):
        # With features of images alone, texts are made as ever, and images cannot be mixed.
        settings = config.losses[term.name]
        only_images = cached_sides(config) == ("vision",)
        for field, key in term.fields(settings).items():
            has_pool = _input_of(field).pooled and not only_images
            if field.tower in cached_sides(config) and not has_pool:
                off = term.keys[key].default
                expected = f"{off!r} with config.data.cached_features, which has no pool for it"
                raise InputError(source, f"config.losses.{term.name}.{key}", repr(settings[key]), expected)
    for each in active_inputs(config.losses):
        each.check(source, config)
