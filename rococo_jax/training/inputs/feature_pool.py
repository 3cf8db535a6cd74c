"""Training on features of frozen towers: every image, caption, altered caption and mixed image is encoded once.

Where the image tower alone is frozen (LiT, arXiv 2111.07991), `locked_features` are those of the images, one each, of
its whole centre crop; texts are encoded at every step.

What training would draw anew at each step is drawn from a pool instead: `data.feature_pool.captions` altered captions a
caption, `.mixed` mixed images an image. Pools are made from a fixed seed, so that runs of other seeds share them; a
run's seed decides what is drawn from them. Features are kept by content in the embedding cache.

Noise may be added to the features, in standard deviations of each: heads of a million parameters overfit a few thousand
images within a hundred steps, and noise regularises them as a ridge does (Bishop, "Training with noise is equivalent to
Tikhonov regularization", Neural Computation 7, 1995). An altered caption has the noise of its caption and a mixed image
that of its image, so that their difference is left as it is.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from rococo_jax.data.augmentation import Augmentation, without_crop
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.images import Task, chunks, run_tasks
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.sample_order import SampleOrder
from rococo_jax.data.training_input import refuse_other_order
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_texts
from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.storage import hash_bytes, hash_json
from rococo_jax.training.batch import Batch, Images, Texts, preprocessing_of
from rococo_jax.training.inputs import active_inputs, items_per_pair
from rococo_jax.training.inputs.loss_input import InputContext, Pixels, Pool, PoolMaterial, image_features

# What each purpose adds to the seed of a step's draws, so that one more of them changes no other.
_CAPTIONS_AND_POOLS, _RESIZED, _NOISE = (), (1,), (3,)
# Images whose pixels are in memory at once where the image tower alone is frozen.
_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class Features:
    """Features before the heads. Captions of image i are rows `first[i]` to `first[i + 1]`.

    Attributes:
        pools: of each field that losses read, by its name; of captions or of images.
        resized: the images resized whole, or None.
        left_out: how many images could not be decoded.
        identity: what decides all of them.
    """

    images: Float[np.ndarray, "images f"]
    texts: Float[np.ndarray, "captions g"]
    first: Int[np.ndarray, "images_and_one"]
    pools: dict[str, Pool]
    resized: Float[np.ndarray, "images f"] | None
    left_out: int
    identity: dict[str, Any]


def make_features(context: InputContext, augmentation: Augmentation, cache: EmbeddingCache) -> Features:
    """All features that the config's losses need, and those of images resized whole where the augmentation has them.

    Raises InputError where an image is broken and `data.on_decode_error` is "raise", or all are.
    """
    encoder, source, data = context.encoder, context.source, context.config.data
    preprocessing = preprocessing_of(context.config, encoder.preprocessing)
    crops, chosen = decode(source, range(len(source)), resized_by(preprocessing), skip=data.on_decode_error == "skip")
    samples, views = [source[index] for index in chosen], {"crop": hashed(crops)}
    del crops
    captions = [caption for sample in samples for caption in sample.captions]
    first = np.cumsum([0, *(len(sample.captions) for sample in samples)])
    texts = embed_texts(encoder, captions, cache, features=True)
    if augmentation.resize_prob or augmentation.also_resized:
        whole = without_crop(preprocessing)
        rows = decode(samples, range(len(samples)), resized_by(whole))[0]
        views["resize"] = hashed(rows)
        del rows
    images = image_features(encoder, *views["crop"], cache, "images (as they are)")
    resized = image_features(encoder, *views["resize"], cache, "images (resized)") if augmentation.resize_prob else None
    material = PoolMaterial(samples, captions, views, cache)
    pools = {}
    for each in active_inputs(context.config.losses):
        pools |= each.make_pools(context, material)
    del views, material
    identity = {"data": source.hash(), "vision": encoder.describe_tower("vision")["weights"]}
    return Features(images, texts, first, pools, resized, len(source) - len(samples), identity)


def decode(
    source: Sequence[PairSample] | PairSource,
    numbers: Sequence[int],
    made: Callable[[Image.Image, int], UInt8[np.ndarray, "h w 3"]],
    skip: bool = False,
) -> tuple[list[UInt8[np.ndarray, "h w 3"]], list[int]]:
    """What is made of the images that can be decoded, and their numbers.

    Raises InputError where one cannot be, unless `skip`.
    """

    def pixels_of(number: int) -> list[Any]:
        sample = source[number]
        try:
            return [made(sample.open(), number)]
        except InputError as error:
            if not skip:
                raise InputError(sample.source, error.field, error.found, error.wanted) from None
            return [None]

    chosen, rows = [], []
    with progress("decoding", len(numbers), "images") as advance:
        tasks = (Task(1, lambda number=number: pixels_of(number)) for number in numbers)
        for number, pixels in zip(numbers, run_tasks(tasks), strict=True):
            advance(1)
            if pixels is not None:
                chosen.append(number)
                rows.append(pixels)
    return rows, chosen


def resized_by(preprocessing: Preprocessing) -> Callable[[Image.Image, int], UInt8[np.ndarray, "h w 3"]]:
    """What `decode` makes of an image where its number decides nothing."""
    return lambda image, number: preprocessing.resize(image)


def hashed(pixels: Sequence[UInt8[np.ndarray, "h w 3"]]) -> Pixels:
    """Pixels of all images and the SHA-256 of each. Raises InputError where there are none."""
    if not pixels:
        raise InputError("training data", "images", "none that can be decoded", "image files")
    return np.stack(pixels), [hashlib.sha256(each.tobytes()).hexdigest() for each in pixels]


class ChosenPairs(PairSource):
    """Some images of a source."""

    def __init__(self, source: PairSource, chosen: Sequence[int]):
        self.source, self.chosen = source, np.asarray(chosen, np.int64)

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> PairSample:
        return self.source[int(self.chosen[index])]

    def captioned(self, index: int) -> CaptionedImage:
        """Name and captions of an image, from the source."""
        return self.source.captioned(int(self.chosen[index]))

    def hash(self) -> str:
        """Hash of the source's hash and the chosen numbers."""
        return hash_json([self.source.hash(), hash_bytes(self.chosen.tobytes())])


