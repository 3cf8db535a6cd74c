"""Alterations of other kinds than a noun: attributes, relations, counts, order, negation, additions [ours].

    attribute   "a red car" -> "a blue car"
    relation    "a cat on a car" -> "a cat under a car"; "a man riding a horse" -> "a man feeding a horse"
    count       "two dogs" -> "four dogs", "a dog" -> "three dogs"
    order       "a dog behind a car" -> "a car behind a dog"; "a red car and a white dog" -> "a white car and a red dog"
    negation    "a man with a hat" -> "a man without a hat", "is sitting" -> "is not sitting"
    addition    "a dog" -> "a brown dog", "a dog and a cat"

The rules read words and the tables below, nothing else: no benchmark and no reference captions. None of the image's
captions has a new word, a synonym or a special case of it. One place of the caption is drawn, and one of the
alterations there, from (seed, kind, caption, draw) alone.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rococo_jax.errors import InputError
from rococo_jax.perturb.text import hash_key
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.replacement import Alteration
from rococo_jax.perturb.text.word_exchange import ATTRIBUTES, Slot, alters, find_slots, is_new
from rococo_jax.perturb.text.words import Word, article_of, like_case, plain, replace_span, split_words

KINDS = ("attribute", "relation", "count", "order", "negation", "addition")
_ADJECTIVES = ("colour", "size", "age", "material", "weather", "light", "state")
_ADDED = ("colour", "size", "age", "material")
# Of each group a word excludes the others.
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
_OBJECTS = """
dog cat horse bird cow bicycle car bus truck boat chair table bed lamp clock book phone laptop ball kite umbrella hat
backpack suitcase bottle cup bowl plate knife spoon banana apple orange pizza sandwich cake flower tree bench sign
ladder basket box towel pillow mirror guitar camera bucket fence tent
""".split()
_NEGATED = {"is": "is not", "are": "are not", "with": "without", "has": "has no", "have": "have no"}
_ARTICLES = ("a", "an")

# Start and end of a span of the caption, and the texts that may stand there.
_Place = tuple[int, int, list[str]]


@dataclass(frozen=True)
class KindAlterer:
    """Alter captions by one kind (an `Alterer`). Raises InputError: an unknown kind."""

    kind: str
    lexicon: Lexicon
    seed: int = 0

    def __post_init__(self):
        if self.kind not in KINDS:
            raise InputError("altered captions", "kind", repr(self.kind), f"one of {', '.join(KINDS)}")

    def alter(
        self, caption: str, originals: Iterable[str], influence: Any = None, count: int = 1, draw: int = 0
    ) -> list[Alteration]:
        """Alter one of every place before the second of any. `influence` is not read.

        >>> from rococo_jax.perturb.text.lexicon import shipped_lexicon
        >>> alterer = KindAlterer("order", shipped_lexicon())
        >>> [each.caption for each in alterer.alter("A dog behind a car", ["A dog behind a car"])]
        ['A car behind a dog']
        """
        words = split_words(caption)
        present = frozenset(plain(word.text) for text in (caption, *originals) for word in split_words(text))
        places = [each for each in _FIND[self.kind](caption, words, present, self.lexicon) if each[2]]
        random = np.random.default_rng(hash_key([self.seed, self.kind, caption, draw]))
        drawn = [
            (places[place], random.permutation(len(places[place][2]))) for place in random.permutation(len(places))
        ]
        # One of every place before the second of any.
        turns = itertools.zip_longest(*([(place, place[2][number]) for number in order] for place, order in drawn))
        made: dict[str, Alteration] = {}
        for (start, end, _), new in (each for turn in turns for each in turn if each is not None):
            altered = replace_span(caption, start, end, like_case(caption[start:end], new) if start == 0 else new)
            index = next((number for number, word in enumerate(words) if word.end > start), len(words) - 1)
            if altered != caption:
                made.setdefault(altered, Alteration(altered, index, caption[start:end], new, self.kind, None))
            if len(made) == count:
                break
        return list(made.values())


def _attributes(caption: str, words: Sequence[Word], present: frozenset[str], lexicon: Lexicon) -> Iterator[_Place]:
    for word, slot in _slots(words, lexicon):
        if slot.noun is None and slot.concept in _ADJECTIVES:
            yield word.start, word.end, _others(plain(word.text), ATTRIBUTES[slot.concept], present, lexicon)


def _relations(caption: str, words: Sequence[Word], present: frozenset[str], lexicon: Lexicon) -> Iterator[_Place]:
    for place, word in enumerate(words):
        old = plain(word.text)
        if place + 1 < len(words) and plain(words[place + 1].text) in ("front", "top", "back"):
            continue
        group = next((group for group in _RELATIONS if group[0] == old), None)
        group = group or next((group for group in _RELATIONS if old in group), ())
        yield word.start, word.end, _others(old, group, present, lexicon)


def _counts(caption: str, words: Sequence[Word], present: frozenset[str], lexicon: Lexicon) -> Iterator[_Place]:
    for word in words:
        if plain(word.text) in _COUNTS:
            yield word.start, word.end, _others(plain(word.text), _COUNTS, present, lexicon)
    for before, word in _single_nouns(words, lexicon):
        plural, numbers = lexicon.find(word.text).plural, [each for each in _COUNTS[:3] if each not in present]
        yield before.start, word.end, [f"{each} {plural}" for each in numbers if plural]


def _orders(caption: str, words: Sequence[Word], present: frozenset[str], lexicon: Lexicon) -> Iterator[_Place]:
    for (one, first), (other, second) in itertools.combinations(list(_slots(words, lexicon)), 2):
        between = caption[one.end : other.start]
        nouns = first.noun is not None and second.noun is not None and first.plural == second.plural
        # "A man and a woman" and "chairs, tables" say the same in any order; their attributes do not.
        said = nouns and ("," in between or plain(between.split()[0] if between.split() else "") == "and")
        adjectives = first.noun is second.noun is None and {first.concept, second.concept} <= set(_ADJECTIVES)
        apart = any(lexicon.find(word.text) for word in words[first.index + 1 : second.index])
        if (nouns and not said) or (adjectives and apart):
            old, new = plain(one.text), plain(other.text)
            if alters(old, new, lexicon):
                text = replace_span(caption[one.start : other.end], other.start - one.start, other.end - one.start, old)
                yield one.start, other.end, [like_case(one.text, new) + text[one.end - one.start :]]


def _negations(caption: str, words: Sequence[Word], present: frozenset[str], lexicon: Lexicon) -> Iterator[_Place]:
    if present & {"no", "not", "without"}:
        return
    for word, after in itertools.pairwise(words):
        old, following = plain(word.text), plain(after.text)
        has_article = following in (*_ARTICLES, "some")
        if old in ("with", "is", "are") and (old != "with" or has_article):
            yield word.start, word.end, [_NEGATED[old]]
        if old in ("has", "have") and has_article:
            yield word.start, after.end, [_NEGATED[old]]
    for word in words[1:]:
        if plain(word.text) in _ACTIONS:
            yield word.start, word.start, ["not "]
    for before, _ in _single_nouns(words, lexicon):
        yield before.start, before.end, ["no"]


def _additions(caption: str, words: Sequence[Word], present: frozenset[str], lexicon: Lexicon) -> Iterator[_Place]:
    adjectives = [word for group in _ADDED for word in ATTRIBUTES[group] if is_new(word, present, lexicon)]
    objects = [word for word in _OBJECTS if is_new(word, present, lexicon)]
    for _, word in _single_nouns(words, lexicon):
        yield word.start, word.start, [f"{each} " for each in adjectives]
        yield word.end, word.end, [f" and {article_of(each)} {each}" for each in objects]


_FIND = {"attribute": _attributes, "relation": _relations, "count": _counts, "order": _orders,
         "negation": _negations, "addition": _additions}  # fmt: skip
_ACTIONS = frozenset(word for group in _RELATIONS for word in group if word.endswith("ing"))


def _slots(words: Sequence[Word], lexicon: Lexicon) -> Iterator[tuple[Word, Slot]]:
    for slot in find_slots([plain(word.text) for word in words], lexicon):
        yield words[slot.index], slot


def _single_nouns(words: Sequence[Word], lexicon: Lexicon) -> Iterator[tuple[Word, Word]]:
    """Each noun right after "a" or "an", with the article; not the first part of a name ("a baseball bat")."""
    for place, (before, word) in enumerate(itertools.pairwise(words)):
        following = words[place + 2].text if place + 2 < len(words) else ""
        if plain(before.text) in _ARTICLES and lexicon.find(word.text) and not lexicon.find(following or "the"):
            yield before, word


def _others(old: str, group: Sequence[str], present: frozenset[str], lexicon: Lexicon) -> list[str]:
    return [new for new in group if alters(old, new, lexicon) and is_new(new, present, lexicon)]
