"""Paired differences agree with SciPy's permutation test and bootstrap, and say what chance alone would do."""

import numpy as np
import pytest
from scipy import stats

from rococo_jax.metrics.paired import FLIPS, PairedDifference, least_seen, paired_differences


def made(images: int, queries: int, gain: float, seed: int = 0):
    """Hits of two models over the same images, the first `gain` more likely to hit."""
    rng = np.random.default_rng(seed)
    easy = rng.uniform(0.2, 0.7, (images, 1))
    counts = np.full((images, 1), queries)
    return rng.binomial(counts, easy + gain), rng.binomial(counts, easy), counts


@pytest.mark.parametrize(("images", "gain"), [(12, 0.0), (12, 0.2), (11, -0.1), (14, 0.1)])
def test_p_is_that_of_scipy_over_all_sign_flips(images, gain):
    hits, other, queries = made(images, 5, gain, seed=images)
    (found,) = paired_differences(hits, other, queries)
    # n_resamples above 2^n: SciPy goes through every flip.
    exact = stats.permutation_test(
        (hits[:, 0], other[:, 0]), lambda a, b: np.sum(a - b), permutation_type="samples", n_resamples=2**images + 1
    )
    # SciPy doubles the smaller tail; the distribution of sign flips is symmetric, so both definitions agree.
    spread = np.sqrt(exact.pvalue * (1 - exact.pvalue) / FLIPS)
    assert found.p == pytest.approx(exact.pvalue, abs=4 * spread + 1 / FLIPS)  # four standard errors of the draws


def test_p_is_that_of_scipy_with_random_flips_on_many_images():
    hits, other, queries = made(100, 5, 0.02)
    (found,) = paired_differences(hits, other, queries)
    drawn = stats.permutation_test(
        (hits[:, 0], other[:, 0]), lambda a, b, axis: np.sum(a - b, axis=axis), permutation_type="samples",
        n_resamples=FLIPS, vectorized=True, rng=np.random.default_rng(1),
    )  # fmt: skip
    # Two independent estimates with 9,999 draws each; SciPy doubles a tail, which doubles its error.
    error = np.sqrt(5 * drawn.pvalue * (1 - drawn.pvalue) / FLIPS)
    assert 0.001 < drawn.pvalue < 0.9
    assert found.p == pytest.approx(drawn.pvalue, abs=4 * error)


def test_interval_is_near_scipys_percentile_bootstrap():
    hits, other, queries = made(300, 5, 0.05)
    (found,) = paired_differences(hits, other, queries)
    scipy = stats.bootstrap(
        ((hits - other)[:, 0] / 5,), np.mean, method="percentile", n_resamples=2000, rng=np.random.default_rng(1)
    ).confidence_interval
    width = found.high - found.low
    # The ends of 2,000 draws move by about 3 % of the width from seed to seed.
    assert [found.low, found.high] == pytest.approx([100 * scipy.low, 100 * scipy.high], abs=0.1 * width)
    assert found.low < found.points < found.high


def test_the_difference_is_that_of_the_figures_where_images_have_unequal_numbers_of_queries():
    rng = np.random.default_rng(0)
    queries = rng.choice([5, 6], (50, 1))
    hits, other = rng.binomial(queries, 0.6), rng.binomial(queries, 0.5)
    (found,) = paired_differences(hits, other, queries)
    assert found.points == pytest.approx(100 * hits.sum() / queries.sum() - 100 * other.sum() / queries.sum())


def test_a_model_does_not_differ_from_itself_which_says_nothing_of_what_would_be_seen():
    hits, _, queries = made(30, 5, 0.0)
    assert paired_differences(hits, hits, queries) == [PairedDifference(0.0, 0.0, 0.0, 1.0, None)]


def test_p_is_uniform_where_the_models_are_alike():
    columns = [made(60, 5, 0.0, seed) for seed in range(300)]
    hits, other, queries = (np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True))
    p = np.array([each.p for each in paired_differences(hits, other, queries, flips=999, resamples=2)])
    # Of 300, 15 are expected below 0.05 and 150 below 0.5: four standard deviations of a binomial either way.
    assert 0 <= (p <= 0.05).sum() <= 15 + 4 * np.sqrt(300 * 0.05 * 0.95)
    assert abs((p <= 0.5).sum() - 150) <= 4 * np.sqrt(300 * 0.25)


def test_a_comparison_is_the_same_alone_and_among_others_and_swapped_models_swap_the_sign():
    hits, other, queries = (np.repeat(part, 2, axis=1) for part in made(70, 5, 0.1))
    hits[:, 1] = np.roll(hits[:, 1], 3)
    together = paired_differences(hits, other, queries)
    assert together[0] == paired_differences(hits[:, :1], other[:, :1], queries[:, :1])[0]
    back = paired_differences(other, hits, queries)
    assert back[0].p == together[0].p and back[0].points == -together[0].points


@pytest.mark.parametrize(("images", "q"), [(281, 0.25), (100, 0.1), (2000, 0.02)])
def test_the_least_difference_seen_needs_as_many_images_as_connors_formula_says(images, q):
    difference = least_seen(np.array([q]), images)[0]
    a, b = stats.norm.ppf(0.975), stats.norm.ppf(0.8)
    assert (a * np.sqrt(q) + b * np.sqrt(q - difference**2)) ** 2 / difference**2 == pytest.approx(images)


def test_the_least_difference_seen_is_found_in_four_of_five_samples():
    """Pairs of hits at that difference, drawn and tested anew: the share with p below 0.05 is the power."""
    images, discordant, samples = 300, 0.3, 400
    difference = least_seen(np.array([discordant]), images)[0]
    rng = np.random.default_rng(0)
    up, down = (discordant + difference) / 2, (discordant - difference) / 2
    kind = rng.choice(3, (images, samples), p=[up, down, 1 - discordant])
    hits, other = (kind == 0).astype(np.int64), (kind == 1).astype(np.int64)
    found = paired_differences(hits, other, np.ones_like(hits), flips=999, resamples=2)
    # The standard error of a share of 0.8 over 400 samples is 0.02.
    assert np.mean([each.p < 0.05 for each in found]) == pytest.approx(0.8, abs=0.06)
    # It is told in points, with q as it is in the sample.
    assert found[0].least_seen == pytest.approx(100 * least_seen(((hits - other) ** 2).mean(axis=0)[:1], images)[0])
