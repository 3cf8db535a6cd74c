"""Ranks from embeddings: equal to those of sorting, with bits that depend on the scores alone."""

import dataclasses
import hashlib
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from rococo_jax.errors import InputError
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import KINDS, RankStatistics, rank_statistics
from rococo_jax.similarity.ranks import tile_shape

# Two tiles of queries; tests of few queries have one. One width for all, since each shape is a program to compile.
QUERIES, GALLERY, WIDTH = 700, 5000, 16
WIDE = 512  # where bits of long sums matter


def make_groups(generator, queries=QUERIES, gallery=GALLERY):
    """Groups with at least one original for each query; the other items have random groups, half are altered."""
    others = gallery - queries
    group = np.concatenate([np.arange(queries), generator.integers(0, queries, others)])
    altered = np.concatenate([np.zeros(queries, bool), generator.random(others) < 0.5])
    order = generator.permutation(gallery)
    return {"query_group": np.arange(queries), "gallery_group": group[order], "gallery_altered": altered[order]}


@pytest.fixture(scope="module")
def ranked():
    """Embeddings, some of which occur twice, their groups, and their statistics on one device."""
    generator = np.random.default_rng(0)
    queries = generator.standard_normal((QUERIES, WIDTH)).astype(np.float32)
    gallery = generator.standard_normal((GALLERY, WIDTH)).astype(np.float32)
    gallery[1000:1500] = gallery[generator.permutation(GALLERY)[:500]]
    groups = make_groups(generator)
    return queries, gallery, groups, rank_statistics(queries, gallery, **groups)


def assert_same_bits(first: RankStatistics, second: RankStatistics):
    for field in dataclasses.fields(RankStatistics):
        assert getattr(first, field.name).tobytes() == getattr(second, field.name).tobytes(), field.name


def by_sorting(scores, query_group, gallery_group, gallery_altered):
    """Ranks as published, with a stable sort: rank of the best own original and kind of the top item of each query."""
    ranks, kinds = [], []
    for row, group in zip(scores, query_group, strict=True):
        order = np.argsort(row, kind="stable")[::-1]
        own = np.flatnonzero((gallery_group == group) & ~gallery_altered)
        ranks.append(min(np.flatnonzero(order == item)[0] for item in own) + 1)
        top = order[0]
        own_top, altered_top = gallery_group[top] == group, gallery_altered[top]
        kinds.append(
            {(1, 0): "own", (1, 1): "own_altered", (0, 1): "other_altered", (0, 0): "other"}[own_top, altered_top]
        )
    return np.array(ranks), kinds


def test_ranks_are_those_of_a_stable_argsort_reversed():
    generator = np.random.default_rng(1)
    # Whole numbers: products are exact in any order of summation, so the oracle sees the same scores; and many tie.
    queries = generator.integers(-3, 4, (300, WIDTH)).astype(np.float32)
    gallery = generator.integers(-3, 4, (2000, WIDTH)).astype(np.float32)
    groups = make_groups(generator, 300, 2000)
    found = rank_statistics(queries, gallery, **groups)
    ranks, kinds = by_sorting(queries @ gallery.T, **groups)
    assert found.ties.sum() > 1000
    np.testing.assert_array_equal(found.rank_published, ranks)
    assert [KINDS[kind] for kind in found.top_kind_published] == kinds


def test_bounds_and_best_scores_are_those_of_their_definitions():
    generator = np.random.default_rng(2)
    queries = generator.integers(-3, 4, (100, WIDTH)).astype(np.float32)
    gallery = generator.integers(-3, 4, (900, WIDTH)).astype(np.float32)
    groups = make_groups(generator, 100, 900)
    found, scores = rank_statistics(queries, gallery, **groups), queries @ gallery.T
    for query in range(100):
        own = groups["gallery_group"] == query
        altered = groups["gallery_altered"]
        best = scores[query, own & ~altered].max()
        negatives = scores[query, ~(own & ~altered)]
        assert found.positive_score[query] == best
        assert scores[query, found.positive_index[query]] == best
        assert found.rank_optimistic[query] == 1 + (negatives > best).sum()
        assert found.rank_pessimistic[query] == 1 + (negatives >= best).sum()
        for kind, mask in enumerate((own & ~altered, own & altered, ~own & altered, ~own & ~altered)):
            expected = scores[query, mask].max(initial=-np.inf)
            assert found.best_scores[query, kind] == expected
            on_top = np.flatnonzero(mask & (scores[query] == expected))
            assert found.best_indices[query, kind] == (on_top[-1] if len(on_top) else -1)


