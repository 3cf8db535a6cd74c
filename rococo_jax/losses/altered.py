"""The defence: altered captions and mixed images as extra negatives, over the *global* batch of B pairs [ours].

    SC  1/B sum_i -log e^{tau s(I_i, T_i)} / (e^{tau s(I_i, T_i)} + sum_{j in A(i)} e^{tau s(I_i, T~_j)})
    VC  1/B sum_i -log e^{tau s(I_i, T_i)} / (e^{tau s(I_i, T_i)} + sum_{j in A(i)} e^{tau s(T_i, I~_j)})

T~ are captions in which a word was replaced, I~ images into which another was mixed, K of each to a pair. A(i) holds
those of pair i (`own`) or all of the global batch (`batch`, which is the gallery of the benchmark). An altered caption
is wrong for every image, its own included, so ids play no part. A pair without altered captions has the share 1 in the
scope `own` and adds 0 to the mean.

In the scope `own` nothing leaves a device: pair i and its altered captions are rows of the same shard.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rococo_jax.errors import InputError
from rococo_jax.losses.contrastive import flattened, valid_mask
from rococo_jax.losses.nll import mean_over_batch, negative_log_share, paired_cosines, without_masked
from rococo_jax.similarity import ON_ONE_DEVICE, Items, ShardedLogits


def semantic_contrastive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    altered_texts: Float[Array, "batch altered width"],
    *,
    logit_scale: Float[Array, ""],
    altered_mask: Bool[Array, "batch altered"] | None = None,
    mask: Bool[Array, "batch"] | None = None,
    scope: str = "batch",
    similarities: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """SC: the caption against altered captions, asked by the image. A mean over the global batch.

    Args:
        images, texts: unit vectors of the pairs, sharded along the batch.
        altered_texts: K altered captions of each caption.
        logit_scale: `tau` itself, not its logarithm.
        altered_mask: False where a caption was left unaltered; what stands in its place is not looked at.
        mask: False for pairs that are only padding, their altered captions included.
        scope: "own" or "batch".
        similarities: the mesh, and how the batch meets itself on it.

    Raises:
        InputError: another scope.
    """
    return _share_against_altered(
        images, texts, altered_texts, logit_scale, altered_mask, mask, scope, similarities, source="SC loss"
    )


def visual_contrastive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    mixed_images: Float[Array, "batch mixed width"],
    *,
    logit_scale: Float[Array, ""],
    mixed_mask: Bool[Array, "batch mixed"] | None = None,
    mask: Bool[Array, "batch"] | None = None,
    scope: str = "batch",
    similarities: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """VC: the image against mixed images, asked by the caption. `semantic_contrastive` the other way round.

    Args:
        mixed_images: K mixed images of each image, in which it is the larger part.
        mixed_mask: False where there is none, for example where an image would be mixed with itself.
    """
    return _share_against_altered(
        texts, images, mixed_images, logit_scale, mixed_mask, mask, scope, similarities, source="VC loss"
    )


def own_share(
    queries: Float[Array, "batch width"],
    positives: Float[Array, "batch width"],
    negatives: Float[Array, "batch negatives width"],
    logit_scale: Float[Array, ""],
    negative_mask: Bool[Array, "batch negatives"] | None,
) -> Float[Array, "batch"]:
    """-log of the share of each query's positive beside its own negatives."""
    logits = logit_scale * (queries[:, None] * without_masked(negatives, negative_mask)).sum(-1)
    if negative_mask is not None:
        logits = jnp.where(negative_mask, logits, -jnp.inf)
    return negative_log_share(logit_scale * paired_cosines(queries, positives), *logits.T)


def _share_against_altered(
    queries: Float[Array, "batch width"],
    positives: Float[Array, "batch width"],
    altered: Float[Array, "batch altered width"],
    logit_scale: Float[Array, ""],
    altered_mask: Bool[Array, "batch altered"] | None,
    mask: Bool[Array, "batch"] | None,
    scope: str,
    similarities: ShardedLogits,
    source: str,
) -> Float[Array, ""]:
    queries, positives = without_masked(queries, mask), without_masked(positives, mask)
    if scope == "own":
        shares = own_share(queries, positives, altered, logit_scale, valid_mask(altered, altered_mask, mask))
    elif scope == "batch":
        all_altered = flattened(altered, altered_mask, mask)
        negatives = similarities.log_sum_exp(Items(queries, None, mask), all_altered, logit_scale=logit_scale)
        shares = negative_log_share(logit_scale * paired_cosines(queries, positives), negatives)
    else:
        raise InputError(source, "scope", repr(scope), "'own' or 'batch'")
    return mean_over_batch(shares, mask)
