"""MaxSim of late interaction (ColBERT, arXiv 2004.12832; ColPali, arXiv 2407.01449).

    s(image, text) = sum over the text's tokens of the largest dot product with a token of the image

Pairs are scored in blocks of one static shape, so that at most one block of products is in memory.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

# Products of tokens in a block, in float32: 64 MB.
_PRODUCTS_AT_ONCE = 2**24

Tokens = Float[np.ndarray, "_ dim"]


def max_sim(
    images: Sequence[Tokens],
    texts: Sequence[Tokens],
    pairs: tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]],
    on_progress: Callable[[int], None] = lambda count: None,
) -> Float[np.ndarray, " pairs"]:
    """Return the score of each pair, float32, with products at highest precision.

    Args:
        images, texts: a matrix of token embeddings each, with any number of tokens and one width.
        pairs: the image and the text of each, as indices into `images` and `texts`.
        on_progress: called with the number of finished pairs.

    >>> image, text = np.eye(2, dtype=np.float32), np.array([[3.0, 0.0], [0.0, 2.0]], np.float32)
    >>> max_sim([image], [text, text[:1]], (np.array([0, 0]), np.array([0, 1]))).tolist()
    [5.0, 3.0]
    """
    scores = np.empty(len(pairs[0]), np.float32)
    # Texts are padded to few lengths and images to one, since each shape is a program to compile.
    padded_lengths = np.array([_power_of_two(len(text)) for text in texts], int)[pairs[1]]
    image_length = _power_of_two(max(map(len, images), default=1))
    for length in np.unique(padded_lengths):
        members = np.flatnonzero(padded_lengths == length)
        block = max(1, _PRODUCTS_AT_ONCE // (image_length * int(length)))
        block = min(block, _power_of_two(len(members)))
        for start in range(0, len(members), block):
            rows = members[start : start + block]
            repeated = np.resize(rows, block)
            image = _pad([images[index] for index in pairs[0][repeated]], image_length)
            text = _pad([texts[index] for index in pairs[1][repeated]], int(length))
            scores[rows] = np.asarray(_max_sim(*image, *text))[: len(rows)]
            on_progress(len(rows))
    return scores


def _power_of_two(length: int) -> int:
    """Return the smallest power of two that is at least `length` and at least 8."""
    return max(8, 1 << max(0, length - 1).bit_length())


def _pad(matrices: Sequence[Tokens], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrices padded to one length, and a mask of their tokens."""
    padded = np.zeros((len(matrices), length, matrices[0].shape[1]), np.float32)
    for row, matrix in zip(padded, matrices, strict=True):
        row[: len(matrix)] = matrix
    return padded, np.array([len(matrix) for matrix in matrices])[:, None] > np.arange(length)


@jax.jit
def _max_sim(
    images: Float[Array, "pairs tokens dim"],
    image_mask: Bool[Array, "pairs tokens"],
    texts: Float[Array, "pairs words dim"],
    text_mask: Bool[Array, "pairs words"],
) -> Float[Array, " pairs"]:
    products = jnp.einsum("pwd,ptd->pwt", texts, images, precision=jax.lax.Precision.HIGHEST)
    best = jnp.where(image_mask[:, None], products, -jnp.inf).max(axis=2)
    return jnp.where(text_mask, best, 0.0).sum(axis=1)
