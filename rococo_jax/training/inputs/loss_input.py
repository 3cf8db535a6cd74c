"""What makes a field of the batch: `LossInput`, one or several fields each, in a file of this package.

An input may act in three places: add texts to a sample on the host, make something of the batch on the device, or make
a pool of features of frozen towers beforehand.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, UInt8
from ml_collections import ConfigDict

from rococo_jax.data.images import chunks
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import EmbeddingPass
from rococo_jax.errors import InputError
from rococo_jax.losses.terms import Field
from rococo_jax.training.batch import Batch
from rococo_jax.training.freezing import cached_sides

# Pools are made from this seed, so that runs of all seeds share them.
POOL_SEED = 0
IMAGES_PER_PART = 256


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
class PoolSources:
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

    def file_hashes(self, context: InputContext) -> dict[str, str]:
        """Hashes of the contents of the files that are read, by name; a run resumes with the same ones alone."""
        return {}

    def transform(self, context: InputContext) -> Any | None:
        """A Grain transform that adds texts to a sample, under the keys of `sample_texts`."""
        return None

    def on_device(self, batch: Batch, config: ConfigDict, step: Int[Array, ""], mesh: Mesh | None) -> Batch:
        """The batch with fields that the device makes, a pure function of the batch, the config's seed and the step."""
        return batch

    def make_pools(self, context: InputContext, material: PoolSources) -> dict[str, Pool]:
        """Features that training on cached features draws from, by the name of the field."""
        raise NotImplementedError

    def draw(
        self, field: Field, shape: tuple[int, int], config: ConfigDict, random: np.random.Generator
    ) -> Int[np.ndarray, "b k"]:
        """Which places of a field's pool each row of a batch gets, all different; `shape` is (rows, places)."""
        count = math.prod(self.items(config)[field.name])
        return np.argsort(random.random(shape), axis=1)[:, :count]


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


def image_features(
    encoder: Encoder, pixels: np.ndarray, contents: Sequence[str], cache: EmbeddingCache, kind: str
) -> Float[np.ndarray, "images f"]:
    """Features of the image tower, kept by `contents`, which decide the pixels. `kind` is for the progress bar."""
    parts = [pixels[start : start + IMAGES_PER_PART] for start in range(0, len(pixels), IMAGES_PER_PART)]
    of_parts = chunks([content.encode() for content in contents], IMAGES_PER_PART)
    return EmbeddingPass(encoder, kind, parts, of_parts, encoder.image_batches, cache).features()
