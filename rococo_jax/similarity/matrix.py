"""Rank statistics from a matrix of similarities, and blocks of such a matrix from embeddings.

The matrix is read in blocks, from memory or a memory map. `score_blocks` computes blocks from embeddings, for scores
that are modified before they are ranked.

Scores are compared in the precision of the matrix, including float64, and therefore in NumPy: float16 numbers that are
equal in the file tie, and float64 numbers that differ only beyond float32 do not. (float16 is converted to float32,
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
    count_pairs,
    count_twice_below,
    number_groups,
    unrelated_mask,
)
from rococo_jax.similarity.statistics import (
    KINDS,
    OTHER_ALTERED,
    OTHER_ORIGINAL,
    OWN_ALTERED,
    OWN_ORIGINAL,
    RankStatistics,
    check_groups,
    ranks_before,
    same_group_pairs,
)

_BLOCK_BYTES = 16 * 2**20
# Queries per product of `score_blocks`, and the multiple to which columns are padded. Columns in the remainder of a
# block of a matrix product could have other bits than the rest.
_BLOCK_QUERIES = 128
_COLUMN_MULTIPLE = 512
_products = jax.jit(tile_scores)


def rank_statistics_of_matrix(
    similarities: Float[np.ndarray, "rows columns"],
    *,
    query_group: Int[np.ndarray, " queries"],
    gallery_group: Int[np.ndarray, " gallery"],
    gallery_altered: Bool[np.ndarray, " gallery"],
    query_rows: Int[np.ndarray, " queries"] | None = None,
    gallery_columns: Int[np.ndarray, " gallery"] | None = None,
    source: str = "similarities",
) -> RankStatistics:
    """Count ranks in a matrix of similarities with one row per query, without sorting or copying it.

    Takes a few blocks of 16 MiB in addition to the statistics, whatever the size of the matrix. Pass a memory map for a
    matrix that does not fit in memory, or its transpose: blocks follow the layout in memory.

    Args:
        similarities: higher is more similar; float16, float32 or float64.
        query_group: the group of each query.
        gallery_group: the group of each gallery item; items of the query's group are its own.
        gallery_altered: True for altered captions and mixed images.
        query_rows: the row of each query; all rows in order by default.
        gallery_columns: the column of each gallery item; all columns in order by default.
        source: name of the matrix in an error.

    Raises:
        InputError: a score is NaN or infinite, or a query has no unaltered item of its group.
    """
    rows = np.arange(similarities.shape[0]) if query_rows is None else query_rows
    columns = np.arange(similarities.shape[1]) if gallery_columns is None else gallery_columns
    check_groups(query_group, gallery_group, gallery_altered, source)
    precision = np.float64 if similarities.dtype.itemsize == 8 else np.float32

    own_query, own_item = same_group_pairs(query_group, gallery_group)
    own_scores = similarities[rows[own_query], columns[own_item]].astype(precision)
    _check_finite(own_scores, source)
    counts = _Counts(len(rows), own_query, own_item, own_scores, gallery_altered)
    first_pair = np.searchsorted(own_query, np.arange(len(rows) + 1))  # first own pair of each query
    description = f"ranking {len(rows):,} queries against {len(columns):,} items"
    with progress(description, len(rows) * len(columns), "similarities") as advance:
        for block, queries, items in _blocks(similarities, rows, columns, precision):
            _check_finite(block, source)
            # Pairs of one group are counted already: mask those that are in the block.
            pairs = slice(first_pair[queries.start], first_pair[queries.stop])
            pair_query, pair_item = own_query[pairs], own_item[pairs]
            in_block = (pair_item >= items.start) & (pair_item < items.stop)
            block[pair_query[in_block] - queries.start, pair_item[in_block] - items.start] = -np.inf
            counts.add_unrelated(block, queries, items)
            advance(block.size)
    return counts.statistics()


def difference_statistics_of_matrix(
    similarities: Float[np.ndarray, "rows columns"],
    *,
    query_rows: Int[np.ndarray, " queries"],
    right_columns: Int[np.ndarray, " pairs"],
    wrong_columns: Int[np.ndarray, " pairs"],
    query_group: Int[np.ndarray, " queries"],
    pair_group: Int[np.ndarray, " pairs"],
    second_group: Int[np.ndarray, " pairs"] | None = None,
) -> DifferenceStatistics:
    """Compute `difference_statistics` from a matrix of similarities with one row per query, a few pairs at a time.

    Args:
        similarities: higher is more similar. Differences are computed in their precision, those of float16 in float32.
        query_rows: the row of each query.
        right_columns, wrong_columns: the columns of the two items of each pair.
        query_group, pair_group, second_group: see `difference_statistics`.
    """
    precision = np.float64 if similarities.dtype == np.float64 else np.float32
    query_group, pair_group, second_group = number_groups(query_group, pair_group, second_group)

    def count(pairs: np.ndarray, own_queries: np.ndarray, related: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        right = similarities[:, right_columns[pairs]][query_rows]
        wrong = similarities[:, wrong_columns[pairs]][query_rows]
        differences = np.subtract(right, wrong, dtype=precision)
        unrelated = unrelated_mask(query_group, related)
        own_differences = np.take_along_axis(differences, own_queries, axis=0)
        thresholds = [np.zeros_like(own_differences[0]), *own_differences]
        counts = [count_twice_below(differences, threshold, unrelated) for threshold in thresholds]
        return own_differences, np.stack(counts)

    pair_bytes = np.dtype(precision).itemsize * max(len(query_rows), 1)
    block_size = min(max(1, _BLOCK_BYTES // pair_bytes), max(len(pair_group), 1))
    return count_pairs(query_group, pair_group, second_group, block_size, count, precision)


def _blocks(
    similarities: np.ndarray, rows: np.ndarray, columns: np.ndarray, precision: type
) -> Iterator[tuple[np.ndarray, slice, slice]]:
    """Yield copies of blocks of the matrix, contiguous in memory, with the queries and gallery items of each.

    A block consists of whole rows, or of whole columns if the matrix is stored by column.
    """
    by_column = similarities.flags.f_contiguous and not similarities.flags.c_contiguous
    lines, line_length = (len(columns), len(rows)) if by_column else (len(rows), len(columns))
    step = max(1, _BLOCK_BYTES // (np.dtype(precision).itemsize * max(line_length, 1)))
    for start in range(0, lines, step):
        chunk, full_line = slice(start, min(start + step, lines)), slice(0, line_length)
        if by_column:
            block = similarities.T[_as_slice(columns[chunk])][:, _as_slice(rows)].T
            yield np.array(block, dtype=precision, order="C"), full_line, chunk
        else:
            block = similarities[_as_slice(rows[chunk])][:, _as_slice(columns)]
            yield np.array(block, dtype=precision, order="C"), chunk, full_line


def _as_slice(indices: np.ndarray) -> np.ndarray | slice:
    """Convert consecutive indices to a slice, which reads a memory map with one copy instead of two."""
    if len(indices) and np.array_equal(indices, np.arange(indices[0], indices[0] + len(indices))):
        return slice(int(indices[0]), int(indices[0]) + len(indices))
    return indices


def _check_finite(scores: np.ndarray, source: str) -> None:
    if not np.isfinite(scores).all():
        raise InputError(source, "scores", "NaN or infinite values", "finite numbers")


class _Counts:
    """Running counts. The constructor counts pairs of one group; `add_unrelated` counts the others block by block.

    Args:
        queries: number of queries.
        own_query, own_item, own_scores: query, gallery item and score of each pair of one group.
        altered: True for altered gallery items.
    """

    def __init__(
        self,
        queries: int,
        own_query: np.ndarray,
        own_item: np.ndarray,
        own_scores: np.ndarray,
        altered: np.ndarray,
    ):
        self.altered = altered
        self.best = np.full((queries, len(KINDS)), -np.inf, own_scores.dtype)
        self.index = np.full((queries, len(KINDS)), -1, np.int64)
        is_altered = altered[own_item]
        for kind, mask in ((OWN_ORIGINAL, ~is_altered), (OWN_ALTERED, is_altered)):
            query, item, score = own_query[mask], own_item[mask], own_scores[mask]
            np.maximum.at(self.best[:, kind], query, score)
            is_best = score == self.best[query, kind]
            np.maximum.at(self.index[:, kind], query[is_best], item[is_best])
        self.positive = self.best[:, OWN_ORIGINAL].copy()
        self.positive_index = self.index[:, OWN_ORIGINAL].copy()

        # Own altered items are distractors; own originals are not.
        query, item, score = own_query[is_altered], own_item[is_altered], own_scores[is_altered]
        is_higher = score > self.positive[query]
        is_tie = score == self.positive[query]
        is_after = is_tie & (item > self.positive_index[query])
        self.higher = np.bincount(query[is_higher], minlength=queries)
        self.ties = np.bincount(query[is_tie], minlength=queries)
        self.ties_after = np.bincount(query[is_after], minlength=queries)

    def add_unrelated(self, block: np.ndarray, queries: slice, items: slice) -> None:
        """Add a block of scores in which pairs of one group are -inf."""
        positive = self.positive[queries, None]
        self.higher[queries] += np.count_nonzero(block > positive, axis=1)
        is_tie = block == positive
        if is_tie.any():
            self.ties[queries] += np.count_nonzero(is_tie, axis=1)
            is_after = np.arange(items.start, items.stop) > self.positive_index[queries, None]
            self.ties_after[queries] += np.count_nonzero(is_tie & is_after, axis=1)
        altered = self.altered[items]
        for kind, columns in ((OTHER_ORIGINAL, np.flatnonzero(~altered)), (OTHER_ALTERED, np.flatnonzero(altered))):
            if len(columns):
                scores = block if len(columns) == block.shape[1] else block[:, columns]
                self._update_best(kind, scores, queries, items.start + columns)

    def _update_best(self, kind: int, scores: np.ndarray, queries: slice, items: np.ndarray) -> None:
        """Replace the best item of a kind where `scores` (queries, items) contain a better one."""
        last_best = scores.shape[1] - 1 - scores[:, ::-1].argmax(axis=1)
        score = scores[np.arange(len(scores)), last_best]
        index = items[last_best]
        best_score, best_index = self.best[queries, kind], self.index[queries, kind]  # views
        is_better = ranks_before(score, index, best_score, best_index)
        best_score[is_better] = score[is_better]
        best_index[is_better] = index[is_better]

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
    query_rows: Int[np.ndarray, " queries"],
    gallery_rows: Int[np.ndarray, " gallery"],
) -> Iterator[tuple[slice, Float[np.ndarray, "block gallery"]]]:
    """Yield the scores of a few queries at a time with the whole gallery, with the slice of these queries.

    Scores are float32 products. Gallery items with the same row have scores with the same bits, so that they tie.
    `query_rows` and `gallery_rows` are the rows of queries and gallery items in the tables of embeddings.
    """
    rows, column = np.unique(gallery_rows, return_inverse=True)
    columns = jnp.asarray(np.pad(gallery[rows], ((0, -len(rows) % _COLUMN_MULTIPLE), (0, 0))))
    for start in range(0, len(query_rows), _BLOCK_QUERIES):
        block = slice(start, min(start + _BLOCK_QUERIES, len(query_rows)))
        vectors = queries[query_rows[block]]
        padded = np.pad(vectors, ((0, _BLOCK_QUERIES - len(vectors)), (0, 0)))
        yield block, np.asarray(_products(padded, columns))[: len(vectors), column]


def top_k_mask(scores: Float[np.ndarray, "queries gallery"], count: int) -> Bool[np.ndarray, "queries gallery"]:
    """Mark the `count` highest scores of each row, and those that tie with the last of them.

    >>> top_k_mask(np.array([[0.5, 0.25, 0.5, 0.0]]), 1).tolist()
    [[True, False, True, False]]
    """
    position = max(scores.shape[1] - count, 0)
    return scores >= np.partition(scores, position, axis=1)[:, position : position + 1]
