"""Recall, false recall, the split of the first place and drop, against plain loops over sorted lists."""

import numpy as np
import pytest

from rococo_jax.metrics.metric import drop
from rococo_jax.metrics.retrieval import METRICS, query_counts
from rococo_jax.metrics.rows import count_rows
from rococo_jax.similarity import rank_statistics_of_matrix

IMAGES, CAPTIONS, ALTERED = 80, 5, 5


def retrieval_metrics(statistics, ties):
    return count_rows("rank", query_counts(statistics, ties), np.arange(len(statistics))).values()


@pytest.fixture(scope="module")
def groups():
    owner = np.repeat(np.arange(IMAGES), CAPTIONS + ALTERED)
    altered = np.tile(np.arange(CAPTIONS + ALTERED) >= CAPTIONS, IMAGES)
    return {"query_group": np.arange(IMAGES), "gallery_group": owner, "gallery_altered": altered}


def make_scores(groups, levels=None):
    """Scores in which own captions stand out a little; with few levels many of them tie."""
    generator = np.random.default_rng(0)
    scores = generator.standard_normal((IMAGES, len(groups["gallery_group"])))
    scores += 2.5 * (groups["query_group"][:, None] == groups["gallery_group"])
    return scores if levels is None else np.round(scores * levels) / levels


def count_by_sorting(scores, groups):
    """The published definitions, query by query: ranks and the kind of the first place."""
    ranks, kinds = [], []
    for image, row in enumerate(scores):
        order = list(np.argsort(row, kind="stable")[::-1])
        ranks.append(min(order.index(item) for item in range(image * 10, image * 10 + CAPTIONS)))
        top_image, top_place = divmod(order[0], CAPTIONS + ALTERED)
        own, altered = top_image == image, top_place >= CAPTIONS
        kinds.append(("own" if own else "other") + ("_altered" if altered else ""))
    return np.array(ranks), kinds


@pytest.mark.parametrize("levels", [None, 3])
def test_published_ties_follow_the_published_definitions(groups, levels):
    scores = make_scores(groups, levels)
    found = retrieval_metrics(rank_statistics_of_matrix(scores, **groups), "published")
    ranks, kinds = count_by_sorting(scores, groups)
    recalls = [100 * np.mean(ranks < cutoff) for cutoff in (1, 5, 10)]
    assert [found["r1"], found["r5"], found["r10"]] == pytest.approx(recalls, abs=1e-12)
    assert found["r_mean"] == pytest.approx(sum(recalls) / 3, abs=1e-12)
    for kind in ("own", "own_altered", "other_altered", "other"):
        assert found[f"top1_{kind}"] == pytest.approx(100 * kinds.count(kind) / IMAGES, abs=1e-12)
    assert found["fr1"] == pytest.approx(100 * sum("altered" in kind for kind in kinds) / IMAGES, abs=1e-12)
    assert tuple(found) == tuple(metric.name for metric in METRICS)
    assert 0 < found["r1"] < 100


@pytest.mark.parametrize("ties", ["published", "pessimistic"])
def test_shares_of_the_first_place_sum_to_100_percent(groups, ties):
    found = retrieval_metrics(rank_statistics_of_matrix(make_scores(groups, 2), **groups), ties)
    assert sum(value for name, value in found.items() if name.startswith("top1_")) == pytest.approx(100, abs=1e-9)
    assert found["r1"] == found["top1_own"]


def test_protocols_differ_only_in_ties(groups):
    apart = rank_statistics_of_matrix(make_scores(groups), **groups)
    assert retrieval_metrics(apart, "pessimistic") == retrieval_metrics(apart, "published")
    tied = rank_statistics_of_matrix(make_scores(groups, 2), **groups)
    assert retrieval_metrics(tied, "pessimistic")["r1"] < retrieval_metrics(tied, "published")["r1"]


def test_a_constant_scorer_has_zero_recall_under_the_strict_protocol(groups):
    found = retrieval_metrics(rank_statistics_of_matrix(np.zeros((IMAGES, 800)), **groups), "pessimistic")
    assert (found["r1"], found["r5"], found["r10"], found["top1_own"]) == (0, 0, 0, 0)
    assert found["fr1"] == found["top1_other_altered"] == 100


@pytest.mark.parametrize(
    ("tied", "winner"),
    [
        (["own", "other"], "other"),
        (["own", "own_altered"], "own_altered"),
        (["other", "own_altered"], "own_altered"),
        (["own", "own_altered", "other_altered", "other"], "other_altered"),
        (["own"], "own"),
    ],
)
def test_the_strict_protocol_gives_a_tied_first_place_to_the_worst_kind(tied, winner):
    columns = ["own", "own_altered", "other_altered", "other"]
    scores = np.array([[1.0 if column in tied else 0.0 for column in columns]])
    group, altered = np.array([0, 0, 1, 1]), np.array([False, True, True, False])
    found = rank_statistics_of_matrix(scores, query_group=np.array([0]), gallery_group=group, gallery_altered=altered)
    assert retrieval_metrics(found, "pessimistic")[f"top1_{winner}"] == 100


def test_a_drop_is_a_percentage_of_the_clean_value_and_undefined_for_zero():
    assert drop(81.9, 48.4) == {"drop": pytest.approx(40.9, abs=0.05), "drop_points": pytest.approx(33.5)}
    assert drop(40.0, 50.0) == {"drop": -25.0, "drop_points": -10.0}
    assert drop(0.0, 0.0) == {"drop": None, "drop_points": 0.0}
