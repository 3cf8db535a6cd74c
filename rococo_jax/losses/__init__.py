"""Losses of a dual encoder over the global batch: contrastive, against altered captions and images, hard positives.

Each takes embeddings only, so that it can be differentiated in them (micro-batching), and returns one number that does
not depend on how many devices hold the batch.
"""

from rococo_jax.losses.altered import semantic_contrastive, visual_contrastive
from rococo_jax.losses.contrastive import sigmoid_contrastive, softmax_contrastive
from rococo_jax.losses.distillation import relational_distillation, similarity_distillation
from rococo_jax.losses.grounding import (
    blind_preference,
    grounding_contrastive,
    mixed_blind_preference,
    mixed_grounding_contrastive,
)
from rococo_jax.losses.hard_negatives import adaptive_rank, intra_modal, negclip_columns
from rococo_jax.losses.hard_positives import hard_negative, hard_positive

__all__ = [
    "adaptive_rank",
    "blind_preference",
    "grounding_contrastive",
    "hard_negative",
    "hard_positive",
    "intra_modal",
    "mixed_blind_preference",
    "mixed_grounding_contrastive",
    "negclip_columns",
    "relational_distillation",
    "semantic_contrastive",
    "sigmoid_contrastive",
    "similarity_distillation",
    "softmax_contrastive",
    "visual_contrastive",
]
