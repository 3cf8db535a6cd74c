"""Ties are won by the item with the higher gallery index, in every path of the ranking.

Scores of distractors are small whole numbers, exact in float32. The score of a positive is not a whole number, so that
it ties with none of them and the fast path of the counting is taken.
"""

import numpy as np
import pytest

from rococo_jax.similarity import RankStatistics, rank_statistics
from rococo_jax.similarity.ranks import tile_shape
from tests.similarity.test_ranks import WIDTH

STRIP = 64
IN_TILE = tile_shape("cpu")


def ranked(queries, own, distractors, altered=True, order=slice(None)) -> RankStatistics:
    """The statistics of queries with an item each and of others' items, of more groups than there are queries."""
    count, others = len(queries), len(distractors)
    gallery = np.concatenate([own, distractors])[order]
    altered = np.concatenate([np.zeros(count, bool), np.broadcast_to(altered, others)])[order]
    widened = (np.pad(each, ((0, 0), (0, WIDTH - each.shape[1]))).astype(np.float32) for each in (queries, gallery))
    groups = {"query_group": np.arange(count), "gallery_group": np.arange(count + others)[order]}
    return rank_statistics(*widened, **groups, gallery_altered=altered)


@pytest.mark.parametrize("levels", [2, 4], ids=["ties everywhere", "few ties"])
def test_the_best_item_of_each_kind_has_the_highest_index_among_equal_scores(levels):
    rng = np.random.default_rng(levels)
    count, others = IN_TILE[0] + 40, 2 * (2 * IN_TILE[1] + 100)
    queries = np.concatenate([rng.integers(-levels, levels + 1, (count, 6)), np.ones((count, 1))], 1)
    own = np.concatenate([np.zeros((count, 6)), 0.5 + rng.random((count, 1)) / 4], 1)
    distractors = np.concatenate([rng.integers(-levels, levels + 1, (others, 6)), np.zeros((others, 1))], 1)
    altered, order = np.arange(others) >= others // 2, rng.permutation(count + others)
    found = ranked(queries, own, distractors, altered, order)
    # By column of the gallery as it was made, and the place that each has now.
    scores, place = queries @ distractors.T, np.argsort(order)[count:]
    for kind, mask in ((2, altered), (3, ~altered)):
        first = np.where(mask & (scores == scores[:, mask].max(1, keepdims=True)), place, -1).max(1)
        np.testing.assert_array_equal(found.best_indices[:, kind], first)
    of_own = own[:, 6:].astype(np.float32)
    np.testing.assert_array_equal(found.higher, (scores > of_own).sum(1) + (of_own < of_own.T).sum(1))
    assert not found.ties.any()


# Ties of two strips are counted anew for the whole tile; those within a strip alone are not.
@pytest.mark.parametrize("pairs", [
    [(3, 40), (STRIP - 1, STRIP), (10, 700), (STRIP * 5, STRIP * 5 + 63)],
    [(3, 40), (STRIP * 5, STRIP * 5 + 63), (STRIP, STRIP + 1), (700, 701)],
], ids=["of two strips", "within a strip"])  # fmt: skip
def test_the_fast_path_finds_ties_within_a_strip_and_between_two_strips(pairs):
    """Planted pairs of equal best items in a tile where nothing else ties."""
    distractors = -np.random.default_rng(0).random((IN_TILE[1], 4)) - 0.1
    for query, pair in enumerate(pairs):
        distractors[list(pair), query] = 2.0
    found = ranked(np.eye(4), 0.3 * np.eye(4), distractors)
    assert found.best_indices[:, 2].tolist() == [4 + later for _, later in pairs]
    assert found.higher.tolist() == [2] * 4 and found.rank_published.tolist() == [3] * 4


# Two equal ones in different strips are found for another reason than one alone.
@pytest.mark.parametrize("planted", [[5], [5, 900]])
def test_the_fast_path_counts_a_distractor_that_ties_with_the_positive(planted):
    distractors = np.zeros((IN_TILE[1], 3)) - np.arange(IN_TILE[1])[:, None] - 1
    distractors[planted, 0] = 1.0
    found = ranked(np.eye(2, 3), np.eye(2, 3), distractors)
    ties = [len(planted), 0]
    assert (found.higher.tolist(), found.ties.tolist(), found.ties_after.tolist()) == ([0, 0], ties, ties)
