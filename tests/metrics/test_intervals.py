"""Bootstrap intervals: against SciPy, against a plain loop, and what they must not depend on."""

import tracemalloc
from statistics import mean, stdev

import numpy as np
import pytest
import scipy.stats

from rococo_jax.evaluation.per_image import ImageHits
from rococo_jax.metrics import intervals as bootstrap
from rococo_jax.metrics.intervals import image_draws
from rococo_jax.metrics.metric import drop
from rococo_jax.metrics.paired import paired_differences
from rococo_jax.metrics.retrieval import METRICS, count_retrieval, retrieval_metrics
from rococo_jax.report import across_seeds
from rococo_jax.similarity import RankStatistics, rank_statistics_of_matrix

IMAGES = 150
NAMES = [metric.name for metric in METRICS]


def retrieval_intervals(statistics, ties, image, *, clean=None, **options):
    """Intervals of one run, whose queries belong to the given images."""
    baseline = None if clean is None else count_retrieval(clean, ties, image)
    return bootstrap.intervals([count_retrieval(statistics, ties, image)], baseline, **options)


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


def test_intervals_are_those_of_scipy():
    statistics = one_query_an_image()
    found = retrieval_intervals(statistics, "published", np.arange(IMAGES))
    for name, cutoff in (("r1", 1), ("r5", 5), ("r10", 10)):
        hits = 100.0 * (statistics.rank_published <= cutoff)
        # The same generator, asked for the same numbers of whole numbers in the same order, draws the same images.
        expected = scipy.stats.bootstrap(
            (hits,), np.mean, n_resamples=2000, batch=100, method="percentile", rng=np.random.default_rng(0)
        ).confidence_interval
        assert found[name] == pytest.approx([expected.low, expected.high], abs=1e-9)


def test_intervals_are_those_of_a_plain_loop():
    statistics, owner = captions_of_images()
    found = retrieval_intervals(statistics, "pessimistic", owner, resamples=200, seed=3)
    values = {name: [] for name in NAMES}
    for draw in image_draws(IMAGES, 200, 3):
        queries = np.concatenate([np.flatnonzero(owner == image) for image in np.repeat(np.arange(IMAGES), draw)])
        for name, value in retrieval_metrics(statistics[queries], "pessimistic").items():
            values[name].append(value)
    for name in NAMES:
        assert found[name] == pytest.approx(list(np.percentile(values[name], [2.5, 97.5])), abs=1e-9)


def test_drop_uses_the_same_draws_of_the_clean_and_the_altered_run():
    clean, altered = one_query_an_image(0), one_query_an_image(1, help_own=1.5)
    found = retrieval_intervals(altered, "published", np.arange(IMAGES), clean=clean, resamples=200)
    values = []
    for draw in image_draws(IMAGES, 200):
        queries = np.repeat(np.arange(IMAGES), draw)
        r1 = [retrieval_metrics(each[queries], "published")["r1"] for each in (clean, altered)]
        values.append(drop(*r1))
    for name in ("drop", "drop_points"):
        expected = np.percentile([value[name] for value in values], [2.5, 97.5])
        assert found[name] == pytest.approx(list(expected), abs=1e-9)
    unchanged = retrieval_intervals(clean, "published", np.arange(IMAGES), clean=clean)
    assert unchanged["drop"] == unchanged["drop_points"] == [0.0, 0.0]


def test_a_drop_that_some_draw_does_not_define_has_no_interval():
    never = one_query_an_image(help_own=-9.0)
    found = retrieval_intervals(never, "published", np.arange(IMAGES), clean=never)
    assert found["drop"] is None
    assert found["drop_points"] == [0.0, 0.0]


def test_intervals_do_not_depend_on_the_order_of_queries():
    statistics, owner = captions_of_images()
    order = np.random.default_rng(5).permutation(len(owner))
    expected = retrieval_intervals(statistics, "published", owner)
    assert retrieval_intervals(statistics[order], "published", owner[order]) == expected


def test_captions_of_an_image_are_resampled_together():
    statistics, owner = captions_of_images()
    five_times = np.repeat(np.arange(len(owner)), 5)
    together = retrieval_intervals(statistics[five_times], "published", owner[five_times])
    # The same captions five times over say nothing new while they stay with their image.
    for name, interval in retrieval_intervals(statistics, "published", owner).items():
        assert together[name] == pytest.approx(interval, abs=1e-9)
    apart = retrieval_intervals(statistics[five_times], "published", np.arange(len(five_times)))
    assert np.diff(apart["r1"]) < 0.7 * np.diff(together["r1"])


def test_the_same_seed_draws_the_same_images():
    image_draws.cache_clear()
    first = image_draws(IMAGES, 300, 7).copy()
    image_draws.cache_clear()
    np.testing.assert_array_equal(image_draws(IMAGES, 300, 7), first)
    assert (first.sum(axis=1) == IMAGES).all()
    assert (image_draws(IMAGES, 300, 8) != first).any()


def counted_runs(count: int = 3) -> list[bootstrap.Counted]:
    runs = [one_query_an_image(seed, help_own=1.0 + seed) for seed in range(count)]
    return [count_retrieval(run, "published", np.arange(IMAGES)) for run in runs]


