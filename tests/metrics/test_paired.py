"""Paired differences agree with SciPy's permutation test, bootstrap and t-tests, and with all swaps of few images."""

import itertools

import numpy as np
import pytest
from scipy import stats

from rococo_jax.metrics import metric_of
from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.metric import Metric
from rococo_jax.metrics.paired import (
    FLIPS,
    PairedDifference,
    least_margin,
    minimum_detectable_effect,
    paired_differences,
    smallest_margin,
)
from tests.support.cases import further

RECALL = Metric("m", "M", "higher", "%", "", "ours", lambda shares: shares["m"])


def counts_of(hits, other, queries, images=None):
    """Return pairs of counts for each column of hits, whose metric is called `m`."""
    unit = np.arange(len(hits)) if images is None else images
    columns = zip(hits.T, other.T, queries.T, strict=True)
    return [
        (Counts.of_rows({"m": a, "rows": n}, unit, [RECALL]), Counts.of_rows({"m": b, "rows": n}, unit, [RECALL]))
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
def test_p_matches_scipy_over_all_sign_flips(images, gain):
    hits, other, queries = binomial_hits(images, 5, gain, seed=images)
    (result,) = differences(hits, other, queries)
    # n_resamples above 2^n: SciPy goes through every flip.
    exact = stats.permutation_test(
        (hits[:, 0], other[:, 0]), lambda a, b: np.sum(a - b), permutation_type="samples", n_resamples=2**images + 1
    )
    # SciPy doubles the smaller tail; the distribution of sign flips is symmetric, so both definitions agree.
    spread = np.sqrt(exact.pvalue * (1 - exact.pvalue) / FLIPS)
    assert result.p == pytest.approx(exact.pvalue, abs=4 * spread + 1 / FLIPS)  # four standard errors of the draws
    assert result.p_corrected == result.p  # a family of one


def test_p_of_a_ratio_matches_scipy_over_all_swaps_of_the_two_models():
    """A metric that is no share: the quotient of two counts, such as a drop in per cent of the clean value."""
    rng = np.random.default_rng(3)
    model, reference = rng.integers(1, 9, (11, 2)).astype(float), rng.integers(1, 7, (11, 2)).astype(float)

    def share(sums):
        return 100 * sums[..., 0] / sums[..., 1]

    ratio = Metric("m", "M", "higher", "", "", "ours", lambda shares: 100 * shares["hits"] / shares["of"])
    columns = ({"hits": each[:, 0], "of": each[:, 1]} for each in (model, reference))
    (result,) = paired_differences([tuple(Counts.of_rows(each, np.arange(11), [ratio]) for each in columns)])
    both = np.concatenate([model, reference])
    exact = stats.permutation_test(
        (np.arange(11), np.arange(11, 22)), lambda a, b: share(both[a].sum(0)) - share(both[b].sum(0)),
        permutation_type="samples", n_resamples=2**11 + 1, vectorized=False,
    )  # fmt: skip
    assert result["m"].points == pytest.approx(share(model.sum(0)) - share(reference.sum(0)))
    spread = np.sqrt(exact.pvalue * (1 - exact.pvalue) / FLIPS)
    assert 0.01 < exact.pvalue < 0.99
    assert result["m"].p == pytest.approx(exact.pvalue, abs=4 * spread + 1 / FLIPS)


def test_p_matches_scipy_with_random_flips_on_many_images():
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


def test_the_interval_is_close_to_the_percentile_bootstrap_of_scipy():
    hits, other, queries = binomial_hits(300, 5, 0.05)
    (result,) = differences(hits, other, queries)
    scipy = stats.bootstrap(
        ((hits - other)[:, 0] / 5,), np.mean, method="percentile", n_resamples=2000, rng=np.random.default_rng(1)
    ).confidence_interval
    width = result.high - result.low
    # The ends of 2,000 draws move by about 3 % of the width from seed to seed.
    assert [result.low, result.high] == pytest.approx([100 * scipy.low, 100 * scipy.high], abs=0.1 * width)
    assert result.low < result.points < result.high


def test_differences_are_correct_if_images_have_unequal_numbers_of_queries():
    rng = np.random.default_rng(0)
    queries = rng.choice([5, 6], (50, 1))
    hits, other = rng.binomial(queries, 0.6), rng.binomial(queries, 0.5)
    (result,) = differences(hits, other, queries)
    assert result.points == pytest.approx(100 * hits.sum() / queries.sum() - 100 * other.sum() / queries.sum())


def test_a_model_does_not_differ_from_itself_and_has_no_detectable_effect():
    hits, _, queries = binomial_hits(30, 5, 0.0)
    (result,) = differences(hits, hits, queries)
    assert (result.points, result.p, result.p_corrected, result.mde, result.images) == (0.0, 1.0, 1.0, None, 30)
    # The rule of three: -ln(0.05) / n.
    assert result.high == -result.low == pytest.approx(100 * -np.log(0.05) / 30)


def test_a_metric_without_a_value_for_one_model_is_left_out():
    hits, other, queries = binomial_hits(30, 5, 0.0)
    assert paired_differences(counts_of(hits, other, 0 * queries)) == [{}]
    assert paired_differences([]) == []


def test_p_is_uniform_for_equal_models():
    columns = [binomial_hits(60, 5, 0.0, seed) for seed in range(300)]
    hits, other, queries = (np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True))
    p = np.array([each.p for each in differences(hits, other, queries, flips=999)])
    # Of 300, 15 are expected below 0.05 and 150 below 0.5: four standard deviations of a binomial either way.
    assert 0 <= (p <= 0.05).sum() <= 15 + 4 * np.sqrt(300 * 0.05 * 0.95)
    assert abs((p <= 0.5).sum() - 150) <= 4 * np.sqrt(300 * 0.25)


