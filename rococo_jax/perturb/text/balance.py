"""Balanced alterations: captions that n-gram models cannot tell from their altered ones [ours].

    replace   another word in place of a noun or an attribute
    swap      two words of the caption change places

How it is balanced: each caption has many proposals, each with the gains g = log P(altered) - log P(original) of the
2-gram and 3-gram models of reference captions. Two proposals with opposite gains are chosen, those nearest to g and -g,
and a coin decides between them. A scorer by these gains prefers the original in half of the pairs, and so does anything
that is an odd function of them. A caption without such a pair is left unaltered. The coin is flipped once for an image
and draw, and changes with each of its captions.

Few captions have a swap that makes them more probable. They are altered so; of the others, whose swaps all make them
less probable, as many, drawn by the size of the gain. What words tell beyond that is fitted (`balance_fit`).

Everything depends on the seed, the caption, the other captions of its image and the reference captions alone.
"""

import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rococo_jax.errors import InputError
from rococo_jax.perturb.text import OPERATIONS, VARIANTS
from rococo_jax.perturb.text.balance_fit import (
    DECIMALS,
    Balance,
    Pools,
    changed,
    kept_share,
    opposite_pairs,
    swap_rates,
)
from rococo_jax.perturb.text.ngrams import Words, words_of
from rococo_jax.perturb.text.replacement import Alteration
from rococo_jax.perturb.text.word_exchange import (
    ReferenceCaptions,
    Slot,
    WordDraws,
    alters,
    find_slots,
    fits_article,
    is_new,
)
from rococo_jax.perturb.text.words import replace_word, split_words

BALANCED_VARIANTS = tuple(variant for variant in VARIANTS if variant != "danger")
# Exchanged words by their index, and the concept of the first.
_Way = tuple[dict[int, str], str]


@dataclass(frozen=True)
class BalancedAlteration(Alteration):
    """An altered caption: its gain in log probability (order 2, order 3), and the words and pairs that come and go."""

    operation: str
    gain: tuple[float, float]
    comes: tuple[Words, ...] = field(repr=False)
    goes: tuple[Words, ...] = field(repr=False)

    def record(self) -> dict[str, Any]:
        """The entry of an annotation's `changes`."""
        return {**super().record(), "operation": self.operation, "gain": [round(value, 4) for value in self.gain]}