def test_several_runs_have_their_mean_and_the_sample_standard_deviation():
    runs = counted_runs()
    found, each = bootstrap.mean_of_runs(runs), [run.values()["r1"] for run in runs]
    assert found["r1"] == pytest.approx(mean(each)) and len(set(each)) == 3
    assert found["r1_std"] == pytest.approx(stdev(each))
    clean = count_retrieval(one_query_an_image(9, help_own=4.0), "published", np.arange(IMAGES))
    dropped = bootstrap.mean_of_runs(runs, clean)
    assert dropped["drop_points"] == pytest.approx(clean.values()["r1"] - found["r1"])
    assert "r1_std" not in bootstrap.mean_of_runs(runs[:1])


def test_the_interval_of_several_runs_is_that_of_their_mean_on_the_same_draws():
    runs = counted_runs()
    found = bootstrap.intervals(runs, resamples=200, seed=2)
    first, own = (run.counts[:, run.columns.index("r1")] for run in (runs[0], runs[1]))
    assert (first != own).any()
    hits = np.mean([run.counts[:, run.columns.index("r1")] for run in runs], axis=0)
    values = [100 * (draw @ hits) / draw.sum() for draw in image_draws(IMAGES, 200, 2).astype(float)]
    assert found["r1"] == pytest.approx(list(np.percentile(values, [2.5, 97.5])), abs=1e-9)


def test_the_spread_over_seeds_of_training_is_the_sample_standard_deviation():
    assert across_seeds.spread(np.array([1.0, 2.0, 4.0])) == pytest.approx(stdev([1, 2, 4]))
    assert across_seeds.spread(np.array([3.0])) is None


def test_draws_of_a_task_are_over_the_images_that_it_asks_about():
    """Against plain loops: one task asks about half of the images, some twice."""
    generator = np.random.default_rng(5)
    images = [f"{number:02}.jpg" for number in range(20)]
    rows = [
        ("whole", "clean", name, int(rank)) for name, rank in zip(images, generator.integers(1, 4, 20), strict=True)
    ]
    some = [name for number, name in enumerate(images) if number % 2] + images[1:6:2]
    rows += [("half", "clean", name, int(rank)) for name, rank in zip(some, generator.integers(1, 3, 13), strict=True)]
    half = [(image, rank) for task, _, image, rank in rows if task == "half"]
    names = sorted({image for image, _ in half})
    counts = [[sum(rank == 1 for image, rank in half if image == name) for name in names],
              [sum(image == name for image, _ in half) for name in names]]  # fmt: skip
    run = ImageHits(tuple(names), *map(np.array, counts))
    found, drawn = across_seeds.over_draws([run, run])
    ranks = {name: [rank for task, _, image, rank in rows if (task, image) == ("half", name)] for name in images}
    asked = [name for name in images if ranks[name]]
    every = [rank == 1 for name in asked for rank in ranks[name]]
    assert found == pytest.approx([100 * mean(every)] * 2)
    for number, times in enumerate(image_draws(len(asked))[:50]):
        hits = [rank == 1 for name, count in zip(asked, times, strict=True) for rank in ranks[name] * int(count)]
        assert drawn[number] == pytest.approx([100 * mean(hits)] * 2)


def test_draws_in_blocks_are_those_held_whole_and_their_sums_the_same_to_the_bit(monkeypatch):
    """Also sums of shares, which rounding would move, and the paired test's, whose flips come in blocks too."""
    rng = np.random.default_rng(1)
    whole, shares = rng.integers(0, 6, (700, 3)), rng.random((700, 3))
    queries = np.full((700, 3), 5)

    def figures():
        sums = [bootstrap.sums_over_draws(each, 230, 4) for each in (whole.astype(float), shares)]
        return sums, paired_differences(whole, whole[::-1], queries), paired_differences(shares, shares[::-1], queries)

    sums, *paired = figures()
    monkeypatch.setattr(bootstrap, "HELD", 8 * 700 * 40)
    blocks = list(bootstrap.draw_blocks(700, 230, 4))
    np.testing.assert_array_equal(np.concatenate(blocks), image_draws(700, 230, 4))
    assert [len(block) for block in blocks] == [40, 40, 40, 40, 40, 30]
    again, *paired_again = figures()
    np.testing.assert_array_equal(again, sums)
    assert paired_again == paired


def test_many_images_are_drawn_within_the_memory_that_is_allowed(monkeypatch):
    """`HELD` bytes of draws, for paired tests and figures over seeds as for intervals; what is counted grows freely."""
    images, allowed = 8_000, 2**21
    monkeypatch.setattr(bootstrap, "HELD", allowed, raising=False)
    hits, ones = np.random.default_rng(0).integers(0, 2, (2, images, 1)), np.ones((images, 1), np.int64)
    run = ImageHits(tuple(map(str, range(images))), hits[0, :, 0].astype(float), np.ones(images, np.int64))
    tracemalloc.start()
    for act in (
        lambda: paired_differences(*hits, ones, flips=300),
        lambda: across_seeds.over_draws([run]),
    ):
        tracemalloc.reset_peak()
        act()
        # The block as 16 bits, as float64, and bytes of random numbers; all draws would be 32 MB and 128 MB.
        assert tracemalloc.get_traced_memory()[1] < 4 * allowed
    tracemalloc.stop()
