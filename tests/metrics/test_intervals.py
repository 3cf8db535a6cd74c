"""Bootstrap intervals: against SciPy, against a plain loop, and what they must not depend on."""

import dataclasses
import itertools
import tracemalloc
from statistics import mean, stdev

import numpy as np
import pytest
import scipy.stats

from rococo_jax.metrics import intervals as bootstrap
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.intervals import image_draws
from rococo_jax.metrics.metric import drop, percent
from rococo_jax.metrics.paired import paired_differences
from rococo_jax.metrics.retrieval import METRICS, query_counts
from rococo_jax.metrics.rows import count_rows
from rococo_jax.report import across_seeds
from rococo_jax.similarity import RankStatistics, rank_statistics_of_matrix
from tests.support.cases import further

IMAGES = 150
NAMES = [metric.name for metric in METRICS]


def count_retrieval(statistics, ties, image=None) -> Counts:
    return count_rows("rank", query_counts(statistics, ties), np.arange(len(statistics)) if image is None else image)


def retrieval_metrics(statistics, ties):
    return count_retrieval(statistics, ties).values()


def retrieval_intervals(statistics, ties, image, *, clean=None, **options):
    """Return intervals of one run, whose queries belong to the given images."""
    baseline = None if clean is None else count_retrieval(clean, ties, image)
    return count_retrieval(statistics, ties, image).intervals(baseline, **options)


def hits_of_images(hits, queries, metric="r1") -> Counts:
    """Return counts of a recall, from the hits and the number of queries of each image."""
    return Counts.of_rows({metric: hits, "rows": queries}, np.arange(len(hits)), [metric_of(metric)])


def one_query_an_image(seed=0, help_own=2.0) -> RankStatistics:
    generator = np.random.default_rng(seed)
    scores = generator.standard_normal((IMAGES, 4 * IMAGES))
    owner, altered = np.repeat(np.arange(IMAGES), 4), np.tile([False, False, True, True], IMAGES)
    scores += help_own * (np.arange(IMAGES)[:, None] == owner)
    return rank_statistics_of_matrix(
        scores, query_group=np.arange(IMAGES), gallery_group=owner, gallery_altered=altered
    )


def captions_of_images(seed=0) -> tuple[RankStatistics, np.ndarray]:
    generator = np.random.default_rng(seed)
    owner = np.repeat(np.arange(IMAGES), generator.integers(1, 7, IMAGES))
    of_image = generator.standard_normal(IMAGES) + 1.5
    scores = generator.standard_normal((len(owner), IMAGES))
    scores[np.arange(len(owner)), owner] += of_image[owner]
    groups = {"query_group": owner, "gallery_group": np.arange(IMAGES), "gallery_altered": np.zeros(IMAGES, bool)}
    return rank_statistics_of_matrix(scores, **groups), owner


