"""The words of a caption, and where they stand: the one word splitter of the project.

Everything that counts, removes, replaces or records a word of a caption splits it here, so that "word 3" is the same
word in an influence table, an altered caption and a report.

What a word is:

- letters and digits that stand together, with their combining marks ("dog", "café", "2nd"), and numbers with their
  points and commas ("3.5", "1,000");
- parts that a hyphen or an apostrophe joins are one word ("T-shirt", "don't", "o'clock"), so that no part of a compound
  is ever replaced alone; but the possessive "'s" is no part of its noun and no word of its own, so that "man's" can
  become "woman's";
- a Chinese or Japanese character is a word, as BERT's tokenizer has it, since these scripts write no spaces;
- an emoji is a word, with its skin tone, variation selector and joined parts.

Punctuation, symbols and spaces are no words. HTML entities are read as the character that they stand for ("caf&eacute;"
is one word, "&amp;" is none), and the span covers the entity as written.
"""

import functools
import html
import re
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
# The same in ASCII, where the standard library's expressions are three times as fast.
_ASCII_WORD = re.compile(
    r"(?<![a-z0-9]')[a-z0-9]+(?:(?:'(?!s(?![a-z0-9]))|-|(?<=[0-9])[.,](?=[0-9]))[a-z0-9]+)*", re.IGNORECASE | re.ASCII
)
_ENTITY = regex.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


class Word(NamedTuple):
    """A word of a caption.

    Attributes:
        text: the word as it reads, entities resolved.
        start: index of its first character in the caption as written.
        end: index after its last character; `caption[start:end]` is the word as written.
    """

    text: str
    start: int
    end: int


@functools.lru_cache(maxsize=4096)
def split_words(caption: str) -> tuple[Word, ...]:
    """The words of a caption in order, with their spans. An empty caption has none.

    >>> [word.text for word in split_words("A man's T-shirt &amp; 2 dogs.")]
    ['A', 'man', 'T-shirt', '2', 'dogs']
    """
    if "&" not in caption:
        word = _ASCII_WORD if caption.isascii() else _WORD
        return tuple(Word(match.group(), match.start(), match.end()) for match in word.finditer(caption))
    text, starts, ends = _resolve_entities(caption)
    return tuple(Word(match.group(), starts[match.start()], ends[match.end() - 1]) for match in _WORD.finditer(text))


def word_texts(caption: str) -> list[str]:
    """The texts of `split_words` alone, for those who ask for many captions once.

    >>> word_texts("A man's T-shirt.")
    ['A', 'man', 'T-shirt']
    """
    if caption.isascii() and "&" not in caption:
        return _ASCII_WORD.findall(caption)
    return [word.text for word in split_words(caption)]


def _resolve_entities(caption: str) -> tuple[str, list[int], list[int]]:
    """The caption with its entities resolved, and for each character of it the span that it has in `caption`."""
    text, starts, ends, done = [], [], [], 0
    for entity in _ENTITY.finditer(caption):
        character = html.unescape(entity.group())
        if character == entity.group():
            continue
        text.append(caption[done : entity.start()])
        starts.extend(range(done, entity.start()))
        ends.extend(range(done + 1, entity.start() + 1))
        text.append(character)
        starts.extend([entity.start()] * len(character))
        ends.extend([entity.end()] * len(character))
        done = entity.end()
    text.append(caption[done:])
    starts.extend(range(done, len(caption)))
    ends.extend(range(done + 1, len(caption) + 1))
    return "".join(text), starts, ends


def same_word(first: str, second: str) -> bool:
    """Whether two words are the same but for case and the shape of their apostrophes."""
    return plain(first) == plain(second)


@functools.lru_cache(maxsize=2**16)
def plain(word: str) -> str:
    """A word as it is looked up and compared: case folded, with the typewriter's apostrophe and hyphen.

    >>> plain("Dog’S")
    "dog's"
    """
    return word.casefold().translate(_PLAIN)


_PLAIN = str.maketrans({"’": "'", "‐": "-", "‑": "-"})


def replace_word(caption: str, word: Word, new: str) -> str:
    """The caption with this one word replaced, all else kept as it is, and the case of the old word kept.

    >>> replace_word("Dogs, dogs.", split_words("Dogs, dogs.")[0], "cats")
    'Cats, dogs.'
    """
    return caption[: word.start] + like_case(word.text, new) + caption[word.end :]


def like_case(model: str, word: str) -> str:
    """`word` in the case of `model`: all capitals, a capital first letter, or as it is.

    A single capital letter ("A") says nothing of the rest, and is taken as a capital first letter.
    """
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word
