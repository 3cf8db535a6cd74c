"""The fields of the batch that losses read: `MAKERS` has one object for each kind, which makes them."""

from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.losses import active_fields, active_terms
from rococo_jax.losses.terms import Field
from rococo_jax.training.config_needs import cached_sides
from rococo_jax.training.inputs.altered_captions import AlteredCaptions
from rococo_jax.training.inputs.field_maker import FieldMaker
from rococo_jax.training.inputs.hard_positives import HardPositives
from rococo_jax.training.inputs.mixed_images import MixedImages

MAKERS: tuple[FieldMaker, ...] = (AlteredCaptions(), MixedImages(), HardPositives())


def _maker_of(field: Field) -> FieldMaker:
    return next(each for each in MAKERS if field in each.fields)


def active_makers(losses: ConfigDict) -> tuple[FieldMaker, ...]:
    """Return the makers of the fields that active terms read, each once, in the order of the terms."""
    return tuple(dict.fromkeys(_maker_of(field) for field in active_fields(losses)))


def shapes_per_pair(config: ConfigDict) -> dict[Field, tuple[int, ...]]:
    """Return the number of items per pair of each field that active terms read: () for one, (k,) for k."""
    shapes = {name: shape for each in active_makers(config.losses) for name, shape in each.shapes(config).items()}
    return {field: shapes[field.name] for field in active_fields(config.losses)}


def check_fields(source: object, config: ConfigDict) -> None:
    """Raise InputError if a field that an active term reads cannot be made as the config says."""
    for term in active_terms(config.losses):
        # With features of images alone, texts are made as ever, and images cannot be mixed.
        settings = config.losses[term.name]
        only_images = cached_sides(config) == ("vision",)
        for field in term.fields(settings):
            has_pool = _maker_of(field).pooled and not only_images
            if field.tower in cached_sides(config) and not has_pool:
                key = next((key for key, each in term.optional_reads.items() if each == field), "weight")
                off = term.keys[key].default
                expected = f"{off!r} with config.data.cached_features, which has no pool for it"
                raise InputError(source, f"config.losses.{term.name}.{key}", repr(settings[key]), expected)
    for each in active_makers(config.losses):
        each.check(source, config)
