"""Fit that keeps balanced alterations from showing in their words: signs of words and pairs, rates of swaps [ours].

An alteration exchanges some words and word pairs of a text (`changed`). Where a word comes into texts more often than
it goes out of them, having it is a sign of being altered, and a classifier of word n-grams learns it. The fit gives
each word and each pair a weight w, such that alterations chosen by them leave no such sign:

    score of an alteration     s = sum of w that come in - sum of w that go out
    of two opposite proposals  those are taken whose gains and scores are nearest to opposite
    they are kept              with probability exp(-max(0, mean s))
    each round                 w += step * log((in + a) / (out + a))        counted over reference captions

At a fixed point, in = out for every word and pair: this is the dual ascent of the distribution of least change under
these constraints (iterative scaling; Della Pietra et al. 1997), with a prior count a for rare ones.

A swap has no opposite: most captions have only swaps that make them less probable. Of these as many are kept, by the
size of their gain, as there are captions with one that makes them more probable (`swap_rates`). Their pairs of words
have signs, too.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.perturb.text.ngrams import Words

# Gains are rounded before they are compared: last bits of logarithms differ between machines.
DECIMALS = 6
_PRIOR, _LARGEST_STEP, _SLOWER = 2.0, 1.0, 0.3
_BINS = 8


@dataclass(frozen=True)
class Balance:
    """Fitted signs and rates.

    Attributes:
        signs: of words and word pairs: the weight with which they tell altered texts.
        gains: ends of bins of the sizes of a swap's gain, in nats.
        rates: of each bin, how often a swap that makes a caption less probable is kept.
    """

    signs: Mapping[Words, float] = dataclasses.field(default_factory=dict)
    gains: tuple[float, ...] = ()
    rates: tuple[float, ...] = (1.0,)

    def score(self, comes: Iterable[Words], goes: Iterable[Words]) -> float:
        """Score of an alteration: above 0 the text looks more altered."""
        of = self.signs.get
        return round(sum(of(each, 0.0) for each in comes) - sum(of(each, 0.0) for each in goes), DECIMALS)

    def rate(self, gain: float) -> float:
        """Share of swaps with this gain that are kept."""
        return 1.0 if gain > 0 else self.rates[int(np.searchsorted(self.gains, -gain))]


def changed(words: Sequence[str], exchange: Mapping[int, str]) -> tuple[tuple[Words, ...], tuple[Words, ...]]:
    """The words and word pairs that come into a text, and those that go out of it.

    >>> changed(("a", "dog", "runs"), {1: "cat"})
    ((('cat',), ('a', 'cat'), ('cat', 'runs')), (('dog',), ('a', 'dog'), ('dog', 'runs')))
    """
    after = [exchange.get(place, word) for place, word in enumerate(words)]
    singles = sorted(exchange)
    ends = sorted({end for place in singles for end in (place, place + 1) if 0 < end < len(words)})
    came, went = (
        (*((text[place],) for place in singles), *((text[end - 1], text[end]) for end in ends))
        for text in (after, words)
    )
    return came, went


def kept_share(scores: Float[np.ndarray, " proposals"]) -> float:
    """Share of opposite proposals with these scores that are kept.

    >>> kept_share(np.array([1.0, -3.0]))
    1.0
    """
    return float(np.exp(-max(0.0, scores.mean())))


def opposite_pairs(
    gains: Float[np.ndarray, "proposals orders"], count: int = 1, scores: Float[np.ndarray, " proposals"] | None = None
) -> list[tuple[int, int]]:
    """Indices (positive, negative) of gains that are opposite in every column, those first whose sums are nearest to 0.

    The sums are those of gains and, beside them, of `scores`. No index is in two pairs.

    >>> opposite_pairs(np.array([[1.0, 2.0], [-3.0, -3.0], [-1.5, -2.0], [1.0, -1.0]]), 2)
    [(0, 2)]
    """
    positive, negative = np.flatnonzero((gains > 0).all(1)), np.flatnonzero((gains < 0).all(1))
    distance = np.abs(gains[positive][:, None] + gains[negative][None]).sum(-1)
    if scores is not None:
        distance = distance + np.abs(scores[positive][:, None] + scores[negative][None])
    distance = distance.round(DECIMALS)
    pairs = []
    while len(pairs) < count and np.isfinite(distance).any():
        row, column = np.unravel_index(distance.argmin(), distance.shape)
        pairs.append((int(positive[row]), int(negative[column])))
        distance[row], distance[:, column] = np.inf, np.inf
    return pairs


@dataclass(frozen=True)
class Pool:
    """The proposals of a caption, words and pairs by number; 0 stands for none.

    Attributes:
        comes, goes: of each proposal the numbers of what it brings in and takes out.
        rate: of a proposal that has no opposite, how often it is kept by its gain; None where there are opposites.
    """

    gains: Float[np.ndarray, "proposals orders"]
    comes: Int[np.ndarray, "proposals ngrams"]
    goes: Int[np.ndarray, "proposals ngrams"]
    rate: float | None = None

    def chosen(self, weights: Float[np.ndarray, " ngrams"]) -> tuple[tuple[int, ...], float]:
        """The proposals that are chosen under weights of n-grams, and how often each is made."""
        scores = weights[self.comes].sum(1) - weights[self.goes].sum(1)
        if self.rate is not None:
            return (0,), self.rate * kept_share(scores)
        (pair,) = opposite_pairs(self.gains, 1, scores)
        return pair, kept_share(scores[list(pair)]) / 2  # the coin takes either in half of the cases


class Pools:
    """Proposals of many captions. Only those that have opposite gains are kept."""

    def __init__(self):
        self.numbers: dict[Words, int] = {}
        self.pools: list[Pool] = []

    def add(
        self, gains: Sequence[tuple[float, ...]], ngrams: Sequence[tuple[Sequence[Words], Sequence[Words]]]
    ) -> None:
        """The gains of a caption's proposals, and what comes in and goes out with each."""
        if not gains:
            return
        values = np.array(gains, float)
        rises, falls = (values > 0).all(1), (values < 0).all(1)
        if not (rises.any() and falls.any()):
            return
        places = np.flatnonzero(rises | falls)
        self.pools.append(Pool(values[places], *self._numbered([ngrams[place] for place in places])))

    def add_one(self, gain: tuple[float, ...], ngrams: tuple[Sequence[Words], Sequence[Words]], rate: float) -> None:
        """The only proposal of a caption, and how often it is kept by its gain."""
        self.pools.append(Pool(np.array([gain]), *self._numbered([ngrams]), rate))

    def _numbered(self, ngrams: Sequence[tuple[Sequence[Words], Sequence[Words]]]) -> Iterator[np.ndarray]:
        longest = max(len(each) for sides in ngrams for each in sides)
        for side in (0, 1):
            rows = [[self._number(each) for each in sides[side]] for sides in ngrams]
            yield np.array([row + [0] * (longest - len(row)) for row in rows], np.int32)

    def _number(self, ngram: Words) -> int:
        return self.numbers.setdefault(ngram, len(self.numbers) + 1)

    def fit(self, rounds: int) -> dict[Words, float]:
        """The weights after so many rounds; those that round to 0 are left out."""
        weights = np.zeros(len(self.numbers) + 1)
        for turn in range(rounds):
            comes, goes = np.zeros(len(weights)), np.zeros(len(weights))
            for pool in self.pools:
                places, share = pool.chosen(weights)
                for place in places:
                    comes[pool.comes[place]] += share
                    goes[pool.goes[place]] += share
            step = np.log((comes + _PRIOR) / (goes + _PRIOR)) / (1 + _SLOWER * turn)
            weights += step.clip(-_LARGEST_STEP, _LARGEST_STEP)
            weights[0] = 0
        rounded = weights.round(DECIMALS)
        return {ngram: float(rounded[number]) for ngram, number in self.numbers.items() if rounded[number]}


def swap_rates(gains: Iterable[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Ends of bins and rates of `Balance`, from the gains of one swap a caption.

    In every bin as many of the negative gains are kept as there are positive ones of that size.
    """
    values = np.array(list(gains))
    rises, falls = values[values > 0], -values[values < 0]
    if len(rises) < _BINS:
        return (), (min(1.0, len(rises) / max(1, len(falls))),)
    ends = np.unique(np.quantile(rises, np.arange(1, _BINS) / _BINS).round(DECIMALS))
    counts = [np.bincount(np.searchsorted(ends, each), minlength=len(ends) + 1) for each in (rises, falls)]
    rates = np.minimum(1.0, counts[0] / np.maximum(counts[1], 1)).round(DECIMALS)
    return tuple(ends.tolist()), tuple(rates.tolist())
