"""Class probabilities against scikit-learn and SciPy; what must change nothing changes nothing."""

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import sklearn.metrics
from sklearn.calibration import calibration_curve

from rococo_jax.metrics import class_statistics as module
from rococo_jax.metrics import counts
from rococo_jax.metrics.class_statistics import ClassStatistics, class_statistics, halves
from rococo_jax.metrics.classify import (
    BINS,
    equal_mass_bins,
    image_counts,
    reliability,
    shape_counts,
)
from rococo_jax.metrics.rows import count_rows

IMAGES, CLASSES, SCALE = 600, 7, 3.0


@pytest.fixture(scope="module")
def case():
    """Return logits that are often right and too sure, labels with a rare class, and halves."""
    rng = np.random.default_rng(0)
    label = rng.choice(CLASSES, IMAGES, p=np.array([6, 5, 4, 3, 2, 1, 1]) / 22)
    logits = rng.normal(size=(IMAGES, CLASSES)) + 0.8 * (np.arange(CLASSES) == label[:, None])
    return logits, label, halves([f"{place}.jpg" for place in range(IMAGES)])


def measured(logits, label, half, scale=SCALE, **given):
    return class_statistics(lambda run: logits[run], label, half, logits.shape[1], scale, **given)


def values_of(statistics, classes=CLASSES):
    return count_rows("classify", image_counts(statistics, classes), np.arange(len(statistics))).values()


def test_metrics_match_scikit_learn(case):
    logits, label, _ = case
    p, found = scipy.special.softmax(SCALE * logits, axis=1), values_of(measured(*case))
    every = list(range(CLASSES))
    assert found["top1"] == pytest.approx(100 * sklearn.metrics.accuracy_score(label, p.argmax(1)))
    assert found["top5"] == pytest.approx(100 * sklearn.metrics.top_k_accuracy_score(label, p, k=5, labels=every))
    assert found["per_class"] == pytest.approx(100 * sklearn.metrics.balanced_accuracy_score(label, p.argmax(1)))
    assert found["nll"] == pytest.approx(sklearn.metrics.log_loss(label, p, labels=every), rel=1e-10)
    assert found["brier"] == pytest.approx(np.square(p - np.eye(CLASSES)[label]).sum(1).mean(), rel=1e-10)
    assert found["prior"] == pytest.approx(100 * np.bincount(label).max() / IMAGES)


def test_calibration_matches_scikit_learn(case):
    logits, label, half = case
    found = measured(*case)
    values, curves, ones = values_of(found), reliability(image_counts(found, CLASSES)), np.ones(IMAGES)
    scaled = np.array(found.temperatures)[1 - half]
    for name, curve, temperature in (("ece", "as it is", ones), ("ece_scaled", "scaled", scaled)):
        p = scipy.special.softmax(SCALE * logits / temperature[:, None], axis=1)
        right, mean = calibration_curve(p.argmax(1) == label, p.max(1), n_bins=BINS)
        count, _ = np.histogram(p.max(1), BINS, (0, 1))
        rows = np.array(curves[curve])
        np.testing.assert_array_equal(rows[:, 0], count)
        np.testing.assert_allclose(rows[count > 0, 1:], np.stack([mean, right], 1))
        assert values[name] == pytest.approx(100 * count[count > 0] @ abs(right - mean) / IMAGES)
    right, mean = calibration_curve(found.right, found.confidence, n_bins=BINS, strategy="quantile")
    assert values["ece_mass"] == pytest.approx(100 * abs(right - mean).mean())


def test_out_of_distribution_images_are_never_right_and_do_not_change_other_images(case):
    logits, label, half = case
    none = np.arange(IMAGES) % 3 == 0
    found = measured(logits, np.where(none, -1, label), half)
    others = measured(logits[~none], label[~none], half[~none])
    assert not found.right[none].any() and (found.rank[none] == 0).all() and np.isnan(found.nll[none]).all()
    np.testing.assert_allclose(found[~none].temperatures, others.temperatures, rtol=1e-9)
    for name in ClassStatistics.columns():
        np.testing.assert_allclose(getattr(found[~none], name), getattr(others, name), rtol=1e-7, err_msg=name)


def test_top5_is_not_reported_for_five_classes(case):
    logits, label, half = (each[case[1] < 5] for each in case)
    assert "top5" not in values_of(measured(logits[:, :5], label, half), 5)


def test_bins_of_equal_mass_have_equal_sizes_and_do_not_split_equal_confidences():
    assert np.bincount(equal_mass_bins(np.random.default_rng(0).random(BINS * 40))).tolist() == [40] * BINS
    assert len(set(equal_mass_bins(np.full(50, 0.5)).tolist())) == 1