def test_intervals_match_scipy():
    statistics = one_query_an_image()
    found = retrieval_intervals(statistics, "published", np.arange(IMAGES))
    ranks = statistics.rank_published
    for name, cutoff in (("r1", 1), ("r5", 5), ("r10", 10)):
        expected = scipy.stats.binomtest(int((ranks <= cutoff).sum()), IMAGES).proportion_ci(method="wilson")
        assert found[name] == pytest.approx([100 * expected.low, 100 * expected.high])
    mean_recall = 100.0 * np.mean([ranks <= cutoff for cutoff in (1, 5, 10)], axis=0)
    # The same generator, asked for the same numbers of whole numbers in the same order, draws the same images.
    expected = scipy.stats.bootstrap(
        (mean_recall,), np.mean, n_resamples=2000, batch=100, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert found["r_mean"] == pytest.approx([expected.low, expected.high], abs=1e-9)


def interval_of_hits(hits, queries=1):
    """The interval of the share of hits, from the number of hits of each image."""
    counts = hits_of_images(np.asarray(hits, float), np.full(len(hits), queries), "ota")
    return counts.intervals(resamples=2)["ota"]


def test_shares_of_zero_and_one_hundred_percent_have_an_interval():
    wilson = scipy.stats.binomtest(0, 30).proportion_ci(method="wilson").high
    assert interval_of_hits([0] * 30) == pytest.approx([0.0, 100 * wilson])
    assert interval_of_hits([1] * 30) == pytest.approx([100 - 100 * wilson, 100.0])
    # Five captions of an image that are all wrong say no more than one does.
    assert interval_of_hits([0] * 30, 5) == pytest.approx([0.0, 100 * wilson])
    low, high = interval_of_hits([2], 5)
    assert low < 1 and high > 99


@pytest.mark.parametrize(("images", "rate", "queries"), [(50, 0.0034, 1), (85, 0.002, 1), (600, 0.002, 5)])
def test_an_interval_of_a_rare_hit_covers_its_rate(images, rate, queries):
    rng, samples, covered = np.random.default_rng(1), 400, 0
    for _ in range(samples):
        # Rates of images vary, so that captions of an image agree: intraclass correlation 0.6.
        of_images = rng.beta(rate * 2 / 3, (1 - rate) * 2 / 3, images) if queries > 1 else np.full(images, rate)
        low, high = interval_of_hits(rng.binomial(queries, of_images), queries)
        covered += low <= 100 * rate <= high
    assert covered / samples > 0.9


def test_agreeing_captions_of_an_image_make_an_interval_wider():
    rng = np.random.default_rng(0)
    alone, alike = rng.binomial(5, 0.4, 300), 5 * rng.binomial(1, 0.4, 300)
    widths = [high - low for low, high in (interval_of_hits(hits, 5) for hits in (alone, alike))]
    # The square root of five; the interval of the independent captions is a little wider than theirs alone.
    assert widths[1] / widths[0] == pytest.approx(np.sqrt(5), rel=0.1)
    wilson = scipy.stats.binomtest(int(alike.sum()) // 5, 300).proportion_ci(method="wilson")
    assert widths[1] == pytest.approx(100 * (wilson.high - wilson.low))


def test_intervals_match_a_loop_over_images_in_any_order_of_captions():
    statistics, owner = captions_of_images()
    order = np.random.default_rng(5).permutation(len(owner))
    statistics, owner = statistics[order], owner[order]
    found = retrieval_intervals(statistics, "pessimistic", owner, resamples=200, seed=3)
    values = {name: [] for name in NAMES}
    for draw in image_draws(IMAGES, 200, 3):
        queries = np.concatenate([np.flatnonzero(owner == image) for image in np.repeat(np.arange(IMAGES), draw)])
        for name, value in retrieval_metrics(statistics[queries], "pessimistic").items():
            values[name].append(value)
    assert found["r_mean"] == pytest.approx(list(np.percentile(values["r_mean"], [2.5, 97.5])), abs=1e-9)
    for name in NAMES:  # Wilson's intervals of shares are near those of many draws, away from 0 and 100
        if 10 < np.mean(values[name]) < 90:
            assert found[name] == pytest.approx(list(np.percentile(values[name], [2.5, 97.5])), abs=2.0)


def test_the_interval_of_a_drop_uses_the_same_draws_for_clean_and_altered_runs():
    clean, altered = one_query_an_image(0), one_query_an_image(1, help_own=1.5)
    found = retrieval_intervals(altered, "published", np.arange(IMAGES), clean=clean, resamples=200)
    values = []
    for draw in image_draws(IMAGES, 200):
        queries = np.repeat(np.arange(IMAGES), draw)
        values.append(drop(*(retrieval_metrics(each[queries], "published")["r1"] for each in (clean, altered))))
    for name in ("drop", "drop_points"):
        expected = np.percentile([value[name] for value in values], [2.5, 97.5])
        assert found[name] == pytest.approx(list(expected), abs=1e-9)
    unchanged = retrieval_intervals(clean, "published", np.arange(IMAGES), clean=clean)
    assert unchanged["drop"] == unchanged["drop_points"] == [0.0, 0.0]


def test_the_interval_of_a_drop_draws_the_images_of_its_baseline():
    """Draw from all images, although parts of a benchmark need not have the same ones."""
    random = np.random.default_rng(3)
    groups = {"clean": np.arange(40), "altered": np.arange(30, 60)}
    right = {name: random.integers(0, 2, len(group)).astype(float) for name, group in groups.items()}
    clean, altered = (Counts.of_rows({"ota": right[name]}, groups[name], [metric_of("ota")]) for name in groups)
    ends = altered.intervals(clean, resamples=300, seed=4)
    points = []
    for draw in image_draws(60, 300, 4):
        shares = {name: 100 * np.average(right[name], weights=draw[group]) for name, group in groups.items()}
        points.append(shares["clean"] - shares["altered"])
    assert ends["drop_points"] == pytest.approx(list(np.percentile(points, [2.5, 97.5])), abs=1e-9)


def test_a_drop_that_is_undefined_in_some_draw_has_no_interval():
    never = one_query_an_image(help_own=-9.0)
    found = retrieval_intervals(never, "published", np.arange(IMAGES), clean=never)
    assert found["drop"] is None and found["drop_points"] == [0.0, 0.0]


def test_the_same_seed_draws_the_same_images():
    image_draws.cache_clear()
    first = image_draws(IMAGES, 300, 7).copy()
    image_draws.cache_clear()
    np.testing.assert_array_equal(image_draws(IMAGES, 300, 7), first)
    assert (first.sum(axis=1) == IMAGES).all()
    assert (image_draws(IMAGES, 300, 8) != first).any()


def test_the_mean_of_several_runs_has_a_spread_and_an_interval_from_the_same_draws():
    statistics = [one_query_an_image(seed, help_own=1.0 + seed) for seed in range(3)]
    runs = [count_retrieval(each, "published", np.arange(IMAGES)) for each in statistics]
    counts, each = Counts.mean(runs), [run.values()["r1"] for run in runs]
    found = counts.values(over_seeds=True)
    assert found["r1"] == pytest.approx(mean(each)) and len(set(each)) == 3
    assert found["r1_std"] == pytest.approx(stdev(each)) == across_seeds.spread(np.array(each))
    assert "r1_std" not in counts.values()  # of parts or kinds
    assert "r1_std" not in runs[0].values(over_seeds=True) and across_seeds.spread(np.array(each[:1])) is None
    clean = count_retrieval(one_query_an_image(9, help_own=4.0), "published", np.arange(IMAGES))
    dropped = counts.values(clean)
    assert dropped["drop_points"] == pytest.approx(clean.values()["r1"] - found["r1"])
    hits = np.mean([each.rank_published <= cutoff for each in statistics for cutoff in (1, 5, 10)], axis=0)
    values = [100 * (draw @ hits) / IMAGES for draw in image_draws(IMAGES, 200, 2)]
    ends = counts.intervals(resamples=200, seed=2)
    assert ends["r_mean"] == pytest.approx(list(np.percentile(values, [2.5, 97.5])), abs=1e-9)
    # Queries with three seeds each: the variance of the mean of their hits over images decides.
    first = np.mean([each.rank_published == 1 for each in statistics], axis=0)
    error = first.std() / np.sqrt(IMAGES)
    low, high = ends["r1"]
    assert (high - low) / 200 == pytest.approx(1.96 * error, rel=0.05)


def test_draws_over_several_seeds_keep_the_queries_of_an_image_together():
    rng = np.random.default_rng(5)
    queries = rng.integers(1, 4, 20)
    hits_of_runs = [rng.binomial(queries, 0.5) for _ in range(2)]
    found, drawn = across_seeds.over_draws([hits_of_images(hits, queries) for hits in hits_of_runs], "r1")
    for place, hits_of_run in enumerate(hits_of_runs):
        answers = [[True] * int(hits) + [False] * int(n - hits) for hits, n in zip(hits_of_run, queries, strict=True)]
        assert found[place] == pytest.approx(100 * mean(itertools.chain(*answers)))
        for draw, times in zip(drawn, image_draws(20)[:50], strict=False):
            again = (answers[image] for image in np.repeat(np.arange(20), times))
            assert draw[place] == pytest.approx(100 * mean(itertools.chain(*again)))


@pytest.mark.parametrize(
    ("seeds", "spread"), further([(2, 0.0), (2, 0.05), (3, 0.02), (5, 0.05)], [(2, 0.05)], pytest.mark.thorough)
)
def test_an_interval_over_seeds_and_images_covers_the_truth_in_95_percent_of_samples(seeds, spread):
    """Hits whose rate differs from image to image and from run to run; the truth is the mean over both."""
    rng, samples, images, inside = np.random.default_rng(0), 300, 200, 0
    for _ in range(samples):
        rates = rng.uniform(0.2, 0.8, images) + spread * rng.normal(size=(seeds, 1))
        hits = rng.random((seeds, images)) < rates
        draws = rng.multinomial(images, np.full(images, 1 / images), 200)
        low, high = across_seeds.interval(hits.mean(1), draws @ hits.T / images)
        inside += low <= 0.5 <= high
    # It may hold more, and not less but by four standard errors of 300 samples.
    assert inside / samples >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / samples)


@pytest.mark.parametrize(
    ("seeds", "spread"), further([(2, 0.05), (3, 0.0), (5, 0.02), (10, 0.05)], [(3, 0.0)], pytest.mark.thorough)
)
def test_equal_models_of_several_seeds_rarely_differ_significantly(seeds, spread):
    """Hits whose rates differ from image to image, alike for both models, and from run to run."""
    rng, samples, images, rejected = np.random.default_rng(1), 200, 150, 0
    for _ in range(samples):
        of_images = rng.uniform(0.2, 0.8, images)
        runs = [rng.random((seeds, images)) < of_images + spread * rng.normal(size=(seeds, 1)) for _ in range(2)]
        draws = rng.multinomial(images, np.full(images, 1 / images), 100)
        (one, of_one), (other, of_other) = ((hits.mean(1), draws @ hits.T / images) for hits in runs)
        rejected += across_seeds.difference(one, of_one, other, of_other).p < 0.05
    # Four standard errors of 200 samples above 5 %.
    assert rejected / samples <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / samples)


