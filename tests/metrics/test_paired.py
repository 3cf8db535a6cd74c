"""Paired differences agree with SciPy's permutation test, bootstrap and t-tests, and with a restated max-T."""

import itertools

import numpy as np
import pytest
from scipy import stats

from rococo_jax.metrics.paired import (
    FLIPS,
    PairedCounts,
    PairedDifference,
    minimum_detectable_effect,
    paired_differences,
    step_down_max_t,
)


def share(sums):
    return 100 * sums[..., 0] / sums[..., 1]


def counts_of(hits, other, queries, metric=share):
    """The comparison of each column of hits, whose metric is called `m`."""
    columns = zip(hits.T, other.T, queries.T, strict=True)
    return [
        PairedCounts(np.column_stack([a, n]).astype(float), np.column_stack([b, n]).astype(float), {"m": metric})
        for a, b, n in columns
    ]


def differences(hits, other, queries, **options):
    return [each["m"] for each in paired_differences(counts_of(hits, other, queries), **options)]


def binomial_hits(images: int, queries: int, gain: float, seed: int = 0):
    """Return hits of two models over the same images, the first `gain` more likely to hit."""
    rng = np.random.default_rng(seed)
    easy = rng.uniform(0.2, 0.7, (images, 1))
    counts = np.full((images, 1), queries)
    return rng.binomial(counts, easy + gain), rng.binomial(counts, easy), counts


@pytest.mark.parametrize(("images", "gain"), [(12, 0.0), (12, 0.2), (11, -0.1), (14, 0.1)])
def test_p_is_that_of_scipy_over_all_sign_flips(images, gain):
    hits, other, queries = binomial_hits(images, 5, gain, seed=images)
    (result,) = differences(hits, other, queries)
    # n_resamples above 2^n: SciPy goes through every flip.
    exact = stats.permutation_test(
        (hits[:, 0], other[:, 0]), lambda a, b: np.sum(a - b), permutation_type="samples", n_resamples=2**images + 1
    )
    # SciPy doubles the smaller tail; the distribution of sign flips is symmetric, so both definitions agree.
    spread = np.sqrt(exact.pvalue * (1 - exact.pvalue) / FLIPS)
    assert result.p == pytest.approx(exact.pvalue, abs=4 * spread + 1 / FLIPS)  # four standard errors of the draws
    assert result.corrected == result.p  # a family of one


def test_p_of_a_ratio_is_that_of_scipy_over_all_swaps_of_the_two_models():
    """A metric that is no share: the quotient of two counts, such as a drop in per cent of the clean value."""
    rng = np.random.default_rng(3)
    model, reference = rng.integers(1, 9, (11, 2)).astype(float), rng.integers(1, 7, (11, 2)).astype(float)
    (result,) = paired_differences([PairedCounts(model, reference, {"m": share})])
    both = np.concatenate([model, reference])
    exact = stats.permutation_test(
        (np.arange(11), np.arange(11, 22)), lambda a, b: share(both[a].sum(0)) - share(both[b].sum(0)),
        permutation_type="samples", n_resamples=2**11 + 1, vectorized=False,
    )  # fmt: skip
    assert result["m"].points == pytest.approx(share(model.sum(0)) - share(reference.sum(0)))
    spread = np.sqrt(exact.pvalue * (1 - exact.pvalue) / FLIPS)
    assert 0.01 < exact.pvalue < 0.99
    assert result["m"].p == pytest.approx(exact.pvalue, abs=4 * spread + 1 / FLIPS)


def test_p_is_that_of_scipy_with_random_flips_on_many_images():
    hits, other, queries = binomial_hits(100, 5, 0.02)
    (result,) = differences(hits, other, queries)
    drawn = stats.permutation_test(
        (hits[:, 0], other[:, 0]), lambda a, b, axis: np.sum(a - b, axis=axis), permutation_type="samples",
        n_resamples=FLIPS, vectorized=True, rng=np.random.default_rng(1),
    )  # fmt: skip
    # Two independent estimates with 9,999 draws each; SciPy doubles a tail, which doubles its error.
    error = np.sqrt(5 * drawn.pvalue * (1 - drawn.pvalue) / FLIPS)
    assert 0.001 < drawn.pvalue < 0.9
    assert result.p == pytest.approx(drawn.pvalue, abs=4 * error)


