"""Training with hard positives and hard negatives (The Hard Positive Truth, arXiv 2409.17958), over the global batch.

    L = L_contrastive + L_pos + w L_neg

    L_contrastive   softmax contrastive loss, all hard negatives of the batch being extra columns from image to text;
                    the sigmoid loss has no columns, so a run with it refuses this term
    L_pos = 1/2 (CE(tau I T+^T) + CE(tau T T+^T))
    L_neg = mean_i -log e^{tau s(I_i, T_i)} / (e^{tau s(I_i, T_i)} + sum_k e^{tau s(I_i, T-_ik)})

with CE the cross entropy of the rows. L_pos is a mean over pairs that have a hard positive, which are its columns too
[ours: the published data has one for each caption], with ids as in `contrastive`; L_neg over pairs that have a hard
negative.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from rococo_jax.losses.altered import local_nll
from rococo_jax.losses.contrastive import NEGATIVES, mean_over_batch, paired_cosines, softmax_nll, without_masked
from rococo_jax.losses.terms import COUNT, NOT_NEGATIVE, Embeddings, Field, Key, LossTerm, LossValue, value_with
from rococo_jax.similarity import ON_ONE_DEVICE, Items, ShardedLogits


def hard_positive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    positive_texts: Float[Array, "batch width"],
    *,
    logit_scale: Float[Array, ""],
    ids: Int[Array, "batch"] | None = None,
    positive_mask: Bool[Array, "batch"] | None = None,
    similarities: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """L_pos: image and caption both find the hard positive among those of the batch.

    `positive_texts` are unit vectors of captions reworded without a change of meaning, one a pair; `positive_mask` is
    False where a pair has none. Other arguments as for `softmax_contrastive`.
    """
    ids = jnp.arange(len(images)) if ids is None else ids
    positive_texts = without_masked(positive_texts, positive_mask)

    def cross_entropy(queries: Float[Array, "batch width"]) -> Float[Array, "batch"]:
        queries = without_masked(queries, positive_mask)
        negatives = similarities.log_sum_exp(
            Items(queries, ids, positive_mask), Items(positive_texts, ids, positive_mask), logit_scale=logit_scale
        )
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
    """L_neg: each image's caption against its own hard negatives; a mean over pairs that have one.

    `negative_texts` are unit vectors of captions reworded so that they are wrong, K a pair; `negative_mask` is False
    where there is none. Other arguments as for `softmax_contrastive`.
    """
    images, texts = images.astype(jnp.float32), texts.astype(jnp.float32)
    losses = local_nll(images, texts, negative_texts, logit_scale, negative_mask)
    return mean_over_batch(losses, None if negative_mask is None else negative_mask.any(1))


POSITIVES = Field("positive", "text")


def _term(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> LossValue:
    over_batch = {"ids": embeddings.image_id, "similarities": logits}
    of_positives = value_with(hard_positive, POSITIVES, embeddings, **over_batch)
    of_negatives = value_with(hard_negative, NEGATIVES, embeddings)
    value = of_positives + settings.negative_weight * of_negatives
    return value, {"hard_positive": of_positives, "hard_negative": of_negatives}


HARD_POSITIVES = LossTerm(
    "hard_positives",
    _term,
    keys={
        "weight": Key(0.0, "Hard positives and negatives (arXiv 2409.17958).", NOT_NEGATIVE),
        "negative_weight": Key(1.0, "Weight of the negatives against the positives.", NOT_NEGATIVE),
        "count": Key(1, "Hard negatives of a caption in a step; a caption has one hard positive.", COUNT),
        "negatives": Key(
            "",
            "Their file: JSON lines of `{caption, hard_positive, hard_negative}`, or an annotation of "
            "`rococo alter-captions`.",
        ),
    },
    reads=(POSITIVES, NEGATIVES),
)
