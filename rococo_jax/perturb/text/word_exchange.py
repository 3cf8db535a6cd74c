"""Words that a balanced alteration may exchange: slots of nouns and attributes, and the frequency of each new word.

A slot is a place of a caption with the words that fit it: the nouns of a concept in one number, or one group of
`ATTRIBUTES`. Words are drawn as often as reference captions have them, so that a word comes into captions about as
often as it goes out of them; what is left is corrected where one of them is chosen (`balance`).
"""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.lexicon import Lexicon, Noun
from rococo_jax.perturb.text.ngrams import NgramModel, Words, count_ngrams, words_of
from rococo_jax.perturb.text.words import article_of, plain
from rococo_jax.storage import hash_json

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

SlotKey = tuple[str, bool]


@dataclass(frozen=True)
class Slot:
    """A place of a caption where another word could stand: a noun of a concept, or an attribute (None) of a group."""

    index: int
    concept: str
    plural: bool
    noun: Noun | None

    @property
    def key(self) -> SlotKey:
        """Key of the words that fit."""
        return self.concept, self.plural


def find_slots(words: Sequence[str], lexicon: Lexicon, attributes: bool = True) -> tuple[Slot, ...]:
    """The places of a caption where words could be exchanged."""
    slots = []
    for index, word in enumerate(words):
        noun = lexicon.find(word)
        if noun is not None:
            slots.append(Slot(index, noun.concept, lexicon.is_plural(words, index), noun))
        elif attributes and word in _GROUP_OF:
            slots.append(Slot(index, _GROUP_OF[word], False, None))
    return tuple(slots)


def alters(old: str, new: str, lexicon: Lexicon) -> bool:
    """Whether another word in a place changes the meaning: it is neither a synonym nor more general."""
    nouns = lexicon.find(old), lexicon.find(new)
    if all(nouns):
        return lexicon.alters(*nouns)
    return old != new and not any(old in same and new in same for same in _SAME)


def fits_article(words: Sequence[str], index: int, new: str) -> bool:
    """Whether the word fits an `a` or `an` right before it."""
    return index == 0 or words[index - 1] not in ("a", "an") or _article(new) == words[index - 1]


@functools.cache
def _article(word: str) -> str:
    return article_of(word)


class ReferenceCaptions:
    """Captions by image that say what is usual: their n-grams, and by slot the words with how often they come."""

    def __init__(self, images: Iterable[CaptionedImage], lexicon: Lexicon):
        self.images = tuple(images)
        self.captions = tuple(caption for image in self.images for caption in image.captions)
        if not self.captions:
            raise InputError("reference captions", "captions", "none", "captions of other images, as of a training set")
        self.lexicon = lexicon
        self._times: Counter = Counter(self.captions)
        texts = [words_of(caption) for caption in self.captions]
        self.ngrams = NgramModel(texts)
        counts_by_slot: dict[SlotKey, Counter] = {}
        for words in texts:
            for slot in find_slots(words, lexicon):
                counts_by_slot.setdefault(slot.key, Counter())[words[slot.index]] += 1
        self.weights: dict[SlotKey, dict[str, float]] = {
            key: {word: float(count) for word, count in sorted(words.items())}
            for key, words in sorted(counts_by_slot.items())
        }

    def hash(self) -> str:
        """SHA-256 of what decides a replacement."""
        return hash_json({"captions": self.captions, "lexicon": self.lexicon.to_json()})

    def counts_of(self, captions: Iterable[str]) -> Mapping[Words, int]:
        """The n-grams of those of the captions that are reference captions: an image's own must not speak for it."""
        return count_ngrams(words_of(text) for text in dict.fromkeys(captions) for _ in range(self._times[text]))


class WordDraws:
    """Draws the words of slots.

    Args:
        weights: by slot the words and how often reference captions have them.
        variant: same_concept draws from the slot's own words, diff_concept nouns of the same number from other
            concepts, rand_voca from both; attributes stay in their group.
    """

    def __init__(self, weights: Mapping[SlotKey, Mapping[str, float]], variant: str):
        self.weights, self.variant = weights, variant
        self._tables: dict[SlotKey, tuple[list[str], np.ndarray]] = {}

    def draw(self, slot: Slot, draws: np.ndarray) -> list[str]:
        """One word for each uniform number from 0 to 1; none where no word fits."""
        words, cumulative = self._table(slot)
        if not words:
            return []
        places = np.searchsorted(cumulative, draws * cumulative[-1], side="right")
        return [words[min(place, len(words) - 1)] for place in places]

    def _table(self, slot: Slot) -> tuple[list[str], np.ndarray]:
        if slot.key not in self._tables:
            own = slot.noun is None or self.variant == "same_concept"
            keys = [slot.key] if own or self.variant == "rand_voca" else []
            if not own:
                keys += [
                    key for key in self.weights if key[0] not in (slot.concept, *ATTRIBUTES) and key[1] == slot.plural
                ]
            weights = {word: weight for key in keys for word, weight in self.weights.get(key, {}).items()}
            self._tables[slot.key] = list(weights), np.cumsum(list(weights.values()))
        return self._tables[slot.key]


def is_new(word: str, present: frozenset[str], lexicon: Lexicon) -> bool:
    """Whether none of the captions has the word, in either number."""
    noun = lexicon.find(word)
    forms = (word,) if noun is None else (noun.singular, noun.plural)
    return all(form is None or plain(form) not in present for form in forms)
