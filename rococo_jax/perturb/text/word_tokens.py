"""Which tokens of a caption belong to which word, so that a word can be taken out of the token ids.

A caption without a word is the caption with a space in the word's place. A tokenizer that splits at white space and at
punctuation gives it the tokens of the whole caption less those of the word: then removal is a shift of token ids, which
a device can do. That holds where the caption's tokens are its pieces' tokens, one after the other, a piece being a word
or what stands between two words; this is checked for every caption. Where it does not hold (SigLIP drops punctuation,
so that "man's" becomes one word), the shortened captions are tokenised one by one instead.

Captions are not cut here: taking a word out of a caption that is longer than the tower's context moves tokens into it.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers

from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec
from rococo_jax.perturb.text.words import Word, split_words

_KEPT_PIECES = 200_000


@dataclass(frozen=True)
class WordTokens:
    """A caption's tokens, special ones left out, uncut.

    Attributes:
        words: the caption's words.
        ids: the tokens of the whole caption.
        spans: for each word the indices into `ids` of its first token and after its last one; None where words have no
            tokens of their own.
        shortened: where `spans` is None: for each word the tokens of the caption without it.
    """

    words: tuple[Word, ...]
    ids: list[int]
    spans: list[tuple[int, int]] | None
    shortened: list[list[int]] | None = None


def without_word(caption: str, word: Word) -> str:
    """The caption with a space in the word's place, and none before or after it."""
    return f"{caption[: word.start]} {caption[word.end :]}".strip()


class WordTokenizer:
    """Finds the tokens of words. Keeps the tokens of pieces that it has seen.

    Attributes:
        tokenizer: the model's tokenizer.
        prefix, suffix: the special tokens before and after a text.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        rust = tokenizers.Tokenizer.from_str(tokenizer.rust.to_str())
        rust.no_truncation()
        # A tokenizer of our own whose texts are never cut.
        self._uncut = copy.copy(tokenizer)
        self._uncut.rust = rust
        self._pieces: dict[str, list[int]] = {}
        self.prefix, self.suffix = self._special_tokens()

    @property
    def spec(self) -> TokenizerSpec:
        """The tokenizer's spec."""
        return self.tokenizer.spec

    @property
    def room(self) -> int:
        """How many tokens of a text the tower reads beside the special ones."""
        return self.spec.context_length - len(self.prefix) - len(self.suffix)

    def __call__(self, captions: Sequence[str]) -> list[WordTokens]:
        """The tokens of each caption and of its words."""
        words = [split_words(caption) for caption in captions]
        pieces = [_pieces(caption, each) for caption, each in zip(captions, words, strict=True)]
        self._learn({piece for each in pieces for piece in each})
        whole = self._bodies(captions)
        return [self._align(caption, *parts) for caption, *parts in zip(captions, words, pieces, whole, strict=True)]

    def _align(self, caption: str, words: tuple[Word, ...], pieces: list[str], ids: list[int]) -> WordTokens:
        spans = []
        joined: list[int] = []
        for number, piece in enumerate(pieces):
            start = len(joined)
            joined.extend(self._pieces[piece])
            if number % 2:
                spans.append((start, len(joined)))
        if joined == ids:
            return WordTokens(words, ids, spans)
        return WordTokens(words, ids, None, self._bodies([without_word(caption, word) for word in words]))

    def _learn(self, pieces: set[str]) -> None:
        if len(self._pieces) > _KEPT_PIECES:
            self._pieces.clear()
        # Some sentencepiece tokenizers give a lone space a token that it has nowhere else.
        self._pieces.update((piece, []) for piece in pieces if not piece.strip())
        new = sorted(pieces - self._pieces.keys())
        self._pieces.update(zip(new, self._bodies(new), strict=True))

    def _bodies(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids without the special tokens, uncut."""
        first, last = len(self.prefix), len(self.suffix)
        return [ids[first : len(ids) - last] for ids in self._uncut.encode(texts)]

    def _special_tokens(self) -> tuple[list[int], list[int]]:
        rust = self._uncut.rust
        bare, whole = rust.encode("a", add_special_tokens=False).ids, rust.encode("a").ids
        first = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        return whole[:first], whole[first + len(bare) :]


def _pieces(caption: str, words: Sequence[Word]) -> list[str]:
    """What stands between words and the words, alternating; first and last what stands outside."""
    pieces, done = [], 0
    for word in words:
        pieces += [caption[done : word.start], caption[word.start : word.end]]
        done = word.end
    return [*pieces, caption[done:]]
