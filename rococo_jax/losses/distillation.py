"""Distillation to the starting model on clean pairs: similarities stay where training has no reason to move them.

    l2    1/B^2 sum_ij [ tau (s_ij - s0_ij) ]^2
    kl    1/2B sum_i [ KL(p0_i. || p_i.) + KL(p0_.i || p_.i) ]      p = softmax of tau s over a row or a column

s_ij = <I_i, T_j>, s0_ij those of the model that training started from, both at the scale tau of the model as it is; B
the global batch. In `kl` every row is a distribution over texts and every column one over images, distilled after
Hinton et al. (arXiv 1503.02531) at temperature 1.

Neither holds the matrix of pairs. The sum of squares is <A B^T, C D^T> = <A^T C, B^T D>, products of (dim, dim). In
`kl` the log-sum-exps are those of `ShardedLogits`, and so are the means under p0: the derivative of the log-sum-exp of
a row of s0 by a query of which a part meets zeros is the mean of what that part would have met.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from rococo_jax.losses.terms import NOT_NEGATIVE, Embeddings, Key, LossTerm, LossValue, one_of
from rococo_jax.similarity import ON_ONE_DEVICE, Items, ShardedLogits


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


def relational_distillation(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    teacher_images: Float[Array, "batch width"],
    teacher_texts: Float[Array, "batch width"],
    *,
    logit_scale: Float[Array, ""],
    similarities: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """The mean divergence of the rows and columns of the batch's softmax from the starting model's.

    Args as for `similarity_distillation`. No gradient reaches the teacher, nor the scale through it.
    """
    fixed = jax.lax.stop_gradient(
        {"I": images, "T": texts, "I0": teacher_images, "T0": teacher_texts, "scale": logit_scale}
    )
    nothing = jnp.zeros_like(fixed["I"])
    # The further columns add nothing to a logit; their derivatives are means under the teacher's softmax.
    queries = jnp.concatenate([fixed["I0"], fixed["I"], nothing], 1)
    keys = jnp.concatenate([fixed["T0"], nothing, fixed["T0"] - fixed["T"]], 1)

    def sums(queries: Array, keys: Array, scale: Array) -> tuple[Array, Array]:
        return similarities.log_sum_exp_both_ways(Items(queries), Items(keys), logit_scale=scale)

    before, derivative = jax.vjp(lambda queries, keys: sums(queries, keys, fixed["scale"]), queries, keys)
    of_queries, of_keys = derivative(jax.tree.map(jnp.ones_like, before))
    teacher_text, _, text_change = jnp.split(of_queries / fixed["scale"], 3, 1)
    _, own_image, _ = jnp.split(of_keys / fixed["scale"], 3, 1)
    own_text = teacher_text - text_change
    # The mean of s0 - s under the teacher, of small differences, and its derivatives in images and texts.
    fallen = ((fixed["I0"] - fixed["I"]) * teacher_text + fixed["I"] * text_change).sum()
    slope = ((images - fixed["I"]) * own_text + (texts - fixed["T"]) * own_image).sum()
    after = sums(images, texts, logit_scale)
    normalisers = sum((new - old).sum() for new, old in zip(after, before, strict=True))
    # The teacher's scale is fixed: tau0 s0 - tau s, whose derivative in tau is -s.
    mean_own = (fixed["I"] * own_text).sum()
    expected = fixed["scale"] * (fallen - slope) - (logit_scale - fixed["scale"]) * mean_own
    return (expected + normalisers) / (2 * len(images))


def _term(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> LossValue:
    teacher = embeddings.teacher
    vectors = embeddings.images, embeddings.texts, teacher["images"], teacher["texts"]
    if settings.kind == "kl":
        value = relational_distillation(*vectors, logit_scale=embeddings.logit_scale, similarities=logits)
    else:
        value = similarity_distillation(*vectors, logit_scale=embeddings.logit_scale)
    return value, {"distillation": value}


DISTILLATION = LossTerm(
    "distillation",
    _term,
    keys={"weight": Key(0.0, NOT_NEGATIVE), "kind": Key("l2", one_of("l2", "kl"))},
    teacher=True,
)