def test_scores_are_products_in_float32(ranked):
    queries, gallery, _, found = ranked
    exact = np.sum(queries.astype(float) * gallery[found.positive_index].astype(float), axis=1)
    # 16 products of numbers around 1, each rounded to 24 bits.
    np.testing.assert_allclose(found.positive_score, exact, atol=WIDTH * 10 * 2.0**-24)


@pytest.mark.parametrize("device_count", [1, 2, 8])
def test_rank_is_the_same_on_one_and_eight_devices(ranked, device_count):
    queries, gallery, groups, expected = ranked
    mesh = make_mesh(jax.devices()[:device_count])
    assert_same_bits(rank_statistics(queries, gallery, **groups, mesh=mesh), expected)


def test_both_axes_of_a_mesh_share_the_queries(ranked):
    queries, gallery, groups, expected = ranked
    mesh = make_mesh(jax.devices()[:4], fsdp=2)
    assert_same_bits(rank_statistics(queries, gallery, **groups, mesh=mesh), expected)


def test_a_few_queries_rank_as_they_do_among_many(ranked):
    queries, gallery, groups, expected = ranked
    few = np.array([3, 699, 41])
    found = rank_statistics(queries[few], gallery, **{**groups, "query_group": few})
    assert_same_bits(found, expected[few])


def test_a_score_does_not_depend_on_what_else_is_in_the_gallery(ranked):
    queries, gallery, groups, expected = ranked
    kept = np.unique(expected.positive_index)
    small = {"gallery_group": groups["gallery_group"][kept], "gallery_altered": groups["gallery_altered"][kept]}
    found = rank_statistics(queries, gallery[kept], query_group=groups["query_group"], **small)
    assert found.positive_score.tobytes() == expected.positive_score.tobytes()


def test_rank_does_not_depend_on_the_order_of_queries_and_gallery(ranked):
    queries, gallery, groups, expected = ranked
    generator = np.random.default_rng(3)
    by_query, by_item = generator.permutation(QUERIES), generator.permutation(GALLERY)
    found = rank_statistics(
        queries[by_query],
        gallery[by_item],
        query_group=groups["query_group"][by_query],
        gallery_group=groups["gallery_group"][by_item],
        gallery_altered=groups["gallery_altered"][by_item],
    )[np.argsort(by_query)]
    for name in ("higher", "ties", "best_scores"):
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name
    # Indices are those of the shuffled gallery; where nothing ties they name the same items.
    same_item = np.where(found.best_indices < 0, -1, by_item[found.best_indices])
    twice = np.isin(expected.best_indices, np.flatnonzero(_occurs_twice(gallery)))
    np.testing.assert_array_equal(same_item[~twice], expected.best_indices[~twice])


def _occurs_twice(rows):
    _, which, count = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    return count[which] > 1


def test_rows_can_be_named_instead_of_copied(ranked):
    queries, gallery, groups, expected = ranked
    stored, place = np.unique(gallery, axis=0, return_inverse=True)
    assert len(stored) < len(gallery)
    backwards = np.arange(QUERIES)[::-1]
    found = rank_statistics(queries[::-1], stored, **groups, query_rows=backwards, gallery_rows=place)
    assert_same_bits(found, expected)


def test_equal_captions_tie_exactly_wherever_they_stand():
    generator = np.random.default_rng(4)
    of_gallery = tile_shape("cpu")[1]
    queries = generator.standard_normal((5, WIDE)).astype(np.float32)
    gallery = generator.standard_normal((3 * of_gallery, WIDE)).astype(np.float32)
    # The caption of query 0 again at the end of another tile as another image's, and altered as a third one's.
    gallery[0] = 3 * queries[0]
    gallery[2 * of_gallery + 77] = gallery[0]
    gallery[of_gallery - 1] = gallery[0]
    group = np.concatenate([np.arange(5), np.full(3 * of_gallery - 5, 3)])
    altered = np.arange(3 * of_gallery) == of_gallery - 1
    found = rank_statistics(queries, gallery, query_group=np.arange(5), gallery_group=group, gallery_altered=altered)
    assert (found.rank_optimistic[0], found.rank_pessimistic[0], found.rank_published[0]) == (1, 3, 3)
    assert KINDS[found.top_kind_published[0]] == "other"
    assert KINDS[found.top_kind_against_the_model[0]] == "other_altered"


