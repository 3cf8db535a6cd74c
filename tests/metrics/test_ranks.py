"""Intervals of ranks and groups of models, beside loops that follow the definitions word by word."""

import itertools

import numpy as np
import pytest

from rococo_jax.metrics import metric_of
from rococo_jax.metrics.counts import Counts, Run
from rococo_jax.metrics.paired import paired_differences
from rococo_jax.metrics.ranks import letters_of, pseudo_values, ranks, significant_differences


def share(sums):
    return 100 * sums[..., 0] / sums[..., 1]


def counts_of(sums):
    return Counts((Run(np.arange(len(sums)), sums, ("r1", "rows"), {"r1": metric_of("r1")}),))


def outcomes(rates, images=80, seed=0, queries=1):
    """Right answers of models that agree more often than by chance, and their counts."""
    rng = np.random.default_rng(seed)
    difficulty = rng.uniform(size=(images, queries))
    counts = []
    for rate in rates:
        right = (0.7 * difficulty + 0.3 * rng.uniform(size=difficulty.shape)) < rate
        counts.append(np.stack([right.sum(axis=1), np.full(images, queries)], axis=1).astype(float))
    return counts


def loops(counts, flips, seed):
    """Pairs that differ significantly: swap the two models of every pair on each half of the images, one by one."""
    images, rng = len(counts[0]), np.random.default_rng(seed)
    words = -(-images // 32) * 4
    halves = [
        [1 - 2 * (byte >> (7 - bit) & 1) for byte in rng.bytes(words) for bit in range(8)][:images]
        for _ in range(flips)
    ]
    pairs = list(itertools.combinations(range(len(counts)), 2))
    swapped = {pair: [] for pair in pairs}
    for half in halves:
        for one, other in pairs:
            first = sum(a[0] if sign > 0 else b[0] for sign, a, b in zip(half, counts[one], counts[other], strict=True))
            both = sum(a[0] + b[0] for a, b in zip(counts[one], counts[other], strict=True))
            swapped[one, other].append(2 * first - both)
    observed = {(one, other): counts[one][:, 0].sum() - counts[other][:, 0].sum() for one, other in pairs}
    sigma = {
        (one, other): sum((a[0] - b[0]) ** 2 for a, b in zip(counts[one], counts[other], strict=True)) ** 0.5
        for one, other in pairs
    }
    maxima = [max(abs(swapped[pair][flip]) / sigma[pair] for pair in pairs if sigma[pair]) for flip in range(flips)]
    differs = np.zeros((len(counts), len(counts)), bool)
    for one, other in pairs:
        if sigma[one, other]:
            statistic = abs(observed[one, other]) / sigma[one, other]
            as_extreme = 1 + sum(each >= statistic * (1 - 1e-9) for each in maxima)
            differs[one, other] = differs[other, one] = as_extreme / (1 + flips) < 0.05
    return differs


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_pairs_and_ranks_match_loops_over_swaps(seed, queries):
    counts = outcomes((0.3, 0.33, 0.5, 0.55, 0.55, 0.8), images=60, seed=seed, queries=queries)
    counts.append(counts[3])  # a model twice
    values = np.array([share(each.sum(axis=0)) for each in counts])
    of_images = np.stack([pseudo_values(counts_of(each), "r1") for each in counts], axis=1)
    differs = significant_differences(values, of_images, flips=199, seed=seed)
    expected = loops(counts, 199, seed)
    assert 0 < expected.sum() < expected.size and np.array_equal(differs, expected)
    for is_higher_better in (True, False):
        for place, rank in enumerate(ranks(values, differs, is_higher_better=is_higher_better)):
            signs = np.sign(values - values[place]) * (1 if is_higher_better else -1)
            better = sum(expected[place, other] and signs[other] > 0 for other in range(len(counts)))
            worse = sum(expected[place, other] and signs[other] < 0 for other in range(len(counts)))
            assert (rank.low, rank.high) == (1 + better, len(counts) - worse)


@pytest.mark.parametrize("seed", range(8))
def test_models_share_a_letter_if_and_only_if_they_do_not_differ(seed):
    rng = np.random.default_rng(seed)
    differs = np.triu(rng.uniform(size=(9, 9)) < rng.uniform(0.1, 0.9), 1)
    differs |= differs.T
    order = rng.permutation(9).tolist()
    letters = letters_of(differs, order)
    for one, other in itertools.product(range(9), repeat=2):
        assert bool(set(letters[one]) & set(letters[other])) == (not differs[one, other]), (one, other)
    assert "a" in letters[order[0]]
    groups = [{place for place in range(9) if name in letters[place]} for name in set("".join(letters))]
    assert not any(one < other for one in groups for other in groups)  # a group inside another says nothing


def test_two_models_differ_if_and_only_if_their_comparison_is_significant():
    for seed in range(12):
        one, other = outcomes((0.45, 0.56), images=120, seed=seed)
        (row,) = paired_differences([(counts_of(one), counts_of(other))], flips=999)
        of_images = np.stack([pseudo_values(counts_of(each), "r1") for each in (one, other)], axis=1)
        values = np.array([share(each.sum(axis=0)) for each in (one, other)])
        assert significant_differences(values, of_images, flips=999)[0, 1] == (row["r1"].p_corrected < 0.05)


def test_pseudo_values_of_a_share_equal_the_scores_with_one_query_per_image():
    (counts,) = outcomes((0.5,))
    assert pseudo_values(counts_of(counts), "r1") == pytest.approx(100 * counts[:, 0])
