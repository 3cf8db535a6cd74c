"""Ranks from embeddings: equal to those of sorting, with bits that depend on the scores alone."""

import itertools
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import KINDS, rank_statistics
from rococo_jax.similarity.ranks import tile_shape
from tests.support.refusals import refused

# Two tiles of queries; tests of few queries have one. One width for all, since each shape is a program to compile.
QUERIES, GALLERY, WIDTH = 700, 5000, 16
WIDE = 512  # where bits of long sums matter


def whole_numbers(generator, rows: int) -> np.ndarray:
    """Vectors whose products are exact in any order of summation, so that an oracle sees the same scores; many tie."""
    return generator.integers(-3, 4, (rows, WIDTH)).astype(np.float32)


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


def bits(statistics) -> dict[str, int]:
    """Return the hash of the bytes of every array."""
    return {name: hash(np.asarray(array).tobytes()) for name, array in vars(statistics).items()}


def test_ranks_and_best_items_match_a_reversed_stable_argsort_and_their_definitions():
    generator = np.random.default_rng(1)
    queries, gallery = whole_numbers(generator, 300), whole_numbers(generator, 2000)
    groups = make_groups(generator, 300, 2000)
    found, scores = rank_statistics(queries, gallery, **groups), queries @ gallery.T
    assert found.ties.sum() > 1000 and KINDS == ("own", "own_altered", "other_altered", "other")
    for query, row in enumerate(scores):
        own, altered = groups["gallery_group"] == query, groups["gallery_altered"]
        kinds = own & ~altered, own & altered, ~own & altered, ~own & ~altered
        order = np.argsort(row, kind="stable")[::-1]
        assert found.rank_published[query] == 1 + np.flatnonzero(kinds[0][order])[0]
        assert kinds[found.top_kind_published[query]][order[0]]
        best, distractors = row[kinds[0]].max(), row[~kinds[0]]
        assert found.positive_score[query] == row[found.positive_index[query]] == best
        assert found.rank_optimistic[query] == 1 + (distractors > best).sum()
        assert found.rank_pessimistic[query] == 1 + (distractors >= best).sum()
        for kind, mask in enumerate(kinds):
            expected = row[mask].max(initial=-np.inf)
            assert found.best_scores[query, kind] == expected
            assert found.best_indices[query, kind] == np.flatnonzero(mask & (row == expected)).max(initial=-1)


def test_scores_are_products_in_float32(ranked):
    queries, gallery, _, found = ranked
    exact = np.sum(queries.astype(float) * gallery[found.positive_index].astype(float), axis=1)
    # 16 products of numbers around 1, each rounded to 24 bits.
    np.testing.assert_allclose(found.positive_score, exact, atol=WIDTH * 10 * 2.0**-24)


@pytest.mark.parametrize(
    ("devices", "fsdp"),
    [(8, 1), (4, 2), *(pytest.param(count, 1, marks=pytest.mark.thorough) for count in (1, 2))],
)
def test_rank_is_the_same_on_one_and_eight_devices_and_on_both_axes_of_a_mesh(ranked, devices, fsdp):
    queries, gallery, groups, expected = ranked
    mesh = make_mesh(jax.devices()[:devices], fsdp=fsdp)
    assert bits(rank_statistics(queries, gallery, **groups, mesh=mesh)) == bits(expected)


def test_a_query_has_the_same_rank_alone_and_among_many(ranked):
    queries, gallery, groups, expected = ranked
    few = np.array([3, 699, 41])
    assert bits(rank_statistics(queries[few], gallery, **groups | {"query_group": few})) == bits(expected[few])


def test_a_score_does_not_depend_on_other_items_of_the_gallery(ranked):
    queries, gallery, groups, expected = ranked
    kept = np.unique(expected.positive_index)
    small = {name: groups[name][kept] for name in ("gallery_group", "gallery_altered")}
    found = rank_statistics(queries, gallery[kept], query_group=groups["query_group"], **small)
    assert found.positive_score.tobytes() == expected.positive_score.tobytes()


def test_rank_does_not_depend_on_the_order_of_queries_and_gallery(ranked):
    queries, gallery, groups, expected = ranked
    generator = np.random.default_rng(3)
    by_query, by_item = generator.permutation(QUERIES), generator.permutation(GALLERY)
    shuffled = {name: groups[name][by_query if name == "query_group" else by_item] for name in groups}
    found = rank_statistics(queries[by_query], gallery[by_item], **shuffled)[np.argsort(by_query)]
    for name in ("higher", "ties", "best_scores"):
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name
    # Indices are those of the shuffled gallery; where nothing ties they name the same items.
    same_item = np.where(found.best_indices < 0, -1, by_item[found.best_indices])
    _, which, count = np.unique(gallery, axis=0, return_inverse=True, return_counts=True)
    twice = np.isin(expected.best_indices, np.flatnonzero(count[which] > 1))
    np.testing.assert_array_equal(same_item[~twice], expected.best_indices[~twice])


def test_rows_can_be_selected_by_index(ranked):
    queries, gallery, groups, expected = ranked
    stored, place = np.unique(gallery, axis=0, return_inverse=True)
    assert len(stored) < len(gallery)
    backwards = np.arange(QUERIES)[::-1]
    found = rank_statistics(queries[::-1], stored, **groups, query_rows=backwards, gallery_rows=place)
    assert bits(found) == bits(expected)


