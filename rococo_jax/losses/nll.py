"""The two pieces that all losses are made of: how far a positive is from having all the weight, and a mean.

    negative_log_share = -log( e^p / (e^p + e^r1 + e^r2 + ...) )

with a positive logit p and negatives r, which may themselves be log-sum-exps of many logits.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def negative_log_share(positive: Float[Array, "items"], *negatives: Float[Array, "items"]) -> Float[Array, "items"]:
    """`log(1 + sum_r e^(r - p))`, one negative after the other: log(1 + x + y) = log(1 + x) + log(1 + y / (1 + x)).

    All terms are positive, so that a loss of 1e-10 is as exact as one of 10. A negative of -inf adds nothing and its
    gradient is 0.

    >>> float(negative_log_share(jnp.zeros(1), jnp.zeros(1), jnp.full(1, -jnp.inf))[0])  # log 2
    0.6931471824645996
    """
    share = jnp.zeros_like(positive)
    for negative in negatives:
        share += jax.nn.softplus(negative - positive - share)
    return share


def mean_over_batch(values: Float[Array, "items"], counted: Bool[Array, "items"] | None) -> Float[Array, ""]:
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
