"""Loss terms of the *difference* between a caption and its altered caption [ours].

For pair k with caption T_k and an altered caption T~, let D = T_k - T~. Image j prefers the original by

    d_j = s(I_j, T_k) - s(I_j, T~) = I_j . D

The unrelated images U(k) are those with another id. Over the n altered captions of the batch:

    blind      1/n sum [ tau m ]^2,    m = mean of d_j over U(k) = (mean unrelated image) . D
    grounding  1/n sum -log e^{tau d_k} / (e^{tau d_k} + sum_{j in U(k)} e^{tau d_j})

d_j = m + (d_j - m) splits the preference of image j into a part that all unrelated images share, which the texts alone
determine (m), and a part that depends on the image.

`blind` moves m to 0. The metric of the same name is the share of unrelated images with d_j > 0; it is 50 % if they are
spread evenly around 0. The loss leaves d_k - m free, so that grounding does not suffer; a mean of squares of all d_j
would also forbid unrelated images to differ from each other. Because m is linear in the images, the loss needs sums of
vectors only, not the pairwise logits.

`grounding` is the cross entropy of the metric `difference_r1`: among all images, the one of the pair should prefer the
original most. Whatever depends on the texts alone adds the same number to every d_j and cancels.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from rococo_jax.losses.contrastive import ALTERED, flatten_candidates, mean_over_batch, softmax_nll, zero_masked
from rococo_jax.losses.terms import NOT_NEGATIVE, Embeddings, Key, LossTerm, LossValue
from rococo_jax.similarity import ON_ONE_DEVICE, PairwiseSide, ShardedLogits


def blind_preference(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    altered_texts: Float[Array, "batch altered width"],
    *,
    logit_scale: Float[Array, ""],
    ids: Int[Array, "batch"] | None = None,
    altered_mask: Bool[Array, "batch altered"] | None = None,
    logits: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """Compute the squared mean preference of unrelated images for a caption over its altered captions.

    A pair without unrelated images in the batch does not count. `ids` are the image ids of the pairs; the other
    arguments are those of `semantic_contrastive`.
    """
    images = images.astype(jnp.float32)
    ids = jnp.arange(len(images)) if ids is None else ids
    unrelated_sum, unrelated_count = logits.sum_of_other_ids(PairwiseSide(images, ids))
    mean_unrelated = unrelated_sum / jnp.maximum(unrelated_count, 1.0)[:, None]
    differences = _differences(texts, altered_texts, altered_mask)
    preference = logit_scale * (differences * mean_unrelated[:, None]).sum(-1)
    counted = jnp.broadcast_to((unrelated_count > 0)[:, None], preference.shape)
    if altered_mask is not None:
        counted &= altered_mask
    return mean_over_batch(preference**2, counted)


def grounding_contrastive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    altered_texts: Float[Array, "batch altered width"],
    *,
    logit_scale: Float[Array, ""],
    ids: Int[Array, "batch"] | None = None,
    altered_mask: Bool[Array, "batch altered"] | None = None,
    logits: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """Compute the cross entropy of the pair's image among all images, with the caption difference D as query.

    `ids` are the image ids of the pairs; the other arguments are those of `semantic_contrastive`.
    """
    images = images.astype(jnp.float32)
    ids = jnp.arange(len(images)) if ids is None else ids
    differences = _differences(texts, altered_texts, altered_mask)
    query_ids = jnp.repeat(ids, altered_texts.shape[1])
    queries = flatten_candidates(differences, altered_mask)._replace(ids=query_ids)
    negatives = logits.log_sum_exp(queries, PairwiseSide(images, ids), logit_scale=logit_scale)
    positives = logit_scale * (images[:, None] * differences).sum(-1)
    return mean_over_batch(softmax_nll(positives.reshape(-1), negatives), queries.mask)


def _differences(
    texts: Float[Array, "batch width"],
    altered_texts: Float[Array, "batch altered width"],
    altered_mask: Bool[Array, "batch altered"] | None,
) -> Float[Array, "batch altered width"]:
    """Subtract each altered caption from its caption; 0 where there is no altered caption."""
    differences = texts.astype(jnp.float32)[:, None] - altered_texts.astype(jnp.float32)
    return zero_masked(differences, altered_mask)


def _blind_term(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> LossValue:
    altered = embeddings[ALTERED]
    value = blind_preference(
        embeddings.images,
        embeddings.texts,
        altered.vectors,
        logit_scale=embeddings.logit_scale,
        ids=embeddings.image_id,
        altered_mask=altered.valid,
        logits=logits,
    )
    return value, {"blind": value}


def _grounding_term(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> LossValue:
    altered = embeddings[ALTERED]
    value = grounding_contrastive(
        embeddings.images,
        embeddings.texts,
        altered.vectors,
        logit_scale=embeddings.logit_scale,
        ids=embeddings.image_id,
        altered_mask=altered.valid,
        logits=logits,
    )
    return value, {"grounding": value}


# Both read the altered captions that `losses.sc` configures.
BLIND = LossTerm(
    "blind",
    _blind_term,
    keys={
        "weight": Key(
            0.0,
            "Weight of the penalty on the mean preference of unrelated images for captions over altered ones [ours].",
            NOT_NEGATIVE,
        )
    },
    reads=(ALTERED,),
)
GROUNDING = LossTerm(
    "grounding",
    _grounding_term,
    keys={
        "weight": Key(
            0.0,
            "Weight of the cross entropy of which image prefers a caption over its altered one most [ours].",
            NOT_NEGATIVE,
        )
    },
    reads=(ALTERED,),
)
