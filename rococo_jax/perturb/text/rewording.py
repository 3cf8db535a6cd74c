"""Hard positives: a caption in other words, still true of its image [ours].

    synonym    "a couch" -> "a sofa"
    hypernym   "a dog" -> "an animal"
    order      "a cat and a small dog" -> "a small dog and a cat"
    voice      "A man riding a horse" -> "A horse being ridden by a man"

Synonyms are a list of words and phrases that captions use for the same things, in both directions, so that a word of
the list is as often new as old. A hypernym is the concept of a noun where the lexicon says that it is more general. The
rules read words alone: they are applied where the words before and after leave one reading.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import regex

from rococo_jax.perturb.text import hash_key
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.words import article_of, like_case, plain, replace_word, split_words

RULES = ("synonym", "hypernym", "order", "voice")
_SYNONYMS = """
sofa/couch; television/tv; bicycle/bike; bicycles/bikes; motorcycle/motorbike; motorcycles/motorbikes; airplane/plane;
airplanes/planes; photo/picture; photograph/picture; refrigerator/fridge; cellphone/cell phone; kid/child;
kids/children; little/small; large/big; beside/next to; near/close to; beneath/under; above/over; atop/on top of;
rock/stone; rocks/stones; sidewalk/pavement; automobile/car; automobiles/cars; laptop/laptop computer; grey/gray; a
couple of/two; a group of/several; doughnut/donut; doughnuts/donuts; hillside/slope; ocean/sea; forest/woods;
street/road; mom/mother; dad/father; seated/sitting; is riding/rides; is holding/holds; are playing/play; is
standing/stands; are standing/stand; is sitting/sits; are sitting/sit; looking at/watching; baseball game/game of
baseball; tennis match/game of tennis; various/different; many/lots of; in the middle of/amid; full of/filled with; a
number of/many; inside/inside of; outside/outdoors
"""
# Concepts whose name is a word that captions use, and the plural of the word.
_HYPERNYMS = {"animal": "animals", "vehicle": "vehicles", "person": "people", "building": "buildings"}
_PARTICIPLES = {
    "riding": "ridden", "holding": "held", "eating": "eaten", "carrying": "carried", "pulling": "pulled",
    "pushing": "pushed", "flying": "flown", "throwing": "thrown", "catching": "caught", "chasing": "chased",
    "feeding": "fed", "driving": "driven", "kicking": "kicked", "petting": "petted", "cutting": "cut",
    "watching": "watched", "hitting": "hit", "reading": "read", "crossing": "crossed", "washing": "washed",
}  # fmt: skip
_DETERMINER = r"(?:an?|the|some|two|three|four|his|her|their|another|one)"
_PHRASE = rf"{_DETERMINER} (?:[a-z]+ )?[a-z]+"
_AND = regex.compile(
    rf"(?:^|\b(?:with|of|has|by|near|between) )({_PHRASE}) and ({_PHRASE})\b(?! (?:and|or)\b)", regex.IGNORECASE
)
_VOICE = regex.compile(
    rf"^({_PHRASE}) (?:is )?({'|'.join(_PARTICIPLES)}) ({_PHRASE})\b(.*)$", regex.IGNORECASE | regex.DOTALL
)


def _pairs() -> dict[str, str]:
    pairs: dict[str, str] = {}
    for entry in _SYNONYMS.split(";"):
        one, other = (" ".join(side.split()) for side in entry.split("/"))
        pairs.setdefault(one, other)
        pairs.setdefault(other, one)
    return pairs


_SYNONYM_OF = _pairs()
_SYNONYM = regex.compile(
    r"\b(?:" + "|".join(sorted(map(regex.escape, _SYNONYM_OF), key=len, reverse=True)) + r")\b", regex.IGNORECASE
)


@dataclass(frozen=True)
class Rewording:
    """A caption in other words, and the rule."""

    caption: str
    rule: str


def reword(caption: str, lexicon: Lexicon, seed: int = 0, count: int = 1) -> list[Rewording]:
    """Up to `count` distinct rewordings, in an order that the seed and the caption decide; none where no rule applies.

    >>> from rococo_jax.perturb.text.lexicon import shipped_lexicon
    >>> sorted(each.caption for each in reword("A man riding a horse", shipped_lexicon(), count=4))
    ['A horse being ridden by a man', 'A man riding an animal', 'A person riding a horse']
    """
    rewordings = dict.fromkeys(each for rule in RULES for each in _APPLY[rule](caption, lexicon))
    distinct = {each.caption: each for each in rewordings if each.caption != caption}
    return sorted(distinct.values(), key=lambda each: hash_key([seed, caption, each.caption]).to_bytes(8, "little"))[
        :count
    ]


def _synonyms(caption: str, lexicon: Lexicon) -> Iterator[Rewording]:
    for match in _SYNONYM.finditer(caption):
        new = like_case(match[0], _SYNONYM_OF[plain(match[0])])
        yield Rewording(replace_span(caption, match.start(), match.end(), new), "synonym")


def _hypernyms(caption: str, lexicon: Lexicon) -> Iterator[Rewording]:
    words = split_words(caption)
    texts = [word.text for word in words]
    for index, word in enumerate(words):
        noun = lexicon.find(word.text)
        if noun is None or noun.concept not in lexicon.more_general(noun) or noun.concept not in _HYPERNYMS:
            continue
        new = _HYPERNYMS[noun.concept] if lexicon.is_plural(texts, index) else noun.concept
        # A noun before another one ("dog bowl") is part of a name.
        following = texts[index + 1] if index + 1 < len(texts) else ""
        if new not in map(plain, texts) and (not following or lexicon.find(following) is None):
            start, end = word.start, word.end
            yield Rewording(replace_span(caption, start, end, like_case(word.text, new)), "hypernym")


def _orders(caption: str, lexicon: Lexicon) -> Iterator[Rewording]:
    for match in _AND.finditer(caption):
        first, (second, rest) = match[1], _noun_phrase(match[2], caption[match.end() :], lexicon)
        if second and lexicon.find(first.split()[-1]) and not _noun_follows(rest, lexicon):
            swapped = f"{like_case(first, _lower(second))} and {_lower(first)}"
            yield Rewording(caption[: match.start(1)] + swapped + rest, "order")


def _voices(caption: str, lexicon: Lexicon) -> Iterator[Rewording]:
    match = _VOICE.match(caption.strip())
    if match is None:
        return
    agent, verb = match[1], match[2]
    patient, rest = _noun_phrase(match[3], match[4], lexicon)
    # "... and smiling" says what the agent does.
    if (
        not patient
        or lexicon.find(agent.split()[-1]) is None
        or _noun_follows(rest, lexicon)
        or regex.match(r"\s*(?:and|while|as|who|that)\b", rest)
    ):
        return
    words = f"{like_case(agent, _lower(patient))} being {_PARTICIPLES[plain(verb)]} by {_lower(agent)}{rest}"
    yield Rewording(words, "voice")


_APPLY: dict[str, Any] = {"synonym": _synonyms, "hypernym": _hypernyms, "order": _orders, "voice": _voices}


def replace_span(caption: str, start: int, end: int, new: str) -> str:
    """The caption with a span replaced, and an `a` or `an` right before it made to fit."""
    text = caption[:start] + new + caption[end:]
    before = [word for word in split_words(text) if word.end <= start]
    if before and plain(before[-1].text) in ("a", "an") and not text[before[-1].end : start].strip():
        return replace_word(text, before[-1], article_of(new))
    return text


def _noun_phrase(phrase: str, rest: str, lexicon: Lexicon) -> tuple[str, str]:
    """("a horse", " down ...") of "a horse down", "..."; nothing where the phrase has no noun of the lexicon."""
    words = phrase.split()
    if lexicon.find(words[-1]) is not None:
        return phrase, rest
    if len(words) == 3 and lexicon.find(words[1]) is not None:
        return " ".join(words[:2]), f" {words[2]}{rest}"
    return "", rest


def _noun_follows(rest: str, lexicon: Lexicon) -> bool:
    """Whether a phrase goes on, as "a baseball" does in "a baseball bat"."""
    words = split_words(rest)
    return bool(words) and not rest[: words[0].start].strip() and lexicon.find(words[0].text) is not None


def _lower(phrase: str) -> str:
    return phrase[:1].lower() + phrase[1:]
