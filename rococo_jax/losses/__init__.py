"""Loss functions of a dual encoder over the global batch.

Every loss is a function of embeddings alone, so that micro-batches can differentiate it with respect to them, and its
value does not depend on how many devices share the batch. `TERMS` lists the losses of training.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from rococo_jax.losses.altered import SC, VC, semantic_contrastive, visual_contrastive
from rococo_jax.losses.contrastive import CONTRASTIVE, contrastive_loss, sigmoid_contrastive, softmax_contrastive
from rococo_jax.losses.grounding import BLIND, GROUNDING, blind_preference, grounding_contrastive
from rococo_jax.losses.hard_positives import HARD_POSITIVES, hard_positive_and_negative
from rococo_jax.losses.terms import Embeddings, Field, FieldEmbeddings, LossTerm

__all__ = [
    "TERMS",
    "Embeddings",
    "FieldEmbeddings",
    "active_fields",
    "active_terms",
    "blind_preference",
    "contrastive_loss",
    "grounding_contrastive",
    "hard_positive_and_negative",
    "semantic_contrastive",
    "sigmoid_contrastive",
    "softmax_contrastive",
    "visual_contrastive",
]

# The total loss adds the terms in this order. A new term comes last, so that existing sums keep their rounding.
TERMS = (CONTRASTIVE, SC, VC, HARD_POSITIVES, BLIND, GROUNDING)


def active_terms(losses: ConfigDict) -> Iterator[LossTerm]:
    """Return the terms that have a weight in `config.losses` or need none, in the order of the sum."""
    return (term for term in TERMS if "weight" not in term.keys or losses[term.name].weight)


def active_fields(losses: ConfigDict) -> tuple[Field, ...]:
    """Return the fields that the active terms read, without repeats, in the order of the terms."""
    fields = (field for term in active_terms(losses) for field in term.fields(losses[term.name]))
    return tuple(dict.fromkeys(fields))
