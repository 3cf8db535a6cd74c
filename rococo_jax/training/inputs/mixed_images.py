"""Mixed images as negatives of captions, for the VC loss: made on the device, or as a pool of features.

Every image is mixed with a partner from its group of `losses.vc.partner_group` consecutive rows of the batch: where a
device holds whole groups nothing is sent, where it holds fewer rows its neighbours gather those of their group, and the
result does not depend on how many devices there are. With both methods, or with both views (as images are trained on,
and resized whole), groups take turns. The draws depend on the seed and the step alone.
"""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, UInt8
from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.losses.altered import MIXED
from rococo_jax.losses.terms import Field
from rococo_jax.perturb.images.mixing import Mixing, is_negative, mix_batch
from rococo_jax.training.batch import Batch, Images
from rococo_jax.training.inputs.loss_input import (
    IMAGES_PER_PART,
    POOL_SEED,
    InputContext,
    LossInput,
    Pool,
    PoolSources,
    image_features,
)

# Config value: method of `perturb.images`.
_METHODS = {"mixup": "mix", "cutmix": "patch"}


class MixedImages(LossInput):
    """One mixed image a pair."""

    fields = (MIXED,)
    pooled = True

    def items(self, config: ConfigDict) -> dict[str, tuple[int, ...]]:
        return {MIXED.name: (1,)}

    def check_devices(self, config: ConfigDict, devices: int) -> None:
        group, rows = config.losses.vc.partner_group, config.batch_size // devices
        whole = rows % group == 0 or (group % rows == 0 and config.batch_size % group == 0)
        if not whole and not config.data.cached_features:
            wanted = f"a divisor or a multiple of the {rows} images of a device, and a divisor of the batch"
            raise InputError("config", "losses.vc.partner_group", group, wanted)

    def resized_view(self, config: ConfigDict) -> bool:
        return "resize" in config.losses.vc.views.split(",")

    def on_device(self, batch: Batch, config: ConfigDict, step: Int[Array, ""], mesh: Mesh | None) -> Batch:
        if batch.images.pixels is None:
            return batch
        return with_mixed(batch, step_key(config.seed, step), config.losses.vc, mesh)

    def make_pools(self, context: InputContext, material: PoolSources) -> dict[str, Pool]:
        """Features of mixed images. Place q of the pool mixes every image with another one, in an order of its own.

        Methods take turns part by part, and views after each round of methods.
        """
        vc, size = context.config.losses.vc, context.config.data.feature_pool.mixed
        methods = [_METHODS[name] for name in vc.methods.split(",")]
        views = [material.views[name] for name in vc.views.split(",")]
        count = len(material.samples)
        part = min(IMAGES_PER_PART, count)
        pools = []
        for place in range(size):
            order = np.random.default_rng([POOL_SEED, place]).permutation(count)
            out = None
            for start in range(0, len(order), part):
                turn = place + start // part
                method = methods[turn % len(methods)]
                pixels, hashes = views[turn // len(methods) % len(views)]
                mixing = Mixing(method=method, ratio=vc.ratio)
                # The last run takes images of the first along, so that every image has a partner.
                chosen = np.take(order, np.arange(start, start + part), mode="wrap")
                key = jax.random.fold_in(jax.random.fold_in(jax.random.key(POOL_SEED), place), start)
                mixed = mix_batch(jnp.asarray(pixels[chosen]), key, mixing)
                contents = [f"{method} {vc.ratio} {place} {start} {hashes[i]}" for i in chosen]
                contents[0] += hashlib.sha256("".join(hashes[i] for i in chosen).encode()).hexdigest()
                kind = f"images ({method}, {place + 1} of {size})"
                features = image_features(context.encoder, np.asarray(mixed.images), contents, material.cache, kind)
                out = np.empty((count, features.shape[1]), np.float32) if out is None else out
                whole = min(part, len(order) - start)
                out[chosen[:whole]] = features[:whole]
            pools.append(out)
        return {MIXED.name: Pool(np.stack(pools, axis=1), np.ones((count, size), bool))}

    def draw(
        self, field: Field, shape: tuple[int, int], config: ConfigDict, random: np.random.Generator
    ) -> Int[np.ndarray, "b k"]:
        return random.integers(shape[1], size=shape[0])[:, None]


def with_mixed(batch: Batch, key: Array, vc: ConfigDict, mesh: Mesh | None) -> Batch:
    """The batch with the field `mixed (b 1 h w 3)`; it does not count where an image was mixed with itself."""
    ids, methods = batch.image_id, vc.methods.split(",")
    group = jnp.arange(len(ids)) // vc.partner_group
    images = _views(batch.images, vc, group // len(methods))
    made = []
    for method in methods:
        mixing = Mixing(method=_METHODS[method], ratio=vc.ratio, group=vc.partner_group)
        mixed = mix_batch(images, key, mixing, mesh=mesh)
        made.append((mixed.images, is_negative(mixed, ids)))
    mixed, valid = made[0]
    if len(made) > 1:
        second = group % 2 == 1
        mixed = jnp.where(second[:, None, None, None], made[1][0], mixed)
        valid = jnp.where(second, made[1][1], valid)
    return batch.with_field(MIXED, Images(pixels=mixed[:, None]), valid[:, None])


def _views(images: Images, vc: ConfigDict, turn: Int[Array, " b"]) -> UInt8[Array, "b h w 3"]:
    views = [{"crop": images.pixels, "resize": images.resized}[name] for name in vc.views.split(",")]
    return views[0] if len(views) == 1 else jnp.where((turn % 2 == 0)[:, None, None, None], *views)


def step_key(seed: int, step: Array) -> Array:
    """The key of a step."""
    return jax.random.fold_in(jax.random.key(seed), step)
