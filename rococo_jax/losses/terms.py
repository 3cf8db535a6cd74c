"""Interface of a training loss: `LossTerm`, and the `Embeddings` that its function reads.

    total = sum over the active terms of weight * value

A term is defined in the file of its loss and listed in `losses.TERMS`. It declares its config keys below
`config.losses.NAME`, with defaults and checks, the fields of the batch that it reads in addition to the pairs, and its
function.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from rococo_jax.config_fields import Key
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
    valid: Bool[Array, " b *k"]

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

    def fields(self, settings: ConfigDict) -> tuple[Field, ...]:
        """Return the fields that the term reads under these settings."""
        return (*self.reads, *(field for key, field in self.optional_reads.items() if settings[key]))
