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
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from rococo_jax.config_fields import NOT_NEGATIVE, Key
from rococo_jax.losses.contrastive import ALTERED, mean_over_batch, softmax_nll
from rococo_jax.losses.terms import Embeddings, FieldEmbeddings, LossTerm, LossValue
from rococo_jax.similarity import ON_ONE_DEVICE, PairwiseSide, ShardedLogits


def blind_preference(pairs: Embeddings, settings: ConfigDict, logits: ShardedLogits = ON_ONE_DEVICE) -> LossValue:
    """Compute the squared mean preference of unrelated images for a caption over its altered captions.

    A pair without unrelated images in the batch does not count.
    """
    altered = pairs[ALTERED]
    unrelated_sum, unrelated_count = logits.sum_of_other_ids(PairwiseSide(pairs.images, pairs.image_id))
    mean_unrelated = unrelated_sum / jnp.maximum(unrelated_count, 1.0)[:, None]
    preference = pairs.logit_scale * (_differences(pairs.texts, altered) * mean_unrelated[:, None]).sum(-1)
    value = mean_over_batch(preference**2, altered.valid & (unrelated_count > 0)[:, None])
    return value, {"blind": value}


def grounding_contrastive(pairs: Embeddings, settings: ConfigDict, logits: ShardedLogits = ON_ONE_DEVICE) -> LossValue:
    """Compute the cross entropy of the pair's image among all images, with the caption difference D as query."""
    altered = pairs[ALTERED]
    differences = _differences(pairs.texts, altered)
    query_ids = jnp.repeat(pairs.image_id, altered.valid.shape[1])
    queries = FieldEmbeddings(differences, altered.valid).flat()._replace(ids=query_ids)
    images = PairwiseSide(pairs.images, pairs.image_id)
    negatives = logits.log_sum_exp(queries, images, logit_scale=pairs.logit_scale)
    positives = pairs.logit_scale * (pairs.images[:, None] * differences).sum(-1)
    value = mean_over_batch(softmax_nll(positives.reshape(-1), negatives), queries.mask)
    return value, {"grounding": value}


def _differences(texts: Float[Array, "b d"], altered: FieldEmbeddings) -> Float[Array, "b k d"]:
    """Subtract each altered caption from its caption; 0 where there is no altered caption."""
    return FieldEmbeddings(texts[:, None] - altered.vectors, altered.valid).zeroed()


# Both read the altered captions that `losses.sc` configures.
BLIND = LossTerm(
    "blind",
    blind_preference,
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
    grounding_contrastive,
    keys={
        "weight": Key(
            0.0,
            "Weight of the cross entropy of which image prefers a caption over its altered one most [ours].",
            NOT_NEGATIVE,
        )
    },
    reads=(ALTERED,),
)
