"""Replace one noun of a caption.

    candidates       the caption's words that are nouns of the lexicon
    selected word    the candidate of lowest (highest, random) embedding influence that can be replaced
    replacement      same_concept   a noun of the same concept group
                     diff_concept   a noun of another group
                     rand_voca      a word of the encoder's vocabulary
                     danger         criminal, minefield, committing crime or weapon, for a person, place, action, thing

The four rules are those of Park et al. (arXiv 2304.10727). The new word has the number and the case of the old one. No
original caption of the image contains it in singular or plural, and it is neither a synonym of the old word nor a more
general word that would still be true. Nothing else in the caption changes.

Every random choice is a hash of (seed, variant, caption, word, draw). An altered caption therefore depends only on the
seed, the caption, the other captions of its image and the influence of its words; not on order, batch or machine.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import grain.python as grain
import numpy as np
import regex

from rococo_jax.data.tokenizers import WORD_MARK, Tokenizer
from rococo_jax.errors import InputError, require_one_of
from rococo_jax.perturb.text import VARIANTS, hash_key
from rococo_jax.perturb.text.lexicon import Lexicon, Noun
from rococo_jax.perturb.text.words import Word, article_of, caption_words, like_case, plain, replace_word, split_words

# Kind of noun -> replacement in the variant `danger`.
DANGER = {"person": "criminal", "place": "minefield", "action": "committing crime", "thing": "weapon"}
# Influences are rounded before comparison, and ties go to the first word, because last bits differ between machines.
_DECIMALS = 5
_WHOLE_WORD = regex.compile(r"[a-z]{3,}")
_CLIP_END = "</w>"


@dataclass(frozen=True)
class Candidate:
    """A replaceable word: its index among the caption's words, its noun, and whether it is a plural."""

    index: int
    noun: Noun
    plural: bool


@dataclass(frozen=True)
class Alteration:
    """A caption with one word replaced.

    Attributes:
        caption: the altered caption.
        word_index: index of the word (of `split_words`).
        old, new: the word and its replacement, as written.
        concept: the old word's concept.
        influence: the old word's embedding influence, None if it was not computed.
    """

    caption: str
    word_index: int
    old: str
    new: str
    concept: str
    influence: float | None

    def record(self) -> dict[str, Any]:
        """Return the entry of an annotation's `changes`."""
        names = ("word_index", "old", "new", "concept", "influence")
        return {name: getattr(self, name) for name in names}


@runtime_checkable
class Alterer(Protocol):
    """Alter captions by one rule: nouns (`CaptionAlterer`) or kinds (`KindAlterer`)."""

    def alter(
        self,
        caption: str,
        originals: Iterable[str],
        influence: Sequence[float] | np.ndarray | None = None,
        count: int = 1,
        draw: int = 0,
    ) -> Sequence[Alteration]:
        """Return up to `count` distinct alterations of a caption; none if the rule finds nothing to alter.

        Args:
            caption: the caption.
            originals: all captions of its image.
            influence: influence of every word of the caption, for rules that select by it.
            count: number of alterations.
            draw: another number gives other alterations (training uses a new one in each epoch).
        """
        ...


def find_candidates(words: Sequence[Word], lexicon: Lexicon) -> tuple[Candidate, ...]:
    """Return the words of a caption that are nouns of the lexicon."""
    texts = [word.text for word in words]
    nouns = ((index, lexicon.find(text)) for index, text in enumerate(texts))
    return tuple(Candidate(index, noun, lexicon.is_plural(texts, index)) for index, noun in nouns if noun is not None)


