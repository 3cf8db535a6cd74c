"""Training on features of frozen towers: every image, caption, altered caption and mixed image is encoded once.

If only the image tower is frozen (LiT, arXiv 2111.07991), `locked_features` computes one feature per image, of its
center crop, and texts are encoded at every step.

Otherwise what training would draw anew at each step is drawn from a pool: `data.feature_pool.captions` altered captions
per caption, and `.mixed` mixed images per image. Pools are made from a fixed seed, so that runs with other seeds share
them; the seed of a run decides what is drawn from them. The embedding cache stores features by content.

Noise may be added to the features, in standard deviations of each feature: heads of a million parameters overfit a few
thousand images within a hundred steps, and noise regularises them as a ridge penalty does (Bishop, "Training with noise
is equivalent to Tikhonov regularization", Neural Computation 7, 1995). An altered caption has the noise of its caption,
and a mixed image that of its image, so the differences between them stay as they are.
"""

import dataclasses
import enum
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8
from ml_collections import ConfigDict
from PIL import Image

from rococo_jax.data.augmentation import Augmentation, without_crop
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.images import Task, chunks, run_tasks
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.sample_order import SampleOrder
from rococo_jax.data.training_samples import Chunk
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_texts
from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.storage import hash_bytes, hash_json
from rococo_jax.training.batch import training_preprocessing
from rococo_jax.training.freezing import SIDES
from rococo_jax.training.inputs import active_makers, shapes_per_pair
from rococo_jax.training.inputs.field_maker import FieldContext, Pixels, Pool, PoolSources, image_features


class _Stream(enum.IntEnum):
    """Purposes of random numbers, each with a stream of its own: (seed, step, purpose)."""

    RESIZED = 1
    NOISE = 3  # 2 was the purpose of something withdrawn; the numbers of the others stay the same


# Rows of a batch that draw their noise from one stream, so that a process draws little beyond its own rows.
_NOISE_ROWS = 64
# Images whose pixels are in memory at a time if only the image tower is frozen.
_IMAGES_AT_A_TIME = 4096


@dataclasses.dataclass(frozen=True)
class Features:
    """Features before the heads. The captions of image i are rows `first[i]` to `first[i + 1]` of `texts`.

    Attributes:
        pools: for each field that losses read, by its name, what its items are drawn from.
        resized: features of the images resized without cropping, or None.
        left_out: number of images that could not be decoded.
        identity: what decides all features, as JSON values.
    """

    images: Float[np.ndarray, "images f"]
    texts: Float[np.ndarray, "captions g"]
    first: Int[np.ndarray, " images_and_one"]
    pools: dict[str, Pool]
    resized: Float[np.ndarray, "images f"] | None
    left_out: int
    identity: dict[str, Any]


def make_features(context: FieldContext, augmentation: Augmentation, cache: EmbeddingCache) -> Features:
    """Compute all features that the losses of the config need.

    Raises InputError: all images are broken, or one is and `data.on_decode_error` is "raise".
    """
    encoder, source, data = context.encoder, context.source, context.config.data
    preprocessing = training_preprocessing(context.config, encoder.preprocessing)
    skip = data.on_decode_error == "skip"
    crops, readable_numbers = decode(source, range(len(source)), resize_with(preprocessing), skip)
    samples = [source[index] for index in readable_numbers]
    views = {"crop": with_hashes(crops)}
    captions = [caption for sample in samples for caption in sample.captions]
    first = np.cumsum([0, *(len(sample.captions) for sample in samples)])
    texts = embed_texts(encoder, captions, cache, features=True)
    if augmentation.resize_prob or augmentation.also_resized:
        without_cropping = resize_with(without_crop(preprocessing))
        views["resize"] = with_hashes(decode(samples, range(len(samples)), without_cropping)[0])
    images = image_features(encoder, *views["crop"], cache, "images (as they are)")
    resized = image_features(encoder, *views["resize"], cache, "images (resized)") if augmentation.resize_prob else None
    sources = PoolSources(samples, captions, views, cache)
    pools = {}
    for maker in active_makers(context.config.losses):
        pools |= maker.make_pools(context, sources)
    identity = {"data": source.hash(), "vision": encoder.describe_tower("vision")["weights"]}
    return Features(images, texts, first, pools, resized, len(source) - len(samples), identity)


