"""Ranks from a matrix of similarities: the statistics of ranking embeddings, in the precision of the matrix."""

import dataclasses

import numpy as np
import pytest

from rococo_jax.errors import InputError
from rococo_jax.similarity import (
    RankStatistics,
    matrix,
    rank_statistics,
    rank_statistics_of_matrix,
    score_blocks,
    top_k_mask,
)


def make_case(queries=60, gallery=900, seed=0):
    """Whole numbers, so that embeddings and matrix have the same scores to the bit, and many tie."""
    generator = np.random.default_rng(seed)
    rows = [generator.integers(-3, 4, (count, 16)).astype(np.float32) for count in (queries, gallery)]
    group = np.concatenate([np.arange(queries), generator.integers(0, queries, gallery - queries)])
    altered = np.arange(gallery) % 2 * (np.arange(gallery) >= queries) == 1
    order = generator.permutation(gallery)
    groups = {"query_group": np.arange(queries), "gallery_group": group[order], "gallery_altered": altered[order]}
    return rows[0], rows[1], groups


def assert_same(first: RankStatistics, second: RankStatistics):
    for field in dataclasses.fields(RankStatistics):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(second, field.name), err_msg=field.name)


@pytest.mark.parametrize("precision", [np.float16, np.float32, np.float64])
def test_a_matrix_ranks_as_the_embeddings_it_came_from(precision):
    queries, gallery, groups = make_case()
    scores = (queries @ gallery.T).astype(precision)
    assert_same(rank_statistics_of_matrix(scores, **groups), rank_statistics(queries, gallery, **groups))


@pytest.mark.parametrize("block_bytes", [1, 20_000])
def test_ranks_do_not_depend_on_the_size_of_blocks(monkeypatch, block_bytes):
    queries, gallery, groups = make_case()
    scores = queries @ gallery.T
    expected = rank_statistics_of_matrix(scores, **groups)
    monkeypatch.setattr(matrix, "_BLOCK_BYTES", block_bytes)
    assert_same(rank_statistics_of_matrix(scores, **groups), expected)
    assert_same(rank_statistics_of_matrix(np.asfortranarray(scores), **groups), expected)


def test_a_memory_map_and_its_transpose_are_read_in_place(tmp_path):
    queries, gallery, groups = make_case()
    np.save(tmp_path / "scores.npy", queries @ gallery.T)
    np.save(tmp_path / "transposed.npy", gallery @ queries.T)
    mapped = np.load(tmp_path / "scores.npy", mmap_mode="r")
    transposed = np.load(tmp_path / "transposed.npy", mmap_mode="r").T
    expected = rank_statistics(queries, gallery, **groups)
    assert_same(rank_statistics_of_matrix(mapped, **groups), expected)
    assert_same(rank_statistics_of_matrix(transposed, **groups), expected)


def test_rows_and_columns_can_be_chosen():
    queries, gallery, groups = make_case()
    generator = np.random.default_rng(1)
    rows, columns = generator.permutation(60), generator.permutation(900)
    shuffled = (queries @ gallery.T)[np.argsort(rows)][:, np.argsort(columns)]
    chosen = rank_statistics_of_matrix(shuffled, **groups, query_rows=rows, gallery_columns=columns)
    assert_same(chosen, rank_statistics(queries, gallery, **groups))


def test_scores_are_compared_in_the_precision_of_the_file():
    nearly = np.array([[1.0, 1.0 + 2.0**-40]])
    groups = {"gallery_group": np.array([0, 1]), "gallery_altered": np.zeros(2, bool)}
    exact = rank_statistics_of_matrix(nearly, query_group=np.array([0]), **groups)
    rounded = rank_statistics_of_matrix(nearly.astype(np.float32), query_group=np.array([0]), **groups)
    assert (exact.higher[0], exact.ties[0]) == (1, 0)
    assert (rounded.higher[0], rounded.ties[0]) == (0, 1)


def test_bounds_bracket_an_unstable_sort():
    generator = np.random.default_rng(2)
    _, _, groups = make_case()
    scores = generator.integers(0, 12, (60, 900)).astype(np.float32)
    found = rank_statistics_of_matrix(scores, **groups)
    for kind in ("quicksort", "heapsort"):
        for query, row in enumerate(scores):
            order = np.argsort(row, kind=kind)[::-1]
            own = (groups["gallery_group"] == query) & ~groups["gallery_altered"]
            first = np.flatnonzero(own[order])[0] + 1
            assert found.rank_optimistic[query] <= first <= found.rank_pessimistic[query]
    assert (found.rank_optimistic <= found.rank_published).all()
    assert (found.rank_published <= found.rank_pessimistic).all()
    assert (found.rank_optimistic < found.rank_pessimistic).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_are_refused(value):
    queries, gallery, groups = make_case()
    for own in (True, False):
        scores = queries @ gallery.T
        scores[7, np.flatnonzero((groups["gallery_group"] == 7) == own)[0]] = value
        with pytest.raises(InputError, match=r"S\.npy: scores: found NaN or infinite values; wanted finite numbers"):
            rank_statistics_of_matrix(scores, **groups, source="S.npy")


def test_blocks_of_scores_are_products_and_items_of_one_row_tie():
    queries, gallery, _ = make_case(queries=300)
    generator = np.random.default_rng(3)
    query_rows, gallery_rows = generator.permutation(300), generator.integers(0, 900, 1100)
    blocks = list(score_blocks(queries, gallery, query_rows=query_rows, gallery_rows=gallery_rows))
    assert [block.start for block, _ in blocks] == [0, 128, 256] and blocks[-1][0].stop == 300
    scores = np.concatenate([scores for _, scores in blocks])
    np.testing.assert_array_equal(scores, (queries @ gallery.T)[query_rows][:, gallery_rows])


def test_the_highest_scores_are_marked_with_those_that_tie_with_the_last():
    generator = np.random.default_rng(4)
    scores = generator.integers(0, 30, (40, 90)).astype(np.float32)
    for count in (1, 7, 90, 200):
        expected = [row >= np.sort(row)[::-1][: min(count, 90)].min() for row in scores]
        np.testing.assert_array_equal(top_k_mask(scores, count), expected)
