"""Distillation to the starting model on clean pairs: similarities stay where training has no reason to move them.

    L = 1/B^2 sum_ij [ tau (s(I_i, T_j) - s_0(I_i, T_j)) ]^2

s_0 are the similarities of the model that training started from, B the global batch. The sum of squares over all pairs
needs no matrix of pairs: <A B^T, C D^T> = <A^T C, B^T D>, products of (dim, dim).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from rococo_jax.losses.terms import NOT_NEGATIVE, Embeddings, Key, LossTerm, LossValue, register
from rococo_jax.similarity import ShardedLogits


def similarity_distillation(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    teacher_images: Float[Array, "batch width"],
    teacher_texts: Float[Array, "batch width"],
    *,
    logit_scale: Float[Array, ""],
) -> Float[Array, ""]:
    """The mean squared difference of all similarities of the batch, in logits.

    Args:
        images, texts: unit vectors of the pairs.
        teacher_images, teacher_texts: those of the starting model.
        logit_scale: `tau` itself, not its logarithm.
    """
    # The difference of the embeddings is small beside them; its products lose no digits.
    change, moved = images - teacher_images, texts - teacher_texts

    def inner(left: tuple[Array, Array], right: tuple[Array, Array]) -> Float[Array, ""]:
        """<L_1 L_2^T, R_1 R_2^T> over all pairs."""
        products = (jnp.matmul(a.T, b, precision="highest") for a, b in zip(left, right, strict=True))
        return jnp.multiply(*products).sum()

    # I T^T - I_0 T_0^T = (I - I_0) T^T + I_0 (T - T_0)^T
    first, second = (change, texts), (teacher_images, moved)
    total = inner(first, first) + 2.0 * inner(first, second) + inner(second, second)
    return logit_scale**2 * total / len(images) ** 2


def _term(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> LossValue:
    teacher = embeddings.teacher
    value = similarity_distillation(
        embeddings.images,
        embeddings.texts,
        teacher["images"],
        teacher["texts"],
        logit_scale=embeddings.logit_scale,
    )
    return value, {"distillation": value}


register(LossTerm("distillation", _term, keys={"weight": Key(0.0, NOT_NEGATIVE)}, order=9, teacher=True))
