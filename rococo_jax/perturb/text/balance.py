"""Balanced alterations: captions that n-gram models cannot tell from their altered ones [ours].

    replace   another word in place of a noun or an attribute
    swap      two words of the caption change places
    add       a detail more: "a man riding a horse" -> "... near a fence"; the original gets a true detail
    negate    "... with no horse", where the image's captions name a horse; the original gets a true negation

In `add` and `negate` both texts grow: where only altered captions had another detail or a "no", length and the word
would give them away. True details come from the other captions of the image.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import regex

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
_DETAIL = regex.compile(
    r"\b((?:with|near|beside|behind|by|in front of|next to|under|above|in|on|at|over|against|inside)"
    r" (?:an?|the|some|two|three) (?:[a-z]+ )?)([a-z]+)"
    r"(?=[.,]?\s*$|[.,]? (?:and|with|near|in|on|at|while|by|next|that|is|are|as|to)\b)",
    regex.IGNORECASE,
)
_FINAL_STOP = regex.compile(r"\s*[.!]?\s*$")


@dataclass(frozen=True)
class BalancedAlteration(Alteration):
    """An altered caption and the text that it is compared with.

    Attributes:
        original: the caption, in `add` and `negate` with a true detail more.
        operation: which one.
        gain: by how much the altered text is more probable, order 2 and order 3.
        comes, goes: the words and word pairs that come in and go out.
    """

    original: str
    operation: str
    gain: tuple[float, float]
    comes: tuple[Words, ...] = field(repr=False)
    goes: tuple[Words, ...] = field(repr=False)

    def record(self) -> dict[str, Any]:
        """The entry of an annotation's `changes`."""
        return {**super().record(), "operation": self.operation, "gain": [round(value, 4) for value in self.gain]}


class _Exchanges(NamedTuple):
    """Ways to alter one text: each exchanges words at some indices, with the concept of the first."""

    original: str
    words: Words
    ways: list[tuple[dict[int, str], str]]


