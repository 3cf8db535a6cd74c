"""Alter attributes, relations, counts, order, negations and additions of captions [ours].

    attribute   "a red car" -> "a blue car"
    relation    "a cat on a car" -> "a cat under a car"; "a man riding a horse" -> "a man feeding a horse"
    count       "two dogs" -> "four dogs", "a dog" -> "three dogs"
    order       "a dog behind a car" -> "a car behind a dog"; "a red car and a white dog" -> "a white car and a red dog"
    negation    "a man with a hat" -> "a man without a hat", "is sitting" -> "is not sitting"
    addition    "a dog" -> "a brown dog", "a dog and a cat"

The rules use only words and the tables below: no benchmark and no reference captions. No caption of the image contains
a new word, a synonym or a more special word. A span of the caption and one of its alterations are drawn at random from
(seed, kind, caption, draw).
"""

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rococo_jax.errors import require_one_of
from rococo_jax.perturb.text import hash_key
from rococo_jax.perturb.text.lexicon import Lexicon, Noun
from rococo_jax.perturb.text.replacement import Alteration, find_candidates
from rococo_jax.perturb.text.words import Word, article_of, caption_words, like_case, plain, replace_span, split_words

# Words that describe a thing or a scene. The words of a group exclude each other.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "colour": ("red", "blue", "green", "yellow", "white", "black", "brown", "gray", "grey", "pink", "purple"),
    "size": ("large", "big", "small", "tiny", "huge", "little"),
    "age": ("young", "old", "older", "elderly"),
    "number": ("two", "three", "four", "five", "six"),
    "material": ("wooden", "metal", "plastic", "glass", "brick", "stone", "leather"),
    "weather": ("sunny", "cloudy", "rainy", "snowy", "foggy"),
    "light": ("dark", "bright"),
    "state": ("open", "closed", "empty", "full"),
    "place": ("under", "behind", "above", "near", "inside", "beside", "below", "outside"),
    "pose": ("sitting", "standing", "walking", "running", "jumping", "sleeping", "kneeling", "lying"),
    "handling": ("holding", "wearing", "carrying", "throwing", "catching", "kicking", "pushing", "pulling"),
}
# Synonyms within a group.
_SYNONYMS = [{"gray", "grey"}, {"large", "big", "huge"}, {"small", "tiny", "little"}, {"old", "older", "elderly"},
         {"near", "beside"}, {"under", "below"}, {"holding", "carrying"}]  # fmt: skip
_GROUP_OF = {word: name for name, words in ATTRIBUTES.items() for word in words}
KINDS = ("attribute", "relation", "count", "order", "negation", "addition")
_ADJECTIVES = ("colour", "size", "age", "material", "weather", "light", "state")
_ADDED_ADJECTIVES = tuple(word for group in ("colour", "size", "age", "material") for word in ATTRIBUTES[group])
# The words of a group exclude each other.
_RELATIONS = (
    ("on", "under", "above", "behind", "beside", "inside", "below", "outside"),
    ("in", "behind", "beside", "above", "outside"),
    ("near", "inside", "above", "under"),
    ("sitting", "standing", "walking", "running", "jumping", "sleeping", "kneeling", "lying"),
    ("sits", "stands", "walks", "runs", "jumps", "sleeps", "kneels"),
    ("riding", "feeding", "chasing", "washing", "petting", "pulling", "pushing", "leading"),
    ("holding", "throwing", "catching", "kicking", "dropping", "washing", "hiding"),
    ("wearing", "holding", "folding", "washing"),
    ("eating", "holding", "cooking", "cutting", "throwing", "washing"),
    ("holds", "throws", "catches", "kicks", "drops", "washes", "hides"),
    ("rides", "feeds", "chases", "washes", "pets", "pulls", "pushes"),
)
_COUNTS = ("two", "three", "four", "five", "six")
ADDED_OBJECTS = tuple(
    """
dog cat horse bird cow bicycle car bus truck boat chair table bed lamp clock book phone laptop ball kite umbrella hat
backpack suitcase bottle cup bowl plate knife spoon banana apple orange pizza sandwich cake flower tree bench sign
ladder basket box towel pillow mirror guitar camera bucket fence tent
""".split()
)
_NEGATED = {"is": "is not", "are": "are not", "with": "without", "has": "has no", "have": "have no"}
_ARTICLES = ("a", "an")


