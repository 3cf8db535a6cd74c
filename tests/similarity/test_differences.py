"""Score differences equal a direct count over all pairs, and their bits depend on the scores alone."""

import dataclasses

import jax
import numpy as np
import pytest

from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import DifferenceStatistics, difference_statistics, difference_statistics_of_matrix
from tests.similarity.test_ranks import WIDTH, bits, whole_numbers
from tests.support.refusals import refused

# Two tiles of queries and at most six own ones of a pair, or one, in most tests: each shape is a program to compile.
GROUPS, MOST_OWN, PAIRS = 220, 6, 1100


def by_all_pairs(scores_right, scores_wrong, query_group, pair_group, second_group=None):
    """The definitions, one pair after the other: (pair, query, d_i, preference, blind, grounding, rank, wrong)."""
    rows = []
    for pair, group in enumerate(pair_group):
        differences = scores_right[:, pair] - scores_wrong[:, pair]
        wrong = differences[~np.isin(query_group, [group, group if second_group is None else second_group[pair]])]
        for query in np.flatnonzero(query_group == group):
            own = differences[query]
            half = [np.mean((np.sign(d) + 1) / 2, dtype=float) for d in (own, wrong, own - wrong)]
            rank = 1 + np.sum(wrong > own) + np.sum(wrong == own) / 2
            rows.append((pair, query, own, *half, rank, len(wrong)))
    return np.array(rows, float)


def as_rows(found: DifferenceStatistics):
    columns = ("pair", "query", "difference", "preference", "blind", "grounding", "rank", "unrelated")
    return np.stack([np.asarray(getattr(found, name), float) for name in columns], axis=1)


def make_groups(generator):
    """Return unordered groups of queries and of more pairs than a tile has; some pairs have a second group."""
    query_group = generator.permutation(np.repeat(np.arange(GROUPS), generator.integers(1, MOST_OWN + 1, GROUPS)) * 7)
    groups = {"query_group": query_group, "pair_group": generator.integers(0, GROUPS + 3, PAIRS) * 7}
    second = generator.integers(0, GROUPS, PAIRS) * 7
    return groups | {"second_group": np.where(generator.random(PAIRS) < 0.5, second, -1)}


@pytest.fixture(scope="module")
def counted():
    """Vectors, their groups, and their statistics."""
    generator = np.random.default_rng(0)
    groups = make_groups(generator)
    rows = (len(groups["query_group"]), PAIRS, PAIRS)
    queries, right, wrong = (generator.standard_normal((count, WIDTH)).astype(np.float32) for count in rows)
    return (queries, right, wrong), groups, difference_statistics(queries, right, wrong, **groups)


@pytest.mark.parametrize("twice", [False, True])
def test_counts_match_a_loop_over_all_pairs_with_ties_and_several_queries_per_image(twice):
    generator = np.random.default_rng(1)
    groups = make_groups(generator) | ({} if twice else {"second_group": None})
    count = len(groups["query_group"])
    queries, right, wrong = (whole_numbers(generator, rows) for rows in (count, PAIRS, PAIRS))
    wrong[:50] = right[:50]
    found = difference_statistics(queries, right, wrong, **groups)
    wanted = by_all_pairs(queries @ right.T, queries @ wrong.T, **groups)
    assert (wanted[:, 3] == 0.5).sum() > 100
    np.testing.assert_array_equal(as_rows(found), wanted)
    columns = np.arange(PAIRS)
    matrix = np.concatenate([queries @ right.T, queries @ wrong.T], axis=1)
    for scores in (matrix, np.asfortranarray(matrix.astype(float)), matrix.astype(np.float16)):
        given = {"query_rows": np.arange(count), "right_columns": columns, "wrong_columns": columns + PAIRS}
        np.testing.assert_array_equal(as_rows(difference_statistics_of_matrix(scores, **given, **groups)), wanted)


def test_statistics_of_real_embeddings_match_products_in_float64(counted):
    (queries, right, wrong), groups, found = counted
    scores = [queries.astype(float) @ side.astype(float).T for side in (right, wrong)]
    wanted = by_all_pairs(*scores, **groups)
    np.testing.assert_allclose(found.difference, wanted[:, 2], atol=WIDTH * 20 * 2.0**-24)
    # Differences that are nearer to each other than rounding may change places: far fewer than one in a thousand.
    assert np.abs(as_rows(found)[:, 3:7] - wanted[:, 3:7])[:, :3].mean() < 1e-6


def test_differences_of_similar_items_are_more_exact_than_subtracted_scores(counted):
    (queries, right, wrong), groups, _ = counted
    near = right + np.float32(1e-3) * wrong
    near[::3] = right[::3]
    found = difference_statistics(queries, right, near, **groups)
    wanted = np.einsum("qe,qe->q", queries[found.query].astype(float), (right.astype(float) - near)[found.pair])
    # Two scores, subtracted, are 1e-6 from it.
    np.testing.assert_allclose(found.difference, wanted, rtol=0, atol=2e-8)
    equal = found.pair % 3 == 0
    assert {*found.difference[equal]} == {0} and {*found.blind[equal]} == {*found.grounding[equal]} == {0.5}


@pytest.mark.parametrize(
    "device_count", [pytest.param(2, marks=pytest.mark.thorough), pytest.param(4, marks=pytest.mark.thorough), 8]
)
def test_results_have_the_same_bits_on_any_number_of_devices(counted, device_count):
    tables, groups, expected = counted
    mesh = make_mesh(jax.devices()[:device_count])
    assert bits(difference_statistics(*tables, **groups, mesh=mesh)) == bits(expected)


