"""Choices: every order of three scores by hand, Winoground's published scoring, loops, and a constant scorer."""

import itertools

import numpy as np
import pytest

from rococo_jax.metrics.choice import ItemGroups, ItemScores, choice_columns, count_choices, metrics_of


def one_image(rows, right):
    scores = np.array(rows, float)[:, None, :]
    match = np.broadcast_to(np.isin(np.arange(scores.shape[2]), right), scores.shape)
    return ItemScores(scores, match, np.tile([0.0, 1.0], (len(scores), 1)) if len(right) > 1 else None)


# Every order of s(c), s(c_p), s(c_n) -> what it counts as, by the definitions of arXiv 2409.17958.
ORDERS = {
    (3, 2, 1): {"ota", "ata"},
    (2, 3, 1): {"ota", "ata"},
    (3, 1, 2): {"ota", "brittleness"},
    (1, 3, 2): {"brittleness"},
    (1, 2, 3): {"negative_on_top"},
    (2, 1, 3): {"negative_on_top"},
    (2, 2, 1): {"ota", "ata"},
    (2, 1, 2): {"ties"},
    (1, 2, 2): {"ties"},
    (3, 2, 2): {"ota", "ties"},
    (2, 3, 2): {"ties"},
    (1, 1, 1): {"ties"},
    (1, 1, 2): {"negative_on_top"},
}


def test_hard_positives_are_counted_as_by_hand():
    counted = count_choices(one_image(list(ORDERS), [0, 1]), "texts")
    for item, (scores, counts) in enumerate(ORDERS.items()):
        assert {name for name, hits in counted.items() if hits[item]} == counts, scores


def test_the_best_of_several_wrong_texts_counts():
    counted = count_choices(one_image([[3, 1, 2], [3, 4, 1], [3, 3, 1], [3, 1, np.nan]], [0]), "texts")
    assert counted["ota"].tolist() == [True, False, False, True]
    assert counted["ties"].tolist() == [False, False, True, False]
    assert set(counted) == {"ota", "ties"}


@pytest.mark.parametrize("levels", [3, 10_000])
def test_winoground_scores_follow_their_published_definition(levels):
    """Count as the data card does, by caption and image of an item."""
    scores = np.random.default_rng(1).integers(0, levels, (2000, 2, 2)).astype(float)
    counted = count_choices(ItemScores(scores, np.broadcast_to(np.eye(2, dtype=bool), scores.shape)), "both")
    (c0_i0, c1_i0), (c0_i1, c1_i1) = scores.transpose(1, 2, 0)
    text, image = (c0_i0 > c1_i0) & (c1_i1 > c0_i1), (c0_i0 > c0_i1) & (c1_i1 > c1_i0)
    for name, expected in (("text_score", text), ("image_score", image), ("group_score", text & image)):
        np.testing.assert_array_equal(counted[name], expected, name)
    assert not (counted["ties"] & counted["group_score"]).any()


def test_counts_of_any_shape_match_loops_over_pairs():
    rng = np.random.default_rng(2)
    scores, match = rng.integers(0, 5, (300, 3, 4)).astype(float), rng.random((300, 3, 4)) < 0.4
    counted = count_choices(ItemScores(scores, match), "both")
    for item, (values, right) in enumerate(zip(scores, match, strict=True)):
        pairs = list(itertools.product(range(3), range(4)))
        lost = {"text_score": False, "image_score": False}
        for (i, t), (other_i, other_t) in itertools.product(pairs, pairs):
            if right[i, t] and not right[other_i, other_t] and values[i, t] <= values[other_i, other_t]:
                lost["text_score"] |= i == other_i
                lost["image_score"] |= t == other_t
        assert {name: bool(counted[name][item]) for name in lost} == {name: not each for name, each in lost.items()}


@pytest.mark.parametrize(
    ("asks", "shape", "right"),
    [("texts", (1, 2), [(0, 0)]), ("texts", (1, 3), [(0, 0), (0, 1)]), ("images", (4, 1), [(0, 0)]),
     ("both", (2, 2), [(0, 0), (1, 1)])],
)  # fmt: skip
def test_a_constant_scorer_has_no_right_answer(asks, shape, right):
    match = np.zeros((7, *shape), bool)
    match[:, [i for i, _ in right], [t for _, t in right]] = True
    alike = np.ones((7, 2)) if len(right) > 1 and asks == "texts" else None
    counted = count_choices(ItemScores(np.full((7, *shape), 0.5), match, alike), asks)
    assert all(hit.all() == (name == "ties") and hit.any() == (name == "ties") for name, hit in counted.items())


def test_choices_between_texts_alone_are_counted_as_by_hand():
    alike = np.array([[0.9, 0.8], [0.8, 0.9], [0.5, 0.5]])
    match = np.broadcast_to([True, True, False], (3, 1, 3))
    counted = count_choices(ItemScores(np.full((3, 1, 3), np.nan), match, alike), "alike")
    assert counted["tot"].tolist() == [True, False, False] and counted["ties"].tolist() == [False, False, True]


def test_itt_equals_ata():
    metrics = {metric.name: metric for metric in metrics_of(("ota", "ata", "ties"), ("itt",))}
    assert list(metrics) == ["itt", "ota", "ata", "ties"]
    assert metrics["itt"].function({"ata": 40.0}) == metrics["ata"].function({"ata": 40.0}) == 40.0


def test_pairs_of_which_none_is_complete_have_no_metric():
    """As among some of the items: a share of no pairs is no number."""
    right = np.array([True, False, True])
    for numbers, has_pairs in (([0, 0, 1], True), ([0, 1, -1], False)):
        groups = ItemGroups(np.array(numbers), np.array([2, 2]))
        columns = choice_columns({"ota": right, **groups.row_columns("pair")})
        assert ("pairs_right" in [metric.name for metric in metrics_of(columns)]) == has_pairs