def test_a_comparison_does_not_depend_on_others_and_swapping_models_changes_its_sign():
    hits, other, queries = (np.repeat(part, 2, axis=1) for part in binomial_hits(70, 5, 0.1))
    hits[:, 1] = np.roll(hits[:, 1], 3)
    (alone,) = differences(hits[:, :1], other[:, :1], queries[:, :1])
    together = [
        each["m"] for each in paired_differences(counts_of(hits, other, queries), lambda place, name: place < 1)
    ]
    assert (together[0].points, together[0].low, together[0].p) == (alone.points, alone.low, alone.p)
    back = differences(other, hits, queries)
    assert back[0].p == together[0].p and back[0].points == -together[0].points


def test_corrected_p_and_intervals_and_mde_match_all_swaps_of_nine_images():
    """Restate single-step max-T word by word, with every one of the 512 swaps instead of random ones."""
    rng = np.random.default_rng(1)
    hits, other = rng.integers(0, 6, (9, 4)), rng.integers(0, 5, (9, 4))
    hits[:, 0] += 3
    every = 100 / 45 * np.array([np.array(signs) @ (hits - other) for signs in itertools.product((1, -1), repeat=9)])
    sigma = every.std(axis=0)
    largest = (np.abs(every) / sigma).max(axis=1)
    results = differences(hits, other, np.full_like(hits, 5))
    for result, points, spread in zip(results, 100 / 45 * (hits - other).sum(axis=0), sigma, strict=True):
        exact = (largest >= abs(points) / spread - 1e-9).mean()
        assert result.p <= result.p_corrected
        # Four standard errors of 9,999 draws, and the added one of the 512.
        assert result.p_corrected == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / FLIPS) + 1 / 512)
        # The 95th percentile of few swaps is one of their values: between the 93rd and the 97th of all.
        half_width = max(result.high - points, points - result.low)
        assert np.quantile(largest, 0.93) * 0.98 <= half_width / spread <= np.quantile(largest, 0.97) * 1.02
        ends = [points - half_width, points + half_width]
        assert [result.low, result.high] == pytest.approx(np.clip(ends, -100, 100))


