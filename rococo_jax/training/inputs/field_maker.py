"""`FieldMaker`, the interface of what makes fields of the batch for losses. Each maker is a file of this package.

A maker can act in three places: add texts to a sample on the host, compute a field from the batch on the device, or
compute a pool of features of frozen towers beforehand.
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
from rococo_jax.training.config_needs import cached_sides

# Pools are made with this seed, so that runs with different seeds share them.
POOL_SEED = 0
IMAGES_PER_CHUNK = 256


@dataclasses.dataclass(frozen=True)
class FieldContext:
    """Sources of the fields of a run.

    Attributes:
        config: config of the run.
        encoder: the encoder with the initial parameters.
        source: the image-caption pairs.
        folder: folder of files that later runs on the same data read again.
    """

    config: ConfigDict
    encoder: Encoder
    source: PairSource
    folder: Path


# Pixels of all images, uint8 (images h w 3), and the SHA-256 of each.
Pixels = tuple[UInt8[np.ndarray, "images h w 3"], list[str]]


@dataclasses.dataclass(frozen=True)
class PoolSources:
    """Sources of pools, besides `FieldContext`.

    Attributes:
        samples: the images that can be decoded, with their captions.
        captions: captions of all samples, in order.
        views: pixels of all samples, cropped ("crop") and resized without cropping ("resize").
        cache: cache of features by content.
    """

    samples: Sequence[PairSample]
    captions: Sequence[str]
    views: Mapping[str, Pixels]
    cache: EmbeddingCache


@dataclasses.dataclass(frozen=True)
class Pool:
    """Features of frozen towers to draw from, several per caption or image; those that are not valid do not count."""

    features: Float[np.ndarray, "items pool f"]
    valid: Bool[np.ndarray, "items pool"]


class FieldMaker:
    """Makes fields that losses read. A maker overrides the methods it needs.

    Attributes:
        fields: the fields that it makes.
        sample_texts: keys under which `transform` adds texts to a sample, with the field that each becomes.
        pooled: whether it can make a pool of features.
    """

    fields: ClassVar[tuple[Field, ...]] = ()
    sample_texts: ClassVar[tuple[tuple[str, Field], ...]] = ()
    pooled: ClassVar[bool] = False

    def shapes(self, config: ConfigDict) -> dict[str, tuple[int, ...]]:
        """Return the number of items per pair of each field, by name: () for one, (k,) for k."""
        raise NotImplementedError

    def check(self, source: object, config: ConfigDict) -> None:
        """Raise InputError if config values do not go together."""

    def check_devices(self, config: ConfigDict, devices: int) -> None:
        """Raise InputError if the fields cannot be made on this number of devices."""

    def resized_view(self, config: ConfigDict) -> bool:
        """Return whether the maker also needs every image resized without cropping."""
        return False

    def needs_encoder(self, config: ConfigDict, folder: Path) -> bool:
        """Return whether `transform` runs the encoder. `folder` is that of `FieldContext`."""
        return False

    def file_hashes(self, context: FieldContext) -> dict[str, str]:
        """Return hashes of the files that are read, by name; a run resumes only with the same contents."""
        return {}

    def transform(self, context: FieldContext) -> Any | None:
        """Return a Grain transform that adds texts to a sample, under the keys in `sample_texts`."""
        return None

    def on_device(self, batch: Batch, config: ConfigDict, step: Int[Array, ""], mesh: Mesh | None) -> Batch:
        """Return the batch with the fields that are made on the device, a pure function of batch, seed and step."""
        return batch

    def make_pools(self, context: FieldContext, sources: PoolSources) -> dict[str, Pool]:
        """Compute the features that training on cached features draws from, by name of the field."""
        raise NotImplementedError

    def draw(
        self, field: Field, shape: tuple[int, int], config: ConfigDict, random: np.random.Generator
    ) -> Int[np.ndarray, "b k"]:
        """Draw places of a field's pool for each row of a batch, without replacement.

        Args:
            shape: number of rows, and number of places in the pool.
        """
        count = math.prod(self.shapes(config)[field.name])
        return np.argsort(random.random(shape), axis=1)[:, :count]


def check_count(source: object, config: ConfigDict, loss: str) -> None:
    """Raise InputError if a loss reads more texts per caption than its pool of features holds."""
    count, pool = config.losses[loss].count, config.data.feature_pool.captions
    if "text" in cached_sides(config) and count > pool:
        expected = "at most config.data.feature_pool.captions"
        raise InputError(source, f"config.losses.{loss}.count", f"{count} of a pool of {pool}", expected)


def differ_in_tokens(encoder: Encoder, captions: Sequence[str], texts: Sequence[str]) -> Bool[np.ndarray, "captions k"]:
    """Return for each text whether its tokens, cut at the context length, differ from those of its caption.

    Args:
        texts: k texts for the first caption, then k for the second, and so on.
    """
    token_rows = encoder.token_ids([*captions, *texts])
    caption_rows, text_rows = token_rows[: len(captions)], token_rows[len(captions) :]
    texts_per_caption = len(texts) // len(captions)
    differ = [row != caption_rows[number // texts_per_caption] for number, row in enumerate(text_rows)]
    return np.array(differ, bool).reshape(len(captions), texts_per_caption)


def image_features(
    encoder: Encoder, pixels: np.ndarray, contents: Sequence[str], cache: EmbeddingCache, kind: str
) -> Float[np.ndarray, "images f"]:
    """Return features of the image tower.

    Args:
        contents: keys of the cache, one per image; equal keys mean equal pixels.
        kind: name of the images on the progress bar.
    """
    pixel_chunks = [pixels[start : start + IMAGES_PER_CHUNK] for start in range(0, len(pixels), IMAGES_PER_CHUNK)]
    key_chunks = chunks([content.encode() for content in contents], IMAGES_PER_CHUNK)
    return EmbeddingPass(encoder, kind, pixel_chunks, key_chunks, encoder.image_batches, cache).features()