def test_interval_is_near_scipys_percentile_bootstrap():
    hits, other, queries = binomial_hits(300, 5, 0.05)
    (result,) = differences(hits, other, queries)
    scipy = stats.bootstrap(
        ((hits - other)[:, 0] / 5,), np.mean, method="percentile", n_resamples=2000, rng=np.random.default_rng(1)
    ).confidence_interval
    width = result.high - result.low
    # The ends of 2,000 draws move by about 3 % of the width from seed to seed.
    assert [result.low, result.high] == pytest.approx([100 * scipy.low, 100 * scipy.high], abs=0.1 * width)
    assert result.low < result.points < result.high


def test_the_difference_is_that_of_the_values_where_images_have_unequal_numbers_of_queries():
    rng = np.random.default_rng(0)
    queries = rng.choice([5, 6], (50, 1))
    hits, other = rng.binomial(queries, 0.6), rng.binomial(queries, 0.5)
    (result,) = differences(hits, other, queries)
    assert result.points == pytest.approx(100 * hits.sum() / queries.sum() - 100 * other.sum() / queries.sum())


def test_a_model_does_not_differ_from_itself_and_has_no_detectable_effect():
    hits, _, queries = binomial_hits(30, 5, 0.0)
    assert differences(hits, hits, queries) == [PairedDifference(0.0, 0.0, 0.0, 1.0, 1.0, None, 0.0, 30)]


def test_a_metric_without_a_value_for_one_model_is_left_out():
    hits, other, queries = binomial_hits(30, 5, 0.0)
    assert paired_differences(counts_of(hits, other, 0 * queries)) == [{}]


def test_p_is_uniform_where_the_models_are_alike():
    columns = [binomial_hits(60, 5, 0.0, seed) for seed in range(300)]
    hits, other, queries = (np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True))
    p = np.array([each.p for each in differences(hits, other, queries, flips=999, resamples=2)])
    # Of 300, 15 are expected below 0.05 and 150 below 0.5: four standard deviations of a binomial either way.
    assert 0 <= (p <= 0.05).sum() <= 15 + 4 * np.sqrt(300 * 0.05 * 0.95)
    assert abs((p <= 0.5).sum() - 150) <= 4 * np.sqrt(300 * 0.25)


def test_a_comparison_is_the_same_alone_and_among_others_and_swapped_models_swap_the_sign():
    hits, other, queries = (np.repeat(part, 2, axis=1) for part in binomial_hits(70, 5, 0.1))
    hits[:, 1] = np.roll(hits[:, 1], 3)
    together = differences(hits, other, queries)
    (alone,) = differences(hits[:, :1], other[:, :1], queries[:, :1])
    assert (together[0].points, together[0].low, together[0].p) == (alone.points, alone.low, alone.p)
    back = differences(other, hits, queries)
    assert back[0].p == together[0].p and back[0].points == -together[0].points


def restated_max_t(swapped, observed, sigma):
    """Westfall and Young's algorithm 2.8 word by word, one test at a time."""
    statistic = [value / scale for value, scale in zip(observed, sigma, strict=True)]
    order = sorted(range(len(observed)), key=lambda test: -statistic[test])
    corrected, previous = [0.0] * len(observed), 0.0
    for rank, test in enumerate(order):
        undecided = order[rank:]
        larger = sum(max(row[k] / sigma[k] for k in undecided) >= statistic[test] for row in swapped)
        previous = max(previous, (larger + 1) / (len(swapped) + 1))
        corrected[test] = previous
    return corrected


def test_corrected_p_are_those_of_a_restated_max_t():
    rng = np.random.default_rng(0)
    swapped, observed = np.abs(rng.normal(size=(200, 7))), np.abs(rng.normal(1.5, 1, 7))
    sigma = rng.uniform(0.5, 2, 7)
    assert step_down_max_t(swapped, observed, sigma) == pytest.approx(restated_max_t(swapped, observed, sigma))


def test_corrected_p_are_those_of_all_swaps_of_nine_images():
    rng = np.random.default_rng(1)
    hits, other = rng.integers(0, 6, (9, 4)), rng.integers(0, 5, (9, 4))
    hits[:, 0] += 3
    d = (hits - other).astype(float)
    every = np.array([np.abs(np.array(signs) @ d) for signs in itertools.product((1, -1), repeat=9)])
    wanted = restated_max_t(every * (1 + 1e-12), np.abs(d.sum(axis=0)), np.sqrt((d**2).sum(axis=0)))
    results = differences(hits, other, np.full_like(hits, 5))
    for result, exact in zip(results, wanted, strict=True):
        assert result.p <= result.corrected
        # Four standard errors of 9,999 draws, and the added one of the 512.
        assert result.corrected == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / FLIPS) + 1 / 512)


