"""Contrastive losses over pairs (image i, caption i), i = 1..B, of the *global* batch.

    softmax   1/(2B) sum_i [ -log e^z_ii / (e^z_ii + sum_{j in N(i)} e^z_ij)        image to text
                             -log e^z_ii / (e^z_ii + sum_{j in N(i)} e^z_ji) ]      text to image
    sigmoid   1/B sum_i [ log(1 + e^-z_ii) + sum_{j in N(i)} log(1 + e^z_ij) ]

with z_ij = logit_scale * cosine(image i, caption j), plus logit_bias in the sigmoid loss. These are the losses of CLIP
(arXiv 2103.00020) and SigLIP (arXiv 2303.15343), where N(i) contains every j except i.

Positives by image id [ours: the published losses know only the diagonal]. N(i) contains the pairs whose image id
differs from that of pair i, so another caption of the same image is neither a positive nor a negative of pair i. An
image that occurs with several captions contributes one summand for each of them. If all ids differ, the formulas are
the published ones.

Extra captions can be added as *columns*: negatives of every image of the batch, in the direction image to text only.
With altered captions as columns (`losses.contrastive.altered_columns`) the softmax loss is NegCLIP's (arXiv
2210.01936).

Every loss of this package is built on `softmax_nll`: -log( e^p / (e^p + e^r1 + e^r2 + ...) ) of a positive logit p and
negatives r. A negative may itself be the log-sum-exp of many logits.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from rococo_jax.losses.terms import Embeddings, Field, FieldEmbeddings, Key, LossTerm, LossValue, Need, one_of
from rococo_jax.similarity import ON_ONE_DEVICE, PairwiseSide, ShardedLogits

# Altered captions: a word was replaced, so that they are wrong for every image. `losses.sc` configures them.
ALTERED = Field("altered", "text")
# Hard negatives read from a file, which `losses.hard_positives` configures.
NEGATIVES = Field("negative", "text")


def without_sigmoid(columns: str) -> Need:
    """Return the need of a key that adds columns of negatives to the softmax loss."""
    return Need(
        lambda config: config.losses.contrastive.kind != "sigmoid",
        f"with config.losses.contrastive.kind 'sigmoid', which has no columns for {columns}",
    )


def softmax_contrastive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    *,
    logit_scale: Float[Array, ""],
    ids: Int[Array, "batch"] | None = None,
    negative_texts: Float[Array, "batch negatives width"] | None = None,
    negative_mask: Bool[Array, "batch negatives"] | None = None,
    logits: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """Compute the mean of the image-to-text and text-to-image cross entropies over the global batch.

    Args:
        images, texts: unit vectors of the pairs, sharded along the batch.
        logit_scale: the factor of the cosines, not its logarithm.
        ids: image id of each pair; all different by default.
        negative_texts: extra captions that are negatives of *every* image of the batch (columns).
        negative_mask: False where there is no such caption.
        logits: mesh and block strategy of the pairwise logits.
    """
    images, texts = images.astype(jnp.float32), texts.astype(jnp.float32)
    ids = jnp.arange(len(images)) if ids is None else ids
    other_texts, other_images = logits.log_sum_exp_both_ways(
        PairwiseSide(images, ids), PairwiseSide(texts, ids), logit_scale=logit_scale
    )
    text_negatives = [other_texts]
    if negative_texts is not None:
        columns = flatten_candidates(negative_texts, negative_mask)
        text_negatives.append(logits.log_sum_exp(PairwiseSide(images), columns, logit_scale=logit_scale))
    positive = logit_scale * paired_cosines(images, texts)
    image_to_text = softmax_nll(positive, *text_negatives)
    text_to_image = softmax_nll(positive, other_images)
    return (0.5 * (image_to_text + text_to_image)).mean()


def sigmoid_contrastive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    *,
    logit_scale: Float[Array, ""],
    logit_bias: Float[Array, ""],
    ids: Int[Array, "batch"] | None = None,
    logits: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """Compute the pairwise sigmoid loss: a sum over all captions of the batch, a mean over its images.

    `logit_bias` is added to every logit; SigLIP initialises it with -10. The other arguments are those of
    `softmax_contrastive`.
    """
    images, texts = images.astype(jnp.float32), texts.astype(jnp.float32)
    ids = jnp.arange(len(images)) if ids is None else ids
    negatives = logits.softplus_sum(
        PairwiseSide(images, ids), PairwiseSide(texts, ids), logit_scale=logit_scale, logit_bias=logit_bias
    )
    positives = jax.nn.softplus(-(logit_scale * paired_cosines(images, texts) + logit_bias))
    return (positives + negatives).mean()


def flatten_candidates(
    candidates: Float[Array, "batch candidates width"], mask: Bool[Array, "batch candidates"] | None
) -> PairwiseSide:
    """Merge the first two axes: K embeddings per pair become one list of B * K."""
    flat_mask = None if mask is None else mask.reshape(-1)
    return PairwiseSide(candidates.reshape(-1, candidates.shape[-1]), None, flat_mask)


def softmax_nll(positive: Float[Array, "items"], *negatives: Float[Array, "items"]) -> Float[Array, "items"]:
    """Compute `log(1 + sum_r e^(r - p))`, adding one negative at a time.

    The recursion is log(1 + x + y) = log(1 + x) + log(1 + y / (1 + x)). All its terms are positive, so that a loss of
    1e-10 is as exact as one of 10. A negative of -inf adds nothing and gets the gradient 0.

    >>> float(softmax_nll(jnp.zeros(1), jnp.zeros(1), jnp.full(1, -jnp.inf))[0])  # log 2
    0.6931471824645996
    """
    nll = jnp.zeros_like(positive)
    for negative in negatives:
        nll += jax.nn.softplus(negative - positive - nll)
    return nll


def mean_over_batch(
    values: Float[Array, "items *candidates"], mask: Bool[Array, "items *candidates"] | None
) -> Float[Array, ""]:
    """Average the values where `mask` is True over the global batch; 0 if it is False everywhere."""
    if mask is None:
        return values.mean()
    total = jnp.where(mask, values, 0.0).sum()
    return total / jnp.maximum(mask.sum(), 1).astype(jnp.float32)


def paired_cosines(left: Float[Array, "items width"], right: Float[Array, "items width"]) -> Float[Array, "items"]:
    """Multiply unit vectors row by row, in float32."""
    return (left * right).sum(-1)


def zero_masked(
    embeddings: Float[Array, "items *candidates width"], mask: Bool[Array, "items *candidates"] | None
) -> Float[Array, "items *candidates width"]:
    """Convert to float32 and replace embeddings by 0 where `mask` is False.

    The gradient of a masked embedding is 0, even if it is NaN.
    """
    embeddings = embeddings.astype(jnp.float32)
    return embeddings if mask is None else jnp.where(mask[..., None], embeddings, 0.0)


def _contrastive_term(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> LossValue:
    if settings.kind == "sigmoid":
        value = sigmoid_contrastive(
            embeddings.images,
            embeddings.texts,
            logit_scale=embeddings.logit_scale,
            logit_bias=embeddings.logit_bias,
            ids=embeddings.image_id,
            logits=logits,
        )
        return value, {"contrastive": value}
    columns = _columns(embeddings, settings)
    value = softmax_contrastive(
        embeddings.images,
        embeddings.texts,
        logit_scale=embeddings.logit_scale,
        ids=embeddings.image_id,
        negative_texts=None if columns is None else columns.vectors,
        negative_mask=None if columns is None else columns.valid,
        logits=logits,
    )
    return value, {"contrastive": value}


def _columns(embeddings: Embeddings, settings: ConfigDict) -> FieldEmbeddings | None:
    """Collect the captions that are negatives of every image; None if the config requests none."""
    columns = []
    if NEGATIVES in embeddings:  # the hard_positives term is active
        columns.append(embeddings[NEGATIVES])
    if settings.altered_columns:
        columns.append(embeddings[ALTERED])
    if not columns:
        return None
    vectors = jnp.concatenate([each.vectors for each in columns], axis=1)
    valid = jnp.concatenate([each.valid for each in columns], axis=1)
    return FieldEmbeddings(vectors, valid)


CONTRASTIVE = LossTerm(
    "contrastive",
    _contrastive_term,
    keys={
        "kind": Key(
            "softmax",
            "`softmax`, or `sigmoid` for models with a logit bias.",
            one_of("softmax", "sigmoid"),
            affects="run",
        ),
        "altered_columns": Key(
            False,
            "Add the altered captions that `losses.sc` describes as negatives of every image (NegCLIP, arXiv "
            "2210.01936).",
            needs=(without_sigmoid("altered captions"),),
        ),
    },
    optional_reads={"altered_columns": ALTERED},
)
