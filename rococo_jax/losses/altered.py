"""The defence: altered captions and mixed images as extra negatives, over the *global* batch of B pairs [ours].

    SC  1/B sum_i -log e^{tau s(I_i, T_i)} / (e^{tau s(I_i, T_i)} + sum_{j in A(i)} e^{tau s(I_i, T~_j)})
    VC  1/B sum_i -log e^{tau s(I_i, T_i)} / (e^{tau s(I_i, T_i)} + sum_{j in A(i)} e^{tau s(T_i, I~_j)})

T~ are captions in which a word was replaced, and I~ are images into which another image was mixed; each pair has K of
them. With the scope `local`, A(i) contains those of pair i; with `global`, those of the whole batch, as in the gallery
of the benchmark. An altered caption is wrong for every image, including its own, so image ids are not needed. With the
scope `local`, a pair without altered captions contributes 0 to the mean.

The scope `local` needs no communication: pair i and its altered captions are rows of the same shard.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.losses.contrastive import ALTERED, flatten_candidates, paired_cosines, softmax_nll, zero_masked
from rococo_jax.losses.terms import (
    COUNT,
    NOT_NEGATIVE,
    Embeddings,
    Field,
    Key,
    LossTerm,
    LossValue,
    Need,
    at_least,
    below_one,
    one_of,
    several_of,
)
from rococo_jax.similarity import ON_ONE_DEVICE, PairwiseSide, ShardedLogits

MIXED = Field("mixed", "vision")
# Names of the alterations of `perturb.text`.
ALTERATIONS = (
    *("same_concept", "diff_concept", "rand_voca", "danger"),
    *("attribute", "relation", "count", "order", "negation", "addition"),
)


def semantic_contrastive(
    images: Float[Array, "batch width"],
    texts: Float[Array, "batch width"],
    altered_texts: Float[Array, "batch altered width"],
    *,
    logit_scale: Float[Array, ""],
    altered_mask: Bool[Array, "batch altered"] | None = None,
    scope: str = "global",
    logits: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """Compute SC: the image as query, its caption against altered captions. A mean over the global batch.

    Args:
        images, texts: unit vectors of the pairs, sharded along the batch.
        altered_texts: K altered captions of each caption.
        logit_scale: the factor of the cosines, not its logarithm.
        altered_mask: False where there is no altered caption; the embedding there is ignored.
        scope: "local" or "global"; else InputError.
        logits: mesh and block strategy of the pairwise logits.
    """
    queries, positives = images.astype(jnp.float32), texts.astype(jnp.float32)
    if scope == "local":
        losses = local_nll(queries, positives, altered_texts, logit_scale, altered_mask)
    elif scope == "global":
        all_altered = flatten_candidates(altered_texts, altered_mask)
        negatives = logits.log_sum_exp(PairwiseSide(queries), all_altered, logit_scale=logit_scale)
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
    logits: ShardedLogits = ON_ONE_DEVICE,
) -> Float[Array, ""]:
    """Compute VC: the caption as query, its image against mixed images; `semantic_contrastive` with sides exchanged.

    `mixed_images` are K images per pair in which the pair's own image is the larger share; `mixed_mask` is False where
    there is none, for example where an image would be mixed with itself. The other arguments are those of
    `semantic_contrastive`.
    """
    return semantic_contrastive(
        texts,
        images,
        mixed_images,
        logit_scale=logit_scale,
        altered_mask=mixed_mask,
        scope=scope,
        logits=logits,
    )


def local_nll(
    queries: Float[Array, "batch width"],
    positives: Float[Array, "batch width"],
    negatives: Float[Array, "batch negatives width"],
    logit_scale: Float[Array, ""],
    negative_mask: Bool[Array, "batch negatives"] | None,
) -> Float[Array, "batch"]:
    """Compute -log softmax of each query's positive against the query's own negatives."""
    negative_logits = logit_scale * (queries[:, None] * zero_masked(negatives, negative_mask)).sum(-1)
    if negative_mask is not None:
        negative_logits = jnp.where(negative_mask, negative_logits, -jnp.inf)
    positive_logits = logit_scale * paired_cosines(queries, positives)
    return softmax_nll(positive_logits, *negative_logits.T)


def _sc_term(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> LossValue:
    altered = embeddings[ALTERED]
    value = semantic_contrastive(
        embeddings.images,
        embeddings.texts,
        altered.vectors,
        logit_scale=embeddings.logit_scale,
        altered_mask=altered.valid,
        scope=settings.scope,
        logits=logits,
    )
    return value, {"sc": value}


def _vc_term(embeddings: Embeddings, settings: ConfigDict, logits: ShardedLogits) -> LossValue:
    mixed = embeddings[MIXED]
    value = visual_contrastive(
        embeddings.images,
        embeddings.texts,
        mixed.vectors,
        logit_scale=embeddings.logit_scale,
        mixed_mask=mixed.valid,
        scope=settings.scope,
        logits=logits,
    )
    return value, {"vc": value}


SC = LossTerm(
    "sc",
    _sc_term,
    keys={
        "weight": Key(0.0, "Weight of SC: altered captions as negatives.", NOT_NEGATIVE),
        "scope": Key(
            "global",
            "Negatives of the pair's own caption (`local`) or of the whole batch (`global`).",
            one_of("local", "global"),
            affects="run",
            needs=(
                Need(lambda config: config.losses.sc.weight, "with config.losses.sc.weight=0", allows_presets=True),
            ),
        ),
        "count": Key(1, "Altered captions per caption.", COUNT, affects="run"),
        "variants": Key(
            "same_concept,diff_concept,rand_voca",
            "Alterations, separated by commas: of nouns (`same_concept`, ...) or of other kinds (`attribute`, ...).",
            several_of(*ALTERATIONS),
        ),
        "select": Key(
            "lowest",
            "Word to replace, by its influence: `lowest`, `highest` or `random`.",
            one_of("lowest", "highest", "random"),
        ),
        "influence": Key(
            "",
            "A table written by `rococo influence`; computed once by default.",
            needs=(
                Need(
                    lambda config: config.losses.sc.select != "random",
                    "with config.losses.sc.select='random'",
                    allows_presets=True,
                ),
            ),
        ),
        "lexicon": Key(
            "", "A lexicon file in the format of `perturb/text/assets/lexicon.json`; the shipped one by default."
        ),
        "fit_article": Key(False, "Adapt the article (`a` or `an`) to the new word."),
    },
    reads=(ALTERED,),
)
VC = LossTerm(
    "vc",
    _vc_term,
    keys={
        "weight": Key(0.0, "Weight of VC: mixed images as negatives.", NOT_NEGATIVE),
        "scope": Key(
            "global",
            "Negatives of the pair's own image (`local`) or of the whole batch (`global`).",
            one_of("local", "global"),
            affects="run",
        ),
        "methods": Key(
            "mixup,cutmix", "`mixup`, `cutmix`, or both in turns.", one_of("mixup", "cutmix", "mixup,cutmix")
        ),
        "ratio": Key(0.9, "Share of the pair's own image in a mixed image; below 1.", below_one("share")),
        "views": Key(
            "crop",
            "View of the images that is mixed: cropped as in training (`crop`), resized to a square (`resize`), or "
            "both in turns.",
            one_of("crop", "resize", "crop,resize"),
        ),
        "partner_group": Key(
            8,
            "Size of the groups of consecutive images that are mixed with each other. A group may span devices, which "
            "then gather its images.",
            at_least(2),
            needs=(
                Need(
                    lambda config: not config.data.cached_features,
                    "with config.data.cached_features, whose mixed images are made beforehand",
                ),
            ),
        ),
    },
    reads=(MIXED,),
)