def test_each_half_is_calibrated_with_the_temperature_of_the_other(case):
    logits, label, half = case

    def nll(t, rows):
        return -scipy.special.log_softmax(SCALE * logits[rows] / t, axis=1)[np.arange(rows.sum()), label[rows]].mean()

    found = measured(*case)
    for side in (0, 1):
        least = scipy.optimize.minimize_scalar(lambda t, side=side: nll(t, half == side), bounds=(0.1, 50),
                                               method="bounded", options={"xatol": 1e-9})  # fmt: skip
        assert found.temperatures[side] == pytest.approx(least.x, rel=1e-4)
        assert found.scaled_nll[half != side].mean() == pytest.approx(nll(least.x, half != side), rel=1e-6)
    assert found.temperatures[0] != found.temperatures[1]
    assert values_of(found)["ece_scaled"] < values_of(found)["ece"]


@pytest.mark.parametrize("temperature", [0.1, 30.0])
def test_temperature_never_changes_which_class_comes_first(case, temperature):
    logits, *others = case
    whole, changed = measured(*case), measured(logits / temperature, *others)
    np.testing.assert_array_equal(changed.predicted, whole.predicted)
    np.testing.assert_array_equal(changed.rank, whole.rank)


def test_metrics_do_not_depend_on_blocks_or_order(case, monkeypatch):
    whole, order = measured(*case), np.random.default_rng(1).permutation(IMAGES)
    monkeypatch.setattr(module, "NUMBERS_AT_ONCE", 3 * CLASSES)
    for found in (measured(*case), measured(*(each[order] for each in case))[np.argsort(order)]):
        for name in ClassStatistics.columns():
            # Temperatures are fitted on sums in another order.
            tolerance = 1e-6 if name.startswith("scaled") else 0
            np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=tolerance, err_msg=name)


def test_a_constant_scorer_is_never_right(case):
    _, label, half = case
    found = measured(np.zeros((IMAGES, CLASSES)), label, half)
    assert values_of(found)["top1"] == 0 and found.confidence == pytest.approx(1 / CLASSES)
    assert (found.predicted != label).all()


def test_images_have_the_same_weight_with_many_classes_as_with_few(case):
    logits, label, half = case
    padded = np.concatenate([logits, np.full((IMAGES, 70), -50.0)], axis=1)
    few, many = values_of(measured(*case)), values_of(measured(padded, label, half), CLASSES + 70)
    assert many["per_class"] == pytest.approx(few["per_class"])


def test_intervals_contain_the_value_and_are_as_wide_over_unions_of_images(case, monkeypatch):
    found = measured(*case)
    columns, every = image_counts(found, CLASSES), np.arange(IMAGES)
    one = count_rows("classify", columns, every).intervals()
    assert one["top1"][0] < values_of(found)["top1"] < one["top1"][1]
    monkeypatch.setattr(counts, "MOST_UNITS", 100)
    monkeypatch.setattr(counts, "UNIONS", 200)
    other = count_rows("classify", columns, counts.coarsen_units(every)).intervals()
    for name in ("top1", "nll", "ece", "per_class"):
        # 200 unions of 3: the width of an interval from so few varies by a tenth or so.
        assert np.ptp(other[name]) == pytest.approx(np.ptp(one[name]), rel=0.3)


def shape_counted(statistics, texture):
    """The counts of images of three classes, with those of shape and texture."""
    columns = image_counts(statistics, 3) | shape_counts(statistics, texture)
    return count_rows("shape", columns, np.arange(len(statistics)))


@pytest.mark.filterwarnings("error")
def test_draws_without_answers_by_shape_or_texture_are_skipped_without_a_warning():
    predicted, label = np.array([0, 2, 2, 2]), np.array([0, 0, 1, 1])
    statistics = measured(10.0 * np.eye(3)[predicted], label, np.array([0, 1, 0, 1], np.int8))
    counted = shape_counted(statistics, np.array([1, 1, 0, 0]))
    assert counted.values()["shape_bias"] == 100.0
    assert counted.intervals(resamples=200)["shape_bias"] == [100.0, 100.0]


def test_shape_bias_excludes_answers_that_are_neither_shape_nor_texture_or_both():
    label, texture = np.array([0, 0, 0, 0, 1]), np.array([1, 1, 1, 0, 2])
    predicted = np.array([0, 0, 1, 0, 0])
    found = measured(10.0 * np.eye(3)[predicted], label, np.zeros(5, np.int8))
    values = shape_counted(found, texture).values()
    assert values["shape_bias"] == pytest.approx(100 * 2 / 3) and values["saw_texture"] == pytest.approx(20)
    assert values["top1"] == pytest.approx(60)