def test_equal_captions_tie_exactly_at_any_position():
    generator = np.random.default_rng(4)
    of_gallery = tile_shape("cpu")[1]
    queries = generator.standard_normal((5, WIDE)).astype(np.float32)
    gallery = generator.standard_normal((3 * of_gallery, WIDE)).astype(np.float32)
    # The caption of query 0 again at the end of another tile as another image's, and altered as a third one's.
    gallery[0] = 3 * queries[0]
    gallery[[2 * of_gallery + 77, of_gallery - 1]] = gallery[0]
    group = np.concatenate([np.arange(5), np.full(3 * of_gallery - 5, 3)])
    altered = np.arange(3 * of_gallery) == of_gallery - 1
    found = rank_statistics(queries, gallery, query_group=np.arange(5), gallery_group=group, gallery_altered=altered)
    assert (found.rank_optimistic[0], found.rank_pessimistic[0], found.rank_published[0]) == (1, 3, 3)
    assert KINDS[found.top_kind_published[0]] == "other"
    assert KINDS[found.top_kind_against_the_model[0]] == "other_altered"


def test_a_tie_for_the_first_place_counts_against_the_model():
    """The tie is won by an unrelated altered item, then the own altered one, then an unrelated original."""
    queries, group, altered = np.ones((1, 4), np.float32), np.array([1, 0, 1, 0]), np.array([True, True, False, False])
    for first, kind in enumerate(("other_altered", "own_altered", "other", "own")):
        kept = {"gallery_group": group[first:], "gallery_altered": altered[first:]}
        found = rank_statistics(queries, np.ones((4 - first, 4), np.float32), query_group=np.array([0]), **kept)
        assert KINDS[found.top_kind_against_the_model[0]] == kind


def test_a_constant_scorer_ties_with_everything():
    groups = make_groups(np.random.default_rng(5), 50, 600)
    found = rank_statistics(np.ones((50, WIDTH), np.float32), np.ones((600, WIDTH), np.float32), **groups)
    originals = np.bincount(groups["gallery_group"][~groups["gallery_altered"]], minlength=50)
    assert (found.rank_optimistic == 1).all()
    np.testing.assert_array_equal(found.rank_pessimistic, 1 + 600 - originals)


def test_positive_and_negative_zero_are_equal_scores():
    queries, gallery = np.zeros((1, WIDTH), np.float32), np.zeros((3, WIDTH), np.float32)
    queries[0, 0], gallery[:, :2] = 1.0, [[-0.0, 1.0], [0.0, -1.0], [-0.0, -1.0]]
    groups = {"gallery_group": np.array([0, 1, 1]), "gallery_altered": np.array([False, True, False])}
    found = rank_statistics(queries, gallery, query_group=np.array([0]), **groups)
    assert found.ties[0] == 2 and np.isneginf(found.best_scores[np.signbit(found.best_scores)]).all()


def test_embeddings_of_other_precisions_and_jax_arrays_are_ranked_in_float32(ranked):
    queries, gallery, groups, _ = ranked
    half = queries.astype(np.float16), gallery.astype(np.float16)
    expected = rank_statistics(*(rows.astype(np.float32) for rows in half), **groups)
    for given in (np.asarray, np.float64, jax.numpy.asarray):
        assert bits(rank_statistics(*map(given, half), **groups)) == bits(expected)


RANKED = f"""
import hashlib, jax, numpy as np
from rococo_jax.similarity import rank_statistics
generator = np.random.default_rng(0)
queries, gallery = (generator.standard_normal((n, {WIDE})).astype(np.float32) for n in (40, 3000))
found = rank_statistics(queries, gallery, query_group=np.arange(40), gallery_group=np.arange(3000) % 40,
                        gallery_altered=np.arange(3000) % 3 == 1)
shown = f"{{jax.device_count()}} {{hashlib.sha256(found.best_scores.tobytes()).hexdigest()}}"
"""


@pytest.mark.slow
def test_scores_have_the_same_bits_in_a_process_with_another_number_of_devices():
    here = {}
    exec(RANKED, here)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1", "JAX_PLATFORMS": "cpu"}
    # A cache of its own, so that the program is not the one of this process.
    environment = {**os.environ, **flags, "JAX_ENABLE_COMPILATION_CACHE": "0"}
    command = [sys.executable, "-c", RANKED + "print(shown)"]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert here["shown"].startswith("8 ") and output.strip() == "1" + here["shown"][1:]


def test_scores_that_would_overflow_are_refused(ranked):
    queries, gallery, groups, _ = ranked
    for side, value in itertools.product((0, 1), (np.nan, np.inf, -np.inf)):
        rows = queries.copy(), gallery.copy()
        rows[side][-1, 3] = value
        message = r"given\.npy: embeddings: found NaN or infinite values"
        refused(message, rank_statistics, *rows, **groups, source="given.npy")
    refused("wanted unit vectors", rank_statistics, queries * np.float32(1e25), gallery * np.float32(1e15), **groups)


def test_unequal_widths_and_a_query_without_an_original_are_refused(ranked):
    queries, gallery, groups, _ = ranked
    refused(
        "width: found 15 and 16; wanted embeddings of one width", rank_statistics, queries[:, 1:], gallery, **groups
    )
    group = np.where(groups["gallery_group"] == 12, 13, groups["gallery_group"])
    message = r"1 queries without one \(the first is query 12\)"
    refused(message, rank_statistics, queries, gallery, **groups | {"gallery_group": group})
