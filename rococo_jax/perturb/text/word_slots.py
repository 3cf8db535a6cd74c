"""Find the slots of a caption: its nouns and attributes, which other words could replace.

The words that fit a slot are the nouns of a concept in singular or plural, or one group of `ATTRIBUTES`.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rococo_jax.perturb.text.lexicon import Lexicon, Noun
from rococo_jax.perturb.text.replacement import find_candidates
from rococo_jax.perturb.text.words import plain, split_words

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