@pytest.mark.parametrize(
    ("seeds", "others"), further([(2, 10), (2, 5), (3, 10), (5, 10)], [(2, 10)], pytest.mark.thorough)
)
def test_a_lucky_arm_of_few_seeds_raises_no_more_false_alarms(seeds, others):
    """Welch's degrees of freedom would follow the small variance that two seeds happen to have."""
    rng, samples, rejected = np.random.default_rng(4), 600, 0
    for _ in range(samples):
        one, other = 3 * rng.normal(size=seeds), rng.normal(size=others)
        drawn = (np.tile(each, (3, 1)) for each in (one, other))
        rejected += across_seeds.difference(one, next(drawn), other, next(drawn)).p < 0.05
    # Four standard errors of 600 samples above 5 %.
    assert rejected / samples <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / samples)


@pytest.mark.parametrize(("seeds", "others"), [(4, 4), (5, 10), (3, 10), (2, 2)])
def test_a_difference_with_variance_of_seeds_alone_matches_scipy(seeds, others):
    """Welch's test from four runs each on; of fewer, Student's t with those of the smaller arm but one."""
    rng = np.random.default_rng(5)
    one, other = 70 + 3 * rng.normal(size=seeds), 71 + rng.normal(size=others)
    found = across_seeds.difference(one, np.tile(one, (3, 1)), other, np.tile(other, (3, 1)))
    expected = scipy.stats.ttest_ind(one, other, equal_var=False)
    ends, p = expected.confidence_interval(0.95), expected.pvalue
    if min(seeds, others) < 4:
        of_t = scipy.stats.t(min(seeds, others) - 1)
        half_width = of_t.ppf(0.975) * (one.mean() - other.mean()) / expected.statistic
        ends, p = one.mean() - other.mean() + half_width * np.array([-1, 1]), 2 * of_t.sf(abs(expected.statistic))
    assert [found.points, found.low, found.high] == pytest.approx([one.mean() - other.mean(), *ends])
    assert found.p == pytest.approx(p)