@dataclass(frozen=True)
class CaptionAlterer:
    """Alter captions by one of the rules; the new word has the case of the old one.

    Attributes:
        variant: same_concept, diff_concept, rand_voca or danger.
        lexicon: the concept groups.
        seed: seed of the choice of replacements, and of the word if `select` is random.
        select: select the word of lowest, highest or random influence.
        vocabulary: words of rand_voca.
        fit_article: allow only words that fit an `a` or `an` right before the noun.

    Raises:
        InputError: an unknown choice, or rand_voca without a vocabulary.
    """

    variant: str
    lexicon: Lexicon
    seed: int = 0
    select: str = "lowest"
    vocabulary: Sequence[str] = ()
    fit_article: bool = False

    def __post_init__(self):
        require_one_of("altered captions", "variant", self.variant, VARIANTS)
        require_one_of("altered captions", "select", self.select, ("lowest", "highest", "random"))
        if self.variant == "rand_voca" and not self.vocabulary:
            raise InputError("altered captions", "vocabulary", "no words", "a tokenizer's words, for variant rand_voca")

    def alter(
        self,
        caption: str,
        originals: Iterable[str],
        influence: Sequence[float] | np.ndarray | None = None,
        count: int = 1,
        draw: int = 0,
    ) -> list[Alteration]:
        """Replace the selected word; after its last replacement, replace the word with the next influence.

        The influence is needed unless `select` is random.
        """
        words = split_words(caption)
        candidates = find_candidates(words, self.lexicon)
        if not candidates:
            return []
        present = caption_words(originals)
        ranked = self._ranked(candidates, caption, influence, draw)
        by_word = (self._alterations_of(each, caption, words, present, influence, draw) for each in ranked)
        return list(itertools.islice(itertools.chain.from_iterable(by_word), count))

    def all_replacements(self, caption: str, originals: Iterable[str]) -> Iterator[tuple[Word, list[str]]]:
        """Yield every word of a caption that may be replaced, with all of its replacements in alphabetical order."""
        words, present = split_words(caption), caption_words(originals)
        for candidate in find_candidates(words, self.lexicon):
            yield words[candidate.index], sorted(self._replacements(candidate, caption, present, 0))

    def _alterations_of(
        self, old: Candidate, caption: str, words: Sequence[Word], present: frozenset[str], influence, draw: int
    ) -> Iterator[Alteration]:
        """Yield the alterations of one word, in the order that the seed draws."""
        value = None if influence is None else float(influence[old.index])
        article = _article_before(caption, words, old.index) if self.fit_article else None
        for new in self._replacements(old, caption, present, draw):
            if article is None or article_of(new) == article:
                yield self._write(caption, words[old.index], old, new, value)

    def _ranked(self, candidates: Sequence[Candidate], caption: str, influence, draw: int) -> list[Candidate]:
        if self.select == "random":
            return list(_shuffled(candidates, [self.seed, "word", caption, draw]))
        if influence is None:
            wanted = f"the influence of the words, to select the {self.select}"
            raise InputError("altered captions", "influence", "none", wanted)
        sign = 1 if self.select == "lowest" else -1
        return sorted(candidates, key=lambda each: (sign * round(float(influence[each.index]), _DECIMALS), each.index))

    def _replacements(self, old: Candidate, caption: str, present: frozenset[str], draw: int) -> Iterator[str]:
        key = [self.seed, self.variant, caption, old.index, draw]
        if self.variant == "danger":
            old_kind = self.lexicon.kind(old.noun)
            ordered = [DANGER[old_kind], *(word for kind, word in DANGER.items() if kind != old_kind)]
            yield from (word for word in ordered if present.isdisjoint(word.split()))
        elif self.variant == "rand_voca":
            forms = {plain(form) for form in (old.noun.singular, old.noun.plural) if form is not None}
            for word in _shuffled(self.vocabulary, key):
                if plain(word) not in present and plain(word) not in forms:
                    yield word
        else:
            is_same_concept = self.variant == "same_concept"
            for word, noun in _shuffled(_forms(self.lexicon, old.noun.concept, is_same_concept, old.plural), key):
                if self.lexicon.alters(old.noun, noun) and noun.is_absent(present):
                    yield word

    def _write(self, caption: str, word: Word, old: Candidate, new: str, influence: float | None) -> Alteration:
        value = None if influence is None or math.isnan(influence) else round(influence, _DECIMALS + 2)
        altered, new = replace_word(caption, word, new), like_case(word.text, new)
        return Alteration(altered, old.index, word.text, new, old.noun.concept, value)


@functools.lru_cache(maxsize=1024)
def _forms(lexicon: Lexicon, concept: str, is_same_concept: bool, plural: bool) -> list[tuple[str, Noun]]:
    """Return the singulars or plurals with their nouns, of a concept group or of all others."""
    nouns = [noun for noun in lexicon.nouns if (noun.concept == concept) == is_same_concept]
    return list({form: noun for noun in nouns if (form := noun.form(plural)) is not None}.items())


@runtime_checkable
class InfluenceLookup(Protocol):
    """Maps a caption to the influence of its words: a dictionary, or an `InfluenceTable`."""

    def __getitem__(self, caption: str) -> np.ndarray: ...