@dataclass(frozen=True)
class Slot:
    """A word of a caption that another word could replace: a noun of a concept, or an attribute of a group.

    Attributes:
        index: index of the word in the caption.
        concept: concept of the noun, or group of the attribute.
        plural: whether the noun is a plural.
        noun: the noun; None for an attribute.
    """

    index: int
    concept: str
    plural: bool
    noun: Noun | None


def find_slots(words: Sequence[str], lexicon: Lexicon) -> tuple[Slot, ...]:
    """Return the slots of a caption, given its words."""
    slots = []
    for index, word in enumerate(words):
        noun = lexicon.find(word)
        if noun is not None:
            slots.append(Slot(index, noun.concept, lexicon.is_plural(words, index), noun))
        elif word in _GROUP_OF:
            slots.append(Slot(index, _GROUP_OF[word], False, None))
    return tuple(slots)


def alters(old: str, new: str, lexicon: Lexicon) -> bool:
    """Return whether `new` in place of `old` changes the meaning: it is neither a synonym nor more general."""
    old_noun, new_noun = lexicon.find(old), lexicon.find(new)
    if old_noun and new_noun:
        return lexicon.alters(old_noun, new_noun)
    return old != new and not any(old in synonyms and new in synonyms for synonyms in _SYNONYMS)


def is_new(word: str, present: frozenset[str], lexicon: Lexicon) -> bool:
    """Return whether no caption contains the word in singular or plural, a synonym, or a more special word.

    Args:
        word: the word.
        present: all words of the captions (`caption_words`).
        lexicon: knows plurals, synonyms and special cases.

    >>> from rococo_jax.perturb.text.lexicon import shipped_lexicon
    >>> from rococo_jax.perturb.text.words import caption_words
    >>> present, lexicon = caption_words(["a boy on a sofa"]), shipped_lexicon()
    >>> [is_new(word, present, lexicon) for word in ("kid", "couch", "boys", "dog")]
    [False, False, False, True]
    """
    noun = lexicon.find(word)
    if noun is None:
        same_meaning = {plain(word)}.union(*(synonyms for synonyms in _SYNONYMS if word in synonyms))
        return present.isdisjoint(same_meaning)
    return noun.is_absent(present) and noun.name not in _names_without_effect(present, lexicon)


@functools.lru_cache(maxsize=256)
def _names_without_effect(present: frozenset[str], lexicon: Lexicon) -> frozenset[str]:
    """Return the names of nouns that mean the same as a present word or are more general."""
    nouns = (noun for word in present if (noun := lexicon.find(word)) is not None)
    return frozenset[str]().union(*map(lexicon.names_without_effect, nouns))


def named_objects(captions: Sequence[str], lexicon: Lexicon) -> Counter[str]:
    """Return the singular nouns of the captions, without actions, and the number of captions with each."""
    objects = Counter[str]()
    for caption in captions:
        nouns = (each.noun for each in find_candidates(split_words(caption), lexicon))
        objects.update({noun.singular for noun in nouns if noun.singular and lexicon.kind(noun) != "action"})
    return objects


class Span(NamedTuple):
    """A span of a caption, and the texts that may replace it."""

    start: int
    end: int
    texts: list[str]


