"""Who comes first among equals, in every path of the ranking: the item with the higher gallery index.

Scores of distractors are small whole numbers, exact in float32; a positive's score is no whole number, so that it ties
with none of them and the cheap path of the counting is taken.
"""

import numpy as np
import pytest

from rococo_jax.similarity import rank_statistics
from rococo_jax.similarity.ranks import tile_shape

STRIP, WIDTH = 64, 16  # one width for all, since each shape is a program to compile


def ranked(queries, gallery, **groups):
    """The statistics of vectors filled up with zeros."""
    widened = (np.pad(each, ((0, 0), (0, WIDTH - each.shape[1]))).astype(np.float32) for each in (queries, gallery))
    return rank_statistics(*widened, **groups)


def first_among_equals(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """By query the highest index of the best score under the mask."""
    masked = np.where(mask, scores, -np.inf)
    places = np.where(masked == masked.max(1, keepdims=True), np.arange(scores.shape[1]), -1)
    return places.max(1)


@pytest.mark.parametrize("levels", [2, 4], ids=["ties everywhere", "few ties"])
def test_the_best_of_each_kind_has_the_highest_index_among_equals(levels):
    rng = np.random.default_rng(levels)
    queries_in_tile, gallery_in_tile = tile_shape("cpu")
    count, others = queries_in_tile + 40, 2 * gallery_in_tile + 100
    queries = np.concatenate([rng.integers(-levels, levels + 1, (count, 6)), np.ones((count, 1))], 1)
    own = np.concatenate([np.zeros((count, 6)), 0.5 + rng.random((count, 1)) / 4], 1)
    distractors = np.concatenate([rng.integers(-levels, levels + 1, (2 * others, 6)), np.zeros((2 * others, 1))], 1)
    gallery = np.concatenate([own, distractors])
    group = np.concatenate([np.arange(count), count + np.arange(2 * others)])
    altered = np.arange(len(gallery)) >= count + others
    order = rng.permutation(len(gallery))
    gallery, group, altered = gallery[order], group[order], altered[order]
    found = ranked(queries, gallery, query_group=np.arange(count), gallery_group=group, gallery_altered=altered)
    scores = queries @ gallery.astype(np.float32).T.astype(np.float64)
    distractor = group[None] != np.arange(count)[:, None]
    np.testing.assert_array_equal(found.best_indices[:, 3], first_among_equals(scores, distractor & ~altered))
    np.testing.assert_array_equal(found.best_indices[:, 2], first_among_equals(scores, distractor & altered))
    own_score = scores[~distractor]
    np.testing.assert_array_equal(found.higher, (distractor & (scores > own_score[:, None])).sum(1))
    assert not found.ties.any()


# Ties of two strips are counted anew for the whole tile; those within a strip alone are not.
@pytest.mark.parametrize("pairs", [
    [(3, 40), (STRIP - 1, STRIP), (10, 700), (STRIP * 5, STRIP * 5 + 63)],
    [(3, 40), (STRIP * 5, STRIP * 5 + 63), (STRIP, STRIP + 1), (700, 701)],
], ids=["of two strips", "within a strip"])  # fmt: skip
def test_ties_of_two_strips_and_within_a_strip_are_found_in_the_cheap_path(pairs):
    """Planted pairs of equal best items in a tile where nothing else ties."""
    gallery_in_tile = tile_shape("cpu")[1]
    rng = np.random.default_rng(0)
    queries, own = np.eye(4), 0.3 * np.eye(4)
    distractors = -rng.random((gallery_in_tile, 4)) - 0.1
    for query, pair in enumerate(pairs):
        distractors[list(pair), query] = 2.0
    # Groups that start above the queries', so that no item of the tile can be a query's own.
    group = np.concatenate([np.arange(4), 4 + np.arange(gallery_in_tile)])
    altered = np.arange(len(group)) >= 4
    groups = {"query_group": np.arange(4), "gallery_group": group, "gallery_altered": altered}
    found = ranked(queries, np.concatenate([own, distractors]), **groups)
    assert found.best_indices[:, 2].tolist() == [4 + later for _, later in pairs]
    assert found.higher.tolist() == [2] * 4 and found.rank_published.tolist() == [3] * 4


# Two equal ones in different strips are found for another reason than one alone.
@pytest.mark.parametrize("planted", [[5], [5, 900]])
def test_a_distractor_that_ties_with_the_positive_in_the_cheap_path_is_counted(planted):
    gallery_in_tile = tile_shape("cpu")[1]
    queries = np.eye(2, 3)
    distractors = np.zeros((gallery_in_tile, 3)) - np.arange(gallery_in_tile)[:, None] - 1
    distractors[planted, 0] = 1.0
    gallery = np.concatenate([np.eye(2, 3), distractors])
    group = np.concatenate([np.arange(2), 2 + np.arange(gallery_in_tile)])
    altered = np.arange(len(group)) >= 2
    found = ranked(queries, gallery, query_group=np.arange(2), gallery_group=group, gallery_altered=altered)
    ties = [len(planted), 0]
    assert (found.higher.tolist(), found.ties.tolist(), found.ties_after.tolist()) == ([0, 0], ties, ties)