def test_intervals_over_seeds_are_clipped_to_the_bounds_and_require_variance():
    draws = np.random.default_rng(0).normal(0, 0.1, (200, 3))
    assert across_seeds.interval(np.array([0.0, 0.0, 0.4]), draws, (0.0, 100.0))[0] == 0.0
    far = [np.array([1.0, 99.0]), np.tile([1.0, 99.0], (200, 1)), np.array([2.0, 60.0]), np.tile([2.0, 60.0], (200, 1))]
    result = across_seeds.difference(*far, (0.0, 100.0))
    assert (result.low, result.high) == (-100.0, 100.0)
    same = np.array([50.0, 50.0])
    assert across_seeds.difference(same + 0.1, np.tile(same + 0.1, (200, 1)), same, np.tile(same, (200, 1))) is None


def calibrated_counts(images, excess, rng):
    """Counts of a model whose confidences are too high by `excess`."""
    confidence = 0.1 + 0.9 * rng.beta(4, 2, images)
    columns = dict.fromkeys(("nll", "brier", "scaled_nll", "scaled_confidence", "confidence"), confidence)
    columns |= {"ties": np.zeros(images, bool), "top1": rng.random(images) < np.clip(confidence - excess, 0, 1)}
    return count_rows("classify", columns, np.arange(images))


