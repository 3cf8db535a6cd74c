"""Prompt ensembles: the mean embedding of a name's prompts, and the mean of their scores."""

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.benchmarks.pair_scores import PairScores
from rococo_jax.benchmarks.tables import TEXTS, Embeddings
from rococo_jax.benchmarks.tasks.task import PairsAsked
from rococo_jax.errors import InputError


def mean_vectors(
    embeddings: Embeddings, prompts: Int[np.ndarray, "names templates"]
) -> Float[np.ndarray, "names width"]:
    """Return the normalised mean of the embeddings of each name's prompts, in float64.

    Raises InputError: the prompts of a name cancel out.
    """
    texts = embeddings.tables[TEXTS]
    vectors = np.stack([np.asarray(texts[rows], np.float64).mean(axis=0) for rows in prompts])
    norms = np.linalg.norm(vectors, axis=1)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise InputError(embeddings.source, "class vectors", "NaN, infinite values or a length of 0", "unit vectors")
    return vectors / norms[:, None]


def pairs_with_prompts(images: Int[np.ndarray, " images"], prompts: Int[np.ndarray, "names templates"]) -> PairsAsked:
    """Return every image with every prompt of every name, image by image."""
    return np.repeat(images, prompts.size), np.tile(prompts.ravel(), len(images))


def mean_scores(
    scores: PairScores, images: Int[np.ndarray, " images"], prompts: Int[np.ndarray, "names templates"], run: slice
) -> Float[np.ndarray, "some names"]:
    """Return the scores of a block of images with every name, as the mean over its prompts."""
    of_prompts = scores.of(*pairs_with_prompts(images[run], prompts))
    return of_prompts.reshape(-1, *prompts.shape).mean(axis=2)
