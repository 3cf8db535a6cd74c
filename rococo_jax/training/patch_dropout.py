"""Patch dropout: the image tower sees some patches of every image, others in every step (FLIP, arXiv 2212.00794).

    kept = max(1, floor((1 - patch_dropout) * patches)), without order and repetition, for each image by itself

What is drawn depends on (seed, step, row of the global batch, field) alone. The tower computes the kept patches and
their positions only; attention over half of the tokens costs a quarter, everything else half. Evaluation sees
whole images.
"""

import dataclasses
import zlib

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int
from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec
from rococo_jax.models.vision import takes_patches
from rococo_jax.runtime import AXES
from rococo_jax.training.batch import Batch, Images


def kept_patches(config: ConfigDict, spec: ModelSpec) -> int | None:
    """How many patches of an image the tower sees; None for all.

    Raises InputError: patches are dropped of a tower that reads whole images.
    """
    if not config.patch_dropout:
        return None
    if not takes_patches(spec.vision):
        wanted = "0 for a convolutional tower, or one with a stem or rotary positions"
        raise InputError("config", "config.patch_dropout", config.patch_dropout, wanted)
    # Rounded first: 0.9 of 10 patches are 9, not 8.999.
    return max(1, int(round((1 - config.patch_dropout) * spec.vision.grid**2, 6)))


def drop_patches(batch: Batch, config: ConfigDict, spec: ModelSpec, step: Int[Array, ""], mesh: Mesh) -> Batch:
    """The batch with the patches that the tower sees of every image."""
    kept = kept_patches(config, spec)
    if kept is None:
        return batch
    key = jax.random.fold_in(jax.random.key(config.seed), step)
    rows = NamedSharding(mesh, PartitionSpec(AXES))

    def drawn(images: Images, name: str) -> Images:
        own = jax.random.fold_in(key, zlib.crc32(name.encode()))
        order = jax.random.uniform(own, (*images.pixels.shape[:-3], spec.vision.grid**2))
        order = jax.lax.with_sharding_constraint(order, rows)
        patches = jnp.sort(jnp.argsort(order, axis=-1)[..., :kept], axis=-1)
        return dataclasses.replace(images, patches=patches.astype(jnp.int32))

    fields = {
        name: drawn(each, name) if isinstance(each, Images) and each.pixels is not None else each
        for name, each in batch.fields.items()
    }
    return dataclasses.replace(batch, images=drawn(batch.images, "images"), fields=fields)
