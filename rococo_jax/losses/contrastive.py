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
from jaxtyping import Array, Bool, Float
from ml_collections import ConfigDict

from rococo_jax.config_fields import Key, Need, one_of
from rococo_jax.losses.terms import Embeddings, Field, FieldEmbeddings, LossTerm, LossValue
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
    pairs: Embeddings, logits: ShardedLogits = ON_ONE_DEVICE, columns: FieldEmbeddings | None = None
) -> Float[Array, ""]:
    """Compute the mean of the image-to-text and text-to-image cross entropies over the global batch.

    Args:
        pairs: embeddings of the batch, sharded along the pairs.
        logits: mesh and block size of the pairwise logits.
        columns: extra captions that are negatives of *every* image of the batch.
    """
    scale, positive = pairs.logit_scale, pairs.logit_scale * paired_cosines(pairs.images, pairs.texts)
    images, texts = PairwiseSide(pairs.images, pairs.image_id), PairwiseSide(pairs.texts, pairs.image_id)
    other_texts, other_images = logits.log_sum_exp_both_ways(images, texts, logit_scale=scale)
    text_negatives = [other_texts]
    if columns is not None:
        text_negatives.append(logits.log_sum_exp(PairwiseSide(pairs.images), columns.flat(), logit_scale=scale))
    image_to_text = softmax_nll(positive, *text_negatives)
    text_to_image = softmax_nll(positive, other_images)
    return (0.5 * (image_to_text + text_to_image)).mean()


def sigmoid_contrastive(pairs: Embeddings, logits: ShardedLogits = ON_ONE_DEVICE) -> Float[Array, ""]:
    """Compute the pairwise sigmoid loss: a sum over all captions of the batch, a mean over its images.

    `pairs.logit_bias` is added to every logit; SigLIP initialises it with -10.
    """
    scale, bias = pairs.logit_scale, pairs.logit_bias
    images, texts = PairwiseSide(pairs.images, pairs.image_id), PairwiseSide(pairs.texts, pairs.image_id)
    negatives = logits.softplus_sum(images, texts, logit_scale=scale, logit_bias=bias)
    positives = jax.nn.softplus(-(scale * paired_cosines(pairs.images, pairs.texts) + bias))
    return (positives + negatives).mean()


def softmax_nll(positive: Float[Array, " items"], *negatives: Float[Array, " items"]) -> Float[Array, " items"]:
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
    values: Float[Array, " items *candidates"], mask: Bool[Array, " items *candidates"]
) -> Float[Array, ""]:
    """Average the values where `mask` is True over the global batch; 0 if it is False everywhere."""
    total = jnp.where(mask, values, 0.0).sum()
    return total / jnp.maximum(mask.sum(), 1).astype(jnp.float32)


def paired_cosines(left: Float[Array, "items width"], right: Float[Array, "items width"]) -> Float[Array, " items"]:
    """Multiply unit vectors row by row, in float32."""
    return (left * right).sum(-1)


def contrastive_loss(pairs: Embeddings, settings: ConfigDict, logits: ShardedLogits = ON_ONE_DEVICE) -> LossValue:
    """Compute the loss of `settings.kind`; for the softmax loss, with the extra columns of active terms."""
    if settings.kind == "sigmoid":
        value = sigmoid_contrastive(pairs, logits)
    else:
        value = softmax_contrastive(pairs, logits, _columns(pairs, settings))
    return value, {"contrastive": value}


def _columns(pairs: Embeddings, settings: ConfigDict) -> FieldEmbeddings | None:
    """Collect the captions that are negatives of every image; None if the config requests none."""
    columns = [pairs[NEGATIVES]] if NEGATIVES in pairs else []  # the hard_positives term is active
    if settings.altered_columns:
        columns.append(pairs[ALTERED])
    if not columns:
        return None
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=1), *columns)


CONTRASTIVE = LossTerm(
    "contrastive",
    contrastive_loss,
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
