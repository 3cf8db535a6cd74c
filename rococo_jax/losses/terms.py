"""Interface of a training loss: `LossTerm`, and the `Embeddings` that its function reads.

    total = sum over the active terms of weight * value

A term is defined in the file of its loss and listed in `losses.TERMS`. It declares its config keys below
`config.losses.NAME`, with defaults and checks, the fields of the batch that it reads in addition to the pairs, and its
function.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from rococo_jax.similarity import PairwiseSide, ShardedLogits

T = TypeVar("T")


def pytree_dataclass(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and register it as a JAX pytree of its fields.

    Unlike `jax.tree_util.register_dataclass`, rebuilding a tree does not call `__init__`. `jax.tree.map` may therefore
    fill it with shapes or shardings, which type checks of `__init__` would refuse.
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
    """Extra images or texts of each pair that a loss needs. `tower` embeds them: "vision" or "text"."""

    name: str
    tower: str


@pytree_dataclass
class FieldEmbeddings:
    """Unit vectors of a field, one or k per pair. `valid` is False where a vector must be ignored."""

    vectors: Float[Array, "b *k d"]
    valid: Bool[Array, "b *k"]

    def flat(self) -> PairwiseSide:
        """Merge the first two axes: k vectors per pair become one list of b * k."""
        return PairwiseSide(self.vectors.reshape(-1, self.vectors.shape[-1]), None, self.valid.reshape(-1))

    def zeroed(self) -> Float[Array, "b *k d"]:
        """Return the vectors, 0 where they are not valid. The gradient is 0 there, even if a vector is NaN."""
        return jnp.where(self.valid[..., None], self.vectors, 0.0)


@pytree_dataclass
class Embeddings:
    """Input of the losses: unit vectors of the global batch, float32.

    Attributes:
        images, texts: embeddings of the pairs.
        image_id: id of each pair's image; pairs with the same id are not negatives of each other.
        logit_scale: the factor of the cosines, not its logarithm.
        logit_bias: bias of the logits; None for models without one.
        fields: embeddings of the extra fields that the active terms read, by name.
    """

    images: Float[Array, "b d"]
    texts: Float[Array, "b d"]
    image_id: Int[Array, " b"]
    logit_scale: Float[Array, ""]
    logit_bias: Float[Array, ""] | None = None
    fields: dict[str, FieldEmbeddings] = dataclasses.field(default_factory=dict)

    def __getitem__(self, field: Field) -> FieldEmbeddings:
        return self.fields[field.name]

    def __contains__(self, field: Field) -> bool:
        return field.name in self.fields


@dataclasses.dataclass(frozen=True)
class Check:
    """Condition on a config value, with its description for an error message."""

    holds: Callable[[Any], bool]
    expected: str


POSITIVE = Check(lambda value: value > 0, "a positive number")
NOT_NEGATIVE = Check(lambda value: value >= 0, "0 or more")
FRACTION = Check(lambda value: 0 <= value <= 1, "a number from 0 to 1")


def at_least(least: int) -> Check:
    """Accept numbers from `least` on."""
    return Check(lambda value: value >= least, f"at least {least}")


def between(least: int, most: int) -> Check:
    """Accept whole numbers from `least` to `most`."""
    return Check(lambda value: least <= value <= most, f"a whole number from {least} to {most}")


# Number of extra texts or images per pair. The upper limit bounds the memory of a host.
COUNT = between(1, 1000)


def below_one(noun: str) -> Check:
    """Accept numbers from 0 to 1, without 1."""
    return Check(lambda value: 0 <= value < 1, f"a {noun} from 0 to 1 (excluded)")


def one_of(*names: str) -> Check:
    """Accept these names."""
    return Check(lambda value: value in names, " or ".join(map(repr, names)))


def several_of(*names: str) -> Check:
    """Accept one or several of these names, separated by commas."""
    return Check(lambda value: set(value.split(",")) <= {*names}, f"names among {', '.join(names)}")


@dataclasses.dataclass(frozen=True)
class Need:
    """Condition on the whole config without which a key has no effect. Another value than the default is then refused.

    Attributes:
        holds: the condition.
        otherwise: describes a config in which it does not hold: "with config.X", "without config.Y".
        allows_presets: accept the value all the same, because configs preset the settings of losses that a command line
            turns on.
    """

    holds: Callable[[ConfigDict], Any]
    otherwise: str
    allows_presets: bool = False


@dataclasses.dataclass(frozen=True)
class Key:
    """Config key: default value, help text, an optional check of the value, and what it needs to have an effect.

    Attributes:
        affects: what changes with the value. "nothing": neither the model nor any result beyond rounding, so a run may
            resume with another value. "run": the run, but not the features of frozen towers, which other runs may
            share. "features": both. A new key affects features unless it says otherwise, which is always safe.
        needs: conditions that must all hold.
    """

    default: Any
    help: str
    check: Check | None = None
    affects: Literal["features", "run", "nothing"] = "features"
    needs: tuple[Need, ...] = ()


LossValue = tuple[Float[Array, ""], Mapping[str, Float[Array, ""]]]


@dataclasses.dataclass(frozen=True)
class LossTerm:
    """Term of the total loss.

    Attributes:
        name: name of its section of the config, `config.losses.NAME`.
        function: computes the value before its weight, and the numbers to log by name, from the embeddings, the
            settings (its section of the config) and the mesh and block size of the pairwise logits.
        keys: its config keys. A term with a key `weight` is active if the weight is not 0; without one, always.
        reads: fields of the batch that it reads.
        optional_reads: fields that it reads only if a key of its section is true, by that key.
    """

    name: str
    function: Callable[[Embeddings, ConfigDict, ShardedLogits], LossValue]
    keys: Mapping[str, Key]
    reads: tuple[Field, ...] = ()
    optional_reads: Mapping[str, Field] = dataclasses.field(default_factory=dict)

    def fields(self, settings: ConfigDict) -> dict[Field, str]:
        """Return the fields that the term reads under these settings, each with the key that requests it."""
        required = dict.fromkeys(self.reads, "weight")
        optional = {field: key for key, field in self.optional_reads.items() if settings[key]}
        return required | optional