@dataclass(frozen=True)
class BalancedAlterer:
    """Alters captions by one operation; stands where a `CaptionAlterer` does.

    Attributes:
        variant: same_concept, diff_concept or rand_voca: which words may stand in place of which.
        reference: captions of other images, as those of a training set.
        operation: replace, swap, add or negate.
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

        Args:
            caption: the caption.
            originals: all captions of its image.
            influence: not looked at.
            count: how many; the coin changes from one to the next.
            draw: another number gives other alterations.
        """
        originals = tuple(originals)
        proposals = self.propose(caption, originals, draw)
        if self.operation == "swap":
            chosen = [each for each in (self.swap_of(proposals),) if each is not None]
            scores = np.array([self.balance.score(each.comes, each.goes) for each in chosen])
            shares = [self.balance.rate(each.gain[0]) * kept_share(scores) for each in chosen]
        else:
            place = originals.index(caption) if caption in originals else 0
            coin = _hash([self.seed, "coin", *originals]) + place + draw
            gains = np.array([each.gain for each in proposals]).reshape(-1, 2)
            scores = np.array([self.balance.score(each.comes, each.goes) for each in proposals])
            pairs = opposite_pairs(gains, count, scores)
            chosen = [proposals[pair[(coin + turn) % 2]] for turn, pair in enumerate(pairs)]
            shares = [kept_share(scores[list(pair)]) for pair in pairs]
        draws = (_hash([self.seed, "kept", caption, draw, turn]) / 2**64 for turn in range(len(chosen)))
        return [each for each, share, drawn in zip(chosen, shares, draws, strict=True) if drawn < share]

    def propose(self, caption: str, originals: Iterable[str], draw: int) -> list[BalancedAlteration]:
        """All proposals that an alteration is chosen from; arguments as those of `alter`."""
        random = np.random.default_rng(_hash([self.seed, self.operation, self.variant, caption, draw]))
        originals = tuple(originals)
        present, left_out = self._of_image(originals)
        if self.operation == "replace":
            exchanges = self._replace(caption, present, random)
        elif self.operation == "swap":
            exchanges = self._swap(caption)
        else:
            exchanges = self._extend(caption, originals, present, random)
        return list(dict.fromkeys(each for some in exchanges for each in self._altered(some, left_out)))

    def swap_of(self, proposals: Sequence[BalancedAlteration]) -> BalancedAlteration | None:
        """The swap of a caption: one that makes it more probable, where there is one."""
        rises = [each for each in proposals if min(each.gain) > 0]
        chosen = rises or [each for each in proposals if max(each.gain) < 0]
        return min(chosen, key=lambda each: _hash([self.seed, "swap", each.caption]), default=None)

    def _altered(self, exchanges: _Exchanges, left_out: Mapping) -> Iterator[BalancedAlteration]:
        original, words, ways = exchanges
        spans = split_words(original) if ways else ()
        gains = self.reference.ngrams.gains(words, (exchange for exchange, _ in ways), left_out)
        for (exchange, concept), gain in zip(ways, gains, strict=True):
            text, place = original, next(iter(exchange))
            for index, new in sorted(exchange.items(), reverse=True):
                text = replace_word(text, spans[index], new)
            rounded = round(gain[0], DECIMALS), round(gain[1], DECIMALS)
            yield BalancedAlteration(text, place, words[place], exchange[place], concept, None, original,
                                     self.operation, rounded, *changed(words, exchange))  # fmt: skip

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

    def _may_stand(self, words: Sequence[str], slot: Slot, new: str, present: frozenset[str]) -> bool:
        lexicon = self.reference.lexicon
        is_change = alters(words[slot.index], new, lexicon) and is_new(new, present, lexicon)
        return is_change and fits_article(words, slot.index, new)

    def _replace(self, caption: str, present: frozenset[str], random: np.random.Generator) -> Iterator[_Exchanges]:
        words = words_of(caption)
        if not (slots := self._slots(words)):
            return
        chosen, draws = random.integers(len(slots), size=self.proposals), random.random(self.proposals)
        yield _Exchanges(caption, words, [
            ({slot.index: new}, slot.concept)
            for number, slot in enumerate(slots)
            for new in dict.fromkeys(self.words.draw(slot, draws[chosen == number]))
            if self._may_stand(words, slot, new, present)
        ])  # fmt: skip

    def _swap(self, caption: str) -> Iterator[_Exchanges]:
        words, spans, ways = words_of(caption), split_words(caption), []
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
        yield _Exchanges(caption, words, ways)

    def _extend(
        self, caption: str, originals: tuple[str, ...], present: frozenset[str], random: np.random.Generator
    ) -> Iterator[_Exchanges]:
        """`add` and `negate`: the caption with a true and with a wrong ending."""
        lexicon, own = self.reference.lexicon, frozenset(words_of(caption))
        stop = "." if caption.rstrip().endswith(".") else ""
        for opening, noun in self._details([text for text in originals if text != caption]):
            if not is_new(noun, own, lexicon):
                continue
            opening = "with no " if self.operation == "negate" else opening
            text = _FINAL_STOP.sub("", caption, count=1) + " " + opening
            words = (*words_of(text), noun)
            slot = find_slots(words, lexicon)[-1]
            for other in dict.fromkeys(self.words.draw(slot, random.random(self.proposals // 4))):
                if self._may_stand(words, slot, other, present):
                    true, wrong = (other, noun) if self.operation == "negate" else (noun, other)
                    way = {len(words) - 1: wrong}, slot.concept
                    yield _Exchanges(text + true + stop, (*words[:-1], true), [way])

    def _details(self, captions: Iterable[str]) -> Iterator[tuple[str, str]]:
        """(opening, noun) of details that captions end a phrase with: ("near a ", "fence")."""
        for caption in captions:
            for match in _DETAIL.finditer(caption):
                if self.reference.lexicon.find(match[2]) is not None:
                    yield match[1].lower(), match[2].lower()


def balanced_alterer(
    variant: str, reference: ReferenceCaptions, operation: str = "replace", seed: int = 0, **fit: int
) -> BalancedAlterer:
    """A `BalancedAlterer` that is fitted to the reference; `fit` are arguments of `fit_balance`."""
    balance = fit_balance(BalancedAlterer(variant, reference, operation), **fit)
    return BalancedAlterer(variant, reference, operation, seed, balance)


def fit_balance(alterer: BalancedAlterer, rounds: int = 16, captions: int = 12_000) -> Balance:
    """Signs of words and rates of swaps with which alterations of reference captions show least.

    Args:
        alterer: one that is not fitted.
        rounds: of the signs.
        captions: how many reference captions are altered, about.
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


def _hash(key: Sequence[Any]) -> int:
    text = json.dumps(list(key), ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