@dataclass(frozen=True)
class KindAlterer:
    """Alter captions by one kind (an `Alterer`). Raises InputError for an unknown kind."""

    kind: str
    lexicon: Lexicon
    seed: int = 0

    def __post_init__(self):
        require_one_of("altered captions", "kind", self.kind, KINDS)

    def alter(
        self, caption: str, originals: Iterable[str], influence: Any = None, count: int = 1, draw: int = 0
    ) -> list[Alteration]:
        """Return up to `count` alterations, one of every span before the second one of any; `influence` is not used.

        >>> from rococo_jax.perturb.text.lexicon import shipped_lexicon
        >>> alterer = KindAlterer("order", shipped_lexicon())
        >>> [each.caption for each in alterer.alter("A dog behind a car", ["A dog behind a car"])]
        ['A car behind a dog']
        """
        words, spans = split_words(caption), self.spans(caption, originals)
        rng = np.random.default_rng(hash_key([self.seed, self.kind, caption, draw]))
        alterations: dict[str, Alteration] = {}
        for span, new in _shuffle(spans, rng):
            old = caption[span.start : span.end]
            altered = replace_span(caption, span.start, span.end, like_case(old, new) if span.start == 0 else new)
            index = next((number for number, word in enumerate(words) if word.end > span.start), len(words) - 1)
            if altered != caption:
                alterations.setdefault(altered, Alteration(altered, index, old, new, self.kind, None))
            if len(alterations) == count:
                break
        return list(alterations.values())

    def spans(self, caption: str, originals: Iterable[str]) -> list[Span]:
        """Return every span of a caption that may be replaced, with all of its texts."""
        present = caption_words((caption, *originals))
        spans = _FIND_SPANS[self.kind](caption, split_words(caption), present, self.lexicon)
        return [span for span in spans if span.texts]


def _shuffle(spans: Sequence[Span], rng: np.random.Generator) -> Iterator[tuple[Span, str]]:
    """Yield each span with each of its texts in random order, one text of every span before the second of any."""
    shuffled = []
    for index in rng.permutation(len(spans)):
        span = spans[index]
        shuffled.append([(span, span.texts[number]) for number in rng.permutation(len(span.texts))])
    for turn in itertools.zip_longest(*shuffled):
        yield from (pair for pair in turn if pair is not None)


def _attributes(caption: str, words: Sequence[Word], present: frozenset[str], lexicon: Lexicon) -> Iterator[Span]:
    for word, slot in _slots(words, lexicon):
        if slot.noun is None and slot.concept in _ADJECTIVES:
            texts = _alternatives(plain(word.text), ATTRIBUTES[slot.concept], present, lexicon)
            yield Span(word.start, word.end, texts)


def _relations(caption: str, words: Sequence[Word], present: frozenset[str], lexicon: Lexicon) -> Iterator[Span]:
    for index, word in enumerate(words):
        old = plain(word.text)
        if index + 1 < len(words) and plain(words[index + 1].text) in ("front", "top", "back"):
            continue
        group = next((group for group in _RELATIONS if group[0] == old), None)
        group = group or next((group for group in _RELATIONS if old in group), ())
        yield Span(word.start, word.end, _alternatives(old, group, present, lexicon))


def _counts(caption: str, words: Sequence[Word], present: frozenset[str], lexicon: Lexicon) -> Iterator[Span]:
    for word in words:
        if plain(word.text) in _COUNTS:
            yield Span(word.start, word.end, _alternatives(plain(word.text), _COUNTS, present, lexicon))
    for article, word in _single_nouns(words, lexicon):
        plural = lexicon.find(word.text).plural
        numbers = [number for number in _COUNTS[:3] if number not in present]
        yield Span(article.start, word.end, [f"{number} {plural}" for number in numbers if plural])


def _orders(caption: str, words: Sequence[Word], present: frozenset[str], lexicon: Lexicon) -> Iterator[Span]:
    for (first, first_slot), (second, second_slot) in itertools.combinations(list(_slots(words, lexicon)), 2):
        if not _can_swap(caption, words, (first, first_slot), (second, second_slot), lexicon):
            continue
        first_text, second_text = plain(first.text), plain(second.text)
        if alters(first_text, second_text, lexicon):
            offset, span = first.start, caption[first.start : second.end]
            swapped = replace_span(span, second.start - offset, second.end - offset, first_text)
            swapped = like_case(first.text, second_text) + swapped[first.end - offset :]
            yield Span(first.start, second.end, [swapped])