def decode(
    source: Sequence[PairSample] | PairSource,
    numbers: Sequence[int],
    transform: Callable[[Image.Image], UInt8[np.ndarray, "h w 3"]],
    skip: bool = False,
) -> tuple[UInt8[np.ndarray, "images h w 3"], list[int]]:
    """Decode and transform images; return the pixels of those that can be decoded, and their numbers.

    Raises InputError: an image cannot be decoded, unless `skip`.
    """

    def pixels_of(number: int) -> list[Any]:
        sample = source[number]
        try:
            return [transform(sample.open())]
        except InputError as error:
            if not skip:
                raise InputError(sample.source, error.field, error.found, error.wanted) from None
            return [None]

    # The array for all images is filled as they arrive: a list of them and then their stack would take twice as much.
    pixels = np.empty((0, 0, 0, 3), np.uint8)
    readable_numbers: list[int] = []
    with progress("decoding", len(numbers), "images") as advance:
        tasks = (Task(1, lambda number=number: pixels_of(number)) for number in numbers)
        for number, image in zip(numbers, run_tasks(tasks), strict=True):
            advance(1)
            if image is None:
                continue
            if not readable_numbers:
                pixels = np.empty((len(numbers), *image.shape), np.uint8)
            pixels[len(readable_numbers)] = image
            readable_numbers.append(number)
    return pixels[: len(readable_numbers)], readable_numbers


def resize_with(preprocessing: Preprocessing) -> Callable[[Image.Image], UInt8[np.ndarray, "h w 3"]]:
    """Return the transform of `decode` that resizes images as a preprocessing does."""
    return lambda image: preprocessing.resize(image)


def with_hashes(pixels: UInt8[np.ndarray, "images h w 3"]) -> Pixels:
    """Return pixels with the SHA-256 of each image. Raises InputError if there are no images."""
    if not len(pixels):
        raise InputError("training data", "images", "none that can be decoded", "image files")
    return pixels, [hashlib.sha256(image.tobytes()).hexdigest() for image in pixels]


class ChosenPairs(PairSource):
    """A selection of the images of a source."""

    def __init__(self, source: PairSource, numbers: Sequence[int]):
        self.source, self.numbers = source, np.asarray(numbers, np.int64)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> PairSample:
        return self.source[int(self.numbers[index])]

    def captioned(self, index: int) -> CaptionedImage:
        """Return name and captions of an image, as the source has them."""
        return self.source.captioned(int(self.numbers[index]))

    def hash(self) -> str:
        """Return the hash of the source's hash and the chosen numbers."""
        return hash_json([self.source.hash(), hash_bytes(self.numbers.tobytes())])


def locked_features(context: FieldContext, cache: EmbeddingCache) -> tuple[Float[np.ndarray, "images f"], PairSource]:
    """Compute the features of all images that can be decoded; return them and the source of these images, in order.

    Images are decoded and encoded in chunks; processes share the encoding.

    Raises InputError as `decode`, and if all images are broken.
    """
    encoder, source, skip = context.encoder, context.source, context.config.data.on_decode_error == "skip"
    features, readable_numbers = [], []
    for numbers in chunks(range(len(source)), _IMAGES_AT_A_TIME):
        pixels, decoded = decode(source, numbers, resize_with(encoder.preprocessing), skip)
        readable_numbers += decoded
        is_last_chance = not features and numbers[-1] + 1 == len(source)
        if len(pixels) or is_last_chance:
            description = f"images (from {numbers[0]:,} on)"
            features.append(image_features(encoder, *with_hashes(pixels), cache, description))
    readable = source if len(readable_numbers) == len(source) else ChosenPairs(source, readable_numbers)
    return np.concatenate(features), readable


