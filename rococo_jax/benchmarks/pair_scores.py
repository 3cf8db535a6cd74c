"""Pair scores of images and texts, from which tasks are scored without embeddings.

The rows of all image sets are numbered consecutively, so that a pair of an image and a text is one number.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.benchmarks.tables import Rows
from rococo_jax.errors import InputError


class ImageNumbers:
    """Consecutive numbers of the rows of several tables.

    Attributes:
        first: number of the first row of each table.
        count: number of all rows.
    """

    def __init__(self, sizes: Mapping[str, int]):
        self.first = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
        self.count = sum(sizes.values())

    def __call__(self, rows: Rows) -> Int[np.ndarray, " rows"]:
        """Return the number of each row; for a row of another table, such as the texts, its index."""
        return np.concatenate([self.first.get(name, 0) + index for name, index in rows.parts])


class PairScores:
    """Scores of pairs of images and texts.

    Attributes:
        numbers: numbers of the images.
        scale: factor that turns differences of scores into log-odds.
        source: name of the scores in errors.
    """

    numbers: ImageNumbers
    scale: float
    source: str

    def of(self, images: Int[np.ndarray, "..."], texts: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Return the score of each pair of an image (by number) and a text (row of its table), in float64.

        Raises InputError: a pair has no score.
        """
        raise NotImplementedError

    def matrix(self, tables: Sequence[str]) -> tuple[Float[np.ndarray, "images texts"], ImageNumbers]:
        """Return the scores of the images of some sets with all texts, NaN without a score, and their row numbers."""
        raise NotImplementedError


def _no_score(source: str, image: int, text: int, count: int, total: int) -> InputError:
    found = f"none of image {image} with text {text} ({count:,} of {total:,} pairs)"
    return InputError(source, "scores of pairs", found, "a score of every pair that a task compares")


@dataclasses.dataclass(frozen=True, eq=False)
class ListedScores(PairScores):
    """Scores of a list of pairs; other pairs have no score.

    Attributes:
        pairs: number of the image x number of texts + row of the text, in ascending order.
        values: score of each pair.
        texts: number of texts.
    """

    numbers: ImageNumbers
    pairs: Int[np.ndarray, " pairs"]
    values: Float[np.ndarray, " pairs"]
    texts: int
    scale: float
    source: str

    def of(self, images: Int[np.ndarray, "..."], texts: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        pairs = np.asarray(images * self.texts + texts)
        place = np.searchsorted(self.pairs, pairs)
        is_listed = place < len(self.pairs)
        is_listed[is_listed] = self.pairs[place[is_listed]] == pairs[is_listed]
        if not is_listed.all():
            image, text = divmod(int(pairs[~is_listed].flat[0]), self.texts)
            raise _no_score(self.source, image, text, int(np.sum(~is_listed)), pairs.size)
        return self.values[place].astype(np.float64)

    def matrix(self, tables: Sequence[str]) -> tuple[Float[np.ndarray, "images texts"], ImageNumbers]:
        scores = np.full(self.numbers.count * self.texts, np.nan, self.values.dtype)
        scores[self.pairs] = self.values
        return scores.reshape(-1, self.texts), self.numbers


class MatrixScores(PairScores):
    """Scores of all pairs: a matrix of images by texts for each image set, by name of the set."""

    scale = 1.0

    def __init__(self, matrices: Mapping[str, Float[np.ndarray, "images texts"]], source: str = "similarities"):
        self.matrices, self.source = matrices, source
        self.numbers = ImageNumbers({name: len(matrix) for name, matrix in matrices.items()})

    def of(self, images: Int[np.ndarray, "..."], texts: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        scores, is_scored = np.empty(np.shape(images)), np.zeros(np.shape(images), bool)
        for name, first in self.numbers.first.items():
            inside = (images >= first) & (images < first + len(self.matrices[name]))
            scores[inside] = self.matrices[name][images[inside] - first, texts[inside]]
            is_scored |= inside
        if not is_scored.all():
            image, text = (int(each[~is_scored].flat[0]) for each in (images, texts))
            raise _no_score(self.source, image, text, int(np.sum(~is_scored)), scores.size)
        return scores

    def matrix(self, tables: Sequence[str]) -> tuple[Float[np.ndarray, "images texts"], ImageNumbers]:
        matrices = {name: self.matrices[name] for name in tables}
        # The matrix of a single set is not copied.
        joined = matrices[tables[0]] if len(tables) == 1 else np.concatenate(list(matrices.values()))
        return joined, MatrixScores(matrices).numbers
