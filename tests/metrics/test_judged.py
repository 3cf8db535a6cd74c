"""Judged positives against the package eccv-caption, correlations against SciPy, and the real ratings."""

import numpy as np
import pytest
import scipy.stats

from rococo_jax.benchmarks.benchmark import find_benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks.judged import CorrelationTask, JudgedTask
from rococo_jax.evaluation.results import make_results
from rococo_jax.metrics.judged import METRICS, Correlated, judge_rows, spearman

NAMES = [metric.name for metric in METRICS]


def test_the_package_agrees_on_random_rankings():
    package = pytest.importorskip("eccv_caption._metrics")
    rng = np.random.default_rng(0)
    scores, positive = rng.normal(size=(60, 80)), rng.random((60, 80)) < 0.15
    positive[:, 0] |= ~positive.any(1)
    ranked = {row: np.argsort(-values).tolist() for row, values in enumerate(scores)}
    expected = package.compute_eccv_metrics(
        ranked, {row: np.flatnonzero(each).tolist() for row, each in enumerate(positive)}
    )
    found = dict(zip(NAMES, judge_rows(scores, positive, np.zeros_like(positive)).mean(0), strict=True))
    assert found["map_at_r"] == pytest.approx(expected["eccv_map_at_r"])
    assert found["r_precision"] == pytest.approx(expected["eccv_rprecision"])
    assert found["judged_r1"] == pytest.approx(expected["eccv_r1"]) == pytest.approx(found["excused"])


def test_the_package_agrees_on_its_own_judgements():
    package = pytest.importorskip("eccv_caption")
    metric = package.Metrics()
    judged = metric.eccv_gts["i2t"]
    rng = np.random.default_rng(0)
    images = sorted(judged)[::12]
    captions = np.array(sorted({each for image in images for each in judged[image]} | set(range(100, 400))))
    place = {number: column for column, number in enumerate(captions.tolist())}
    scores = rng.normal(size=(len(images), len(captions)))
    positives = [[place[each] for each in judged[image]] for image in images]
    for row, several in enumerate(positives):
        scores[row, several] += 2.0  # some are found
    ranked = {image: captions[np.argsort(-values)].tolist() for image, values in zip(images, scores, strict=True)}
    kept = metric.eccv_gts["i2t"]
    metric.eccv_gts["i2t"] = {image: kept[image] for image in images}
    expected = metric.eccv_metrics({"i2t": ranked}, "i2t")
    expected = {name: value["i2t"] if isinstance(value, dict) else value for name, value in expected.items()}
    one = np.eye(len(images), len(images) + len(captions))
    padding = np.zeros((len(captions), len(captions)))
    tables = {ORIGINALS: one, TEXTS: np.concatenate([scores.T, padding], axis=1)}
    every = np.arange(len(captions))
    asked = np.arange(len(images))
    sides = Rows.of(ORIGINALS, asked), Rows.of(TEXTS, every)
    task = JudgedTask("e", "image_to_text", *sides, positives, asked, every)
    found = task.score(Embeddings(tables)).counted.values()
    assert found["map_at_r"] == pytest.approx(100 * expected["eccv_map_at_r"])
    assert found["r_precision"] == pytest.approx(100 * expected["eccv_rprecision"])
    assert found["judged_r1"] == pytest.approx(100 * expected["eccv_r1"])
    shares = [each.score(Embeddings(tables)).result for each in task.split(3)]
    assert task.joined(shares).counted.values() == found


def test_ties_count_against_positives_even_the_querys_own():
    positive = np.array([[True, True, False, False]])
    found = dict(zip(NAMES, judge_rows(np.zeros((1, 4)), positive, positive)[0].tolist(), strict=True))
    assert found == {"map_at_r": 0, "r_precision": 0, "judged_r1": 0, "excused": 0}
    scores, own = np.array([[3.0, 2.0, 1.0, 0.0]]), np.array([[False, True, False, False]])
    assert judge_rows(scores, positive, own)[0].tolist() == [1, 1, 1, 1]
    assert judge_rows(scores, positive, ~own)[0].tolist() == [1, 1, 1, 0]


def test_scipy_has_the_same_rank_correlation():
    rng = np.random.default_rng(0)
    for levels in (4, 500):
        one, other = rng.integers(0, levels, 300).astype(float), rng.normal(size=300)
        other += 0.05 * one
        assert spearman(one, other) == pytest.approx(scipy.stats.spearmanr(one, other).statistic)
    assert spearman(np.ones(5), np.arange(5.0)) == 0


def test_sampled_correlation_takes_one_pair_of_half_the_queries():
    rng = np.random.default_rng(0)
    rating = rng.random(400)
    both = Correlated(
        rating + 0.5 * rng.random(400), rating, np.repeat(np.arange(100), 4), np.repeat(np.arange(100), 4)
    )
    task = CorrelationTask("c", "p", Rows.of(TEXTS, np.arange(400)), Rows.of(ORIGINALS, np.arange(400)), rating,
                           both.query, both.group)  # fmt: skip
    tables = Embeddings({TEXTS: both.similarity[:, None], ORIGINALS: np.ones((400, 1))})
    values = make_results("m", "paper", {}, [task.score(tables)])
    figures, bounds = values["tasks"]["c"]["p"], values["intervals"]["c"]["p"]
    assert figures["spearman"] == pytest.approx(100 * scipy.stats.spearmanr(both.similarity, rating).statistic)
    assert figures["spearman_sampled"] == pytest.approx(figures["spearman"], abs=3)
    assert bounds["spearman"][0] < figures["spearman"] < bounds["spearman"][1]
    joined = task.joined([each.score(tables).result for each in task.split(3)])
    assert joined.counted.values() == figures


@pytest.mark.real_data
def test_the_real_judgements_are_read(real_data):
    pytest.importorskip("eccv_caption")
    folders = {"images": real_data / "coco" / "images", "captions": real_data / "rococo" / "annotations"}
    asked = Settings(allow_missing_images=True)
    cxc = find_benchmark("cxc").open({**folders, "annotations": real_data / "cxc"}, asked)
    assert {task.variant: len(task.rating) for task in cxc.tasks} == {"image_text": 2526, "image_image": 164}
    eccv = find_benchmark("eccv_caption").open({**folders, "judgements": real_data / "none"}, asked)
    assert [len(task.positives) for task in eccv.tasks] == [61, 60]
    # The judged positives of an image hold captions of its own.
    task = eccv.tasks[0]
    own = [any(task.gallery_image[each] == image for each in several)
           for image, several in zip(task.query_image.tolist(), task.positives, strict=True)]  # fmt: skip
    assert np.mean(own) > 0.9
