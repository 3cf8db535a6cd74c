"""Mixed images as negatives of captions, for the VC loss: made on the device, or as a pool of features.

Every image is mixed with a partner from its group of `losses.vc.partner_group` consecutive rows of the batch. If a
device holds complete groups, nothing is sent; if it holds fewer rows, the devices of a group gather their rows. The
result does not depend on the number of devices.

With both methods, or with both views (images as they are trained on, and resized without cropping), groups take turns.
What is drawn depends only on the seed and the step.
"""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, UInt8
from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.losses.altered import MIXED
from rococo_jax.losses.terms import Field
from rococo_jax.perturb.images.mixing import Mixing, is_negative, mix_batch
from rococo_jax.training.batch import Batch, Images
from rococo_jax.training.inputs.field_maker import (
    IMAGES_PER_CHUNK,
    POOL_SEED,
    FieldContext,
    FieldMaker,
    Pool,
    PoolSources,
    image_features,
)

# Method of `perturb.images` for each value in `losses.vc.methods`.
_METHODS = {"mixup": "mix", "cutmix": "patch"}


class MixedImages(FieldMaker):
    """A mixed image per pair."""

    fields = (MIXED,)
    pooled = True

    def shapes(self, config: ConfigDict) -> dict[str, tuple[int, ...]]:
        return {MIXED.name: (1,)}

    def check_devices(self, config: ConfigDict, devices: int) -> None:
        group, batch_size = config.losses.vc.partner_group, config.batch_size
        rows = batch_size // devices

        def fits(size: int) -> bool:
            return rows % size == 0 or (size % rows == 0 and batch_size % size == 0)

        if not fits(group) and not config.data.cached_features:
            expected = f"a divisor or a multiple of the {rows} images of a device, and a divisor of the batch"
            if (
                nearest := next((size for size in range(min(group, batch_size), 1, -1) if fits(size)), None)
            ) is not None:
                expected += f", such as --config.losses.vc.partner_group={nearest}"
            raise InputError("config", "losses.vc.partner_group", group, expected)

    def resized_view(self, config: ConfigDict) -> bool:
        return "resize" in config.losses.vc.views.split(",")

    def on_device(self, batch: Batch, config: ConfigDict, step: Int[Array, ""], mesh: Mesh | None) -> Batch:
        if batch.images.pixels is None:
            return batch
        return with_mixed(batch, step_key(config.seed, step), config.losses.vc, mesh)

    def make_pools(self, context: FieldContext, sources: PoolSources) -> dict[str, Pool]:
        """Compute features of mixed images. In each place of the pool, images are mixed in a new random order.

        Images are mixed in chunks of consecutive images of that order. Methods take turns from chunk to chunk, and
        views after each round of methods.
        """
        vc, places = context.config.losses.vc, context.config.data.feature_pool.mixed
        count = len(sources.samples)
        features = [_mixed_features(context, sources, vc, place, places) for place in range(places)]
        return {MIXED.name: Pool(np.stack(features, axis=1), np.ones((count, places), bool))}

    def draw(
        self, field: Field, shape: tuple[int, int], config: ConfigDict, random: np.random.Generator
    ) -> Int[np.ndarray, "b k"]:
        return random.integers(shape[1], size=shape[0])[:, None]


def _mixed_features(
    context: FieldContext, sources: PoolSources, vc: ConfigDict, place: int, places: int
) -> Float[np.ndarray, "images f"]:
    """Mix every image with another one, and return the features of the mixed images."""
    methods = [_METHODS[name] for name in vc.methods.split(",")]
    views = [sources.views[name] for name in vc.views.split(",")]
    count = len(sources.samples)
    chunk_size = min(IMAGES_PER_CHUNK, count)
    order = np.random.default_rng([POOL_SEED, place]).permutation(count)
    place_key = jax.random.fold_in(jax.random.key(POOL_SEED), place)
    all_features = None
    for start in range(0, count, chunk_size):
        turn = place + start // chunk_size
        method = methods[turn % len(methods)]
        pixels, hashes = views[turn // len(methods) % len(views)]
        # The last chunk is filled up with images from the start of the order, so that every image has a partner.
        chunk = np.take(order, np.arange(start, start + chunk_size), mode="wrap")
        mixing = Mixing(method=method, ratio=vc.ratio)
        mixed = mix_batch(jnp.asarray(pixels[chunk]), jax.random.fold_in(place_key, start), mixing)

        # Keys of the cache: a mixed image depends on all images of its chunk, so the first key has a hash of them.
        keys = [f"{method} {vc.ratio} {place} {start} {hashes[image]}" for image in chunk]
        keys[0] += hashlib.sha256("".join(hashes[image] for image in chunk).encode()).hexdigest()
        kind = f"images ({method}, {place + 1} of {places})"
        features = image_features(context.encoder, np.asarray(mixed.images), keys, sources.cache, kind)

        if all_features is None:
            all_features = np.empty((count, features.shape[1]), np.float32)
        is_new = min(chunk_size, count - start)  # the images that filled up the chunk are left out
        all_features[chunk[:is_new]] = features[:is_new]
    return all_features


def with_mixed(batch: Batch, key: Array, vc: ConfigDict, mesh: Mesh | None) -> Batch:
    """Return the batch with the field `mixed (b 1 h w 3)`, which is not valid if an image was mixed with itself."""
    methods = [_METHODS[name] for name in vc.methods.split(",")]
    group = jnp.arange(len(batch.image_id)) // vc.partner_group
    images = _views(batch.images, vc, group // len(methods))
    # All images are mixed by each method; with two methods, groups with an odd number take the second.
    pixels, valid = _mix(images, batch.image_id, methods[0], key, vc, mesh)
    if len(methods) > 1:
        second_pixels, second_valid = _mix(images, batch.image_id, methods[1], key, vc, mesh)
        takes_second = group % 2 == 1
        pixels = jnp.where(takes_second[:, None, None, None], second_pixels, pixels)
        valid = jnp.where(takes_second, second_valid, valid)
    return batch.with_field(MIXED, Images(pixels=pixels[:, None]), valid[:, None])


def _mix(
    images: UInt8[Array, "b h w 3"], ids: Int[Array, " b"], method: str, key: Array, vc: ConfigDict, mesh: Mesh | None
) -> tuple[UInt8[Array, "b h w 3"], Bool[Array, " b"]]:
    """Mix all images by one method; return them, and whether each is a negative of its caption."""
    mixing = Mixing(method=method, ratio=vc.ratio, group=vc.partner_group)
    mixed = mix_batch(images, key, mixing, mesh=mesh)
    return mixed.images, is_negative(mixed, ids)


def _views(images: Images, vc: ConfigDict, turn: Int[Array, " b"]) -> UInt8[Array, "b h w 3"]:
    """Return the view of each image that is mixed; with two views, even turns take the first."""
    views = [{"crop": images.pixels, "resize": images.resized}[name] for name in vc.views.split(",")]
    if len(views) == 1:
        return views[0]
    return jnp.where((turn % 2 == 0)[:, None, None, None], *views)


def step_key(seed: int, step: Array) -> Array:
    """Return the random key of a step."""
    return jax.random.fold_in(jax.random.key(seed), step)
