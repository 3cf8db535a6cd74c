"""Split a caption into words with their spans; form English plurals and articles (by the library `inflect`).

`split_words` is the only word splitter of the project, so that "word 3" is the same word in an influence table, an
altered caption and a report. A word is

- a run of letters and digits with their combining marks ("dog", "café", "2nd"), or a number with its points and commas
  ("3.5", "1,000");
- parts joined by a hyphen or an apostrophe ("T-shirt", "don't", "o'clock"), so that a part of a compound is never
  replaced alone; the possessive "'s" is neither part of its noun nor a word, so that "man's" can become "woman's";
- a single Chinese or Japanese character, as in BERT's tokenizer, since these scripts have no spaces;
- an emoji with its skin tone, variation selector and joined parts.

Punctuation, symbols and spaces are not words. HTML entities are resolved ("caf&eacute;" is one word, "&amp;" is not a
word); the span covers the entity as written.
"""

import functools
import html
import re
from collections.abc import Iterable
from typing import NamedTuple

import regex

_SPACELESS = r"[\p{Han}\p{Hiragana}\p{Katakana}]"
_LETTERS = r"(?:[[\p{L}\p{N}]--[\p{Han}\p{Hiragana}\p{Katakana}]]\p{M}*)+"
_JOIN = r"(?:['’](?!s(?![\p{L}\p{N}]))|[-‐‑]|(?<=\p{N})[.,](?=\p{N}))"
_EMOJI = r"(?:\p{Emoji_Presentation}|\p{Extended_Pictographic}\uFE0F)[\uFE0F\p{Emoji_Modifier}]*"
_WORD = regex.compile(
    rf"(?<![\p{{L}}\p{{N}}]['’]){_LETTERS}(?:{_JOIN}{_LETTERS})*|{_SPACELESS}|\p{{Regional_Indicator}}{{2}}|{_EMOJI}(?:\u200D{_EMOJI})*",
    regex.V1 | regex.IGNORECASE,
)
# The same for ASCII text, three times as fast.
_ASCII_WORD = re.compile(
    r"(?<![a-z0-9]')[a-z0-9]+(?:(?:'(?!s(?![a-z0-9]))|-|(?<=[0-9])[.,](?=[0-9]))[a-z0-9]+)*", re.IGNORECASE | re.ASCII
)
_ENTITY = regex.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


class Word(NamedTuple):
    """A word of a caption.

    Attributes:
        text: the word with entities resolved.
        start: index of its first character in the caption as written.
        end: index after its last character; `caption[start:end]` is the word as written.
    """

    text: str
    start: int
    end: int


@functools.lru_cache(maxsize=4096)
def split_words(caption: str) -> tuple[Word, ...]:
    """Return the words of a caption in order, with their spans.

    >>> [word.text for word in split_words("A man's T-shirt &amp; 2 dogs.")]
    ['A', 'man', 'T-shirt', '2', 'dogs']
    """
    if "&" not in caption:
        word = _ASCII_WORD if caption.isascii() else _WORD
        return tuple(Word(match.group(), match.start(), match.end()) for match in word.finditer(caption))
    text, starts, ends = _resolve_entities(caption)
    return tuple(Word(match.group(), starts[match.start()], ends[match.end() - 1]) for match in _WORD.finditer(text))


def _resolve_entities(caption: str) -> tuple[str, list[int], list[int]]:
    """Return the caption with resolved entities, and the start and end in `caption` of each of its characters."""
    text, starts, ends, position = [], [], [], 0
    for entity in _ENTITY.finditer(caption):
        character = html.unescape(entity.group())
        if character == entity.group():
            continue
        text.append(caption[position : entity.start()])
        starts.extend(range(position, entity.start()))
        ends.extend(range(position + 1, entity.start() + 1))
        text.append(character)
        starts.extend([entity.start()] * len(character))
        ends.extend([entity.end()] * len(character))
        position = entity.end()
    text.append(caption[position:])
    starts.extend(range(position, len(caption)))
    ends.extend(range(position + 1, len(caption) + 1))
    return "".join(text), starts, ends


@functools.lru_cache(maxsize=2**16)
def plain(word: str) -> str:
    """Return the form of a word for look-up and comparison: case folded, with ASCII apostrophe and hyphen.

    >>> plain("Dog’S")
    "dog's"
    """
    return word.casefold().translate(_PLAIN)


_PLAIN = str.maketrans({"’": "'", "‐": "-", "‑": "-"})


def caption_words(captions: Iterable[str]) -> frozenset[str]:
    """Return all words of some captions in plain form.

    >>> sorted(caption_words(["A dog", "Two dogs"]))
    ['a', 'dog', 'dogs', 'two']
    """
    return _words_of_captions(tuple(captions))


@functools.lru_cache(maxsize=256)
def _words_of_captions(captions: tuple[str, ...]) -> frozenset[str]:
    return frozenset(plain(word.text) for caption in captions for word in split_words(caption))


def replace_word(caption: str, word: Word, new: str) -> str:
    """Replace one word of a caption by `new` in the case of the old word.

    >>> replace_word("Dogs, dogs.", split_words("Dogs, dogs.")[0], "cats")
    'Cats, dogs.'
    """
    return caption[: word.start] + like_case(word.text, new) + caption[word.end :]


def like_case(model: str, word: str) -> str:
    """Return `word` in the case of `model`: all capitals, a capital first letter, or unchanged.

    A single capital letter ("A") counts as a capital first letter.
    """
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word


# Nouns without a singular, which rules of endings would treat as plurals.
_PLURAL_ONLY = """
people police cattle livestock clothes pants shorts trousers jeans pajamas scissors tongs pliers goggles glasses
sunglasses headphones binoculars groceries underpants trunks overalls tights stairs woods greens veggies
"""
PLURAL_ONLY = frozenset(_PLURAL_ONLY.split())
# Words that are followed by a singular within two words ("a sheep", "a small sheep").
_SINGULAR_MARKERS = frozenset({"a", "an", "one", "this", "that", "each", "every", "another"})


@functools.cache
def _engine():
    from unittest.mock import patch

    # Typeguard would recompile every function of inflect with checks of its arguments, which takes 1.7 s.
    with patch("typeguard.typechecked", lambda function: function):
        import inflect

    return inflect.engine()


@functools.cache
def plural_of(noun: str) -> str:
    """Return the plural of a singular noun; a noun of `PLURAL_ONLY` is unchanged.

    >>> plural_of("child"), plural_of("sheep"), plural_of("bus"), plural_of("pants")
    ('children', 'sheep', 'buses', 'pants')
    """
    return noun if noun in PLURAL_ONLY else _engine().plural_noun(noun)


@functools.cache
def article_of(word: str) -> str:
    """Return `a` or `an` according to the pronunciation of a word.

    >>> article_of("dog"), article_of("hour"), article_of("uniform")
    ('a', 'an', 'a')
    """
    return _engine().a(word).split()[0]


def follows_singular_word(words: list[str], index: int) -> bool:
    """Return whether a word such as "a" or "one" precedes word `index` by at most two words ("a sheep")."""
    return any(word.casefold() in _SINGULAR_MARKERS for word in words[max(0, index - 2) : index])


def replace_span(caption: str, start: int, end: int, new: str) -> str:
    """Replace a span of a caption, and adjust an `a` or `an` right before it."""
    text = caption[:start] + new + caption[end:]
    preceding = [word for word in split_words(text) if word.end <= start]
    if not preceding:
        return text
    article = preceding[-1]
    if plain(article.text) in ("a", "an") and not text[article.end : start].strip():
        return replace_word(text, article, article_of(new))
    return text
