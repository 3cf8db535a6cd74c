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

from jaxtyping import Array, Float
from ml_collections import ConfigDict

from rococo_jax.config_fields import COUNT, NOT_NEGATIVE, Key
from rococo_jax.losses.altered import local_nll
from rococo_jax.losses.contrastive import NEGATIVES, mean_over_batch, paired_cosines, softmax_nll, without_sigmoid
from rococo_jax.losses.terms import Embeddings, Field, FieldEmbeddings, LossTerm, LossValue
from rococo_jax.similarity import ON_ONE_DEVICE, PairwiseSide, ShardedLogits

POSITIVES = Field("positive", "text")


def hard_positive_and_negative(
    pairs: Embeddings, settings: ConfigDict, logits: ShardedLogits = ON_ONE_DEVICE
) -> LossValue:
    """Compute L_pos + w L_neg.

    L_pos: image and caption each retrieve the hard positive among those of the batch. L_neg: each image's caption
    against the pair's own hard negatives.
    """
    positives, negatives = pairs[POSITIVES], pairs[NEGATIVES]
    zeroed, counted = positives.zeroed(), positives.valid

    def cross_entropy(queries: Float[Array, "b d"]) -> Float[Array, " b"]:
        queries = FieldEmbeddings(queries, counted).zeroed()
        sides = PairwiseSide(queries, pairs.image_id, counted), PairwiseSide(zeroed, pairs.image_id, counted)
        others = logits.log_sum_exp(*sides, logit_scale=pairs.logit_scale)
        return softmax_nll(pairs.logit_scale * paired_cosines(queries, zeroed), others)

    positive_loss = mean_over_batch(0.5 * (cross_entropy(pairs.images) + cross_entropy(pairs.texts)), counted)
    local_losses = local_nll(pairs.images, pairs.texts, negatives, pairs.logit_scale)
    negative_loss = mean_over_batch(local_losses, negatives.valid.any(1))
    value = positive_loss + settings.negative_weight * negative_loss
    return value, {"hard_positive": positive_loss, "hard_negative": negative_loss}


HARD_POSITIVES = LossTerm(
    "hard_positives",
    hard_positive_and_negative,
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
