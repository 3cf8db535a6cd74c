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
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from rococo_jax.config_fields import COUNT, NOT_NEGATIVE, Key, Need, at_least, below_one, one_of, several_of
from rococo_jax.losses.contrastive import ALTERED, paired_cosines, softmax_nll
from rococo_jax.losses.terms import Embeddings, Field, FieldEmbeddings, LossTerm, LossValue
from rococo_jax.similarity import ON_ONE_DEVICE, PairwiseSide, ShardedLogits

MIXED = Field("mixed", "vision")
# Names of the alterations of `perturb.text`.
ALTERATIONS = (
    *("same_concept", "diff_concept", "rand_voca", "danger"),
    *("attribute", "relation", "count", "order", "negation", "addition"),
)


def semantic_contrastive(pairs: Embeddings, settings: ConfigDict, logits: ShardedLogits = ON_ONE_DEVICE) -> LossValue:
    """Compute SC: the image as query, its caption against altered captions. A mean over the global batch."""
    value = _contrast(pairs, pairs.images, pairs.texts, pairs[ALTERED], settings.scope, logits)
    return value, {"sc": value}


def visual_contrastive(pairs: Embeddings, settings: ConfigDict, logits: ShardedLogits = ON_ONE_DEVICE) -> LossValue:
    """Compute VC: the caption as query, its image against mixed images in which it has the larger share."""
    value = _contrast(pairs, pairs.texts, pairs.images, pairs[MIXED], settings.scope, logits)
    return value, {"vc": value}


def _contrast(
    pairs: Embeddings,
    queries: Float[Array, "b d"],
    positives: Float[Array, "b d"],
    negatives: FieldEmbeddings,
    scope: str,
    logits: ShardedLogits,
) -> Float[Array, ""]:
    """Contrast each query's positive with its own negatives (scope `local`), or with those of the whole batch."""
    if scope == "local":
        return local_nll(queries, positives, negatives, pairs.logit_scale).mean()
    all_negatives = logits.log_sum_exp(PairwiseSide(queries), negatives.flat(), logit_scale=pairs.logit_scale)
    return softmax_nll(pairs.logit_scale * paired_cosines(queries, positives), all_negatives).mean()


def local_nll(
    queries: Float[Array, "b d"],
    positives: Float[Array, "b d"],
    negatives: FieldEmbeddings,
    logit_scale: Float[Array, ""],
) -> Float[Array, " b"]:
    """Compute -log softmax of each query's positive against the query's own negatives."""
    negative_logits = logit_scale * (queries[:, None] * negatives.zeroed()).sum(-1)
    negative_logits = jnp.where(negatives.valid, negative_logits, -jnp.inf)
    positive_logits = logit_scale * paired_cosines(queries, positives)
    return softmax_nll(positive_logits, *negative_logits.T)


SC = LossTerm(
    "sc",
    semantic_contrastive,
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
    visual_contrastive,
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
