"""Ranks from a matrix of similarities: the statistics of ranking embeddings, in the precision of the matrix."""

import numpy as np
import pytest

from rococo_jax.similarity import RankStatistics, rank_statistics, rank_statistics_of_matrix, score_blocks, top_k_mask
from tests.similarity.test_ranks import make_groups, whole_numbers
from tests.support.refusals import refused


def make_case(queries=60, gallery=900):
    """Whole numbers, so that embeddings and matrix have the same scores to the bit, their groups and statistics."""
    generator = np.random.default_rng(0)
    rows = whole_numbers(generator, queries), whole_numbers(generator, gallery)
    groups = make_groups(generator, queries, gallery)
    return *rows, groups, rank_statistics(*rows, **groups)


def assert_same(first: RankStatistics, second: RankStatistics):
    np.testing.assert_equal(vars(first), vars(second))


@pytest.mark.parametrize("precision", [np.float16, np.float32, np.float64])
def test_a_matrix_of_products_ranks_like_its_embeddings(precision):
    queries, gallery, groups, expected = make_case()
    assert_same(rank_statistics_of_matrix((queries @ gallery.T).astype(precision), **groups), expected)


@pytest.mark.slow
def test_matrices_stored_by_rows_or_columns_or_in_a_memory_map_give_the_same_ranks(tmp_path):
    queries, gallery, groups, expected = make_case(1500, 3000)
    scores = queries @ gallery.T
    assert scores.nbytes > 16 * 2**20, "one block of the matrix would be all of it"
    np.save(tmp_path / "scores.npy", scores)
    np.save(tmp_path / "transposed.npy", scores.T)
    mapped = np.load(tmp_path / "scores.npy", mmap_mode="r"), np.load(tmp_path / "transposed.npy", mmap_mode="r").T
    for stored in (scores, np.asfortranarray(scores), *mapped):
        assert_same(rank_statistics_of_matrix(stored, **groups), expected)


def test_rows_and_columns_can_be_chosen():
    queries, gallery, groups, expected = make_case()
    generator = np.random.default_rng(1)
    rows, columns = generator.permutation(60), generator.permutation(900)
    shuffled = (queries @ gallery.T)[np.argsort(rows)][:, np.argsort(columns)]
    assert_same(rank_statistics_of_matrix(shuffled, **groups, query_rows=rows, gallery_columns=columns), expected)


def test_scores_are_compared_in_the_precision_of_the_file():
    nearly = np.array([[1.0, 1.0 + 2.0**-40]])
    groups = {"gallery_group": np.array([0, 1]), "gallery_altered": np.zeros(2, bool)}
    for precision, wanted in ((np.float64, (1, 0)), (np.float32, (0, 1))):
        found = rank_statistics_of_matrix(nearly.astype(precision), query_group=np.array([0]), **groups)
        assert (found.higher[0], found.ties[0]) == wanted


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_scores_are_refused(value):
    queries, gallery, groups, _ = make_case()
    for own in (True, False):
        scores = queries @ gallery.T
        scores[7, np.flatnonzero((groups["gallery_group"] == 7) == own)[0]] = value
        message = r"S\.npy: scores: found NaN or infinite values; wanted finite numbers"
        refused(message, rank_statistics_of_matrix, scores, **groups, source="S.npy")


def test_blocks_of_scores_contain_the_products_of_the_selected_rows():
    generator = np.random.default_rng(3)
    queries, gallery = whole_numbers(generator, 300), whole_numbers(generator, 900)
    query_rows, gallery_rows = generator.permutation(300), generator.integers(0, 900, 1100)
    blocks = list(score_blocks(queries, gallery, query_rows=query_rows, gallery_rows=gallery_rows))
    assert [block.start for block, _ in blocks] == [0, 128, 256] and blocks[-1][0].stop == 300
    scores = np.concatenate([scores for _, scores in blocks])
    np.testing.assert_array_equal(scores, (queries @ gallery.T)[query_rows][:, gallery_rows])


def test_the_top_k_mask_includes_all_scores_that_tie_with_the_last():
    scores = np.random.default_rng(4).integers(0, 30, (40, 90)).astype(np.float32)
    for count in (1, 7, 90, 200):
        expected = [row >= np.sort(row)[::-1][: min(count, 90)].min() for row in scores]
        np.testing.assert_array_equal(top_k_mask(scores, count), expected)