def locked_features(context: InputContext, cache: EmbeddingCache) -> tuple[Float[np.ndarray, "images f"], PairSource]:
    """The features of all images that can be decoded, and the source of these images, in the same order.

    Images are decoded and encoded so many at a time; processes share the encoding.

    Raises InputError as `decode`, and where all images are broken.
    """
    encoder, source, skip = context.encoder, context.source, context.config.data.on_decode_error == "skip"
    features, chosen = [], []
    for numbers in chunks(range(len(source)), _AT_ONCE):
        pixels, decoded = decode(source, numbers, resized_by(encoder.preprocessing), skip)
        chosen += decoded
        if pixels or (not features and numbers[-1] + 1 == len(source)):
            features.append(image_features(encoder, *hashed(pixels), cache, f"images (from {numbers[0]:,} on)"))
    kept = source if len(chosen) == len(source) else ChosenPairs(source, chosen)
    return np.concatenate(features), kept


class FeatureInput:
    """Batches of features: a pure function of (features, config, step), with one caption an image. `rows` are this
    process's rows of a batch, all by default.
    """

    def __init__(self, features: Features, context: InputContext, rows: Int[np.ndarray, " own"] | None = None):
        config = context.config
        self.features, self.config = features, config
        self.makers = [(maker, field) for maker in active_inputs(config.losses) for field in maker.fields]
        self.items = items_per_pair(config)
        noise = config.data.feature_noise
        self.spread = {"vision": noise * features.images.std(0), "text": noise * features.texts.std(0)} if noise else {}
        self.order = SampleOrder(len(features.images), config.batch_size, config.seed)
        self.rows = np.arange(config.batch_size) if rows is None else rows
        # Of all processes, which have the same features: process 0 counts them.
        self.next_step, self.counts = 0, {"skipped_images": features.left_out if jax.process_index() == 0 else 0}
        self.identity = {**self.order.identity, **features.identity}

    def __next__(self) -> Batch:
        """The batch of `next_step`: this process's rows of it."""
        features, images = self.features, self.order.batch(self.next_step)
        random = self._random(_CAPTIONS_AND_POOLS)
        first, end = features.first[images], features.first[images + 1]
        captions = first + (random.random(len(images)) * (end - first)).astype(np.int64)
        items = {"vision": images, "text": captions}
        own = {"vision": self._images(images), "text": features.texts[captions]}
        noise = self._noise(own)
        batch = Batch(
            Images(features=own["vision"] + noise["vision"]),
            Texts(features=own["text"] + noise["text"]),
            images.astype(np.int32), {}, {},
        )  # fmt: skip
        for maker, field in self.makers:
            pool, rows = features.pools[field.name], items[field.tower][:, None]
            places = maker.draw(field, (len(images), pool.valid.shape[1]), self.config, random)
            # The noise of the pair itself, so that the difference to it is left as it is.
            drawn, valid = pool.features[rows, places] + noise[field.tower][:, None], pool.valid[rows, places]
            if not self.items[field]:
                drawn, valid = drawn[:, 0], valid[:, 0]
            batch = batch.with_field(field, (Images if field.tower == "vision" else Texts)(features=drawn), valid)
        self.next_step += 1
        return batch.rows(self.rows)

    def _random(self, purpose: tuple[int, ...]) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, self.next_step, *purpose])

    def _images(self, images: Int[np.ndarray, " b"]) -> Float[np.ndarray, "b f"]:
        """Features of images as they are or, `data.resize_prob` of the time, resized whole."""
        features = self.features
        if features.resized is None:
            return features.images[images]
        is_resized = self._random(_RESIZED).random(len(images)) < self.config.data.resize_prob
        return np.where(is_resized[:, None], features.resized[images], features.images[images])

    def _noise(self, own: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Noise of each pair by tower; zeros where `data.feature_noise` is 0."""
        if not self.spread:
            return {tower: np.zeros((1, 1), np.float32) for tower in own}
        random = self._random(_NOISE)
        return {
            tower: spread * random.standard_normal(own[tower].shape, np.float32)
            for tower, spread in self.spread.items()
        }

    def get_state(self) -> dict[str, Any]:
        """Where the run stands, as JSON values."""
        return {"next_step": self.next_step, **self.identity}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on where `get_state` was called. Raises InputError where the order of the data is another."""
        refuse_other_order(self.identity, state)
        self.next_step = int(state["next_step"])

    def close(self) -> None:
        """Do nothing: no file is open."""
