"""Slots of captions: places of nouns and attributes where another word could stand.

The words that fit a slot are the nouns of a concept in one number, or one group of `ATTRIBUTES`.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rococo_jax.perturb.text.lexicon import Lexicon, Noun
from rococo_jax.perturb.text.replacement import find_candidates
from rococo_jax.perturb.text.words import plain, split_words

# Words of captions that describe a thing or a scene. Of each group one word excludes the others.
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
# Words of a group that say the same.
_SAME = [{"gray", "grey"}, {"large", "big", "huge"}, {"small", "tiny", "little"}, {"old", "older", "elderly"},
         {"near", "beside"}, {"under", "below"}, {"holding", "carrying"}]  # fmt: skip
_GROUP_OF = {word: name for name, words in ATTRIBUTES.items() for word in words}


@dataclass(frozen=True)
class Slot:
    """A place of a caption where another word could stand: a noun of a concept, or an attribute (None) of a group."""

    index: int
    concept: str
    plural: bool
    noun: Noun | None


def find_slots(words: Sequence[str], lexicon: Lexicon) -> tuple[Slot, ...]:
    """The places of a caption where words could be exchanged."""
    slots = []
    for index, word in enumerate(words):
        noun = lexicon.find(word)
        if noun is not None:
            slots.append(Slot(index, noun.concept, lexicon.is_plural(words, index), noun))
        elif word in _GROUP_OF:
            slots.append(Slot(index, _GROUP_OF[word], False, None))
    return tuple(slots)


def alters(old: str, new: str, lexicon: Lexicon) -> bool:
    """Whether another word in a place changes the meaning: it is neither a synonym nor more general."""
    nouns = lexicon.find(old), lexicon.find(new)
    if all(nouns):
        return lexicon.alters(*nouns)
    return old != new and not any(old in same and new in same for same in _SAME)


def is_new(word: str, present: frozenset[str], lexicon: Lexicon) -> bool:
    """Return whether none of the captions says it: the word in either number, a synonym, or a special case of it.

    >>> from rococo_jax.perturb.text.lexicon import shipped_lexicon
    >>> [is_new(word, words_of(["a boy on a sofa"]), shipped_lexicon()) for word in ("kid", "couch", "boys", "dog")]
    [False, False, False, True]
    """
    noun = lexicon.find(word)
    if noun is None:
        synonyms = {plain(word)}.union(*(same for same in _SAME if word in same))
        return present.isdisjoint(synonyms)
    forms = [plain(form) for form in (noun.singular, noun.plural) if form is not None]
    return present.isdisjoint(forms) and all(lexicon.alters(old, noun) for old in _nouns_of(present, lexicon))


@functools.lru_cache(maxsize=256)
def _nouns_of(present: frozenset[str], lexicon: Lexicon) -> tuple[Noun, ...]:
    """Return the nouns among words; one image's words are looked up for many candidates in turn."""
    return tuple(noun for word in sorted(present) if (noun := lexicon.find(word)) is not None)


def words_of(captions: Sequence[str]) -> frozenset[str]:
    """All words of the captions, as `is_new` takes them."""
    return frozenset(plain(word.text) for caption in captions for word in split_words(caption))


def named_objects(captions: Sequence[str], lexicon: Lexicon) -> Counter[str]:
    """The singular nouns of the captions, no actions, and how many captions have each."""
    objects = Counter[str]()
    for caption in captions:
        nouns = (each.noun for each in find_candidates(split_words(caption), lexicon))
        objects.update({noun.singular for noun in nouns if noun.singular and lexicon.kind(noun) != "action"})
    return objects