def test_a_test_outside_the_family_is_not_corrected_and_does_not_change_the_others():
    hits, other, queries = (np.concatenate(parts, axis=1) for parts in zip(
        *(binomial_hits(50, 5, 0.05, seed) for seed in range(6)), strict=True))  # fmt: skip
    inside = [each.corrected for each in differences(hits[:, :3], other[:, :3], queries[:, :3])]
    results = [each["m"] for each in paired_differences(counts_of(hits, other, queries), lambda place, name: place < 3)]
    assert [each.corrected for each in results] == [*inside, None, None, None]


def test_a_large_difference_is_significant_among_hundreds_of_tests():
    """Twenty models in 39 tests each, the reference right on all of 1,000 images and the others on half of them."""
    rng = np.random.default_rng(0)
    hits, ones = rng.random((1000, 19 * 39)) < 0.5, np.ones((1000, 19 * 39))
    results = differences(hits, ones, ones, flips=999, resamples=2)
    assert {each.corrected for each in results} == {1 / 1000}


def test_at_most_one_report_in_twenty_of_equal_models_finds_a_difference():
    rng = np.random.default_rng(0)
    reports, any_significant = 200, 0
    for _ in range(reports):
        easy = rng.uniform(0.2, 0.8, (120, 1))
        hits = rng.random((120, 10)) < easy
        reference = np.repeat(rng.random((120, 1)) < easy, 10, axis=1)
        results = differences(hits, reference, np.ones((120, 10)), flips=199, resamples=2)
        any_significant += min(each.corrected for each in results) <= 0.05
    # Four standard deviations of a binomial above 5 %.
    assert any_significant <= reports * 0.05 + 4 * np.sqrt(reports * 0.05 * 0.95)


@pytest.mark.parametrize(("images", "q"), [(281, 0.25), (100, 0.1), (2000, 0.02)])
def test_the_detectable_effect_needs_as_many_images_as_connors_formula_says(images, q):
    difference = minimum_detectable_effect(np.sqrt(q / images), images)
    a, b = stats.norm.ppf(0.975), stats.norm.ppf(0.8)
    assert (a * np.sqrt(q) + b * np.sqrt(q - difference**2)) ** 2 / difference**2 == pytest.approx(images)


def test_the_detectable_effect_is_found_in_four_of_five_samples():
    """Draw and test pairs of hits at that difference: the share with p below 0.05 is the power."""
    images, discordant, samples = 300, 0.3, 400
    difference = minimum_detectable_effect(np.sqrt(discordant / images), images)
    rng = np.random.default_rng(0)
    up, down = (discordant + difference) / 2, (discordant - difference) / 2
    kind = rng.choice(3, (images, samples), p=[up, down, 1 - discordant])
    hits, other = (kind == 0).astype(np.int64), (kind == 1).astype(np.int64)
    results = differences(hits, other, np.ones_like(hits), flips=999, resamples=2)
    # The standard error of a share of 0.8 over 400 samples is 0.02.
    assert np.mean([each.p < 0.05 for each in results]) == pytest.approx(0.8, abs=0.06)
    # It is in points, with q as it is in the sample.
    q = ((hits - other) ** 2).mean(axis=0)[0]
    assert results[0].mde == pytest.approx(100 * minimum_detectable_effect(np.sqrt(q / images), images))


def test_equivalence_is_that_of_two_one_sided_t_tests():
    rng = np.random.default_rng(0)
    verdicts = []
    for _ in range(100):
        hits, other = rng.normal(50.1, 3, (100, 1)), rng.normal(50, 3, (100, 1))
        (result,) = differences(hits, other, np.full((100, 1), 100.0), flips=99, resamples=2)
        lower = stats.ttest_rel(hits[:, 0] + 1, other[:, 0], alternative="greater").pvalue
        upper = stats.ttest_rel(hits[:, 0] - 1, other[:, 0], alternative="less").pvalue
        assert result.is_equivalent(1.0) == (max(lower, upper) < 0.05)
        verdicts.append(result.is_equivalent(1.0))
    assert 10 < sum(verdicts) < 90


def test_the_verdict_names_the_end_that_is_better():
    up = PairedDifference(3.0, 2.0, 4.0, 0.001, 0.01, 1.0, 0.5, 100)
    unclear = PairedDifference(0.2, -1.0, 1.4, 0.7, 0.9, 1.5, 0.6, 100)
    assert (up.verdict("higher"), up.verdict("lower")) == ("better", "worse")
    assert (up.verdict("higher", margin=5.0), up.verdict("higher", margin=3.5)) == ("equivalent", "better")
    assert (unclear.verdict("higher"), unclear.verdict("higher", 0.5), unclear.verdict("higher", 2.0)) == (
        "undecided", "undecided", "equivalent")  # fmt: skip
