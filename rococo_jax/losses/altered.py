"""The defence: altered captions and mixed images as extra negatives, over the *global* batch of B pairs [ours].

    SC  1/B sum_i -log e^{tau s(I_i, T_i)} / (e^{tau s(I_i, T_i)} + sum_{j in A(i)} e^{tau s(I_i, T~_j)})
    VC  1/B sum_i -log e^{tau s(I_i, T_i)} / (e^{tau s(I_i, T_i)} + sum_{j in A(i)} e^{tau s(T_i, I~_j)})

T~ are captions in which a word was replaced, I~ images into which another was mixed, K of each to a pair. A(i) holds
those of pair i (scope `local`) or all of the global batch (`global`, as in the gallery of the benchmark). An altered
caption is wrong for every image, its own included, so ids play no part. A pair without altered captions adds 0 to the
mean in the scope `local`.

In the scope `local` nothing leaves a device: pair i and its altered captions are rows of the same shard.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.losses.contrastive import flattened, paired_cosines, softmax_nll, without_masked
from rococo_jax.losses.terms import (
    COUNT,
    NOT_NEGATIVE,
    Embeddings,
    Field,
    Key,
    at_least,
    below_one,
    field_term,
    one_of,
)
from rococo_jax.similarity import ON_ONE_DEVICE, Items, ShardedLogits


def semantic_contrastive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    altered_texts: Float[Array, "batch altered width"],
    *,
    logit_scale: Float[Array, ""],
    altered_mask: Bool[Array, "batch altered"] | None = None,
    scope: str = "global",
    similarities: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """SC: the caption against altered captions, asked by the image. A mean over the global batch.

    Args:
        images, texts: unit vectors of the pairs, sharded along the batch.
        altered_texts: K altered captions of each caption.
        logit_scale: `tau` itself, not its logarithm.
        altered_mask: False where a caption was left unaltered; what stands in its place is not looked at.
        scope: "local" or "global"; else InputError.
        similarities: the mesh, and how the batch meets itself on it.
    """
    queries, positives = images.astype(jnp.float32), texts.astype(jnp.float32)
    if scope == "local":
        losses = local_nll(queries, positives, altered_texts, logit_scale, altered_mask)
    elif scope == "global":
        all_altered = flattened(altered_texts, altered_mask)
        negatives = similarities.log_sum_exp(Items(queries), all_altered, logit_scale=logit_scale)
        losses = softmax_nll(logit_scale * paired_cosines(queries, positives), negatives)
    else:
        raise InputError("loss", "scope", repr(scope), "'local' or 'global'")
    return losses.mean()


def visual_contrastive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    mixed_images: Float[Array, "batch mixed width"],
    *,
    logit_scale: Float[Array, ""],
    mixed_mask: Bool[Array, "batch mixed"] | None = None,
    scope: str = "global",
    similarities: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """VC: the image against mixed images, asked by the caption: `semantic_contrastive` the other way round.

    Each image has K `mixed_images`, in which it is the larger part; `mixed_mask` is False where there is none, for
    example where an image would be mixed with itself. Other arguments as there.
    """
    everywhere = {"logit_scale": logit_scale, "scope": scope, "similarities": similarities}
    return semantic_contrastive(texts, images, mixed_images, altered_mask=mixed_mask, **everywhere)


def local_nll(
    queries: Float[Array, "batch width"],
    positives: Float[Array, "batch width"],
    negatives: Float[Array, "batch negatives width"],
    logit_scale: Float[Array, ""],
    negative_mask: Bool[Array, "batch negatives"] | None,
) -> Float[Array, "batch"]:
    """-log softmax of each query's positive beside its own negatives."""
    logits = logit_scale * (queries[:, None] * without_masked(negatives, negative_mask)).sum(-1)
    if negative_mask is not None:
        logits = jnp.where(negative_mask, logits, -jnp.inf)
    return softmax_nll(logit_scale * paired_cosines(queries, positives), *logits.T)


ALTERED, MIXED = Field("altered", "text"), Field("mixed", "vision")


def _more(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> dict[str, Any]:
    return {"scope": settings.scope, "similarities": logits}


def _keys(weight: str, own: str, keys: dict[str, Key]) -> dict[str, Key]:
    """Weight and scope of a term, and its own keys."""
    scope = f"Negatives of the own {own} (`local`) or of the whole batch (`global`)."
    return {
        "weight": Key(0.0, weight, NOT_NEGATIVE),
        "scope": Key("global", scope, one_of("local", "global")),
        **keys,
    }


SC = field_term(
    "sc",
    ALTERED,
    semantic_contrastive,
    _more,
    keys=_keys(
        "Weight of SC: altered captions as negatives.",
        "caption",
        {
            "count": Key(1, "Altered captions a caption.", COUNT),
            "variants": Key(
                "same_concept,diff_concept,rand_voca",
                "Which alterations, with commas: of nouns (`same_concept`, ...) and of other kinds (`attribute`, ...).",
            ),
            "select": Key(
                "lowest",
                "Which word is replaced, by its influence: `lowest`, `highest` or `random`.",
                one_of("lowest", "highest", "random"),
            ),
            "influence": Key("", "A table of `rococo influence`; computed once by default."),
            "lexicon": Key("", "A lexicon file, as `perturb/text/assets/lexicon.json`; the shipped one by default."),
            "fit_article": Key(False, "Write `a` or `an` as the new word wants it."),
        },
    ),
)
VC = field_term(
    "vc",
    MIXED,
    visual_contrastive,
    _more,
    keys=_keys(
        "Weight of VC: mixed images as negatives.",
        "image",
        {
            "methods": Key(
                "mixup,cutmix", "`mixup`, `cutmix`, or both in turns.", one_of("mixup", "cutmix", "mixup,cutmix")
            ),
            "ratio": Key(0.9, "The share of the own image; with 1 no image would be mixed.", below_one("share")),
            "views": Key(
                "crop",
                "What is mixed: images as trained on (`crop`), squashed to a square (`resize`), or both in turns.",
                one_of("crop", "resize", "crop,resize"),
            ),
            "partner_group": Key(
                8,
                "Partners come from groups of so many consecutive images, so none is sent between devices.",
                at_least(2),
            ),
        },
    ),
)
