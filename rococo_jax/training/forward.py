"""From a batch to embeddings: each tower runs once over everything that it has to see of a row.

A batch is a dictionary of arrays with one row a pair, b rows:

    pixels (b h w 3) uint8             or image_features (b f)
    ids, text_mask (b t)               or text_features (b g)
    altered_ids, altered_text_mask (b k t), altered_valid (b k)      or altered_features (b k g)
    mixed (b m h w 3) uint8, mixed_valid (b m)                       or mixed_features (b m f)
    positive_ids, positive_text_mask (b t), positive_valid (b)
    negative_ids, negative_text_mask (b n t), negative_valid (b n)
    image_id (b)

Features are what frozen towers gave before their heads. The rows of a pair stay together, so nothing moves between
devices here, and a part of the rows can be embedded alone.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.models import DualEncoder

Batch = Mapping[str, Array]
Embedded = dict[str, Array]

# Name of what is embedded: name of its rows in the batch.
_IMAGES = {"images": "pixels", "mixed": "mixed"}
_TEXTS = {"texts": "", "altered": "altered_", "positives": "positive_", "negatives": "negative_"}


def embed_batch(model: DualEncoder, preprocessing: Preprocessing | None, batch: Batch) -> Embedded:
    """Unit vectors, float32: `images`, `texts` (b d), and where the batch has them `altered` (b k d), `mixed` (b m d),
    `positives` (b d), `negatives` (b n d)."""
    return {**_embed_images(model, preprocessing, batch), **_embed_texts(model, batch)}


def _embed_images(model: DualEncoder, preprocessing: Preprocessing | None, batch: Batch) -> Embedded:
    if "image_features" in batch:
        names = {"images": "image_features", "mixed": "mixed_features"}
        return _of_features(model.project_image, {ours: batch[name] for ours, name in names.items() if name in batch})
    rows, cut = _side_by_side({ours: batch[name] for ours, name in _IMAGES.items() if name in batch}, ndim=4)
    return cut(model.image_embeddings(preprocessing.normalise(rows)))


def _embed_texts(model: DualEncoder, batch: Batch) -> Embedded:
    if "text_features" in batch:
        names = {"texts": "text_features", "altered": "altered_features"}
        return _of_features(model.project_text, {ours: batch[name] for ours, name in names.items() if name in batch})
    present = {ours: prefix for ours, prefix in _TEXTS.items() if f"{prefix}ids" in batch}
    ids, cut = _side_by_side({ours: batch[f"{prefix}ids"] for ours, prefix in present.items()}, ndim=2)
    mask, _ = _side_by_side({ours: batch[f"{prefix}text_mask"] for ours, prefix in present.items()}, ndim=2)
    return cut(model.text_embeddings(ids, mask))


def _of_features(project, features: Mapping[str, Array]) -> Embedded:
    rows, cut = _side_by_side(features, ndim=2)
    return cut(project(rows))


def _side_by_side(arrays: Mapping[str, Array], ndim: int):
    """All arrays as one list of items, pair by pair, and the function that cuts their embeddings apart again.

    An array has `ndim` axes where a pair has one item, one more where it has several.
    """
    several = {name: array if array.ndim > ndim else array[:, None] for name, array in arrays.items()}
    joined = jnp.concatenate(list(several.values()), axis=1)
    pairs, width = joined.shape[:2]

    def cut(vectors: Array) -> Embedded:
        vectors = vectors.reshape(pairs, width, -1)
        pieces, start = {}, 0
        for name, array in several.items():
            piece = vectors[:, start : start + array.shape[1]]
            pieces[name] = piece[:, 0] if arrays[name].ndim == ndim else piece
            start += array.shape[1]
        return pieces

    return joined.reshape(pairs * width, *joined.shape[2:]), cut
