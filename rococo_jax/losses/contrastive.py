"""Contrastive losses over pairs (image i, caption i), i = 1..B over the *global* batch.

    softmax   1/(2B) sum_i [ -log e^z_ii / (e^z_ii + sum_{j in N(i)} e^z_ij)        image to text
                             -log e^z_ii / (e^z_ii + sum_{j in N(i)} e^z_ji) ]      text to image
    sigmoid   1/B sum_i [ log(1 + e^-z_ii) + sum_{j in N(i)} log(1 + e^z_ij) ]

with z_ij = logit_scale * cosine(image i, caption j) (+ logit_bias in the sigmoid form): CLIP (arXiv 2103.00020) and
SigLIP (arXiv 2303.15343), where N(i) is everything but i.

Positives by id [ours: the published losses know only the diagonal]: N(i) holds the pairs whose id differs from that of
pair i. Another caption of the same image, met elsewhere in the batch, is neither a positive nor a negative of pair i.
An image that occurs with several captions is in the mean once for each, every time against captions of other images
only; with ids that all differ these are the published formulas.

All losses here are made of one piece, `softmax_nll`: -log( e^p / (e^p + e^r1 + e^r2 + ...) ) of a positive logit p and
negatives r, which may themselves be log-sum-exps of many logits.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from rococo_jax.losses.terms import Embeddings, Field, Key, LossTerm, LossValue, one_of
from rococo_jax.similarity import ON_ONE_DEVICE, Items, ShardedLogits


def softmax_contrastive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    *,
    logit_scale: Float[Array, ""],
    ids: Int[Array, "batch"] | None = None,
    negative_texts: Float[Array, "batch negatives width"] | None = None,
    negative_mask: Bool[Array, "batch negatives"] | None = None,
    similarities: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """Half image-to-text and half text-to-image cross entropy, a mean over the global batch.

    Args:
        images, texts: unit vectors of the pairs, sharded along the batch.
        logit_scale: `tau` itself, not its logarithm.
        ids: the image that each pair shows; all different by default.
        negative_texts: further captions that are negatives of *every* image of the batch (as in The Hard Positive
            Truth, arXiv 2409.17958, after NegCLIP); they add columns from image to text and nothing the other way.
        negative_mask: False where there is no such caption.
        similarities: the mesh, and how the batch meets itself on it.
    """
    images, texts = images.astype(jnp.float32), texts.astype(jnp.float32)
    ids = jnp.arange(len(images)) if ids is None else ids
    of_images, of_texts = similarities.log_sum_exp_both_ways(
        Items(images, ids), Items(texts, ids), logit_scale=logit_scale
    )
    negatives = [of_images]
    if negative_texts is not None:
        further = flattened(negative_texts, negative_mask)
        negatives.append(similarities.log_sum_exp(Items(images), further, logit_scale=logit_scale))
    positive = logit_scale * paired_cosines(images, texts)
    to_text, to_image = softmax_nll(positive, *negatives), softmax_nll(positive, of_texts)
    return (0.5 * (to_text + to_image)).mean()


def sigmoid_contrastive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    *,
    logit_scale: Float[Array, ""],
    logit_bias: Float[Array, ""],
    ids: Int[Array, "batch"] | None = None,
    similarities: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """The pairwise sigmoid loss: the sum over all captions of the batch, a mean over its images.

    Args as for `softmax_contrastive`; `logit_bias` is added to every logit (SigLIP starts it at -10).
    """
    images, texts = images.astype(jnp.float32), texts.astype(jnp.float32)
    ids = jnp.arange(len(images)) if ids is None else ids
    negatives = similarities.softplus_sum(
        Items(images, ids), Items(texts, ids), logit_scale=logit_scale, logit_bias=logit_bias
    )
    positives = jax.nn.softplus(-(logit_scale * paired_cosines(images, texts) + logit_bias))
    return (positives + negatives).mean()


def flattened(several: Float[Array, "batch several width"], several_mask: Bool[Array, "batch several"] | None) -> Items:
    """Embeddings that come K to a pair as one long list."""
    flat_mask = None if several_mask is None else several_mask.reshape(-1)
    return Items(several.reshape(-1, several.shape[-1]), None, flat_mask)


def softmax_nll(positive: Float[Array, "items"], *negatives: Float[Array, "items"]) -> Float[Array, "items"]:
    """`log(1 + sum_r e^(r - p))`, one negative after the other: log(1 + x + y) = log(1 + x) + log(1 + y / (1 + x)).

    All terms are positive, so that a loss of 1e-10 is as exact as one of 10. A negative of -inf adds nothing and its
    gradient is 0.

    >>> float(softmax_nll(jnp.zeros(1), jnp.zeros(1), jnp.full(1, -jnp.inf))[0])  # log 2
    0.6931471824645996
    """
    nll = jnp.zeros_like(positive)
    for negative in negatives:
        nll += jax.nn.softplus(negative - positive - nll)
    return nll


def mean_over_batch(
    values: Float[Array, "items *several"], counted: Bool[Array, "items *several"] | None
) -> Float[Array, ""]:
    """The mean over all items of the global batch that count; 0 where none does."""
    if counted is None:
        return values.mean()
    total = jnp.where(counted, values, 0.0).sum()
    return total / jnp.maximum(counted.sum(), 1).astype(jnp.float32)


def paired_cosines(left: Float[Array, "items width"], right: Float[Array, "items width"]) -> Float[Array, "items"]:
    """Products of unit vectors of the same row, in float32."""
    return (left * right).sum(-1)


def without_masked(
    embeddings: Float[Array, "items *several width"], mask: Bool[Array, "items *several"] | None
) -> Float[Array, "items *several width"]:
    """In float32, with zeros where an item does not count: whatever was there, its gradient is 0."""
    embeddings = embeddings.astype(jnp.float32)
    return embeddings if mask is None else jnp.where(mask[..., None], embeddings, 0.0)


# Captions that are negatives of every image of the batch, where the term of hard positives has them made.
NEGATIVES = Field("negative", "text")


def _term(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> LossValue:
    pairs = {"ids": embeddings.image_id, "logit_scale": embeddings.logit_scale, "similarities": logits}
    if settings.kind == "sigmoid":
        pairs["logit_bias"] = embeddings.logit_bias
        value = sigmoid_contrastive(embeddings.images, embeddings.texts, **pairs)
    else:
        if NEGATIVES in embeddings:
            negatives = embeddings[NEGATIVES]
            pairs |= {"negative_texts": negatives.vectors, "negative_mask": negatives.valid}
        value = softmax_contrastive(embeddings.images, embeddings.texts, **pairs)
    return value, {"contrastive": value}


CONTRASTIVE = LossTerm(
    "contrastive",
    _term,
    keys={
        "kind": Key("softmax", "`softmax`, or `sigmoid` for models with a logit bias.", one_of("softmax", "sigmoid"))
    },
)
