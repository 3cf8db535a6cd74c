"""MaxSim of late interaction (ColBERT, arXiv 2004.12832; ColPali, arXiv 2407.01449).

    s(image, text) = sum over the text's tokens of the largest dot product with a token of the image

Pairs are taken in blocks of one static shape, so that no more than a block of products is in memory.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

# Products of tokens in memory at once, in float32: 64 MB.
_PRODUCTS_AT_ONCE = 2**24

Tokens = Float[np.ndarray, "_ dim"]


def max_sim(
    images: Sequence[Tokens],
    texts: Sequence[Tokens],
    pairs: tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]],
    on_progress: Callable[[int], None] = lambda count: None,
) -> Float[np.ndarray, " pairs"]:
    """The score of each pair, float32, products at highest precision.

    Args:
        images, texts: a matrix of token vectors each, of any number of tokens and one width.
        pairs: the image and the text of each, as places in `images` and `texts`.
        on_progress: called with the number of pairs done.

    >>> image, text = np.eye(2, dtype=np.float32), np.array([[3.0, 0.0], [0.0, 2.0]], np.float32)
    >>> max_sim([image], [text, text[:1]], (np.array([0, 0]), np.array([0, 1]))).tolist()
    [5.0, 3.0]
    """
    scores = np.empty(len(pairs[0]), np.float32)
    # Few lengths of texts, since each is a program; the images' is one.
    length_of = np.array([_bucket(len(text)) for text in texts], int)[pairs[1]]
    tokens = _bucket(max(map(len, images), default=1))
    for length in np.unique(length_of):
        places = np.flatnonzero(length_of == length)
        at_once = max(1, _PRODUCTS_AT_ONCE // (tokens * int(length)))
        at_once = min(at_once, _bucket(len(places)))
        for start in range(0, len(places), at_once):
            some = places[start : start + at_once]
            padded = np.resize(some, at_once)
            image = _padded([images[each] for each in pairs[0][padded]], tokens)
            text = _padded([texts[each] for each in pairs[1][padded]], int(length))
            scores[some] = np.asarray(_max_sim(*image, *text))[: len(some)]
            on_progress(len(some))
    return scores


def _bucket(length: int) -> int:
    """The power of two from 8 on that is at least a length."""
    return max(8, 1 << max(0, length - 1).bit_length())


def _padded(matrices: Sequence[Tokens], length: int) -> tuple[np.ndarray, np.ndarray]:
    padded = np.zeros((len(matrices), length, matrices[0].shape[1]), np.float32)
    for row, matrix in zip(padded, matrices, strict=True):
        row[: len(matrix)] = matrix
    return padded, np.array([len(matrix) for matrix in matrices])[:, None] > np.arange(length)


@jax.jit
def _max_sim(
    images: Float[Array, "pairs tokens dim"],
    of_image: Bool[Array, "pairs tokens"],
    texts: Float[Array, "pairs words dim"],
    of_text: Bool[Array, "pairs words"],
) -> Float[Array, " pairs"]:
    products = jnp.einsum("pwd,ptd->pwt", texts, images, precision=jax.lax.Precision.HIGHEST)
    best = jnp.where(of_image[:, None], products, -jnp.inf).max(axis=2)
    return jnp.where(of_text, best, 0.0).sum(axis=1)
