"""Balanced alterations: captions that n-gram models cannot tell from their altered ones [ours].

Another word takes the place of a noun or an attribute. How it is balanced: each caption has many proposals, each with
the gains g = log P(altered) - log P(original) of the 2-gram and 3-gram models of reference captions. Two proposals with
opposite gains are chosen, those nearest to g and -g, and a coin decides between them. A scorer by these gains prefers
the original in half of the pairs, and so does anything that is an odd function of them. A caption without such a pair
is left unaltered. The coin is flipped once for an image and draw, and changes with each of its captions. What words
tell beyond that is fitted:

An alteration exchanges some words and word pairs of a text (`changed`). Where a word comes into texts more often than
it goes out of them, having it is a sign of being altered, and a classifier of word n-grams learns it. The fit gives
each word and each pair a weight w, such that alterations chosen by them leave no such sign:

    score of an alteration     s = sum of w that come in - sum of w that go out
    of two opposite proposals  those are taken whose gains and scores are nearest to opposite
    they are kept              with probability exp(-max(0, mean s))
    each round                 w += step * log((in + a) / (out + a))        counted over reference captions

At a fixed point, in = out for every word and pair: this is the dual ascent of the distribution of least change under
these constraints (iterative scaling; Della Pietra et al. 1997), with a prior count a for rare ones.

Everything depends on the seed, the caption, the other captions of its image and the reference captions alone.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.errors import InputError
from rococo_jax.perturb.text import VARIANTS, hash_key
from rococo_jax.perturb.text.ngrams import Words, words_of
from rococo_jax.perturb.text.replacement import Alteration
from rococo_jax.perturb.text.word_exchange import (
    ReferenceCaptions,
    WordDraws,
    alters,
    find_slots,
    fits_article,
    is_new,
)
from rococo_jax.perturb.text.words import replace_word, split_words

BALANCED_VARIANTS = tuple(variant for variant in VARIANTS if variant != "danger")
# Gains are rounded before they are compared: last bits of logarithms differ between machines.
DECIMALS = 6
_PRIOR, _LARGEST_STEP, _SLOWER = 2.0, 1.0, 0.3
# What a balanced alteration does to a caption, as annotations record it.
OPERATION = "replace"
# Index of a word, what stands in its place, and the old word's concept.
_Way = tuple[int, str, str]


@dataclass(frozen=True)
class Balance:
    """Signs of words and word pairs: the weight with which they tell altered texts."""

    signs: Mapping[Words, float] = field(default_factory=dict)

    def score(self, comes: Iterable[Words], goes: Iterable[Words]) -> float:
        """Score of an alteration: above 0 the text looks more altered."""
        of = self.signs.get
        return round(sum(of(each, 0.0) for each in comes) - sum(of(each, 0.0) for each in goes), DECIMALS)


def changed(words: Sequence[str], index: int, new: str) -> tuple[tuple[Words, ...], tuple[Words, ...]]:
    """The words and word pairs that come into a text with a new word, and those that go out of it.

    >>> changed(("a", "dog", "runs"), 1, "cat")
    ((('cat',), ('a', 'cat'), ('cat', 'runs')), (('dog',), ('a', 'dog'), ('dog', 'runs')))
    """
    ends = [end for end in (index, index + 1) if 0 < end < len(words)]
    came, went = (
        ((text[index],), *((text[end - 1], text[end]) for end in ends))
        for text in ((*words[:index], new, *words[index + 1 :]), words)
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
    """

    gains: Float[np.ndarray, "proposals orders"]
    comes: Int[np.ndarray, "proposals ngrams"]
    goes: Int[np.ndarray, "proposals ngrams"]

    def chosen(self, weights: Float[np.ndarray, " ngrams"]) -> tuple[tuple[int, ...], float]:
        """The proposals that are chosen under weights of n-grams, and how often each is made."""
        scores = weights[self.comes].sum(1) - weights[self.goes].sum(1)
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


@dataclass(frozen=True)
class BalancedAlteration(Alteration):
    """An altered caption: its gain in log probability (order 2, order 3), and the words and pairs that come and go."""

    gain: tuple[float, float]
    comes: tuple[Words, ...] = field(repr=False)
    goes: tuple[Words, ...] = field(repr=False)

    def record(self) -> dict[str, Any]:
        """The entry of an annotation's `changes`."""
        return {**super().record(), "operation": OPERATION, "gain": [round(value, 4) for value in self.gain]}


