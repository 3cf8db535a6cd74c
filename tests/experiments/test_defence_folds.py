"""The comparison over folds and seeds: its folds, and its p-values against SciPy's."""

import json
import runpy

import numpy as np
import pytest
from scipy import stats

from rococo_jax.metrics.image_counts import ImageCounts
from tests.support.paths import CHECKOUT
from tests.support.scripts import run_script

SCRIPT = CHECKOUT / "experiments/defence_folds.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def runs_without_images(script, values):
    """Return runs whose images add no variance: every draw has the values of the runs."""
    return script["Runs"](np.array(values), np.tile(values, (50, 1)))


def test_every_image_is_held_out_once_and_no_fold_trains_on_it(tmp_path, monkeypatch):
    data, out = tmp_path / "data", tmp_path / "folds"
    names = [f"val2014/{number}.jpg" for number in range(12)]
    for name in names:
        (data / "coco/images" / name).parent.mkdir(parents=True, exist_ok=True)
        (data / "coco/images" / name).write_bytes(name.encode())
    for file, part in (("captions_train.json", names[:9]), ("captions_test.json", names[9:])):
        (data / "coco" / file).write_text(json.dumps([{"image": name, "caption": ["a"]} for name in part]))
    run_script(monkeypatch, SCRIPT, "split", "--data", data, "--out", out)
    held_out = []
    for fold in range(5):
        training = {image["image"] for image in json.loads((out / str(fold) / "train.json").read_text())}
        images = {f"val2014/{path.name}" for path in (out / str(fold) / "data/coco/images/val2014").iterdir()}
        assert images == {image["image"] for image in json.loads((out / str(fold) / "held.json").read_text())}
        assert training == set(names) - images
        held_out += images
    assert sorted(held_out) == sorted(names)


@pytest.mark.parametrize("shift", [0.0, 0.4, 1.5, -0.9])
def test_equivalence_is_two_one_sided_welch_tests_where_images_add_no_variance(script, shift):
    generator = np.random.default_rng(0)
    a, b, margin = generator.normal(shift, 0.5, 10), generator.normal(0.0, 0.8, 10), 1.0
    p = script["equivalence_p"](runs_without_images(script, a), runs_without_images(script, b), margin)
    above = stats.ttest_ind(a + margin, b, equal_var=False, alternative="greater").pvalue
    below = stats.ttest_ind(a - margin, b, equal_var=False, alternative="less").pvalue
    # The level is found by bisection to about 1e-12.
    assert p == pytest.approx(max(above, below), rel=1e-6)


def test_equivalence_to_a_constant_is_two_one_sided_t_tests(script):
    a = np.random.default_rng(1).normal(47.8, 2.0, 10)
    runs = runs_without_images(script, a)
    p = script["equivalence_p"](runs, script["constant"](50.0, runs), 5.0)
    above = stats.ttest_1samp(a, 45.0, alternative="greater").pvalue
    assert p == pytest.approx(above, rel=1e-6)


def test_the_ratio_covers_seeds_as_a_bootstrap_of_each_arm_does(script):
    generator = np.random.default_rng(2)
    a, b = generator.normal(12.0, 1.0, 10), generator.normal(30.0, 1.0, 10)
    runs = [script["Runs"](values, np.tile(values, (4000, 1))) for values in (a, b)]
    ratio, low, high = script["bootstrap_ratio"](*runs)
    assert ratio == pytest.approx(100 * a.mean() / b.mean())
    # The delta method with the variance that a bootstrap of ten values has.
    relative = np.sqrt(a.var() / 10 / a.mean() ** 2 + b.var() / 10 / b.mean() ** 2)
    # Quantiles of 4,000 draws, of a ratio that is nearly normal.
    assert [low, high] == pytest.approx([ratio * (1 - 1.96 * relative), ratio * (1 + 1.96 * relative)], rel=0.01)


def test_folds_are_one_run_whose_images_are_in_order(script):
    metrics = {"r1": lambda sums: 100 * sums[..., 0] / sums[..., 1]}
    folds = [
        ImageCounts(("b", "d"), np.array([[1.0, 1.0], [0.0, 1.0]]), metrics, {"r1": (1,)}),
        ImageCounts(("a", "c"), np.array([[0.0, 1.0], [1.0, 1.0]]), metrics, {"r1": (1,)}),
    ]
    run = script["stack_folds"](folds)
    assert run.images == ("a", "b", "c", "d") and run.counts[:, 0].tolist() == [0, 1, 1, 0] and run.value("r1") == 50
    with pytest.raises(ValueError, match="two folds"):
        script["stack_folds"]([folds[0], folds[0]])


@pytest.mark.parametrize("name, points, p, corrected, p_equivalence, expected", [
    ("FR@1", -18.0, 1e-6, 1e-5, 1.0, "better"),
    ("FR@1", 18.0, 1e-6, 1e-5, 1.0, "worse"),
    ("FR@1", 0.3, 0.5, 0.5, 0.01, "equivalent"),
    ("FR@1", -3.0, 0.03, 0.06, 0.9, "undecided"),
    ("R@1, image to text", -0.4, 0.5, 0.02, 0.02, "equivalent"),
    ("R@1, image to text", -1.0, 0.01, 0.02, 0.02, "equivalent"),
    ("R@1, image to text", -2.5, 0.001, 0.9, 0.9, "worse"),
    ("R@1, image to text", -1.0, 0.2, 0.06, 0.06, "undecided"),
])  # fmt: skip
def test_a_verdict_follows_the_test_that_was_named_first(script, name, points, p, corrected, p_equivalence, expected):
    claim = next(claim for claim in script["CLAIMS"] if claim.name == name)
    of_difference = script["SeedDifference"](points, 0.0, 0.0, p)
    assert script["verdict"](claim, of_difference, corrected, p_equivalence) == expected