@dataclass(frozen=True)
class BalancedAlterer:
    """Alters captions by one operation; stands where a `CaptionAlterer` does.

    Attributes:
        variant: same_concept, diff_concept or rand_voca: which words may stand in place of which.
        reference: captions of other images, as those of a training set.
        operation: replace or swap.
        seed: of all choices.
        balance: what was fitted to the reference (`fit_balance`).
        proposals: drawn words a caption; with more, fewer captions are left unaltered.

    Raises:
        InputError: an unknown operation or variant, or danger, whose words stand in no true caption.
    """

    variant: str
    reference: ReferenceCaptions
    operation: str = "replace"
    seed: int = 0
    balance: Balance = field(default_factory=Balance)
    proposals: int = 96
    _of_images: dict[tuple[str, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self):
        for name, allowed in (("variant", BALANCED_VARIANTS), ("operation", OPERATIONS)):
            if getattr(self, name) not in allowed:
                expected = f"one of {', '.join(allowed)}"
                raise InputError("balanced captions", name, repr(getattr(self, name)), expected)

    @functools.cached_property
    def words(self) -> WordDraws:
        """The draws of new words."""
        return WordDraws(self.reference.weights, self.variant)

    def alter(
        self, caption: str, originals: Iterable[str], influence: Any = None, count: int = 1, draw: int = 0
    ) -> list[BalancedAlteration]:
        """Up to `count` distinct alterations; none where no two proposals have opposite gains.

        Arguments are those of `CaptionAlterer.alter`; the influence is not looked at.
        """
        originals = tuple(originals)
        proposals = self.propose(caption, originals, draw)
        if self.operation == "swap":
            chosen = [each for each in (self.swap_of(proposals),) if each is not None]
            scores = np.array([self.balance.score(each.comes, each.goes) for each in chosen])
            shares = [self.balance.rate(each.gain[0]) * kept_share(scores) for each in chosen]
        else:
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
        if self.operation == "replace":
            random = np.random.default_rng(hash_key([self.seed, self.operation, self.variant, caption, draw]))
            ways = self._replacements(words, present, random)
        else:
            ways = self._swaps(caption, words)
        gains = self.reference.ngrams.gains(words, (exchange for exchange, _ in ways), left_out)
        return list(dict.fromkeys(self._altered(caption, words, *each) for each in zip(ways, gains, strict=True)))

    def swap_of(self, proposals: Sequence[BalancedAlteration]) -> BalancedAlteration | None:
        """The swap of a caption: one that makes it more probable, where there is one."""
        rises = [each for each in proposals if min(each.gain) > 0]
        chosen = rises or [each for each in proposals if max(each.gain) < 0]
        return min(chosen, key=lambda each: hash_key([self.seed, "swap", each.caption]), default=None)

    def _altered(self, caption: str, words: Words, way: _Way, gain: tuple[float, float]) -> BalancedAlteration:
        (exchange, concept), spans, text = way, split_words(caption), caption
        place = next(iter(exchange))
        for index, new in sorted(exchange.items(), reverse=True):
            text = replace_word(text, spans[index], new)
        rounded = round(gain[0], DECIMALS), round(gain[1], DECIMALS)
        return BalancedAlteration(text, place, words[place], exchange[place], concept, None, self.operation, rounded,
                                  *changed(words, exchange))  # fmt: skip

    def _of_image(self, originals: tuple[str, ...]) -> tuple[frozenset[str], Mapping]:
        """The words of an image's captions, and their n-grams among the reference's."""
        if originals not in self._of_images:
            if len(self._of_images) > 64:
                self._of_images.clear()
            words = frozenset(word for text in originals for word in words_of(text))
            self._of_images[originals] = words, self.reference.counts_of(originals)
        return self._of_images[originals]

    def _slots(self, words: Words) -> tuple[Slot, ...]:
        return find_slots(words, self.reference.lexicon, attributes=self.variant != "diff_concept")

    def _replacements(self, words: Words, present: frozenset[str], random: np.random.Generator) -> list[_Way]:
        lexicon, slots = self.reference.lexicon, self._slots(words)
        if not slots:
            return []
        chosen, draws = random.integers(len(slots), size=self.proposals), random.random(self.proposals)
        return [
            ({slot.index: new}, slot.concept)
            for number, slot in enumerate(slots)
            for new in dict.fromkeys(self.words.draw(slot, draws[chosen == number]))
            if alters(words[slot.index], new, lexicon)
            and is_new(new, present, lexicon)
            and fits_article(words, slot.index, new)
        ]

    def _swaps(self, caption: str, words: Words) -> list[_Way]:
        spans, ways = split_words(caption), []
        for one, other in itertools.combinations(self._slots(words), 2):
            first, second = words[one.index], words[other.index]
            same = one.concept == other.concept
            if (one.noun is None) != (other.noun is None) or (one.noun is None and not same):
                continue
            if {"same_concept": not same, "diff_concept": same}.get(self.variant, False):
                continue
            # "A man and a woman" and "chairs, tables" say the same in any order.
            between = caption[spans[one.index].end : spans[other.index].start]
            if "," in between or "and" in words[one.index + 1 : other.index]:
                continue
            fits = fits_article(words, one.index, second) and fits_article(words, other.index, first)
            if one.plural == other.plural and fits and alters(first, second, self.reference.lexicon):
                ways.append(({one.index: second, other.index: first}, one.concept))
        return ways


def balanced_alterer(
    variant: str, reference: ReferenceCaptions, operation: str = "replace", seed: int = 0, **fit: int
) -> BalancedAlterer:
    """A `BalancedAlterer` that is fitted to the reference; `fit` are arguments of `fit_balance`."""
    balance = fit_balance(BalancedAlterer(variant, reference, operation), **fit)
    return BalancedAlterer(variant, reference, operation, seed, balance)


def fit_balance(alterer: BalancedAlterer, rounds: int = 16, captions: int = 12_000) -> Balance:
    """Signs of words, fitted in `rounds`, and rates of swaps with which alterations of reference captions show least.

    The alterer is one that is not fitted; about `captions` reference captions are altered.
    """
    images = alterer.reference.images
    step = max(1, round(len(alterer.reference.captions) / captions))
    proposals = (
        alterer.propose(caption, image.captions, draw=0) for image in images[::step] for caption in image.captions
    )
    pools, balance = Pools(), Balance()
    if alterer.operation == "swap":
        swaps = [each for each in map(alterer.swap_of, proposals) if each is not None]
        balance = Balance({}, *swap_rates(each.gain[0] for each in swaps))
        for each in swaps:
            pools.add_one(each.gain, (each.comes, each.goes), balance.rate(each.gain[0]))
    else:
        for of_caption in proposals:
            pools.add([each.gain for each in of_caption], [(each.comes, each.goes) for each in of_caption])
    return replace(balance, signs=pools.fit(rounds))


def hash_key(key: Sequence[Any]) -> int:
    """64 bits of a key of JSON values, the same on every machine."""
    text = json.dumps(list(key), ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
