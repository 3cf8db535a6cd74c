"""Losses of a dual encoder over the global batch: contrastive, against altered captions and images, hard positives.

Each takes embeddings only, so that it can be differentiated in them (micro-batching), and returns one number that does
not depend on how many devices hold the batch. `TERMS` are those of training, in the order of their sum.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from rococo_jax.losses.altered import SC, VC, semantic_contrastive, visual_contrastive
from rococo_jax.losses.contrastive import CONTRASTIVE, sigmoid_contrastive, softmax_contrastive
from rococo_jax.losses.grounding import (
    BLIND,
    GROUNDING,
    MIXED_BLIND,
    MIXED_GROUNDING,
    blind_preference,
    grounding_contrastive,
    mixed_blind_preference,
    mixed_grounding_contrastive,
)
from rococo_jax.losses.hard_negatives import CE_CLIP, NEGCLIP, adaptive_rank, intra_modal, negclip_columns
from rococo_jax.losses.hard_positives import HARD_POSITIVES, hard_negative, hard_positive
from rococo_jax.losses.terms import Field, LossTerm

__all__ = [
    "TERMS",
    "active_fields",
    "active_terms",
    "adaptive_rank",
    "blind_preference",
    "grounding_contrastive",
    "hard_negative",
    "hard_positive",
    "intra_modal",
    "mixed_blind_preference",
    "mixed_grounding_contrastive",
    "negclip_columns",
    "semantic_contrastive",
    "sigmoid_contrastive",
    "softmax_contrastive",
    "visual_contrastive",
]

# Sums of floating-point numbers depend on their order: a new term comes last.
TERMS = (
    CONTRASTIVE,
    SC,
    VC,
    HARD_POSITIVES,
    BLIND,
    GROUNDING,
    NEGCLIP,
    CE_CLIP,
    MIXED_BLIND,
    MIXED_GROUNDING,
)


def active_terms(losses: ConfigDict) -> Iterator[LossTerm]:
    """The terms that `config.losses` gives a weight, in the order of the sum."""
    return (term for term in TERMS if "weight" not in term.keys or losses[term.name].weight)


def active_fields(losses: ConfigDict) -> tuple[Field, ...]:
    """The fields that active terms read, each once, in the order of the terms."""
    return tuple(dict.fromkeys(field for term in active_terms(losses) for field in term.reads))
