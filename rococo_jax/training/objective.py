"""The total loss of a batch: embed what active terms read, then sum the terms.

    L = sum over active terms of weight * value        a term without a weight counts once

The terms are `losses.terms.LossTerm`s; all values are means over the global batch. Each tower runs once over all that
it reads of a row, so nothing moves between devices here, and some of the rows can be embedded alone.
"""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.losses import active_fields, active_terms
from rococo_jax.losses.terms import Embeddings, Field, FieldEmbeddings
from rococo_jax.models import DualEncoder
from rococo_jax.similarity import ShardedLogits
from rococo_jax.training.batch import Batch

Parts = Mapping[str, Float[Array, ""]]
# Unit vectors by name: "images", "texts" (b d), and each field (b *k d).
Vectors = dict[str, Array]


def embed_batch(
    model: DualEncoder, preprocessing: Preprocessing | None, batch: Batch, fields: Sequence[Field]
) -> Vectors:
    """Unit vectors, float32: `images`, `texts` (b d) and, by name, the fields (b *k d)."""
    images, texts = (
        {pairs: of_pairs, **{field.name: batch.fields[field.name] for field in fields if field.tower == tower}}
        for pairs, of_pairs, tower in (("images", batch.images, "vision"), ("texts", batch.texts, "text"))
    )
    return {**_embed_images(model, preprocessing, images), **_embed_texts(model, texts)}


def _embed_images(model: DualEncoder, preprocessing: Preprocessing | None, images: Mapping) -> Vectors:
    if images["images"].features is not None:
        rows, split = _side_by_side({name: each.features for name, each in images.items()}, ndim=2)
        return split(model.project_image(rows))
    rows, split = _side_by_side({name: each.pixels for name, each in images.items()}, ndim=4)
    patches = None
    if images["images"].patches is not None:
        patches, _ = _side_by_side({name: each.patches for name, each in images.items()}, ndim=2)
    return split(model.image_embeddings(preprocessing.normalise(rows), patches))


def _embed_texts(model: DualEncoder, texts: Mapping) -> Vectors:
    if texts["texts"].features is not None:
        rows, split = _side_by_side({name: each.features for name, each in texts.items()}, ndim=2)
        return split(model.project_text(rows))
    ids, split = _side_by_side({name: each.ids for name, each in texts.items()}, ndim=2)
    mask, _ = _side_by_side({name: each.mask for name, each in texts.items()}, ndim=2)
    return split(model.text_embeddings(ids, mask))


def _side_by_side(arrays: Mapping[str, Array], ndim: int):
    """All arrays as one list of items, pair by pair, and the function that splits their embeddings again.

    An array has `ndim` axes where a pair has one item, one more where it has several.
    """
    several = {name: array if array.ndim > ndim else array[:, None] for name, array in arrays.items()}
    joined = jnp.concatenate(list(several.values()), axis=1)
    pairs, width = joined.shape[:2]

    def split(vectors: Array) -> Vectors:
        vectors = vectors.reshape(pairs, width, -1)
        pieces, start = {}, 0
        for name, array in several.items():
            piece = vectors[:, start : start + array.shape[1]]
            pieces[name] = piece[:, 0] if arrays[name].ndim == ndim else piece
            start += array.shape[1]
        return pieces

    return joined.reshape(pairs * width, *joined.shape[2:]), split


def total_loss(
    vectors: Vectors,
    scales: Mapping[str, Array],
    batch: Batch,
    losses: ConfigDict,
    logits: ShardedLogits,
) -> tuple[Float[Array, ""], Parts]:
    """The loss, and its parts before their weights.

    Args:
        vectors: from `embed_batch`, of the whole global batch.
        scales: `logit_scale` as its logarithm, and `logit_bias` of models that have one.
        batch: ids and which items count.
        losses: the config's part of that name.
        logits: mesh and block strategy of the pairwise logits.
    """
    fields = {
        field.name: FieldEmbeddings(vectors[field.name], batch.valid[field.name]) for field in active_fields(losses)
    }
    scale = jnp.exp(scales["logit_scale"])
    bias = scales.get("logit_bias")
    embeddings = Embeddings(vectors["images"], vectors["texts"], batch.image_id, scale, bias, fields)
    total, parts = None, {}
    for term in active_terms(losses):
        settings = losses[term.name]
        value, parts_of_term = term.function(embeddings, settings, logits)
        value = settings.weight * value if "weight" in term.keys else value
        total = value if total is None else total + value
        parts |= parts_of_term
    return total, parts
