"""What is minimised: the contrastive loss and the defences that the config switches on.

    L = L_contrastive + w_sc SC + w_vc VC + w_hp (L_pos + w_neg L_neg)

The formulas are in `rococo_jax.losses`; all are means over the global batch. With hard positives the negatives are
extra columns of the contrastive loss as well.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from rococo_jax.losses import (
    hard_negative,
    hard_positive,
    semantic_contrastive,
    sigmoid_contrastive,
    softmax_contrastive,
    visual_contrastive,
)
from rococo_jax.similarity import ShardedLogits
from rococo_jax.training.forward import Batch, Embedded

Parts = Mapping[str, Float[Array, ""]]


def loss_of(
    embedded: Embedded, scale: Mapping[str, Array], batch: Batch, losses: ConfigDict, similarities: ShardedLogits
) -> tuple[Float[Array, ""], Parts]:
    """The loss, and its parts before their weights.

    Args:
        embedded: what `embed_batch` gave for the whole global batch.
        scale: `logit_scale` as its logarithm, and `logit_bias` for the sigmoid form.
        batch: ids and which items count.
        losses: the config's part of that name.
        similarities: the mesh, and how the batch meets itself on it.
    """
    images, texts = embedded["images"], embedded["texts"]
    common = {"logit_scale": jnp.exp(scale["logit_scale"])}
    everywhere = {**common, "similarities": similarities}
    ids = batch["image_id"]
    negatives = {}
    if "negatives" in embedded:
        negatives = {"negative_texts": embedded["negatives"], "negative_mask": batch["negative_valid"]}
    if losses.contrastive.kind == "sigmoid":
        parts = {
            "contrastive": sigmoid_contrastive(images, texts, ids=ids, logit_bias=scale["logit_bias"], **everywhere)
        }
    else:
        parts = {"contrastive": softmax_contrastive(images, texts, ids=ids, **everywhere, **negatives)}
    loss = parts["contrastive"]
    if "altered" in embedded:
        masks = {"altered_mask": batch["altered_valid"], "scope": losses.sc.scope}
        parts["sc"] = semantic_contrastive(images, texts, embedded["altered"], **masks, **everywhere)
        loss += losses.sc.weight * parts["sc"]
    if "mixed" in embedded:
        masks = {"mixed_mask": batch["mixed_valid"], "scope": losses.vc.scope}
        parts["vc"] = visual_contrastive(images, texts, embedded["mixed"], **masks, **everywhere)
        loss += losses.vc.weight * parts["vc"]
    if "positives" in embedded:
        counted = {"positive_mask": batch["positive_valid"]}
        parts["hard_positive"] = hard_positive(images, texts, embedded["positives"], ids=ids, **counted, **everywhere)
        parts["hard_negative"] = hard_negative(images, texts, **negatives, **common)
        hard = losses.hard_positives
        loss += hard.weight * (parts["hard_positive"] + hard.negative_weight * parts["hard_negative"])
    return loss, parts