def test_an_interval_excludes_zero_if_and_only_if_the_corrected_p_is_below_5_percent():
    """Ten models in 99 tests each, some of them with effects, against one reference on 120 images."""
    rng = np.random.default_rng(5)
    easy = rng.uniform(0.2, 0.8, (120, 1, 1))
    gains = np.where(rng.random((10, 99)) < 0.3, rng.uniform(-0.6, 0.6, (10, 99)), 0.0)
    hits = (rng.random((120, 10, 99)) < easy + gains).reshape(120, -1)
    reference = np.repeat(rng.random((120, 1)) < easy[..., 0], 990, axis=1)
    results = differences(hits, reference, np.ones_like(hits, int), flips=1999)
    verdicts = [result.verdict(metric_of("r1")) for result in results]
    for result, verdict in zip(results, verdicts, strict=True):
        is_significant = result.p_corrected < 0.05
        assert is_significant == (not result.low <= 0 <= result.high) == (verdict != "undecided")
        assert (verdict == "better") == (result.low > 0) and (verdict == "worse") == (result.high < 0)
    assert min(map(verdicts.count, ("better", "worse", "undecided"))) > 20


def test_tests_on_different_images_form_one_family_with_common_swaps():
    """Two tests of the same images are perfectly correlated, however they are stored: no correction is lost."""
    hits, other, queries = binomial_hits(80, 5, 0.05, seed=4)
    (one,) = counts_of(hits, other, queries, images=np.arange(80))
    order = np.random.default_rng(0).permutation(80)
    (shuffled,) = counts_of(hits[order], other[order], queries[order], images=order)
    (elsewhere,) = counts_of(*binomial_hits(50, 5, 0.05, seed=5), images=np.arange(100, 150))
    same = paired_differences([one, shuffled])
    assert same[0]["m"].p_corrected == same[0]["m"].p == same[1]["m"].p
    both = paired_differences([one, elsewhere])
    assert both[0]["m"].p_corrected > both[0]["m"].p and both[1]["m"].images == 50


def test_a_test_outside_of_the_family_is_not_corrected_and_does_not_change_the_others():
    hits, other, queries = (np.concatenate(parts, axis=1) for parts in zip(
        *(binomial_hits(50, 5, 0.05, seed) for seed in range(6)), strict=True))  # fmt: skip
    inside = [each.p_corrected for each in differences(hits[:, :3], other[:, :3], queries[:, :3])]
    results = [each["m"] for each in paired_differences(counts_of(hits, other, queries), lambda place, name: place < 3)]
    assert [each.p_corrected for each in results] == [*inside, None, None, None]


def test_a_large_difference_is_significant_among_hundreds_of_tests():
    """Twenty models in 39 tests each, the reference right on all of 1,000 images and the others on half of them."""
    rng = np.random.default_rng(0)
    hits, ones = rng.random((1000, 19 * 39)) < 0.5, np.ones((1000, 19 * 39))
    results = differences(hits, ones, ones, flips=999)
    assert {each.p_corrected for each in results} == {1 / 1000}


def test_at_most_one_report_in_twenty_of_equal_models_finds_a_difference():
    rng = np.random.default_rng(0)
    reports, any_significant = 200, 0
    for _ in range(reports):
        easy = rng.uniform(0.2, 0.8, (120, 1))
        hits = rng.random((120, 10)) < easy
        reference = np.repeat(rng.random((120, 1)) < easy, 10, axis=1)
        results = differences(hits, reference, np.ones((120, 10)), flips=199)
        any_significant += min(each.p_corrected for each in results) <= 0.05
    # Four standard deviations of a binomial above 5 %.
    assert any_significant <= reports * 0.05 + 4 * np.sqrt(reports * 0.05 * 0.95)


@pytest.mark.parametrize(("images", "q"), [(281, 0.25), (100, 0.1), (2000, 0.02)])
def test_the_detectable_effect_matches_the_sample_size_formula_of_connor(images, q):
    a, b = stats.norm.ppf(0.975), stats.norm.ppf(0.8)
    difference = minimum_detectable_effect(np.sqrt(q / images), images, a)
    assert (a * np.sqrt(q) + b * np.sqrt(q - difference**2)) ** 2 / difference**2 == pytest.approx(images)


