"""The typed batch of training: the inputs of towers and losses for b image-caption pairs.

Patch dropout (FLIP, arXiv 2212.00794): in each step the image tower sees a random subset of the patches of each image,

    max(1, floor((1 - patch_dropout) * patches)) of them, drawn without replacement for each image.

The subset depends only on (seed, step, row of the global batch, field). The tower computes only these patches, at their
positions: with half of the tokens attention costs a quarter, everything else half. In evaluation it sees all patches.
"""

import dataclasses
import zlib
from collections.abc import Iterable, Mapping, Sequence

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

# An array on devices or on the host.
_AnyArray = Array | np.ndarray


@pytree_dataclass
class Images:
    """Images of pairs, one or k per pair: pixels, or the features that a frozen tower computes before its head.

    Attributes:
        pixels: 8-bit pixels, normalised on the device.
        features: features instead of pixels.
        patches: indices of the patches that the tower sees, in ascending order; None for all.
        resized: pixels of the same images resized without cropping, for losses that mix them.
    """

    pixels: UInt8[_AnyArray, "b *k h w 3"] | None = None
    features: Float[_AnyArray, "b *k f"] | None = None
    resized: UInt8[_AnyArray, "b *k h w 3"] | None = None
    patches: Int[_AnyArray, "b *k patches"] | None = None


@pytree_dataclass
class Texts:
    """Texts of pairs, one or k per pair: padded token ids, and a mask that is False for padding; or features."""

    ids: Int[_AnyArray, "b *k t"] | None = None
    mask: Bool[_AnyArray, "b *k t"] | None = None
    features: Float[_AnyArray, "b *k f"] | None = None


@pytree_dataclass
class Batch:
    """b pairs, which are rows of the global batch. Everything that belongs to a pair is on one device.

    Attributes:
        images, texts: images and captions of the pairs.
        image_id: number of the image of each pair; None in the part of a batch that only towers read.
        fields: further images and texts that losses read, by `losses.terms.Field.name`.
        valid: for each field, True for items that exist; the others are placeholders, which losses ignore.
        counts: `encode_counts` of each process, whose sum the step returns; None for none.
    """

    images: Images
    texts: Texts
    image_id: Int[_AnyArray, " b"] | None
    fields: dict[str, Images | Texts]
    valid: dict[str, Bool[_AnyArray, "b ..."]]
    counts: Int[_AnyArray, "devices counts 2"] | None = None

    def with_field(self, field: Field, items: Images | Texts, valid: Bool[_AnyArray, "b ..."]) -> "Batch":
        """Return the batch with one more field."""
        fields, masks = {**self.fields, field.name: items}, {**self.valid, field.name: valid}
        return dataclasses.replace(self, fields=fields, valid=masks)

    def for_towers(self, fields: Sequence[Field]) -> "Batch":
        """Return what the towers read: images and texts of the pairs and of some fields."""
        selected = {field.name: self.fields[field.name] for field in fields}
        return Batch(
            Images(self.images.pixels, self.images.features, patches=self.images.patches),
            self.texts,
            None,
            selected,
            {},
        )


# Name under which the step returns the sum of `Batch.counts` among its metrics.
COUNTS = "counts"
# Counts travel as two int32: with up to 2,048 processes, neither sum exceeds its range.
_LOW = 2**20


def encode_counts(counts: Mapping[str, int], devices: int) -> Int[np.ndarray, "devices counts 2"]:
    """Return the counts of this process for `Batch.counts`: on the first of its `devices`, zeros on the others."""
    rows = np.zeros((devices, len(counts), 2), np.int32)
    rows[0] = np.array([divmod(count, _LOW) for count in counts.values()], np.int32).reshape(-1, 2)
    return rows


def decode_counts(names: Iterable[str], sums: Int[np.ndarray, "counts 2"]) -> dict[str, int]:
    """Return the sums over all processes by name."""
    return {name: int(high) * _LOW + int(low) for name, (high, low) in zip(names, sums, strict=True)}


