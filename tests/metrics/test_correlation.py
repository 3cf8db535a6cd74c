"""Correlations over models agree with SciPy, with residuals of ranks, and with Holm's rule as he states it."""

import itertools

import numpy as np
import pytest
from scipy import stats

from rococo_jax.metrics.correlation import correlate, holm


def made(models: int, metrics: int = 5, seed: int = 0, rounded: bool = False):
    """Metrics that share a common cause, with ties where rounded."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=models) + rng.uniform(0.3, 2, (metrics, 1)) * rng.normal(size=(metrics, models))
    return np.round(values) if rounded else values


def residual_ranks(x, z):
    """What a least-squares line on the ranks of z leaves of the ranks of x."""
    x, z = stats.rankdata(x), stats.rankdata(z)
    design = np.stack([z, np.ones_like(z)], axis=1)
    return x - design @ np.linalg.lstsq(design, x, rcond=None)[0]


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("models", [12, 60])
def test_rho_and_p_are_scipys(models, rounded):
    values = made(models, seed=models, rounded=rounded)
    found = correlate(values, resamples=50)
    for one, other in itertools.combinations(range(len(values)), 2):
        theirs = stats.spearmanr(values[one], values[other])
        assert found.rho[one, other] == found.rho[other, one] == pytest.approx(theirs.statistic, abs=1e-12)
        assert found.p[one, other] == pytest.approx(theirs.pvalue, rel=1e-9)
    assert np.isnan(np.diagonal(found.p)).all()


@pytest.mark.parametrize("rounded", [False, True])
def test_p_of_few_models_is_that_of_every_order(rounded):
    values = made(6, 3, seed=3, rounded=rounded)
    found = correlate(values, resamples=5)
    for one, other in itertools.combinations(range(3), 2):
        exact = stats.permutation_test(
            (values[one],), lambda x, y=values[other]: stats.spearmanr(x, y).statistic, permutation_type="pairings",
            n_resamples=np.inf,
        )  # fmt: skip
        # SciPy doubles the smaller tail; both ends are counted here, and the orders mirror each other without ties.
        both = np.mean(np.abs(exact.null_distribution) >= abs(exact.statistic) - 1e-9)
        assert found.p[one, other] == pytest.approx(both)
        assert rounded or both == pytest.approx(exact.pvalue)


@pytest.mark.parametrize("rounded", [False, True])
def test_the_partial_correlation_is_that_of_residual_ranks(rounded):
    values = made(25, seed=7, rounded=rounded)
    found = correlate(values, given=4, resamples=5)
    for one, other in itertools.combinations(range(4), 2):
        x, y = (residual_ranks(values[row], values[4]) for row in (one, other))
        r = np.corrcoef(x, y)[0, 1]
        assert found.rho[one, other] == pytest.approx(r, abs=1e-10)
        t = r * np.sqrt((25 - 3) / (1 - r * r))
        assert found.p[one, other] == pytest.approx(2 * stats.t.sf(abs(t), 25 - 3), rel=1e-8)
    assert np.isnan(found.rho[4]).all()


def test_the_partial_correlation_is_pingouins():
    pingouin, pd = pytest.importorskip("pingouin"), pytest.importorskip("pandas")
    values = made(30, 3, seed=9)
    theirs = pingouin.partial_corr(pd.DataFrame(values.T, columns=["x", "y", "z"]), "x", "y", "z", method="spearman")
    found, row = correlate(values, given=2, resamples=5), theirs.iloc[0]
    p = row["p_val"] if "p_val" in row else row["p-val"]
    assert (found.rho[0, 1], found.p[0, 1]) == pytest.approx((row["r"], p), rel=1e-8)


def test_intervals_are_those_of_models_drawn_and_ranked_anew():
    values, rng = made(40, 2, seed=5, rounded=True), np.random.default_rng(1)
    found = correlate(values)
    drawn = []
    for _ in range(2000):
        rows = rng.integers(0, 40, 40)
        drawn.append(stats.spearmanr(values[0, rows], values[1, rows]).statistic)
    ends = np.percentile(drawn, [2.5, 97.5])
    # Two sets of 2,000 draws: an end moves by about 3 % of the width.
    assert [found.low[0, 1], found.high[0, 1]] == pytest.approx(list(ends), abs=0.1 * (ends[1] - ends[0]))


def test_a_draw_without_spread_counts_for_no_interval():
    values = np.array([[1.0, 1, 1, 1, 2], [1, 2, 3, 4, 5]])
    found = correlate(values)
    assert not np.isnan([found.low[0, 1], found.high[0, 1]]).any() and found.high[0, 1] <= 1


@pytest.mark.parametrize("seed", range(5))
def test_holm_rejects_what_his_procedure_rejects(seed):
    p = np.random.default_rng(seed).uniform(size=12) ** 3
    corrected = holm(p)
    for level in (0.01, 0.05, 0.2, 0.6):
        # His step-down: go on while the k-th smallest is at most level / (m - k + 1).
        order, rejected = np.argsort(p), set()
        for step, place in enumerate(order):
            if p[place] > level / (len(p) - step):
                break
            rejected.add(int(place))
        assert set(np.flatnonzero(corrected <= level)) == rejected


def test_holm_is_that_of_statsmodels_and_leaves_gaps():
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = np.array([0.04, 0.001, 0.03, 0.001, 0.9, 0.02])
    assert holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1])
    with_gap = np.insert(p, 2, np.nan)
    assert np.isnan(holm(with_gap)[2]) and np.delete(holm(with_gap), 2) == pytest.approx(holm(p))