@pytest.mark.parametrize("others", further([0, 8], [0]))
def test_the_detectable_effect_is_found_in_four_of_five_samples_after_correction(others):
    """Draw pairs of hits that differ by the MDE which their own family prints."""
    images, discordant, samples = 300, 0.3, 150
    rng = np.random.default_rng(0)
    shares = [discordant / 2, discordant / 2, 1 - discordant]

    def family(difference):
        up, down = (discordant + difference) / 2, (discordant - difference) / 2
        kind = rng.choice(3, (images, 1 + others), p=shares)
        kind[:, 0] = rng.choice(3, images, p=[up, down, 1 - discordant])
        hits, other = (kind == 0).astype(np.int64), (kind == 1).astype(np.int64)
        return differences(hits, other, np.ones_like(hits), flips=999)[0]

    difference = np.mean([family(0.0).mde for _ in range(20)]) / 100
    found = [family(difference).p_corrected < 0.05 for _ in range(samples)]
    # The standard error of a share of 0.8 over 150 samples is 0.033.
    assert np.mean(found) == pytest.approx(0.8, abs=0.1)


def test_equivalence_matches_two_one_sided_t_tests_with_one_added_win_for_each_model():
    rng = np.random.default_rng(0)
    verdicts = []
    for _ in range(100):
        hits, other = rng.normal(50.1, 3, (100, 1)), rng.normal(50, 3, (100, 1))
        (result,) = differences(hits, other, np.full((100, 1), 100.0), flips=99)
        # In points of a hundred queries, with the correction for continuity of half an image.
        points, margin = np.append(hits - other, [100.0, -100.0]), 3.2
        shift = margin - 50 / len(points)
        lower = stats.ttest_1samp(points + shift, 0, alternative="greater").pvalue
        upper = stats.ttest_1samp(points - shift, 0, alternative="less").pvalue
        is_equivalent = result.verdict(metric_of("r1"), margin) == "equivalent"
        assert is_equivalent == (max(lower, upper) < 0.05)
        verdicts.append(is_equivalent)
    assert 10 < sum(verdicts) < 90


@pytest.mark.parametrize("images", [20, 50, 281, 400])
@pytest.mark.parametrize("margin", [0.01, 0.02, 0.05])
def test_few_discordant_images_do_not_prove_equivalence(images, margin):
    """The true difference is the margin, and only one model ever wins: sum the binomial over all outcomes."""
    called = 0.0
    for wins in range(int(stats.binom.ppf(0.9999, images, margin)) + 1):
        points = np.zeros(images)
        points[:wins] = 100.0
        is_equivalent = smallest_margin(100 * wins / images, points, 100.0) < 100 * margin
        called += is_equivalent * stats.binom.pmf(wins, images, margin)
    assert called <= 0.07


def test_too_few_images_never_show_equivalence():
    for images in (10, 30, 281):
        least = smallest_margin(0.0, np.zeros(images), 100.0)
        assert least > 0.85 * least_margin(images)
    assert smallest_margin(0.0, np.zeros(1), 100.0) == np.inf


@pytest.mark.parametrize(
    ("low", "high", "metric", "verdict"),
    [
        (2.0, 4.0, "r1", "better"),
        (2.0, 4.0, "fr1", "worse"),
        (-4.0, -2.0, "fr1", "better"),
        (2.0, 4.0, "blind", "text bias"),
        (-4.0, -2.0, "blind", "less text bias"),
        (-1.0, 4.0, "r1", "undecided"),
        (-4.0, 0.0, "blind", "undecided"),
    ],
)
def test_the_verdict_states_which_model_is_better(low, high, metric, verdict):
    result = PairedDifference((low + high) / 2, low, high, 0.01, 0.01, 1.0, 100, smallest_margin=4.5)
    assert result.verdict(metric_of(metric)) == verdict
    assert result.verdict(metric_of(metric), margin=4.0) == verdict
    assert result.verdict(metric_of(metric), margin=5.0) == "equivalent"


def test_answers_that_differ_on_no_image_are_called_identical():
    hits, _, queries = binomial_hits(30, 5, 0.0)
    (result,) = differences(hits, hits, queries)
    assert result.verdict(metric_of("r1")) == "identical answers"
    assert result.verdict(metric_of("r1"), margin=5.0) == "identical answers"
    assert result.verdict(metric_of("r1"), margin=20.0) == "equivalent"