def batch_from_arrays(arrays: Mapping[str, np.ndarray], fields: Sequence[Field] = ()) -> Batch:
    """Build a batch from the arrays that `data.training_input` yields.

    It reads `image_id`; `pixels` and `resized`, or `image_features`; `ids` and `text_mask`, or `text_features`; and for
    each of the `fields` `NAME_valid`, and `NAME_ids` and `NAME_text_mask` of texts, or `NAME_features`.
    """
    get = arrays.get
    batch = Batch(
        Images(get("pixels"), get("image_features"), get("resized")),
        Texts(get("ids"), get("text_mask"), get("text_features")),
        arrays["image_id"],
        {},
        {},
    )
    for field in fields:
        features = get(f"{field.name}_features")
        texts = Texts(get(f"{field.name}_ids"), get(f"{field.name}_text_mask"), features)
        items = Images(features=features) if field.tower == "vision" else texts
        batch = batch.with_field(field, items, arrays[f"{field.name}_valid"])
    return batch


def place_batch(batch: Batch, mesh: Mesh) -> Batch:
    """Put this process's rows on its devices, as its part of the global batch on the mesh."""
    rows = NamedSharding(mesh, PartitionSpec(AXES))
    return jax.tree.map(lambda array: jax.make_array_from_process_local_data(rows, array), batch)


def training_preprocessing(config: ConfigDict, preprocessing: Preprocessing | None) -> Preprocessing | None:
    """Return the preprocessing of training: it resizes images to one grid if they are mixed or patches are dropped."""
    one_grid = config.patch_dropout or any(field.tower == "vision" for field in active_fields(config.losses))
    return preprocessing.with_fixed_grid if preprocessing is not None and one_grid else preprocessing


def pixel_shape(config: ConfigDict, spec: ModelSpec, preprocessing: Preprocessing | None) -> tuple[int, int, int]:
    """Return the shape of the pixels of an image; without preprocessing, a square of the tower's size."""
    side = spec.vision.image_size
    return (side, side, 3) if preprocessing is None else training_preprocessing(config, preprocessing).pixel_shape


def patches_per_image(config: ConfigDict, spec: ModelSpec) -> int | None:
    """Return the number of patches of an image that the tower sees in training; None for all.

    Raises InputError: patch dropout for a tower that needs all patches.
    """
    if not config.patch_dropout:
        return None
    if not takes_patches(spec.vision):
        expected = "0 for a convolutional tower, or one with a stem or rotary positions"
        raise InputError("config", "config.patch_dropout", config.patch_dropout, expected)
    # Rounded first, as 0.9 * 10 patches may be 8.999...
    return max(1, int(round((1 - config.patch_dropout) * spec.vision.grid**2, 6)))


def drop_patches(batch: Batch, config: ConfigDict, spec: ModelSpec, step: Int[Array, ""], mesh: Mesh) -> Batch:
    """Return the batch with the patches of every image that the tower sees in this step."""
    count = patches_per_image(config, spec)
    if count is None:
        return batch
    key = jax.random.fold_in(jax.random.key(config.seed), step)
    rows = NamedSharding(mesh, PartitionSpec(AXES))

    def with_random_patches(images: Images, name: str) -> Images:
        field_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
        order = jax.random.uniform(field_key, (*images.pixels.shape[:-3], spec.vision.grid**2))
        order = jax.lax.with_sharding_constraint(order, rows)
        patches = jnp.sort(jnp.argsort(order, axis=-1)[..., :count], axis=-1)
        return dataclasses.replace(images, patches=patches.astype(jnp.int32))

    fields = {
        name: with_random_patches(field, name) if isinstance(field, Images) and field.pixels is not None else field
        for name, field in batch.fields.items()
    }
    return dataclasses.replace(batch, images=with_random_patches(batch.images, "images"), fields=fields)
