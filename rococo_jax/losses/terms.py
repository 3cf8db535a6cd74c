"""The description of a loss for training, `LossTerm`, and the typed `Embeddings` that its function reads.

    total = sum over active terms of weight * value

A term stands in the file of its loss, and in `losses.TERMS`. It states the fields of the batch that it reads beside the
pairs, its keys under `config.losses.NAME` with defaults and checks, and its function.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from rococo_jax.similarity import ShardedLogits

T = TypeVar("T")


def pytree_dataclass(cls: type[T]) -> type[T]:
    """A frozen dataclass that is a pytree of its fields.

    Leaves may be anything once it is built (shapes, shardings): `jax.tree.map` does not call `__init__`, which would
    check their types.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    names = [field.name for field in dataclasses.fields(cls)]

    def flatten(tree: T) -> tuple[list[tuple[Any, Any]], None]:
        return [(jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in names], None

    def unflatten(_: None, children: Any) -> T:
        tree = object.__new__(cls)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(tree, name, child)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


@dataclasses.dataclass(frozen=True)
class Field:
    """Images or texts that come with each pair for the sake of a loss, embedded by a tower, "vision" or "text"."""

    name: str
    tower: str


@pytree_dataclass
class FieldEmbeddings:
    """Unit vectors of a field, one or k a pair; where `valid` is False the vector does not count."""

    vectors: Float[Array, "b *k d"]
    valid: Bool[Array, "b *k"]


@pytree_dataclass
class Embeddings:
    """The input of losses: unit vectors of the global batch, float32.

    Attributes:
        images, texts: of the pairs.
        image_id: the image that each pair shows; positives go by it.
        logit_scale: `tau` itself, not its logarithm.
        logit_bias: of models trained with the sigmoid loss.
        fields: what active terms read beside the pairs, by the field's name.
    """

    images: Float[Array, "b d"]
    texts: Float[Array, "b d"]
    image_id: Int[Array, " b"]
    logit_scale: Float[Array, ""]
    logit_bias: Float[Array, ""] | None
    fields: dict[str, FieldEmbeddings]

    def __getitem__(self, field: Field) -> FieldEmbeddings:
        return self.fields[field.name]

    def __contains__(self, field: Field) -> bool:
        return field.name in self.fields


@dataclasses.dataclass(frozen=True)
class Check:
    """A condition on a config value, and the words for it in an error."""

    holds: Callable[[Any], bool]
    wanted: str


POSITIVE = Check(lambda value: value > 0, "a positive number")
NOT_NEGATIVE = Check(lambda value: value >= 0, "0 or more")
FRACTION = Check(lambda value: 0 <= value <= 1, "a number from 0 to 1")


def at_least(least: int) -> Check:
    """Refuses smaller numbers."""
    return Check(lambda value: value >= least, f"at least {least}")


def between(least: int, most: int) -> Check:
    """Refuses other whole numbers."""
    return Check(lambda value: least <= value <= most, f"a whole number from {least} to {most}")


# Texts or images made for each pair: enough for any use, and few enough for the memory of a host.
COUNT = between(1, 1000)


def below_one(noun: str) -> Check:
    """Refuses negative numbers, and 1 and more."""
    return Check(lambda value: 0 <= value < 1, f"a {noun} from 0 to 1 (excluded)")


def one_of(*names: str) -> Check:
    """Refuses other names."""
    return Check(lambda value: value in names, " or ".join(map(repr, names)))


@dataclasses.dataclass(frozen=True)
class Key:
    """A config key: its default, its meaning and, where not every value of its type will do, a check."""

    default: Any
    help: str
    check: Check | None = None


LossValue = tuple[Float[Array, ""], Mapping[str, Float[Array, ""]]]


@dataclasses.dataclass(frozen=True)
class LossTerm:
    """A term of the total loss.

    Attributes:
        name: its part of the config, `config.losses.NAME`.
        function: (embeddings, settings, logits) to its value before the weight and the parts that are logged, by name.
            `settings` is its part of the config, `logits` the mesh and block strategy of pairwise logits.
        keys: its config keys. With a key `weight` the term is active where that is not 0, without one always.
        reads: fields of the batch that are made for it, and must be there where it is active.
    """

    name: str
    function: Callable[[Embeddings, ConfigDict, ShardedLogits], LossValue]
    keys: Mapping[str, Key]
    reads: tuple[Field, ...] = ()


def value_with(loss: Callable[..., Float[Array, ""]], field: Field, embeddings: Embeddings, **more: Any) -> Array:
    """A loss of the pairs and a field: its vectors come third, `NAME_mask` says which count; `more` goes on."""
    items = embeddings[field]
    more |= {"logit_scale": embeddings.logit_scale, f"{field.name}_mask": items.valid}
    return loss(embeddings.images, embeddings.texts, items.vectors, **more)


def field_term(
    name: str,
    field: Field,
    loss: Callable[..., Float[Array, ""]],
    more: Callable[[Embeddings, ConfigDict, ShardedLogits], dict[str, Any]],
    **stated: Any,
) -> LossTerm:
    """The term of a loss of the pairs and one field; `more` gives its other arguments."""

    def function(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> LossValue:
        value = value_with(loss, field, embeddings, **more(embeddings, settings, logits))
        return value, {name: value}

    return LossTerm(name, function, reads=(field,), **stated)
