"""Training on features of frozen towers: every image, caption, altered caption and mixed image is encoded once.

What training would draw anew at each step is drawn from a pool instead: `cached_altered` altered captions a caption,
`cached_mixed` mixed images an image, `cached_views` cropped or mirrored views of it. The pools are made from a fixed
seed, so that runs of other seeds share them; a run's seed decides what is drawn from them. Features are kept by content
in the embedding cache.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from ml_collections import ConfigDict
from PIL import Image

from rococo_jax.data.augmentation import Augmentation, squashing
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import cut, embed_texts, features_of_parts
from rococo_jax.errors import InputError
from rococo_jax.perturb.images.mixing import Mixing, mix_batch
from rococo_jax.perturb.text.replacement import CaptionAlterer
from rococo_jax.progress import progress

POOL_SEED = 0
_IMAGES_PER_PART = 256

Pixels = UInt8[np.ndarray, "h w 3"]
# Pixels of all images, uint8 (images h w 3), and the SHA-256 of each.
View = tuple[UInt8[np.ndarray, "images h w 3"], list[str]]


@dataclasses.dataclass(frozen=True)
class Features:
    """Features before the heads. Captions of image i are rows `first[i]` to `first[i + 1]`.

    Attributes:
        images: (images f).
        texts: (captions g).
        first: (images + 1).
        altered: (captions pool g), or None; `altered_valid` says which were altered at all.
        mixed: (images pool f), or None.
        squashed: (images f), the images squashed whole, or None.
        views: (images pool f), the images cropped and mirrored at random, or None.
        left_out: how many images could not be decoded.
        identity: what decides all of them.
    """

    images: Float[np.ndarray, "images f"]
    texts: Float[np.ndarray, "captions g"]
    first: Int[np.ndarray, "images_and_one"]
    altered: Float[np.ndarray, "captions texts_pool g"] | None
    altered_valid: Bool[np.ndarray, "captions texts_pool"] | None
    mixed: Float[np.ndarray, "images images_pool f"] | None
    squashed: Float[np.ndarray, "images f"] | None
    views: Float[np.ndarray, "images views_pool f"] | None
    left_out: int
    identity: dict[str, Any]


def make_features(
    encoder: Encoder,
    source: PairSource,
    config: ConfigDict,
    cache: EmbeddingCache,
    augmentation: Augmentation,
    alterers: Sequence[CaptionAlterer] = (),
    influence: dict[str, np.ndarray] | None = None,
) -> Features:
    """All features that the config's losses need, and the augmentation.

    Raises:
        InputError: an image cannot be decoded, and that was to stop the run, or none can.
    """
    samples = [source[index] for index in range(len(source))]
    broken = [] if config.data.on_broken_image == "skip" else None
    pixels = {"cropped": _pixels(samples, lambda image, index: encoder.preprocessing.resize(image), broken)}
    left_out = set(broken or ())
    samples = [sample for index, sample in enumerate(samples) if index not in left_out]
    captions = [caption for sample in samples for caption in sample.captions]
    first = np.cumsum([0, *(len(sample.captions) for sample in samples)])
    altered = altered_valid = mixed = squashed = augmented = None
    texts = embed_texts(encoder, captions, cache, features=True)
    if alterers:
        pool = [
            alter_pool(caption, sample.captions, alterers, influence, config.data.cached_altered)
            for sample in samples
            for caption in sample.captions
        ]
        altered_valid = np.array([[text is not None for text in each] for each in pool], bool)
        # Where there is nothing to alter the caption itself stands, and does not count.
        flat = [text or caption for each, caption in zip(pool, captions, strict=True) for text in each]
        altered = embed_texts(encoder, flat, cache, features=True).reshape(*altered_valid.shape, -1)
    if augmentation.squash or augmentation.also_squashed:
        whole = squashing(encoder.preprocessing)
        pixels["squashed"] = _pixels(samples, lambda image, index: whole.resize(image))
    images = _image_features(encoder, *pixels["cropped"], cache, "images (as they are)")
    if augmentation.squash:
        squashed = _image_features(encoder, *pixels["squashed"], cache, "images (squashed)")
    if config.losses.vc.weight:
        mixed = _mixed_features(encoder, pixels, config, cache)
    if augmentation.crop_scale or augmentation.flip:
        del pixels
        augmented = _augmented_features(encoder, samples, augmentation, config.data.cached_views, cache)
    identity = {"data": source.hash(), "vision": encoder.describe_tower("vision")["weights"]}
    return Features(images, texts, first, altered, altered_valid, mixed, squashed, augmented, len(left_out), identity)


def alter_pool(
    caption: str,
    originals: Sequence[str],
    alterers: Sequence[CaptionAlterer],
    influence: dict[str, np.ndarray] | None,
    size: int,
) -> list[str | None]:
    """`size` altered captions, the alterers in turn; None where there is nothing to alter."""
    of_words = None if influence is None else influence[caption]
    pool: list[str | None] = []
    for place in range(size):
        alterer, draw = alterers[place % len(alterers)], place // len(alterers)
        made = alterer.alter(caption, originals, of_words, count=1, draw=draw)
        pool.append(made[0].caption if made else None)
    return pool


def _pixels(
    samples: Sequence[PairSample], made: Callable[[Image.Image, int], Pixels], broken: list[int] | None = None
) -> View:
    """Pixels of all samples, those apart that cannot be decoded where a list is given for their numbers."""
    rows, hashes = [], []
    with progress("decoding", len(samples), "images") as advance:
        for index, sample in enumerate(samples):
            advance(1)
            try:
                rows.append(made(sample.open(), index))
            except InputError as error:
                if broken is None:
                    raise InputError(sample.source, error.field, error.found, error.wanted) from None
                broken.append(index)
            else:
                hashes.append(hashlib.sha256(rows[-1].tobytes()).hexdigest())
    if not rows:
        raise InputError(
            "training data", "images", f"{len(samples)} images and none that can be decoded", "image files"
        )
    return np.stack(rows), hashes


def _image_features(
    encoder: Encoder, pixels: np.ndarray, contents: Sequence[str], cache: EmbeddingCache, kind: str
) -> np.ndarray:
    parts = [pixels[start : start + _IMAGES_PER_PART] for start in range(0, len(pixels), _IMAGES_PER_PART)]
    of_parts = cut([content.encode() for content in contents], _IMAGES_PER_PART)
    return features_of_parts(encoder, kind, parts, of_parts, encoder.image_features, cache)


def _augmented_features(
    encoder: Encoder, samples: Sequence, augmentation: Augmentation, size: int, cache: EmbeddingCache
) -> Float[np.ndarray, "images size f"]:
    # How often an image is squashed is drawn step by step.
    augmentation = dataclasses.replace(augmentation, squash=0.0, also_squashed=False)
    pools = []
    for place in range(size):

        def made(image: Image.Image, index: int, place: int = place) -> Pixels:
            return augmentation.apply(image, encoder.preprocessing, np.random.default_rng([POOL_SEED, place, index]))

        pools.append(_image_features(encoder, *_pixels(samples, made), cache, f"images (view {place + 1} of {size})"))
    return np.stack(pools, axis=1)


def _mixed_features(encoder: Encoder, views: dict[str, View], config: ConfigDict, cache: EmbeddingCache) -> np.ndarray:
    """Pool place q mixes every image with another one, in an order of its own; the methods take turns, run by run, and
    the views after each round of methods."""
    methods, chosen_views = config.losses.vc.methods.split(","), config.losses.vc.views.split(",")
    count = len(views["cropped"][0])
    part = min(_IMAGES_PER_PART, count)
    pools = []
    for place in range(config.data.cached_mixed):
        order = np.random.default_rng([POOL_SEED, place]).permutation(count)
        out = None
        for start in range(0, len(order), part):
            turn = place + start // part
            method = methods[turn % len(methods)]
            pixels, hashes = views[chosen_views[turn // len(methods) % len(chosen_views)]]
            mixing = Mixing(method=method, ratio=config.losses.vc.ratio)
            # The last run takes images of the first along, so that nobody is alone.
            chosen = np.take(order, np.arange(start, start + part), mode="wrap")
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(POOL_SEED), place), start)
            mixed = mix_batch(jnp.asarray(pixels[chosen]), key, mixing)
            contents = [f"{method} {config.losses.vc.ratio} {place} {start} {hashes[i]}" for i in chosen]
            contents[0] += hashlib.sha256("".join(hashes[i] for i in chosen).encode()).hexdigest()
            kind = f"images ({method}, {place + 1} of {config.data.cached_mixed})"
            features = _image_features(encoder, np.asarray(mixed.images), contents, cache, kind)
            out = np.empty((count, features.shape[1]), np.float32) if out is None else out
            whole = min(part, len(order) - start)
            out[chosen[:whole]] = features[:whole]
        pools.append(out)
    return np.stack(pools, axis=1)