def test_results_have_the_same_bits_in_any_order_and_split(counted):
    (queries, right, wrong), groups, expected = counted
    shares = np.array_split(np.arange(len(right)), 3)
    parts = []
    for share in shares:
        of_pairs = {name: groups[name][share] for name in ("pair_group", "second_group")}
        rows = {"query_group": groups["query_group"], "right_rows": share, "wrong_rows": share}
        part = difference_statistics(queries, right, wrong, **of_pairs, **rows)
        parts.append(dataclasses.replace(part, pair=share[part.pair], pairs=len(right)))
    assert bits(DifferenceStatistics.concatenate(parts)) == bits(expected)
    order = np.random.default_rng(2).permutation(len(queries))
    shuffled = {**groups, "query_group": groups["query_group"][order]}
    found = difference_statistics(queries[order], right, wrong, **shuffled)
    again = np.lexsort((order[found.query], found.pair))
    assert found.below[again].tobytes() == expected.below.tobytes()
    assert found.difference[again].tobytes() == expected.difference.tobytes()


def test_rows_can_be_selected_by_index(counted):
    (queries, right, wrong), groups, expected = counted
    rows = dict.fromkeys(("right_rows", "wrong_rows"), np.arange(len(right))[::-1])
    assert bits(difference_statistics(queries, right[::-1], wrong[::-1], **groups, **rows)) == bits(expected)


def made(images, right, wrong):
    owner = np.arange(len(right)) % len(images)
    return difference_statistics(images, right, wrong, query_group=np.arange(len(images)), pair_group=owner)


def test_scorers_that_are_constant_or_see_only_texts_have_a_grounding_of_one_half():
    found = made(np.ones((700, WIDTH), np.float32), *(np.ones((1400, WIDTH), np.float32) for _ in range(2)))
    assert {0.5} == {*found.preference, *found.blind, *found.grounding}
    assert (found.rank > 1).all()
    generator = np.random.default_rng(3)
    right, wrong = (generator.standard_normal((1400, WIDTH)).astype(np.float32) for _ in range(2))
    found = made(np.repeat(generator.standard_normal((1, WIDTH)).astype(np.float32), 700, axis=0), right, wrong)
    assert 0 < found.preference.mean() < 1
    np.testing.assert_array_equal(found.preference, found.blind)
    assert (found.grounding == 0.5).all() and (found.rank == 350.5).all()


def test_a_term_that_depends_on_the_text_alone_does_not_change_grounding():
    generator = np.random.default_rng(4)
    images, right, wrong = (whole_numbers(generator, rows) for rows in (700, 1400, 1400))
    # A coordinate that is 1 for all images adds any function of the text to its scores: whole numbers, so exactly.
    images[:, -1], right[:, -1], wrong[:, -1] = 1, 0, 0
    plain = made(images, right, wrong)
    for side in (right, wrong):
        side[:, -1] = generator.integers(-1000, 1000, len(side))
    biased = made(images, right, wrong)
    np.testing.assert_array_equal(plain.below, biased.below)
    assert (plain.preferring != biased.preferring).any()


def test_a_single_image_has_no_unrelated_query_and_pairs_without_queries_have_no_entries():
    found = made(np.eye(1, 4, dtype=np.float32), np.eye(1, 4, dtype=np.float32), np.zeros((1, 4), np.float32))
    assert found.preference.tolist() == [1.0] and found.unrelated.tolist() == [0]
    assert np.isnan(found.blind).all() and np.isnan(found.grounding).all()
    none, queries = np.empty((0, 4), np.float32), np.eye(3, 4, dtype=np.float32)
    assert len(difference_statistics(queries, none, none, query_group=np.arange(3), pair_group=np.empty(0, int))) == 0
    found = difference_statistics(queries, queries, queries, query_group=np.arange(3), pair_group=np.array([5, 1, 6]))
    assert (found.pair.tolist(), found.pairs) == ([1], 3)


def test_non_finite_embeddings_and_unequal_widths_are_refused(counted):
    (queries, right, wrong), groups, _ = counted
    broken = wrong.copy()
    broken[-1, 0] = np.nan
    message = r"given\.npy: embeddings: found NaN or infinite values"
    refused(message, difference_statistics, queries, right, broken, **groups, source="given.npy")
    refused("width: found 16 and 15 and 16", difference_statistics, queries, right[:, 1:], wrong, **groups)


def test_one_neutral_embedding_for_all_altered_texts_has_high_grounding():
    """A limit that docs/explanation/grounding.md states: recognised texts that are equally far from all images."""
    generator = np.random.default_rng(3)
    images = generator.standard_normal((200, WIDTH)).astype(np.float32)
    captions = images + generator.standard_normal(images.shape).astype(np.float32)
    rows = np.arange(len(images))
    found = difference_statistics(images, captions, np.zeros_like(captions), query_group=rows, pair_group=rows)
    unrelated = ~np.eye(len(images), dtype=bool)
    scores = images.astype(float) @ captions.astype(float).T
    assert found.preference.mean() == np.mean(np.diag(scores) > 0) > 0.97
    assert found.blind.mean() == pytest.approx(np.mean(scores[unrelated] > 0)) == pytest.approx(0.5, abs=0.02)
    # Grounding is how well the true captions alone separate their image from the others.
    above = [np.mean(scores[row, row] > scores[unrelated[:, row], row]) for row in rows]
    assert found.grounding.mean() == pytest.approx(np.mean(above)) and np.mean(above) > 0.97
