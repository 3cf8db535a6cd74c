"""What makes a field of the batch: `LossInput`, one or several fields each, in a file of this package.

An input may act in three places: add texts to a sample on the host, make something of the batch on the device, or make
a pool of features of frozen towers beforehand. Every file of this package is imported by `all_inputs`, so an input that
a new loss needs is one file.
"""

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, UInt8
from ml_collections import ConfigDict

from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from rococo_jax.losses.terms import Field, active_fields, active_terms
from rococo_jax.training.batch import Batch
from rococo_jax.training.freezing import cached_sides

# Pools are made from this seed, so that runs of all seeds share them.
POOL_SEED = 0


@dataclasses.dataclass(frozen=True)
class InputContext:
    """What inputs are made from.

    Attributes:
        encoder: with the parameters of step 0; gone when the input is made.
        source: the pairs.
        folder: where files are kept that later runs of the same data read again.
    """

    config: ConfigDict
    encoder: Encoder
    source: PairSource
    folder: Path


# Pixels of all images, uint8 (images h w 3), and the SHA-256 of each.
Pixels = tuple[UInt8[np.ndarray, "images h w 3"], list[str]]


@dataclasses.dataclass(frozen=True)
class PoolMaterial:
    """What pools are made from beside `InputContext`.

    Attributes:
        samples: the images that can be decoded, with their captions.
        captions: of all samples, in order.
        views: pixels of all samples by the name of the view, "crop" or "resize".
    """

    samples: Sequence[PairSample]
    captions: Sequence[str]
    views: Mapping[str, Pixels]
    cache: EmbeddingCache


@dataclasses.dataclass(frozen=True)
class Pool:
    """Features of frozen towers to draw from: so many of each caption or image, and which of them count."""

    features: Float[np.ndarray, "items pool f"]
    valid: Bool[np.ndarray, "items pool"]


class LossInput:
    """Makes the fields that a loss reads. An input overrides what it needs.

    Attributes:
        fields: what it makes.
        sample_texts: keys under which `transform` adds texts to a sample, and the fields that these become.
        pooled: whether it can make a pool of features.
    """

    fields: ClassVar[tuple[Field, ...]] = ()
    sample_texts: ClassVar[tuple[tuple[str, Field], ...]] = ()
    pooled: ClassVar[bool] = False

    def items(self, config: ConfigDict) -> dict[str, tuple[int, ...]]:
        """By field: () for one item a pair, (k,) for k."""
        raise NotImplementedError

    def check(self, source: object, config: ConfigDict) -> None:
        """Raises InputError where config values do not fit each other."""

    def check_devices(self, config: ConfigDict, devices: int) -> None:
        """Raises InputError where the batch cannot be made on so many devices."""

    def resized_view(self, config: ConfigDict) -> bool:
        """Whether every image is needed resized whole, too."""
        return False

    def computes(self, config: ConfigDict, folder: Path) -> bool:
        """Whether `transform` runs the encoder. `folder` is that of `InputContext`."""
        return False

    def transform(self, context: InputContext) -> Any | None:
        """A Grain transform that adds texts to a sample, under the keys of `sample_texts`."""
        return None

    def on_device(self, batch: Batch, config: ConfigDict, step: Int[Array, ""], mesh: Mesh | None) -> Batch:
        """The batch with fields that the device makes, a pure function of the batch, the config's seed and the step."""
        return batch

    def make_pools(self, context: InputContext, material: PoolMaterial) -> dict[str, Pool]:
        """Features that training on cached features draws from, by the name of the field."""
        raise NotImplementedError

    def draw(
        self, field: Field, shape: tuple[int, int], config: ConfigDict, random: np.random.Generator
    ) -> Int[np.ndarray, "b k"]:
        """Which places of a field's pool each row of a batch gets, all different; `shape` is (rows, places)."""
        count = math.prod(self.items(config)[field.name])
        return np.argsort(random.random(shape), axis=1)[:, :count]


_INPUTS: dict[str, LossInput] = {}


def register_input(made: LossInput) -> LossInput:
    """Adds an input. It is the only one that makes its fields."""
    for field in made.fields:
        if _INPUTS.setdefault(field.name, made) is not made:
            raise ValueError(f"two inputs make the field {field.name!r}")
    return made


def all_inputs() -> Mapping[str, LossInput]:
    """The registered inputs by the fields that they make."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"rococo_jax.training.inputs.{module.name}")
    return _INPUTS


def active_inputs(losses: ConfigDict) -> tuple[LossInput, ...]:
    """The inputs whose fields active terms read, each once, in the order of the terms."""
    made_by = all_inputs()
    return tuple(dict.fromkeys(made_by[field.name] for field in active_fields(losses)))


def items_per_pair(config: ConfigDict) -> dict[Field, tuple[int, ...]]:
    """Items a pair of each field that active terms read: () for one, (k,) for k."""
    items = {name: shape for each in active_inputs(config.losses) for name, shape in each.items(config).items()}
    return {field: items[field.name] for field in active_fields(config.losses)}


def check_inputs(source: object, config: ConfigDict) -> None:
    """Raises InputError where an input that an active term reads cannot be made as the config says."""
    made_by = all_inputs()
    for term in active_terms(config.losses):
        # With features of images alone, texts are made as ever, and images cannot be mixed.
        cached = [field for field in term.reads if field.tower in cached_sides(config)]
        only_images = cached_sides(config) == ("vision",)
        if cached and (only_images or not all(made_by[field.name].pooled for field in cached)):
            wanted = "0.0 with config.data.cached_features, which has no pool for it"
            raise InputError(source, f"config.losses.{term.name}.weight", repr(config.losses[term.name].weight), wanted)
    for each in active_inputs(config.losses):
        each.check(source, config)


def check_count(source: object, config: ConfigDict, loss: str) -> None:
    """Raises InputError where a loss reads more texts a caption than its pool of features holds."""
    count, pool = config.losses[loss].count, config.data.feature_pool.captions
    if "text" in cached_sides(config) and count > pool:
        wanted = "at most config.data.feature_pool.captions"
        raise InputError(source, f"config.losses.{loss}.count", f"{count} of a pool of {pool}", wanted)


def differ_in_tokens(encoder: Encoder, captions: Sequence[str], texts: Sequence[str]) -> Bool[np.ndarray, "captions k"]:
    """Whether each of k texts a caption, caption by caption, has other tokens, cut to the context, than the caption."""
    rows, count = encoder.token_ids([*captions, *texts]), len(captions)
    size = len(texts) // count
    differ = [row != rows[place // size] for place, row in enumerate(rows[count:])]
    return np.array(differ, bool).reshape(count, size)