@pytest.mark.parametrize(
    ("excess", "truth"), further([(0.0, 0.0), (0.03, 3.0), (0.1, 10.0)], [(0.0, 0.0)], pytest.mark.thorough)
)
def test_the_interval_of_ece_covers_the_truth_although_ece_is_biased_upwards(excess, truth):
    rng, samples, covered, values = np.random.default_rng(3), 60, 0, []
    for _ in range(samples):
        counts = calibrated_counts(281, excess, rng)
        low, high = counts.intervals(resamples=200)["ece"]
        covered, values = covered + (low <= truth + 0.05 and truth <= high), [*values, counts.values()]
    assert covered / samples > 0.95 - 4 * np.sqrt(0.95 * 0.05 / samples)
    if not excess:  # a calibrated model has, on average, what is printed beside it
        means = [np.mean([each[name] for each in values]) for name in ("ece", "ece_calibrated")]
        assert means[0] == pytest.approx(means[1], abs=0.6) and means[0] > 4


def test_a_difference_over_seeds_is_found_and_its_p_agrees_with_its_interval():
    rng, images = np.random.default_rng(2), 400
    draws = rng.multinomial(images, np.full(images, 1 / images), 300)
    of_images = rng.uniform(0.2, 0.6, images)

    def runs(gain, count=3):
        hits = rng.random((count, images)) < of_images + gain + 0.01 * rng.normal(size=(count, 1))
        return hits.mean(1), draws @ hits.T / images

    one = runs(0.0)
    far, near = across_seeds.difference(*runs(0.3), *one), across_seeds.difference(*runs(0.01), *one)
    assert far.low > 0.2 and far.p < 0.01 and far.points == pytest.approx(0.3, abs=0.05)
    assert near.low < 0 < near.high and near.p > 0.05
    assert across_seeds.difference(*runs(0.3, count=1), *one) is None
    same = across_seeds.difference(*one, *one)
    assert (same.points, same.p) == (0.0, 1.0)


def test_draws_in_blocks_have_the_same_bits_as_draws_at_once(monkeypatch):
    """Also sums of shares, which rounding would move, and the paired test's, whose flips come in blocks too."""
    rng = np.random.default_rng(1)
    whole, shares = rng.integers(0, 6, (700, 3)), rng.random((700, 3))
    queries = np.full(700, 5)

    def figures():
        sums = [bootstrap.sums_over_draws(each, 230, 4) for each in (whole.astype(float), shares)]
        return sums, *(
            paired_differences([tuple(hits_of_images(hits[:, 0], queries) for hits in (each, each[::-1]))])
            for each in (whole.astype(float), shares)
        )

    sums, *paired = figures()
    monkeypatch.setattr(bootstrap, "MAX_DRAW_BYTES", 8 * 700 * 40)
    blocks = list(bootstrap.draw_blocks(700, 230, 4))
    np.testing.assert_array_equal(np.concatenate(blocks), image_draws(700, 230, 4))
    assert [len(block) for block in blocks] == [40, 40, 40, 40, 40, 30]
    again, *paired_again = figures()
    np.testing.assert_array_equal(again, sums)
    assert paired_again == paired


def test_many_images_are_drawn_within_the_memory_limit(monkeypatch):
    """Draws take at most `MAX_DRAW_BYTES`, in paired tests and results over seeds as in intervals."""
    images, allowed = 8_000, 2**21
    monkeypatch.setattr(bootstrap, "MAX_DRAW_BYTES", allowed, raising=False)
    hits = np.random.default_rng(0).integers(0, 2, (2, images))
    counts = tuple(hits_of_images(each, np.ones(images)) for each in hits)
    tracemalloc.start()
    # The block as 16 bits, as float64, and bytes of random numbers; all draws would be 10 MB and 32 MB as 16 bits.
    for act in (
        lambda: paired_differences([counts], flips=300),
        lambda: across_seeds.over_draws(counts[:1], "r1"),
    ):
        tracemalloc.reset_peak()
        act()
        assert tracemalloc.get_traced_memory()[1] < 4 * allowed
    tracemalloc.stop()


def test_pooled_items_count_every_pair_once():
    """Compare with a count by hand: items with two pairs each, of which 2 and 1 are won, and one pair, which is won."""
    won = [dataclasses.replace(percent("won", "Won", "higher", "share of pairs", "ours"), per="pairs")]
    two_pairs = Counts.of_rows({"won": np.array([2, 1]), "pairs": np.array([2, 2])}, np.arange(2), won)
    one_pair = Counts.of_rows({"won": np.ones(1), "pairs": np.ones(1)}, np.arange(1), won)
    assert Counts.pool([two_pairs, one_pair]).values() == {"won": 100 * 4 / 5}
    assert Counts.pool([one_pair, one_pair]).values() == {"won": 100.0}
