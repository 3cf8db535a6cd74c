"""Rank statistics from a matrix of similarities, read from memory or a memory map in blocks; and such blocks from
embeddings, for scores that are changed before they are ranked.

Scores are compared in the precision in which they are given, float64 included, hence in NumPy: two float16 numbers that
are equal in the file tie, and float64 numbers that differ only beyond float32 do not. (float16 is widened to float32,
which is exact.)
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.similarity.counting import tile_scores
from rococo_jax.similarity.differences import (
    DifferenceStatistics,
    are_others,
    count_pairs,
    number_groups,
    twice_below,
)
from rococo_jax.similarity.statistics import (
    KINDS,
    OTHER,
    OTHER_ALTERED,
    OWN,
    OWN_ALTERED,
    RankStatistics,
    check_groups,
    ranks_before,
    same_group_pairs,
)

_BLOCK_BYTES = 16 * 2**20
# Queries of each product of `score_blocks`, and the multiple to which columns are padded: a matrix product has the same
# bits in every column only where none is in a remainder.
_QUERIES_AT_ONCE, _COLUMNS = 128, 512
_products = jax.jit(tile_scores)


def rank_statistics_of_matrix(
    similarities: Float[np.ndarray, "rows columns"],
    *,
    query_group: Int[np.ndarray, "queries"],
    gallery_group: Int[np.ndarray, "gallery"],
    gallery_altered: Bool[np.ndarray, "gallery"],
    query_rows: Int[np.ndarray, "queries"] | None = None,
    gallery_columns: Int[np.ndarray, "gallery"] | None = None,
    source: str = "similarities",
) -> RankStatistics:
    """Counts ranks in a matrix of similarities, one row a query, without sorting or copying it.

    Memory is a few blocks of 16 MiB beside the statistics, whatever the matrix holds; pass a memory map (or its
    transpose: blocks follow the layout in memory).

    Args:
        similarities: higher is more similar; float16, float32 or float64.
        query_group: the group of each query.
        gallery_group: the group of each gallery item; those of the query's group are its own.
        gallery_altered: True for altered captions and mixed images.
        query_rows: the row of each query; all rows in order by default.
        gallery_columns: the column of each gallery item; all columns in order by default.
        source: the matrix's name in an error.

    Raises:
        InputError: a score that is used is NaN or infinite, or a query has no unaltered item of its group.
    """
    rows = np.arange(similarities.shape[0]) if query_rows is None else query_rows
    columns = np.arange(similarities.shape[1]) if gallery_columns is None else gallery_columns
    check_groups(query_group, gallery_group, gallery_altered, source)
    precision = np.float64 if similarities.dtype.itemsize == 8 else np.float32

    own = same_group_pairs(query_group, gallery_group)
    own_scores = similarities[rows[own[0]], columns[own[1]]].astype(precision)
    _refuse_nonfinite(own_scores, source)
    counts = _Counts(len(rows), own, own_scores, gallery_altered)
    own_of_query = np.searchsorted(own[0], np.arange(len(rows) + 1))
    with progress("ranking", len(rows) * len(columns), "similarities") as advance:
        for block, queries, items in _blocks(similarities, rows, columns, precision):
            _refuse_nonfinite(block, source)
            pairs = slice(own_of_query[queries.start], own_of_query[queries.stop])
            inside = (own[1][pairs] >= items.start) & (own[1][pairs] < items.stop)
            block[own[0][pairs][inside] - queries.start, own[1][pairs][inside] - items.start] = -np.inf
            counts.add_others(block, queries, items)
            advance(block.size)
    return counts.statistics()


def difference_statistics_of_matrix(
    similarities: Float[np.ndarray, "rows columns"],
    *,
    query_rows: Int[np.ndarray, "queries"],
    right_columns: Int[np.ndarray, "pairs"],
    wrong_columns: Int[np.ndarray, "pairs"],
    query_group: Int[np.ndarray, "queries"],
    pair_group: Int[np.ndarray, "pairs"],
    also_shown_in: Int[np.ndarray, "pairs"] | None = None,
) -> DifferenceStatistics:
    """As `difference_statistics`, from a matrix of similarities with one row a query, a few pairs at a time.

    Args:
        similarities: higher is more similar; differences are taken in their precision, of float16 in float32.
        query_rows: the row of each query.
        right_columns, wrong_columns: the columns of each pair.
        query_group, pair_group, also_shown_in: as in `difference_statistics`.
    """
    precision = np.float64 if similarities.dtype == np.float64 else np.float32
    query_group, pair_group, second = number_groups(query_group, pair_group, also_shown_in)

    def count(pairs: np.ndarray, own: np.ndarray, shown_in: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sides = (similarities[:, columns[pairs]][query_rows] for columns in (right_columns, wrong_columns))
        differences, others = np.subtract(*sides, dtype=precision), are_others(query_group, shown_in)
        of_own = np.take_along_axis(differences, own, axis=0)
        thresholds = [np.zeros_like(of_own[0]), *of_own]
        return of_own, np.stack([twice_below(differences, threshold, others) for threshold in thresholds])

    at_once = max(1, _BLOCK_BYTES // (np.dtype(precision).itemsize * max(len(query_rows), 1)))
    return count_pairs(query_group, pair_group, second, min(at_once, max(len(pair_group), 1)), count, precision)


def _blocks(
    similarities: np.ndarray, rows: np.ndarray, columns: np.ndarray, precision: type
) -> Iterator[tuple[np.ndarray, slice, slice]]:
    """Copies the matrix in parts, contiguous in memory, and gives the queries and gallery items of each."""
    by_column = similarities.flags.f_contiguous and not similarities.flags.c_contiguous
    length, across = (len(columns), len(rows)) if by_column else (len(rows), len(columns))
    step = max(1, _BLOCK_BYTES // (np.dtype(precision).itemsize * max(across, 1)))
    for start in range(0, length, step):
        part = slice(start, min(start + step, length))
        if by_column:
            block = similarities.T[_as_slice(columns[part])][:, _as_slice(rows)].T
            yield np.array(block, dtype=precision, order="C"), slice(0, across), part
        else:
            block = similarities[_as_slice(rows[part])][:, _as_slice(columns)]
            yield np.array(block, dtype=precision, order="C"), part, slice(0, across)


def _as_slice(indices: np.ndarray) -> np.ndarray | slice:
    """Converts consecutive indices to a slice, which reads a memory map without copying twice."""
    if len(indices) and np.array_equal(indices, np.arange(indices[0], indices[0] + len(indices))):
        return slice(int(indices[0]), int(indices[0]) + len(indices))
    return indices


def _refuse_nonfinite(scores: np.ndarray, source: str) -> None:
    if not np.isfinite(scores).all():
        raise InputError(source, "scores", "NaN or infinite values", "finite numbers")


class _Counts:
    """Counts so far. Pairs of one group are counted at the start, all others block by block."""

    def __init__(self, queries: int, own: tuple[np.ndarray, np.ndarray], own_scores: np.ndarray, altered: np.ndarray):
        self.altered = altered
        self.best = np.full((queries, len(KINDS)), -np.inf, own_scores.dtype)
        self.index = np.full((queries, len(KINDS)), -1, np.int64)
        for kind, of_kind in ((OWN, ~altered[own[1]]), (OWN_ALTERED, altered[own[1]])):
            query, item, score = own[0][of_kind], own[1][of_kind], own_scores[of_kind]
            np.maximum.at(self.best[:, kind], query, score)
            on_top = score == self.best[query, kind]
            np.maximum.at(self.index[:, kind], query[on_top], item[on_top])
        distractor = altered[own[1]]
        query, item, score = own[0][distractor], own[1][distractor], own_scores[distractor]
        self.positive, self.positive_index = self.best[:, OWN].copy(), self.index[:, OWN].copy()
        tie = score == self.positive[query]
        after = tie & (item > self.positive_index[query])
        self.higher, self.ties, self.ties_after = (
            np.bincount(query[which], minlength=queries) for which in (score > self.positive[query], tie, after)
        )

    def add_others(self, block: np.ndarray, queries: slice, items: slice) -> None:
        """Adds a block of scores in which pairs of one group are -inf."""
        positive = self.positive[queries, None]
        self.higher[queries] += np.count_nonzero(block > positive, axis=1)
        tie = block == positive
        if tie.any():
            self.ties[queries] += np.count_nonzero(tie, axis=1)
            after = np.arange(items.start, items.stop) > self.positive_index[queries, None]
            self.ties_after[queries] += np.count_nonzero(tie & after, axis=1)
        altered = self.altered[items]
        for kind, of_kind in ((OTHER, np.flatnonzero(~altered)), (OTHER_ALTERED, np.flatnonzero(altered))):
            if len(of_kind):
                part = block if len(of_kind) == block.shape[1] else block[:, of_kind]
                self._raise_best(kind, part, queries, items.start + of_kind)

    def _raise_best(self, kind: int, block: np.ndarray, queries: slice, items: np.ndarray) -> None:
        last = block.shape[1] - 1 - block[:, ::-1].argmax(axis=1)
        score = block[np.arange(len(block)), last]
        index = items[last]
        best, place = self.best[queries, kind], self.index[queries, kind]
        better = ranks_before(score, index, best, place)
        best[better], place[better] = score[better], index[better]

    def statistics(self) -> RankStatistics:
        return RankStatistics(
            higher=self.higher,
            ties=self.ties,
            ties_after=self.ties_after,
            best_scores=self.best,
            best_indices=self.index,
        )


def score_blocks(
    queries: Float[np.ndarray, "query_rows width"],
    gallery: Float[np.ndarray, "gallery_rows width"],
    *,
    query_rows: Int[np.ndarray, "queries"],
    gallery_rows: Int[np.ndarray, "gallery"],
) -> Iterator[tuple[slice, Float[np.ndarray, "block gallery"]]]:
    """Yields scores of some queries with the whole gallery, in turn, each block with the slice of its queries.

    Scores are float32 products. Gallery items of one row have scores of the same bits, so that they tie. The rows are
    those of each query and of each gallery item in the tables of embeddings.
    """
    rows, place = np.unique(gallery_rows, return_inverse=True)
    columns = jnp.asarray(np.pad(gallery[rows], ((0, -len(rows) % _COLUMNS), (0, 0))))
    for start in range(0, len(query_rows), _QUERIES_AT_ONCE):
        block = slice(start, min(start + _QUERIES_AT_ONCE, len(query_rows)))
        vectors = queries[query_rows[block]]
        padded = np.pad(vectors, ((0, _QUERIES_AT_ONCE - len(vectors)), (0, 0)))
        yield block, np.asarray(_products(padded, columns))[: len(vectors), place]


def top_k_mask(scores: Float[np.ndarray, "queries gallery"], count: int) -> Bool[np.ndarray, "queries gallery"]:
    """Marks the `count` highest scores of each row, and those that tie with the last of them.

    >>> top_k_mask(np.array([[0.5, 0.25, 0.5, 0.0]]), 1).tolist()
    [[True, False, True, False]]
    """
    place = max(scores.shape[1] - count, 0)
    return scores >= np.partition(scores, place, axis=1)[:, place : place + 1]
