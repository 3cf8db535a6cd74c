"""Singular and plural of nouns and their articles, by the library `inflect`, and which number a word stands in."""

from functools import cache

# Nouns that have no other form, which a rule of endings would get wrong.
_PLURAL_ONLY = """
people police cattle livestock clothes pants shorts trousers jeans pajamas scissors tongs pliers goggles glasses
sunglasses headphones binoculars groceries underpants trunks overalls tights stairs woods greens veggies
"""
PLURAL_ONLY = frozenset(_PLURAL_ONLY.split())
# Before a singular, within two words ("a sheep", "a small sheep").
_ONE = frozenset({"a", "an", "one", "this", "that", "each", "every", "another"})


@cache
def _engine():
    import inflect

    return inflect.engine()


@cache
def plural_of(noun: str) -> str:
    """The plural of a singular noun; a noun that is plural already stays.

    >>> plural_of("child"), plural_of("sheep"), plural_of("bus"), plural_of("pants")
    ('children', 'sheep', 'buses', 'pants')
    """
    return noun if noun in PLURAL_ONLY else _engine().plural_noun(noun)


@cache
def article_of(word: str) -> str:
    """`a` or `an`, as the word is spoken.

    >>> article_of("dog"), article_of("hour"), article_of("uniform")
    ('a', 'an', 'a')
    """
    return _engine().a(word).split()[0]


def follows_singular_word(words: list[str], index: int) -> bool:
    """Whether a word like "a" or "one" stands before word `index`; tells "a sheep" from "two sheep"."""
    return any(word.casefold() in _ONE for word in words[max(0, index - 2) : index])
