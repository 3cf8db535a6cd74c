"""Claims about two arms: their p-values against SciPy's, their verdicts, and the table of an experiment's runs."""

import csv
import json

import numpy as np
import pytest
from scipy import stats

from rococo_jax.metrics.paired import PairedDifference
from tests.support.made_runs import make_run

ARMS = ("plain", "recipe")


@pytest.fixture(scope="module")
def claims(experiment):
    return experiment("claims")


def runs_without_images(claims, values):
    """Return runs whose images add no variance: every draw has the values of the runs."""
    return claims.Runs(np.array(values), np.tile(values, (50, 1)))


@pytest.mark.parametrize("shift", [0.0, 0.4, 1.5, -0.9])
def test_equivalence_uses_two_one_sided_welch_tests_if_images_add_no_variance(claims, shift):
    generator = np.random.default_rng(0)
    a, b, margin = generator.normal(shift, 0.5, 10), generator.normal(0.0, 0.8, 10), 1.0
    p = claims.equivalence_p(runs_without_images(claims, a), runs_without_images(claims, b), margin)
    above = stats.ttest_ind(a + margin, b, equal_var=False, alternative="greater").pvalue
    below = stats.ttest_ind(a - margin, b, equal_var=False, alternative="less").pvalue
    # The level is found by bisection to about 1e-12.
    assert p == pytest.approx(max(above, below), rel=1e-6)


def test_a_claim_with_a_target_is_compared_with_it_by_two_one_sided_t_tests(claims):
    generator = np.random.default_rng(1)
    blind = runs_without_images(claims, generator.normal(47.8, 2.0, 10))
    plain = runs_without_images(claims, generator.normal(40.0, 2.0, 10))
    claim = claims.Claim("blind", "image_to_text", ("danger",), "blind", None, None, 5.0, target=50.0)
    compared = claims.compare_arms(claim, {"plain": plain, "defence": blind})
    above = stats.ttest_1samp(blind.values, 45.0, alternative="greater").pvalue
    assert compared.p_equivalence == pytest.approx(above, rel=1e-6)
    # The difference is still that from plain.
    assert compared.difference.points == pytest.approx(blind.values.mean() - plain.values.mean())


def test_an_interval_ends_at_the_bounds_of_a_percentage(claims):
    plain, defence = (runs_without_images(claims, values) for values in ([0.0, 0.1, 0.4], [98.0, 99.5, 100.0]))
    claim = claims.Claim("a metric", "image_to_text", ("danger",), "ota", "higher", None, 2.0)
    row = claims.compare_arms(claim, {"plain": plain, "defence": defence}).row
    # Student's half-width is 4.303 times the standard error of 0.60.
    low = np.mean([98.0, 99.5, 100.0]) - stats.t.ppf(0.975, 2) * stats.sem([98.0, 99.5, 100.0])
    assert (row["defence low"], row["defence high"]) == (f"{low:.2f}", "100.00")


@pytest.mark.parametrize("test, points, p, corrected, p_equivalence, expected", [
    ("difference", -18.0, 1e-6, 1e-5, 1.0, "better"),
    ("difference", 18.0, 1e-6, 1e-5, 1.0, "worse"),
    ("difference", 0.3, 0.5, 0.5, 0.01, "equivalent"),
    ("difference", -3.0, 0.03, 0.06, 0.9, "undecided"),
    ("equivalence", -0.4, 0.5, 0.02, 0.02, "equivalent"),
    ("equivalence", -1.0, 0.01, 0.02, 0.02, "equivalent"),
    ("equivalence", -2.5, 0.001, 0.9, 0.9, "worse"),
    ("equivalence", -1.0, 0.2, 0.06, 0.06, "undecided"),
])  # fmt: skip
def test_a_verdict_follows_the_test_that_was_named_first(claims, test, points, p, corrected, p_equivalence, expected):
    better = "lower" if test == "difference" else "higher"
    claim = claims.Claim("a metric", "image_to_text", ("danger",), "fr1", better, test, 2.0)
    of_difference = PairedDifference(points, 0.0, 0.0, p)
    assert claims.verdict(claim, of_difference, corrected, p_equivalence) == expected


def test_the_table_has_the_arms_of_all_sweeps_and_corrects_the_named_tests(claims, experiment, tmp_path, monkeypatch):
    script = experiment("end_to_end")
    for seed in (1, 2, 3):
        sweep = tmp_path / f"seed-{seed}"
        points = [{"run": f"{arm}-{seed}", "arm": arm} for arm in ARMS]
        for place, point in enumerate(points):
            make_run(sweep / "points" / point["run"] / "evaluation", point["run"], 1.0 + 0.8 * place, seed=seed)
        (sweep / "sweep.json").write_text(json.dumps({"points": points}))
    described = claims.Claim("R@1 among altered captions", "image_to_text", ("danger",), "r1", "higher", None, 3.0)
    tested = [
        claims.Claim(f"R@1, {task}", task, ("clean",), "r1", "higher", test, 3.0)
        for task, test in (("image_to_text", "difference"), ("text_to_image", "equivalence"))
    ]
    monkeypatch.setattr(script, "CLAIMS", [("clean", claim) for claim in (*tested, described)])
    script.table(sorted(tmp_path.glob("seed-?")), tmp_path, tmp_path / "claims.csv")
    rows = list(csv.DictReader((tmp_path / "claims.csv").open()))
    assert [row["seeds"] for row in rows] == ["3", "3", "3"]
    for row, (task, variant) in zip(
        rows, [("image_to_text", "clean"), ("text_to_image", "clean"), ("image_to_text", "danger")], strict=True
    ):
        means = {}
        for arm in ARMS:
            paths = sorted(tmp_path.glob(f"seed-?/points/{arm}-?/evaluation/results.json"))
            values = [json.loads(path.read_text())["tasks"][task][variant]["r1"] for path in paths]
            means[arm] = np.mean(values)
            assert float(row[arm]) == pytest.approx(means[arm], abs=0.006)
            assert float(row[f"{arm} SD of seeds"]) == pytest.approx(np.std(values, ddof=1), abs=0.006)
        assert float(row["difference"]) == pytest.approx(means["recipe"] - means["plain"], abs=0.006)
    # Holm by hand: the smaller of two p times two, and the larger at least as large.
    p = [float(rows[0]["p of difference"]), float(rows[1]["p of equivalence"])]
    first, second = sorted(range(2), key=p.__getitem__)
    corrected = {first: min(1.0, 2 * p[first]), second: max(min(1.0, 2 * p[first]), p[second])}
    for place in range(2):
        assert float(rows[place]["p by Holm"]) == pytest.approx(corrected[place], rel=0.06)
    assert rows[0]["verdict"] == "worse" and rows[2]["verdict"] == rows[2]["test"] == rows[2]["p by Holm"] == ""
