"""Out-of-distribution measures against scikit-learn, with ties and with weights; tasks from folder to figures."""

import numpy as np
import pytest
import sklearn.metrics

from rococo_jax.benchmarks.classes import with_out_images
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import TEXTS
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.evaluation.results import make_results
from rococo_jax.metrics.ood import OodScores, separation
from tests.support.random_inputs import embeddings_of
from tests.support.refusals import refused
from tests.support.world import noise, write_pictures


def sklearn_measures(score, inside, weight):
    false, true, _ = sklearn.metrics.roc_curve(inside, score, sample_weight=weight, drop_intermediate=False)
    return {
        "auroc": sklearn.metrics.roc_auc_score(inside, score, sample_weight=weight),
        "aupr_in": sklearn.metrics.average_precision_score(inside, score, sample_weight=weight),
        "aupr_out": sklearn.metrics.average_precision_score(~inside, -score, sample_weight=weight),
        "fpr95": false[np.argmax(true >= 0.95 - 1e-12)],
    }


@pytest.mark.parametrize("levels", [None, 6])
@pytest.mark.parametrize("share", [0.2, 0.7])
def test_ood_metrics_match_scikit_learn(levels, share):
    rng = np.random.default_rng(0)
    inside = rng.random(300) < share
    score = rng.normal(size=300) + 0.9 * inside
    score = score if levels is None else np.digitize(score, np.linspace(-1, 1, levels - 1)).astype(float)
    weights = np.stack([np.ones(300), rng.integers(0, 4, 300)]).astype(float)
    found = separation(score, weights * inside, weights * ~inside)
    for row, weight in enumerate(weights):
        for name, expected in sklearn_measures(score, inside, weight).items():
            assert found[name][row] == pytest.approx(expected, rel=1e-12), name


def test_a_constant_score_has_the_auroc_of_chance():
    ones = {"mcm": np.ones(40)}
    values = OodScores(ones, {"mcm": np.ones(60)}).values()
    assert values == {"auroc_mcm": 50.0, "aupr_in_mcm": 40.0, "aupr_out_mcm": 60.0, "fpr95_mcm": 100.0}


def test_intervals_match_a_bootstrap_of_images():
    rng = np.random.default_rng(0)
    both = OodScores({"mcm": rng.normal(1.0, size=150)}, {"mcm": rng.normal(size=100)})
    found = both.intervals()["auroc_mcm"]
    redrawn = [
        OodScores({"mcm": rng.choice(both.ins["mcm"], 150)}, {"mcm": rng.choice(both.outs["mcm"], 100)}).values()
        for _ in range(1500)
    ]
    expected = np.percentile([each["auroc_mcm"] for each in redrawn], [2.5, 97.5])
    # The ends of 1,500 draws vary by a few tenths.
    np.testing.assert_allclose(found, expected, atol=0.6)


@pytest.fixture
def folder(tmp_path):
    places = ("classes/images/cat", "classes/images/dog", "elsewhere")
    write_pictures(tmp_path, [f"{place}/{number}.png" for place in places for number in range(3)], noise(8, 8))
    return tmp_path


def test_both_image_sets_are_drawn_independently():
    scores = {"mcm": np.random.default_rng(0).normal(size=40)}
    drawn = OodScores(scores, scores).bootstrap(200, 0)["auroc_mcm"]
    # The same draws on both sides would give 50 each time.
    assert drawn.std() > 3 and abs(drawn.mean() - 50) < 2


def test_any_folder_can_be_a_set_of_out_of_distribution_images(folder):
    settings = Settings(templates=("1", "5"), out_images=(("elsewhere", str(folder / "elsewhere")),))
    (benchmark,) = open_benchmarks(settings, data=folder, names=("classes",))
    variants = [("classes", "clean"), ("classes", "templates_5"), ("classes_ood", "elsewhere")]
    assert [(task.name, task.variant) for task in benchmark.tasks] == variants
    embeddings, task = embeddings_of(benchmark), benchmark.tasks[-1]
    outcome = task.score(embeddings)
    assert outcome.sizes == {"inside": 6, "outside": 3} and outcome.rows(benchmark).num_rows == 9
    vectors = embeddings.tables[TEXTS][task.within.prompts[:, 0]]
    cosines = embeddings.tables["out_elsewhere"] @ (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).T
    np.testing.assert_allclose(outcome.counted.outs["energy"], np.log(np.exp(cosines).sum(1)), rtol=1e-6)
    np.testing.assert_allclose(outcome.counted.outs["mcm"], np.exp(cosines.max(1)) / np.exp(cosines).sum(1), rtol=1e-6)
    made = make_results("m", "paper", {}, [outcome])
    assert len(made["tasks"]["classes_ood"]["elsewhere"]) == 16 == len(made["intervals"]["classes_ood"]["elsewhere"])
    assert made["curves"]["classes_ood"]["elsewhere"]["roc"]["mcm"][-1] == [1.0, 1.0]


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_folder_without_images_is_refused(folder, name):
    (folder / "empty").mkdir()
    (benchmark,) = open_benchmarks(Settings(templates=("1",)), data=folder, names=("classes",))
    refused("a folder of images", with_out_images, benchmark, [("x", str(folder / name))])
