"""Total loss of a batch: embed what the active terms read, then add the terms.

    L = sum over active terms of weight * value        a term without a weight counts once

The terms are `losses.terms.LossTerm`s; all values are means over the global batch. Each tower runs once, over all
images (or texts) of its rows. No row moves to another device here, and a micro-batch of rows can be embedded alone.
"""

from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.losses import active_fields, active_terms
from rococo_jax.losses.terms import Embeddings, Field, FieldEmbeddings
from rococo_jax.models import DualEncoder
from rococo_jax.similarity import ShardedLogits
from rococo_jax.training.batch import Batch, Images, Texts

# Values of the terms before their weights, by name.
TermValues = Mapping[str, Float[Array, ""]]
# Unit vectors by name: "images", "texts" (b d), and each field (b *k d).
Vectors = dict[str, Array]


def embed_batch(
    model: DualEncoder, preprocessing: Preprocessing | None, batch: Batch, fields: Sequence[Field]
) -> Vectors:
    """Compute unit vectors, float32, of the pairs (`images`, `texts`: b d) and of the fields by name (b *k d)."""
    images: dict[str, Images] = {"images": batch.images}
    texts: dict[str, Texts] = {"texts": batch.texts}
    for field in fields:
        side = images if field.tower == "vision" else texts
        side[field.name] = batch.fields[field.name]
    return {**_embed_images(model, preprocessing, images), **_embed_texts(model, texts)}


def _embed_images(model: DualEncoder, preprocessing: Preprocessing | None, images: Mapping[str, Images]) -> Vectors:
    if images["images"].features is not None:  # cached features of a frozen tower
        features, split = _concatenate_fields({name: each.features for name, each in images.items()}, item_ndim=2)
        return split(model.project_image(features))
    pixels, split = _concatenate_fields({name: each.pixels for name, each in images.items()}, item_ndim=4)
    patches = None
    if images["images"].patches is not None:
        patches, _ = _concatenate_fields({name: each.patches for name, each in images.items()}, item_ndim=2)
    return split(model.image_embeddings(preprocessing.normalise(pixels), patches))


def _embed_texts(model: DualEncoder, texts: Mapping[str, Texts]) -> Vectors:
    if texts["texts"].features is not None:  # cached features of a frozen tower
        features, split = _concatenate_fields({name: each.features for name, each in texts.items()}, item_ndim=2)
        return split(model.project_text(features))
    ids, split = _concatenate_fields({name: each.ids for name, each in texts.items()}, item_ndim=2)
    mask, _ = _concatenate_fields({name: each.mask for name, each in texts.items()}, item_ndim=2)
    return split(model.text_embeddings(ids, mask))


def _concatenate_fields(arrays: Mapping[str, Array], item_ndim: int) -> tuple[Array, Callable[[Array], Vectors]]:
    """Concatenate arrays of several fields into one list of items, pair by pair.

    An array has `item_ndim` axes if a pair has one item of the field, and one more, (pairs, k, ...), if it has k.

    Returns the items (pairs * all k, ...), and a function that splits their embeddings by field again.
    """
    with_item_axis = {name: array if array.ndim > item_ndim else array[:, None] for name, array in arrays.items()}
    concatenated = jnp.concatenate(list(with_item_axis.values()), axis=1)
    pairs, items_per_pair = concatenated.shape[:2]

    def split(vectors: Array) -> Vectors:
        vectors = vectors.reshape(pairs, items_per_pair, -1)
        by_field, start = {}, 0
        for name, array in with_item_axis.items():
            stop = start + array.shape[1]
            of_field = vectors[:, start:stop]
            has_one_item = arrays[name].ndim == item_ndim
            by_field[name] = of_field[:, 0] if has_one_item else of_field
            start = stop
        return by_field

    return concatenated.reshape(pairs * items_per_pair, *concatenated.shape[2:]), split


def total_loss(
    vectors: Vectors,
    scales: Mapping[str, Array],
    batch: Batch,
    losses: ConfigDict,
    logits: ShardedLogits,
) -> tuple[Float[Array, ""], TermValues]:
    """Compute the loss, and the values of its terms before their weights.

    Args:
        vectors: result of `embed_batch` for the global batch.
        scales: `logit_scale` as its logarithm, and `logit_bias` of models that have one.
        batch: source of the image ids and of the masks of the fields.
        losses: the section `losses` of the config.
        logits: mesh and block size of the pairwise logits.
    """
    embeddings = Embeddings(
        images=vectors["images"],
        texts=vectors["texts"],
        image_id=batch.image_id,
        logit_scale=jnp.exp(scales["logit_scale"]),
        logit_bias=scales.get("logit_bias"),
        fields={
            field.name: FieldEmbeddings(vectors[field.name], batch.valid[field.name]) for field in active_fields(losses)
        },
    )
    weighted_values, all_values = [], {}
    for term in active_terms(losses):
        settings = losses[term.name]
        value, values = term.function(embeddings, settings, logits)
        weighted_values.append(settings.weight * value if "weight" in term.keys else value)
        all_values |= values
    # Added in the order of `losses.TERMS`: a sum of floating-point numbers depends on the order.
    total = weighted_values[0]
    for value in weighted_values[1:]:
        total = total + value
    return total, all_values
