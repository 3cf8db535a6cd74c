"""Correlations over models agree with SciPy, with pingouin and with statsmodels."""

import itertools

import numpy as np
import pytest
from scipy import stats

from rococo_jax.metrics.correlation import correlate, holm


def made(models: int, metrics: int = 5, seed: int = 0, rounded: bool = False):
    """Return metrics that share a common cause, with ties where rounded."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=models) + rng.uniform(0.3, 2, (metrics, 1)) * rng.normal(size=(metrics, models))
    return np.round(values) if rounded else values


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("models", [10, 60])
def test_rho_and_p_match_scipy(models, rounded):
    values = made(models, seed=models, rounded=rounded)
    found, theirs = correlate(values, resamples=5), stats.spearmanr(values, axis=1)
    np.testing.assert_allclose(found.rho, theirs.statistic, atol=1e-12)
    others = ~np.eye(len(values), dtype=bool)
    np.testing.assert_allclose(found.p[others], theirs.pvalue[others], rtol=1e-9)
    assert np.isnan(np.diagonal(found.p)).all()


@pytest.mark.parametrize("rounded", [False, True])
def test_p_of_few_models_is_computed_over_all_permutations(rounded):
    values = made(8, 3, seed=3, rounded=rounded)
    found, ranks = correlate(values, resamples=5), stats.rankdata(values, axis=1)
    for one, other in itertools.combinations(range(3), 2):
        exact = stats.permutation_test(
            (ranks[one],), lambda x, axis, y=ranks[other]: stats.pearsonr(x, y, axis=axis).statistic, vectorized=True,
            permutation_type="pairings", n_resamples=np.inf, batch=10_000,
        )  # fmt: skip
        # SciPy doubles the smaller tail; both ends are counted here, and the orders mirror each other without ties.
        both = np.mean(np.abs(exact.null_distribution) >= abs(exact.statistic) - 1e-9)
        assert found.p[one, other] == pytest.approx(both)
        assert rounded or both == pytest.approx(exact.pvalue)


@pytest.mark.parametrize("rounded", [False, True])
def test_the_partial_correlation_matches_pingouin(rounded):
    pingouin, pd = pytest.importorskip("pingouin"), pytest.importorskip("pandas")
    values = made(25, 4, seed=7, rounded=rounded)
    found, table = correlate(values, controlling_for=3, resamples=5), pd.DataFrame(values.T, columns=list("xyzg"))
    for one, other in itertools.combinations(range(3), 2):
        row = pingouin.partial_corr(table, "xyz"[one], "xyz"[other], "g", method="spearman").iloc[0]
        p = row["p_val"] if "p_val" in row else row["p-val"]
        assert (found.rho[one, other], found.p[one, other]) == pytest.approx((row["r"], p), rel=1e-8)
    assert np.isnan(found.rho[3]).all()


def test_intervals_match_a_bootstrap_that_ranks_drawn_models_again():
    values, rng = made(40, 2, seed=5, rounded=True), np.random.default_rng(1)
    found = correlate(values)
    ranks = stats.rankdata(values[:, rng.integers(0, 40, (2000, 40))], axis=2)
    ends = np.percentile(stats.pearsonr(*ranks, axis=1).statistic, [2.5, 97.5])
    # Two sets of 2,000 draws: an end moves by about 3 % of the width.
    assert [found.low[0, 1], found.high[0, 1]] == pytest.approx(list(ends), abs=0.1 * (ends[1] - ends[0]))


def test_draws_of_equal_values_are_excluded_from_intervals():
    values = np.array([[1.0, 1, 1, 1, 2], [1, 2, 3, 4, 5]])
    found = correlate(values)
    assert not np.isnan([found.low[0, 1], found.high[0, 1]]).any() and found.high[0, 1] <= 1


def test_the_holm_correction_matches_statsmodels_and_keeps_missing_values():
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    for seed in range(5):
        p = np.random.default_rng(seed).uniform(size=12).round(1) ** 3
        assert holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1])
        with_gap = np.insert(p, 2, np.nan)
        assert np.isnan(holm(with_gap)[2]) and np.delete(holm(with_gap), 2) == pytest.approx(holm(p))
