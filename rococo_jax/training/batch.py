"""The typed batch of training: what the towers and the losses read of b image-caption pairs.

Patch dropout: the image tower sees some patches of every image, others in every step (FLIP, arXiv 2212.00794).

    kept = max(1, floor((1 - patch_dropout) * patches)), without order and repetition, for each image by itself

What is drawn depends on (seed, step, row of the global batch, field) alone. The tower computes the kept patches and
their positions only; attention over half of the tokens costs a quarter, everything else half. Evaluation sees whole
images.
"""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, UInt8
from ml_collections import ConfigDict

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.losses import active_fields
from rococo_jax.losses.terms import Field, pytree_dataclass
from rococo_jax.models import ModelSpec
from rococo_jax.models.vision import takes_patches
from rococo_jax.runtime import AXES

_Any = Array | np.ndarray


@pytree_dataclass
class Images:
    """One image a pair, or k: pixels, or the features that a frozen tower computes before its head.

    Attributes:
        pixels: 8 bit, normalised on the device.
        features: instead of pixels.
        patches: which of their patches the tower sees, in ascending order; None for all.
        resized: the same images resized whole, for losses that mix them.
    """

    pixels: UInt8[_Any, "b *k h w 3"] | None = None
    features: Float[_Any, "b *k f"] | None = None
    resized: UInt8[_Any, "b *k h w 3"] | None = None
    patches: Int[_Any, "b *k kept"] | None = None


@pytree_dataclass
class Texts:
    """One text a pair, or k: token ids, padded, and which of them count; or features."""

    ids: Int[_Any, "b *k t"] | None = None
    mask: Bool[_Any, "b *k t"] | None = None
    features: Float[_Any, "b *k f"] | None = None


@pytree_dataclass
class Batch:
    """b pairs, rows of the global batch. The rows of a pair stay together on one device.

    Attributes:
        images, texts: the pairs.
        image_id: the image that each pair shows. None in the part of a batch that only towers read.
        fields: what losses read beside the pairs, by `losses.terms.Field.name`.
        valid: which items of a field count; False where there is nothing, whatever stands there.
    """

    images: Images
    texts: Texts
    image_id: Int[_Any, " b"] | None
    fields: dict[str, Images | Texts]
    valid: dict[str, Bool[_Any, "b ..."]]

    def with_field(self, field: Field, items: Images | Texts, valid: Bool[_Any, "b ..."]) -> "Batch":
        """The batch with one field more."""
        fields, masks = {**self.fields, field.name: items}, {**self.valid, field.name: valid}
        return dataclasses.replace(self, fields=fields, valid=masks)

    def for_towers(self, fields: Sequence[Field]) -> "Batch":
        """The images and texts of the pairs and of some fields, without ids and masks."""
        chosen = {field.name: self.fields[field.name] for field in fields}
        return Batch(
            Images(self.images.pixels, self.images.features, patches=self.images.patches), self.texts, None, chosen, {}
        )

    def rows(self, chosen: Int[np.ndarray, " own"]) -> "Batch":
        """Some of the rows."""
        return jax.tree.map(lambda array: array[chosen], self)


def batch_from_arrays(arrays: Mapping[str, np.ndarray], fields: Sequence[Field] = ()) -> Batch:
    """The batch of the arrays that `data.training_input` yields; what else they hold is left out.

    The arrays are `pixels`, `resized`, `ids`, `text_mask`, `image_id`, and `NAME_ids`, `NAME_text_mask`, `NAME_valid`
    of the `fields` of text that are among them.
    """
    batch = Batch(
        Images(pixels=arrays.get("pixels"), resized=arrays.get("resized")),
        Texts(arrays["ids"], arrays["text_mask"]),
        arrays["image_id"],
        {},
        {},
    )
    for name in (field.name for field in fields):
        texts = Texts(arrays[f"{name}_ids"], arrays[f"{name}_text_mask"])
        batch = batch.with_field(Field(name, "text"), texts, arrays[f"{name}_valid"])
    return batch


def place_batch(batch: Batch, mesh: Mesh) -> Batch:
    """This process's rows, as its part of the global batch on the mesh."""
    rows = NamedSharding(mesh, PartitionSpec(AXES))
    return jax.tree.map(lambda array: jax.make_array_from_process_local_data(rows, array), batch)


def training_preprocessing(config: ConfigDict, preprocessing: Preprocessing | None) -> Preprocessing | None:
    """How images become the pixels of a batch: squashed to one grid where they are mixed, or patches of it dropped."""
    one_grid = config.patch_dropout or any(field.tower == "vision" for field in active_fields(config.losses))
    return preprocessing.with_fixed_grid if preprocessing is not None and one_grid else preprocessing


def pixel_shape(config: ConfigDict, spec: ModelSpec, preprocessing: Preprocessing | None) -> tuple[int, int, int]:
    """The shape of an image of a batch; without preprocessing that of a square of the tower's size."""
    side = spec.vision.image_size
    return (side, side, 3) if preprocessing is None else training_preprocessing(config, preprocessing).pixel_shape


def patches_per_image(config: ConfigDict, spec: ModelSpec) -> int | None:
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
    kept = patches_per_image(config, spec)
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