@dataclass(frozen=True)
class BalancedAlterer:
    """Exchange one word of a caption for one of opposite gain (an `Alterer`).

    Attributes:
        variant: same_concept, diff_concept or rand_voca: which words may stand in place of which.
        reference: captions of other images, as those of a training set.
        seed: of all choices.
        balance: what was fitted to the reference (`fit_balance`).
        proposals: drawn words a caption; with more, fewer captions are left unaltered.

    Raises:
        InputError: an unknown variant, or danger, whose words stand in no true caption.
    """

    variant: str
    reference: ReferenceCaptions
    seed: int = 0
    balance: Balance = field(default_factory=Balance)
    proposals: int = 96
    _of_images: dict[tuple[str, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self):
        if self.variant not in BALANCED_VARIANTS:
            expected = f"one of {', '.join(BALANCED_VARIANTS)}"
            raise InputError("balanced captions", "variant", repr(self.variant), expected)

    @functools.cached_property
    def words(self) -> WordDraws:
        """The draws of new words."""
        return WordDraws(self.reference.weights, self.variant)

    def alter(
        self, caption: str, originals: Iterable[str], influence: Any = None, count: int = 1, draw: int = 0
    ) -> list[BalancedAlteration]:
        """Choose among proposals of opposite gains. `influence` is not read."""
        originals = tuple(originals)
        proposals = self.propose(caption, originals, draw)
        place = originals.index(caption) if caption in originals else 0
        coin = hash_key([self.seed, "coin", *originals]) + place + draw
        gains = np.array([each.gain for each in proposals]).reshape(-1, 2)
        scores = np.array([self.balance.score(each.comes, each.goes) for each in proposals])
        pairs = opposite_pairs(gains, count, scores)
        chosen = [proposals[pair[(coin + turn) % 2]] for turn, pair in enumerate(pairs)]
        shares = [kept_share(scores[list(pair)]) for pair in pairs]
        draws = (hash_key([self.seed, "kept", caption, draw, turn]) / 2**64 for turn in range(len(chosen)))
        return [each for each, share, drawn in zip(chosen, shares, draws, strict=True) if drawn < share]

    def propose(self, caption: str, originals: Iterable[str], draw: int) -> list[BalancedAlteration]:
        """All proposals that an alteration is chosen from; arguments as those of `alter`."""
        words, (present, left_out) = words_of(caption), self._of_image(tuple(originals))
        random = np.random.default_rng(hash_key([self.seed, OPERATION, self.variant, caption, draw]))
        ways = self._replacements(words, present, random)
        gains = self.reference.ngrams.gains(words, ({index: new} for index, new, _ in ways), left_out)
        return list(dict.fromkeys(self._altered(caption, words, *each) for each in zip(ways, gains, strict=True)))

    def _altered(self, caption: str, words: Words, way: _Way, gain: tuple[float, float]) -> BalancedAlteration:
        index, new, concept = way
        text = replace_word(caption, split_words(caption)[index], new)
        rounded = round(gain[0], DECIMALS), round(gain[1], DECIMALS)
        return BalancedAlteration(text, index, words[index], new, concept, None, rounded, *changed(words, index, new))

    def _of_image(self, originals: tuple[str, ...]) -> tuple[frozenset[str], Mapping]:
        """The words of an image's captions, and their n-grams among the reference's."""
        if originals not in self._of_images:
            if len(self._of_images) > 64:
                self._of_images.clear()
            words = frozenset(word for text in originals for word in words_of(text))
            self._of_images[originals] = words, self.reference.counts_of(originals)
        return self._of_images[originals]

    def _replacements(self, words: Words, present: frozenset[str], random: np.random.Generator) -> list[_Way]:
        lexicon = self.reference.lexicon
        slots = find_slots(words, lexicon, attributes=self.variant != "diff_concept")
        if not slots:
            return []
        chosen, draws = random.integers(len(slots), size=self.proposals), random.random(self.proposals)
        return [
            (slot.index, new, slot.concept)
            for number, slot in enumerate(slots)
            for new in dict.fromkeys(self.words.draw(slot, draws[chosen == number]))
            if alters(words[slot.index], new, lexicon)
            and is_new(new, present, lexicon)
            and fits_article(words, slot.index, new)
        ]


def balanced_alterer(variant: str, reference: ReferenceCaptions, seed: int = 0, **fit: int) -> BalancedAlterer:
    """A `BalancedAlterer` that is fitted to the reference; `fit` are arguments of `fit_balance`."""
    balance = fit_balance(BalancedAlterer(variant, reference), **fit)
    return BalancedAlterer(variant, reference, seed, balance)


def fit_balance(alterer: BalancedAlterer, rounds: int = 16, captions: int = 12_000) -> Balance:
    """Signs of words, fitted in `rounds`, with which alterations of reference captions show least.

    The alterer is one that is not fitted; about `captions` reference captions are altered.
    """
    images = alterer.reference.images
    step = max(1, round(len(alterer.reference.captions) / captions))
    proposals = (
        alterer.propose(caption, image.captions, draw=0) for image in images[::step] for caption in image.captions
    )
    pools = Pools()
    for of_caption in proposals:
        pools.add([each.gain for each in of_caption], [(each.comes, each.goes) for each in of_caption])
    return Balance(pools.fit(rounds))
