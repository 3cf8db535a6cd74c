"""Other published ways to train against altered captions T~_1..T~_K of a pair, over the global batch.

    negclip    what altered captions add to the contrastive loss as extra columns of every image (NegCLIP, arXiv
               2210.01936), A = sum over all altered captions of the batch, N(i) as in `contrastive`:
               1/2B sum_i [ -log e^z_ii / (e^z_ii + N(i) + A) + log e^z_ii / (e^z_ii + N(i)) ]
    intra      CE-CLIP (arXiv 2306.08832), intra-modal: the altered captions of all pairs of the batch j,
               mean_i -log e^{tau s(I_i,T_i)} / (e^{tau s(I_i,T_i)} + sum_jk e^{tau s(T_i,T~_jk)})
    rank       CE-CLIP, cross-modal ranking: mean max(0, tau s(I_i,T~_ik) - tau s(I_i,T_i) + margin)
               margin = clip(mean of tau s(I,T) - tau s(I,T~), 0, upper), without a gradient

Sources are the authors' public code (lezhang7/Enhance-FineGrained, `get_imc_loss`, `get_cmr_loss`) and the weights of
its training scripts. In CE-CLIP's code the label of every row is 0, and column 0 is the row's own pair. CE-CLIP's
margin is the mean of the step before, for each of its four kinds of alterations; here it is that of the batch over all
kinds [ours], so that a step needs no memory. Where a pair has fewer than K altered captions, the public code keeps a
place of similarity 0 in rank's mean; here it is left out [ours].
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from rococo_jax.losses.altered import ALTERED
from rococo_jax.losses.contrastive import flattened, mean_over_batch, paired_cosines, softmax_nll, without_masked
from rococo_jax.losses.terms import (
    NOT_NEGATIVE,
    Embeddings,
    Key,
    LossTerm,
    LossValue,
    field_term,
    value_with,
)
from rococo_jax.similarity import ON_ONE_DEVICE, Items, ShardedLogits

Vectors = Float[Array, "batch width"]
Altered = Float[Array, "batch altered width"]
Valid = Bool[Array, "batch altered"]


def negclip_columns(
    images: Vectors,
    texts: Vectors,
    altered_texts: Altered,
    *,
    logit_scale: Float[Array, ""],
    ids: Int[Array, "batch"] | None = None,
    altered_mask: Valid | None = None,
    similarities: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """The part of altered captions in `softmax_contrastive` (`negative_texts`); NegCLIP is the sum with weight 1."""
    images, texts = images.astype(jnp.float32), texts.astype(jnp.float32)
    ids = jnp.arange(len(images)) if ids is None else ids
    others = similarities.log_sum_exp(Items(images, ids), Items(texts, ids), logit_scale=logit_scale)
    further = flattened(altered_texts, altered_mask)
    columns = similarities.log_sum_exp(Items(images), further, logit_scale=logit_scale)
    positive = logit_scale * paired_cosines(images, texts)
    added = softmax_nll(positive, others, columns) - softmax_nll(positive, others)
    return (0.5 * added).mean()


def intra_modal(
    images: Vectors,
    texts: Vectors,
    altered_texts: Altered,
    *,
    logit_scale: Float[Array, ""],
    altered_mask: Valid | None = None,
    similarities: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """CE-CLIP's intra-modal term: a caption is nearer to its image than to the altered captions of the batch."""
    images, texts = images.astype(jnp.float32), texts.astype(jnp.float32)
    every = flattened(altered_texts, altered_mask)
    near = similarities.log_sum_exp(Items(texts), every, logit_scale=logit_scale)
    return softmax_nll(logit_scale * paired_cosines(images, texts), near).mean()


def adaptive_rank(
    images: Vectors,
    texts: Vectors,
    altered_texts: Altered,
    *,
    logit_scale: Float[Array, ""],
    upper: float = 10.0,
    altered_mask: Valid | None = None,
) -> Float[Array, ""]:
    """CE-CLIP's cross-modal rank term, with a margin that grows with what the model tells apart, up to `upper`."""
    images, texts = images.astype(jnp.float32), texts.astype(jnp.float32)
    valid = jnp.ones(altered_texts.shape[:2], bool) if altered_mask is None else altered_mask
    altered = without_masked(altered_texts, valid)
    gap = logit_scale * (paired_cosines(images, texts)[:, None] - (images[:, None] * altered).sum(-1))
    margin = jnp.clip(jax.lax.stop_gradient(mean_over_batch(gap, valid)), 0.0, upper)
    return mean_over_batch(jnp.maximum(margin - gap, 0.0), valid)


def _ce_clip(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> LossValue:
    intra = value_with(intra_modal, ALTERED, embeddings, similarities=logits)
    rank = value_with(adaptive_rank, ALTERED, embeddings, upper=settings.upper)
    return settings.intra * intra + settings.rank * rank, {"ce_clip_intra": intra, "ce_clip_rank": rank}


# All read the altered captions that `losses.sc` describes.
NEGCLIP = field_term(
    "negclip",
    ALTERED,
    negclip_columns,
    lambda embeddings, settings, logits: {"ids": embeddings.image_id, "similarities": logits},
    keys={
        "weight": Key(
            0.0,
            "Altered captions as extra columns of the contrastive loss; with 1 the sum is NegCLIP (arXiv 2210.01936).",
            NOT_NEGATIVE,
        )
    },
)
CE_CLIP = LossTerm(
    "ce_clip",
    _ce_clip,
    # Weights of the two terms and the highest margin, in logits, of the public training script.
    keys={
        "weight": Key(0.0, "CE-CLIP (arXiv 2306.08832).", NOT_NEGATIVE),
        "intra": Key(0.3, "Weight of its intra-modal term.", NOT_NEGATIVE),
        "rank": Key(0.2, "Weight of its rank term.", NOT_NEGATIVE),
        "upper": Key(10.0, "Its highest margin, in logits.", NOT_NEGATIVE),
    },
    reads=(ALTERED,),
)
