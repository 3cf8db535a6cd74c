"""Losses by difference: what the images say about the change of a caption, and what the texts alone do [ours].

For pair k, an altered caption T~ of T_k, and every image j: d_j = s(I_j, T_k) - s(I_j, T~) = I_j . D, D = T_k - T~.
Wrong images W(k) are those with another id.

    blind      1/n sum [ tau m ]^2,    m = mean of d_j over W(k) = mean wrong image . D
    grounding  1/n sum -log e^{tau d_k} / (e^{tau d_k} + sum_{j in W(k)} e^{tau d_j})

over the n altered captions of the batch. d_j = m + (d_j - m) parts the preference into what every wrong image shares,
which the texts decide (m), and what image j adds. The metric `blind` is the share of d_j > 0 over wrong images: 50 %
where they lie evenly around 0. The penalty moves their mean there and leaves d_k - m free, so that it costs no
grounding; the squares of all d_j would forbid wrong images to differ, too. `grounding` is the cross entropy of the
metric `difference_r1`: which image cares most for the change. A term of the texts alone adds to every d_j and cancels.

`mixed_blind` and `mixed_grounding` are the same with images and captions exchanged: I~ is a mixed image, and every
caption j has d_j = s(I_k, T_j) - s(I~, T_j). A caption of the partner that was mixed in is a wrong one, which the
metric leaves out: the own caption should win over it, too.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from rococo_jax.losses.altered import ALTERED, MIXED
from rococo_jax.losses.contrastive import mean_over_batch, softmax_nll
from rococo_jax.losses.terms import NOT_NEGATIVE, Embeddings, Field, Key, LossTerm, field_term
from rococo_jax.similarity import ON_ONE_DEVICE, Items, ShardedLogits


def blind_preference(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    altered_texts: Float[Array, "batch altered width"],
    *,
    logit_scale: Float[Array, ""],
    ids: Int[Array, "batch"] | None = None,
    altered_mask: Bool[Array, "batch altered"] | None = None,
    similarities: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """The squared mean preference of wrong images for the caption over its altered ones.

    A pair without wrong images in the batch does not count. Args as for `semantic_contrastive`; `ids` say which image
    each pair shows.
    """
    images, ids = images.astype(jnp.float32), jnp.arange(len(images)) if ids is None else ids
    each_once = Items(jnp.ones((len(images), 1)), ids)
    wrong = similarities.logit_sum(each_once, each_once)
    valid = jnp.broadcast_to((wrong > 0)[:, None], altered_texts.shape[:2])
    valid = valid if altered_mask is None else valid & altered_mask
    _, queries = _asked_by_difference(texts, altered_texts, ids, altered_mask)
    preference = similarities.logit_sum(queries, Items(images, ids), logit_scale=logit_scale)
    return mean_over_batch((preference.reshape(valid.shape) / jnp.maximum(wrong, 1.0)[:, None]) ** 2, valid)


def grounding_contrastive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    altered_texts: Float[Array, "batch altered width"],
    *,
    logit_scale: Float[Array, ""],
    ids: Int[Array, "batch"] | None = None,
    altered_mask: Bool[Array, "batch altered"] | None = None,
    similarities: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """The image of a pair among all images of the batch, asked by the difference of caption and altered caption.

    Args as for `semantic_contrastive`; `ids` say which image each pair shows.
    """
    images, ids = images.astype(jnp.float32), jnp.arange(len(images)) if ids is None else ids
    differences, queries = _asked_by_difference(texts, altered_texts, ids, altered_mask)
    wrong = similarities.log_sum_exp(queries, Items(images, ids), logit_scale=logit_scale)
    right = logit_scale * (images[:, None] * differences).sum(-1)
    return mean_over_batch(softmax_nll(right.reshape(-1), wrong), queries.mask)


def _asked_by_difference(
    texts: Array, altered: Array, ids: Array, valid: Array | None
) -> tuple[Float[Array, "batch altered width"], Items]:
    """The differences of captions and altered captions, and the same as queries, one a row."""
    differences = texts.astype(jnp.float32)[:, None] - altered.astype(jnp.float32)
    if valid is not None:
        differences, valid = jnp.where(valid[..., None], differences, 0.0), valid.reshape(-1)
    return differences, Items(differences.reshape(-1, differences.shape[-1]), jnp.repeat(ids, altered.shape[1]), valid)


def mixed_blind_preference(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    mixed_images: Float[Array, "batch mixed width"],
    *,
    mixed_mask: Bool[Array, "batch mixed"] | None = None,
    **more: Any,
) -> Float[Array, ""]:
    """The squared mean preference of wrong captions for the image over its mixed ones.

    Other arguments as for `blind_preference`.
    """
    return blind_preference(texts, images, mixed_images, altered_mask=mixed_mask, **more)


def mixed_grounding_contrastive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    mixed_images: Float[Array, "batch mixed width"],
    *,
    mixed_mask: Bool[Array, "batch mixed"] | None = None,
    **more: Any,
) -> Float[Array, ""]:
    """The caption of a pair among all captions of the batch, asked by the difference of image and mixed image.

    Other arguments as for `grounding_contrastive`.
    """
    return grounding_contrastive(texts, images, mixed_images, altered_mask=mixed_mask, **more)


def _ids_and_logits(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> dict[str, Any]:
    return {"ids": embeddings.image_id, "similarities": logits}


def _term(name: str, field: Field, function: Callable, help: str) -> LossTerm:
    """A term over the altered captions that `losses.sc` describes, or the mixed images of `losses.vc`."""
    return field_term(name, field, function, _ids_and_logits, keys={"weight": Key(0.0, help, NOT_NEGATIVE)})


BLIND = _term(
    "blind",
    ALTERED,
    blind_preference,
    "Penalty on what wrong images prefer on average, the caption or its altered one [ours].",
)
GROUNDING = _term(
    "grounding",
    ALTERED,
    grounding_contrastive,
    "Cross entropy of which image cares most for the change of the caption [ours].",
)
MIXED_BLIND = _term(
    "mixed_blind",
    MIXED,
    mixed_blind_preference,
    "`blind` for mixed images: what wrong captions prefer on average, the image or its mixed one [ours].",
)
MIXED_GROUNDING = _term(
    "mixed_grounding",
    MIXED,
    mixed_grounding_contrastive,
    "`grounding` for mixed images: which caption cares most for what was mixed in [ours].",
)