def _can_swap(
    caption: str,
    words: Sequence[Word],
    first: tuple[Word, Slot],
    second: tuple[Word, Slot],
    lexicon: Lexicon,
) -> bool:
    """Return whether swapping two words changes the meaning: two nouns, or adjectives of two different nouns.

    "A man and a woman" and "chairs, tables" mean the same in any order; their adjectives do not.
    """
    (first_word, first_slot), (second_word, second_slot) = first, second
    if first_slot.noun is not None and second_slot.noun is not None:
        between = caption[first_word.end : second_word.start]
        is_list = "," in between or plain(between.split()[0] if between.split() else "") == "and"
        return first_slot.plural == second_slot.plural and not is_list
    are_adjectives = first_slot.noun is None and second_slot.noun is None
    are_adjectives = are_adjectives and {first_slot.concept, second_slot.concept} <= set(_ADJECTIVES)
    return are_adjectives and any(lexicon.find(word.text) for word in words[first_slot.index + 1 : second_slot.index])


def _negations(caption: str, words: Sequence[Word], present: frozenset[str], lexicon: Lexicon) -> Iterator[Span]:
    if present & {"no", "not", "without"}:
        return
    for word, next_word in itertools.pairwise(words):
        old = plain(word.text)
        has_article = plain(next_word.text) in (*_ARTICLES, "some")
        if old in ("with", "is", "are") and (old != "with" or has_article):
            yield Span(word.start, word.end, [_NEGATED[old]])
        if old in ("has", "have") and has_article:
            yield Span(word.start, next_word.end, [_NEGATED[old]])
    for word in words[1:]:
        if plain(word.text) in _ACTIONS:
            yield Span(word.start, word.start, ["not "])
    for article, _ in _single_nouns(words, lexicon):
        yield Span(article.start, article.end, ["no"])


def _additions(caption: str, words: Sequence[Word], present: frozenset[str], lexicon: Lexicon) -> Iterator[Span]:
    adjectives = [f"{adjective} " for adjective in _ADDED_ADJECTIVES if is_new(adjective, present, lexicon)]
    objects = [f" and {article_of(noun)} {noun}" for noun in ADDED_OBJECTS if is_new(noun, present, lexicon)]
    for _, word in _single_nouns(words, lexicon):
        yield Span(word.start, word.start, adjectives)
        yield Span(word.end, word.end, objects)


_FIND_SPANS = {"attribute": _attributes, "relation": _relations, "count": _counts, "order": _orders,
         "negation": _negations, "addition": _additions}  # fmt: skip
_ACTIONS = frozenset(word for group in _RELATIONS for word in group if word.endswith("ing"))


def _slots(words: Sequence[Word], lexicon: Lexicon) -> Iterator[tuple[Word, Slot]]:
    for slot in find_slots([plain(word.text) for word in words], lexicon):
        yield words[slot.index], slot


def _single_nouns(words: Sequence[Word], lexicon: Lexicon) -> Iterator[tuple[Word, Word]]:
    """Yield each noun right after "a" or "an" with its article, without first parts of compounds ("a baseball bat")."""
    for index, (article, word) in enumerate(itertools.pairwise(words)):
        next_word = words[index + 2].text if index + 2 < len(words) else ""
        is_compound = bool(lexicon.find(next_word or "the"))
        if plain(article.text) in _ARTICLES and lexicon.find(word.text) and not is_compound:
            yield article, word


def _alternatives(old: str, group: Sequence[str], present: frozenset[str], lexicon: Lexicon) -> list[str]:
    return [new for new in group if alters(old, new, lexicon) and is_new(new, present, lexicon)]