class ReadFeatures:
    """Make this process's `rows` of each batch of features, with one caption per image.

    A batch is a pure function of (features, config, step). What is drawn does not depend on which rows these are.

    Args:
        rows: rows of each global batch.
    """

    per_batch = 1

    def __init__(self, features: Features, config: ConfigDict, rows: Int[np.ndarray, " rows"]):
        self.features, self.config, self.rows = features, config, rows
        self.fields = [(maker, field) for maker in active_makers(config.losses) for field in maker.fields]
        self.shapes = shapes_per_pair(config)
        noise = config.data.feature_noise
        self.noise_scale = {"vision": noise * features.images.std(0), "text": noise * features.texts.std(0)}
        self.order = SampleOrder(len(features.images), config.batch_size, config.seed)

    @property
    def identity(self) -> dict[str, Any]:
        """Settings and hashes that decide the order of the data, as JSON values."""
        return {**self.order.identity, **self.features.identity}

    def __call__(self, step: int) -> Chunk:
        """Return the arrays of a batch."""
        features, random = self.features, np.random.default_rng([self.config.seed, step])
        all_images = self.order.batch(step)
        first, end = features.first[all_images], features.first[all_images + 1]
        all_captions = first + (random.random(len(all_images)) * (end - first)).astype(np.int64)

        images, captions = all_images[self.rows], all_captions[self.rows]
        noise = {tower: self._noise(tower, step) for tower in SIDES}
        arrays = {
            "image_id": images.astype(np.int32),
            "image_features": self._image_features(images, step) + noise["vision"],
            "text_features": features.texts[captions] + noise["text"],
        }
        rows_of_pool = {"vision": images, "text": captions}
        for maker, field in self.fields:
            pool = features.pools[field.name]
            places = maker.draw(field, (len(all_images), pool.valid.shape[1]), self.config, random)[self.rows]
            row = rows_of_pool[field.tower][:, None]
            # The noise of the pair itself, so that the difference to it stays as it is.
            noisy_features, valid = pool.features[row, places] + noise[field.tower][:, None], pool.valid[row, places]
            has_one_item = not self.shapes[field]
            arrays[f"{field.name}_features"] = noisy_features[:, 0] if has_one_item else noisy_features
            arrays[f"{field.name}_valid"] = valid[:, 0] if has_one_item else valid
        return Chunk({}, arrays)

    def _image_features(self, images: Int[np.ndarray, " rows"], step: int) -> Float[np.ndarray, "rows f"]:
        """Return features of images as they are or, with probability `data.resize_prob`, resized without cropping."""
        features = self.features
        if features.resized is None:
            return features.images[images]
        random = np.random.default_rng([self.config.seed, step, _Stream.RESIZED])
        is_resized = random.random(self.config.batch_size)[self.rows] < self.config.data.resize_prob
        return np.where(is_resized[:, None], features.resized[images], features.images[images])

    def _noise(self, tower: str, step: int) -> Float[np.ndarray, "rows f"]:
        """Return the noise of this process's rows, or a single zero. Each block of rows has a stream of its own."""
        if not self.config.data.feature_noise:
            return np.zeros((1, 1), np.float32)
        scale = self.noise_scale[tower]
        blocks, position = np.divmod(self.rows, _NOISE_ROWS)
        noise = np.empty((len(self.rows), len(scale)), np.float32)
        for block in np.unique(blocks):
            key = [self.config.seed, step, _Stream.NOISE, SIDES.index(tower), int(block)]
            values = np.random.default_rng(key).standard_normal((_NOISE_ROWS, len(scale)), np.float32)
            is_in_block = blocks == block
            noise[is_in_block] = values[position[is_in_block]]
        return scale * noise