def test_a_constant_scorer_ties_with_everything():
    groups = make_groups(np.random.default_rng(5), 50, 600)
    found = rank_statistics(np.ones((50, WIDTH), np.float32), np.ones((600, WIDTH), np.float32), **groups)
    originals = np.bincount(groups["gallery_group"][~groups["gallery_altered"]], minlength=50)
    assert (found.rank_optimistic == 1).all()
    np.testing.assert_array_equal(found.rank_pessimistic, 1 + 600 - originals)


def test_the_sign_of_zero_makes_no_difference():
    queries, gallery = np.zeros((1, WIDTH), np.float32), np.zeros((3, WIDTH), np.float32)
    queries[0, 0], gallery[:, :2] = 1.0, [[-0.0, 1.0], [0.0, -1.0], [-0.0, -1.0]]
    groups = {"gallery_group": np.array([0, 1, 1]), "gallery_altered": np.array([False, True, False])}
    found = rank_statistics(queries, gallery, query_group=np.array([0]), **groups)
    assert found.ties[0] == 2
    assert (
        not np.signbit(found.best_scores).any() or np.isneginf(found.best_scores[np.signbit(found.best_scores)]).all()
    )


def test_embeddings_of_other_precisions_and_jax_arrays_are_ranked_in_float32(ranked):
    queries, gallery, groups, _ = ranked
    half = queries.astype(np.float16), gallery.astype(np.float16)
    expected = rank_statistics(*(rows.astype(np.float32) for rows in half), **groups)
    assert_same_bits(rank_statistics(*half, **groups), expected)
    assert_same_bits(rank_statistics(*(rows.astype(np.float64) for rows in half), **groups), expected)
    assert_same_bits(rank_statistics(*(jax.numpy.asarray(rows) for rows in half), **groups), expected)


RANKED = f"""
import jax, numpy as np
from rococo_jax.similarity import rank_statistics
generator = np.random.default_rng(0)
queries, gallery = (generator.standard_normal((n, {WIDE})).astype(np.float32) for n in (40, 3000))
found = rank_statistics(queries, gallery, query_group=np.arange(40), gallery_group=np.arange(3000) % 40,
                        gallery_altered=np.arange(3000) % 3 == 1)
"""
PRINTED = "import hashlib; print(jax.device_count(), hashlib.sha256(found.best_scores.tobytes()).hexdigest())"


def test_scores_have_the_same_bits_in_a_process_with_another_number_of_devices():
    here = {}
    exec(RANKED, here)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1", "JAX_PLATFORMS": "cpu"}
    # A cache of its own, so that the program is not the one of this process.
    environment = {**os.environ, **flags, "JAX_ENABLE_COMPILATION_CACHE": "0"}
    command = [sys.executable, "-c", RANKED + PRINTED]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert jax.device_count() == 8
    assert output.split() == ["1", hashlib.sha256(here["found"].best_scores.tobytes()).hexdigest()]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["queries", "gallery"])
def test_embeddings_that_are_no_numbers_are_refused(ranked, side, value):
    queries, gallery, groups, _ = ranked
    rows = {"queries": queries.copy(), "gallery": gallery.copy()}
    rows[side][-1, 3] = value
    with pytest.raises(InputError, match=r"given\.npy: embeddings: found NaN or infinite values"):
        rank_statistics(rows["queries"], rows["gallery"], **groups, source="given.npy")


def test_embeddings_whose_scores_would_be_infinite_are_refused(ranked):
    queries, gallery, groups, _ = ranked
    with pytest.raises(InputError, match="wanted unit vectors"):
        rank_statistics(queries * np.float32(1e25), gallery * np.float32(1e15), **groups)


def test_unequal_widths_are_refused(ranked):
    queries, gallery, groups, _ = ranked
    with pytest.raises(InputError, match="width: found 15 and 16; wanted embeddings of one width"):
        rank_statistics(queries[:, 1:], gallery, **groups)


def test_a_query_without_an_original_is_refused(ranked):
    queries, gallery, groups, _ = ranked
    group = np.where(groups["gallery_group"] == 12, 13, groups["gallery_group"])
    with pytest.raises(InputError, match="1 queries without one \\(the first is query 12\\)"):
        rank_statistics(queries, gallery, **{**groups, "gallery_group": group})