class AlterCaptions(grain.RandomMapTransform):
    """Grain transform that adds `count` altered captions to a training sample, without running a model.

    A sample is a mapping with `caption` and, if its image has several, `captions`. The transform adds
    `altered_captions`, a tuple of `count` strings, and `altered_valid` (count,), which is False if there was nothing to
    alter and the string is empty. The alterers take turns, starting with a random one. Grain gives each sample its own
    generator, so that a sample gets other altered captions in every epoch, and the same ones in a resumed run.

    Args:
        alterers: one for each variant.
        influence: influence of the words of each caption (`read_influence_table`); None if the alterers select at
            random.
        count: altered captions of a sample (K).
    """

    def __init__(self, alterers: Sequence[Alterer], influence: InfluenceLookup | None = None, count: int = 1):
        self.alterers, self.influence, self.count = tuple(alterers), influence, count

    def random_map(self, sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the sample with its altered captions, distinct as far as possible.

        Raises InputError if the influence table does not contain the caption.
        """
        caption = sample["caption"]
        originals = sample.get("captions", (caption,))
        influence = None if self.influence is None else influence_of_caption(self.influence, caption)
        draw = int(rng.integers(1 << 31))
        texts_by_alterer, first = [], draw % len(self.alterers)
        # The first alterer is random, so that all of them are used over the samples if there are more than `count`.
        rotated = [*self.alterers[first:], *self.alterers[:first]]
        for position, alterer in enumerate(rotated[: self.count]):
            share = -(-(self.count - position) // len(self.alterers))
            alterations = alterer.alter(caption, originals, influence, count=share, draw=draw)
            texts_by_alterer.append([each.caption for each in alterations])
        turns = itertools.zip_longest(*texts_by_alterer)
        distinct = list(dict.fromkeys(text for turn in turns for text in turn if text is not None))
        repeated = [distinct[index % len(distinct)] if distinct else "" for index in range(self.count)]
        return {**sample, "altered_captions": tuple(repeated), "altered_valid": np.full(self.count, bool(distinct))}


def influence_of_caption(influence: InfluenceLookup, caption: str) -> np.ndarray:
    """Return the influence of the words of a caption. Raises InputError if the table does not contain it."""
    try:
        return influence[caption]
    except KeyError:
        wanted = "a table of the training captions"
        raise InputError("influence table", "captions", f"no line for {caption!r}", wanted) from None


def vocabulary_words(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the words of variant rand_voca: tokens that are words of at least three letters a to z, sorted.

    WordPiece marks tokens that continue a word ("##ing"), CLIP's byte pairs those that end one ("dog</w>"), and
    sentencepiece those that start one ("▁dog"; whether the word ends there is unknown).

    Raises InputError if the vocabulary has no such word.
    """
    tokens = tokenizer.rust.get_vocab()
    if any(token.endswith(_CLIP_END) for token in tokens):
        tokens_of_words = (token.removesuffix(_CLIP_END) for token in tokens if token.endswith(_CLIP_END))
    elif any(token.startswith(WORD_MARK) for token in tokens):
        tokens_of_words = (token.removeprefix(WORD_MARK) for token in tokens if token.startswith(WORD_MARK))
    else:
        tokens_of_words = iter(tokens)
    words = tuple(sorted({word for word in tokens_of_words if _WHOLE_WORD.fullmatch(word)}))
    if not words:
        raise InputError("tokenizer", "vocabulary", "no whole words", "a vocabulary with words, for variant rand_voca")
    return words


def _article_before(caption: str, words: Sequence[Word], index: int) -> str | None:
    """Return the `a` or `an` right before word `index`, or None."""
    previous = words[index - 1] if index else None
    if previous is None or caption[previous.end : words[index].start].strip():
        return None
    return plain(previous.text) if plain(previous.text) in ("a", "an") else None


def _shuffled(items: Sequence, key: Sequence[Any]) -> Iterator:
    """Yield the items in an order that only `key` decides, by a lazy Fisher-Yates shuffle."""
    swapped: dict[int, int] = {}
    for position in range(len(items)):
        other = position + hash_key([*key, position], size=16) % (len(items) - position)
        index = swapped.get(other, other)
        swapped[other] = swapped.get(position, position)
        yield items[index]
