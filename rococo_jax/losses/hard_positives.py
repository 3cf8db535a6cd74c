"""Training with hard positives and hard negatives (The Hard Positive Truth, arXiv 2409.17958), over the global batch.

    L = L_contrastive + L_pos + w L_neg

    L_contrastive   the softmax contrastive loss, with all hard negatives of the batch as extra columns from image to
                    text; the sigmoid loss has no columns, so a config with both is refused
    L_pos = 1/2 (CE(tau I T+^T) + CE(tau T T+^T))
    L_neg = mean_i -log e^{tau s(I_i, T_i)} / (e^{tau s(I_i, T_i)} + sum_k e^{tau s(I_i, T-_ik)})

CE is the cross entropy of the rows. L_pos is a mean over the pairs that have a hard positive, and these are also its
columns [ours: in the published data every caption has one]; ids are used as in `contrastive`. L_neg is a mean over the
pairs that have a hard negative.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from rococo_jax.losses.altered import local_nll
from rococo_jax.losses.contrastive import (
    NEGATIVES,
    mean_over_batch,
    paired_cosines,
    softmax_nll,
    without_sigmoid,
    zero_masked,
)
from rococo_jax.losses.terms import COUNT, NOT_NEGATIVE, Embeddings, Field, Key, LossTerm, LossValue
from rococo_jax.similarity import ON_ONE_DEVICE, PairwiseSide, ShardedLogits

POSITIVES = Field("positive", "text")


def hard_positive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    positive_texts: Float[Array, "batch width"],
    *,
    logit_scale: Float[Array, ""],
    ids: Int[Array, "batch"] | None = None,
    positive_mask: Bool[Array, "batch"] | None = None,
    logits: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """Compute L_pos: image and caption each retrieve the hard positive among those of the batch.

    `positive_texts` are unit vectors of one rewording per caption with the same meaning; `positive_mask` is False where
    a pair has none. The other arguments are those of `softmax_contrastive`.
    """
    ids = jnp.arange(len(images)) if ids is None else ids
    positive_texts = zero_masked(positive_texts, positive_mask)
    keys = PairwiseSide(positive_texts, ids, positive_mask)

    def cross_entropy(queries: Float[Array, "batch width"]) -> Float[Array, "batch"]:
        queries = zero_masked(queries, positive_mask)
        negatives = logits.log_sum_exp(PairwiseSide(queries, ids, positive_mask), keys, logit_scale=logit_scale)
        return softmax_nll(logit_scale * paired_cosines(queries, positive_texts), negatives)

    return mean_over_batch(0.5 * (cross_entropy(images) + cross_entropy(texts)), positive_mask)


def hard_negative(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    negative_texts: Float[Array, "batch negatives width"],
    *,
    logit_scale: Float[Array, ""],
    negative_mask: Bool[Array, "batch negatives"] | None = None,
) -> Float[Array, ""]:
    """Compute L_neg: each image's caption against the pair's own hard negatives; a mean over pairs that have one.

    `negative_texts` are unit vectors of K rewordings per caption that are wrong; `negative_mask` is False where there
    is none. The other arguments are those of `softmax_contrastive`.
    """
    images, texts = images.astype(jnp.float32), texts.astype(jnp.float32)
    losses = local_nll(images, texts, negative_texts, logit_scale, negative_mask)
    return mean_over_batch(losses, None if negative_mask is None else negative_mask.any(1))


def _hard_positives_term(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> LossValue:
    positives, negatives = embeddings[POSITIVES], embeddings[NEGATIVES]
    positive_loss = hard_positive(
        embeddings.images,
        embeddings.texts,
        positives.vectors,
        logit_scale=embeddings.logit_scale,
        ids=embeddings.image_id,
        positive_mask=positives.valid,
        logits=logits,
    )
    negative_loss = hard_negative(
        embeddings.images,
        embeddings.texts,
        negatives.vectors,
        logit_scale=embeddings.logit_scale,
        negative_mask=negatives.valid,
    )
    value = positive_loss + settings.negative_weight * negative_loss
    return value, {"hard_positive": positive_loss, "hard_negative": negative_loss}


HARD_POSITIVES = LossTerm(
    "hard_positives",
    _hard_positives_term,
    keys={
        "weight": Key(
            0.0,
            "Weight of the loss with hard positives and negatives (arXiv 2409.17958).",
            NOT_NEGATIVE,
            needs=(without_sigmoid("hard negatives"),),
        ),
        "negative_weight": Key(1.0, "Weight of the negatives relative to the positives.", NOT_NEGATIVE, affects="run"),
        "count": Key(1, "Hard negatives per caption in a step; a caption has one hard positive.", COUNT, affects="run"),
        "negatives": Key(
            "",
            "File of hard positives and negatives: JSON lines of `{caption, hard_positive, hard_negative}`, or an "
            "annotation written by `rococo alter-captions`.",
        ),
    },
    reads=(POSITIVES, NEGATIVES),
)
