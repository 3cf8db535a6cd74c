"""Embedding influence: the change of a caption's embedding when one word is removed.

    EI(w) = 1 - cos(f(T), f(T without w)) = |f(T) - f(T without w)|^2 / 2        for unit vectors f

[RoCOCO, arXiv 2304.10727, from the description]. The right-hand side loses no digits if the two vectors are close, and
is exactly 0 if they are equal.

A caption without a word is the caption with a space in place of the word. If the tokens of the caption are those of its
pieces (words, and the text between words) in order, the word's tokens are removed from the caption's. This holds for
tokenizers that split at white space and punctuation, and is checked for every caption. If it does not hold (SigLIP
drops punctuation, so "man's" becomes one word), each shortened caption is tokenised. Tokens are truncated to the
tower's context after the word is removed, because later tokens move into the context.

In a causal tower the tokens before a word are the same with and without it and are computed once (`shared_prefix.py`).
A value depends neither on the other captions nor on the number of devices, to the last bit. With shared prefixes,
`captions_at_once` changes the last bits, by about 1e-7.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
import tokenizers
from jaxtyping import Float

from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.shared_prefix import PrefixEncoder, can_share_prefix
from rococo_jax.perturb.text.words import Word, split_words

# About 40 MB of embeddings with ten words per caption and 512 dimensions.
_CAPTIONS_AT_ONCE = 2048
_CACHED_PIECES = 200_000


def word_influence(
    encoder: Encoder,
    captions: Iterable[str],
    *,
    wanted: Iterable[Sequence[int]] | None = None,
    share_prefix: bool = True,
    captions_at_once: int = _CAPTIONS_AT_ONCE,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[Float[np.ndarray, " words"]]:
    """Yield the influence of every word, caption by caption: float32, between 0 and 2.

    A word that the tower does not read (beyond its context, or without tokens) has influence 0.

    Args:
        encoder: the model.
        captions: strings, split into words by `split_words`.
        wanted: for each caption the indices of the words to compute, NaN for the others; all by default.
        share_prefix: compute common prefixes once, if the tower allows it.
        captions_at_once: number of captions in memory at once.
        on_progress: called with the number of captions after each of these chunks.

    Raises:
        InputError: the model has no text tower.
    """
    compute_influence = _InfluenceEngine(encoder, share_prefix)
    captions = iter(captions)
    words = repeat(None) if wanted is None else iter(wanted)

    def in_chunks() -> Iterator[Float[np.ndarray, " words"]]:
        while chunk := list(islice(captions, captions_at_once)):
            yield from compute_influence(chunk, list(islice(words, len(chunk))))
            if on_progress is not None:
                on_progress(len(chunk))

    return in_chunks()


class _Shortened(NamedTuple):
    """The tokens of a caption, and those of the caption without a word, by the index of the word.

    Attributes:
        caption: number of the caption.
    """

    caption: int
    complete: list[int]
    shortened: dict[int, list[int]]


class _InfluenceEngine:
    """A text tower on its mesh with its word tokenizer; computes the influences of a chunk of captions."""

    def __init__(self, encoder: Encoder, share_prefix: bool):
        if encoder.spec.text is None:
            raise InputError(encoder.name, "text tower", "none", "a model with a text tower")
        self.encoder, self.words = encoder, WordTokenizer(encoder.tokenizer)
        can_share = can_share_prefix(encoder.spec.text, self.words.prefix, self.words.suffix)
        self.prefix_encoder = PrefixEncoder(encoder) if share_prefix and can_share else None

    def __call__(self, captions: list[str], wanted: list[Sequence[int] | None]) -> list[np.ndarray]:
        tokenized = self.words(captions)
        influences = [np.full(len(caption.words), np.nan, np.float32) for caption in tokenized]
        separate: list[_Shortened] = []
        sharing: list[_Shortened] = []
        for number, caption in enumerate(tokenized):
            requested = list(range(len(caption.words)) if wanted[number] is None else wanted[number])
            influences[number][requested] = 0.0
            complete = self.words.around(caption.ids)
            shortened = {word: self.words.around(caption.without(word)) for word in requested}
            shortened = {word: ids for word, ids in shortened.items() if ids != complete}
            if not shortened:
                continue
            ends_once = caption.spans is not None and self.words.suffix[0] not in caption.ids
            texts = sharing if self.prefix_encoder is not None and ends_once else separate
            texts.append(_Shortened(number, complete, shortened))
        if separate:
            _compare(separate, self.encoder.encode_text, influences)
        if sharing:
            _compare(sharing, self.prefix_encoder.encode, influences)
        return influences


def _compare(
    texts: list[_Shortened], encode: Callable[[list[list[int]]], np.ndarray], influences: list[np.ndarray]
) -> None:
    """Set the influences of words: half the squared distance of the caption's embedding to that without the word."""
    embeddings = iter(encode([ids for text in texts for ids in (text.complete, *text.shortened.values())]))
    for text in texts:
        complete = next(embeddings)
        for word in text.shortened:
            influences[text.caption][word] = np.square(complete - next(embeddings)).sum() / 2


@dataclass(frozen=True)
class WordTokens:
    """A caption's tokens without special tokens and without truncation.

    Attributes:
        words: the caption's words.
        ids: the tokens of the caption.
        spans: for each word the indices into `ids` of its first token and after its last one; None if a token covers
            parts of two pieces.
        shortened: if `spans` is None, the tokens of the caption without each word.
    """

    words: tuple[Word, ...]
    ids: list[int]
    spans: list[tuple[int, int]] | None
    shortened: list[list[int]] | None = None

    def without(self, word: int) -> list[int]:
        """Return the tokens of the caption without a word."""
        if self.spans is None:
            return self.shortened[word]
        start, end = self.spans[word]
        return [*self.ids[:start], *self.ids[end:]]


def without_word(caption: str, word: Word) -> str:
    """Return the caption with a space in place of a word, stripped."""
    return f"{caption[: word.start]} {caption[word.end :]}".strip()


class WordTokenizer:
    """Finds the tokens of words, and caches the tokens of pieces of captions.

    Attributes:
        prefix, suffix: the special tokens around a text.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        rust = tokenizers.Tokenizer.from_str(tokenizer.rust.to_str())
        rust.no_truncation()
        self._without_truncation = copy.copy(tokenizer)
        self._without_truncation.rust = rust
        self._pieces: dict[str, list[int]] = {}
        self.prefix, self.suffix = self._special_tokens()

    @property
    def max_tokens(self) -> int:
        """Number of tokens of a text that the tower reads besides the special ones."""
        return self.tokenizer.spec.context_length - len(self.prefix) - len(self.suffix)

    def around(self, ids: Sequence[int]) -> list[int]:
        """Return a text's tokens as the tower reads them: truncated, with special tokens."""
        return [*self.prefix, *ids[: self.max_tokens], *self.suffix]

    def __call__(self, captions: Sequence[str]) -> list[WordTokens]:
        """Return the tokens of each caption and of its words."""
        words = [split_words(caption) for caption in captions]
        pieces = [_pieces(caption, its_words) for caption, its_words in zip(captions, words, strict=True)]
        self._tokenize({piece for caption_pieces in pieces for piece in caption_pieces})
        ids = self._without_special_tokens(captions)
        return list(map(self._align, captions, words, pieces, ids))

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
        return WordTokens(
            words, ids, None, self._without_special_tokens([without_word(caption, word) for word in words])
        )

    def _tokenize(self, pieces: set[str]) -> None:
        if len(self._pieces) > _CACHED_PIECES:
            self._pieces.clear()
        # Some sentencepiece tokenizers have a token for a lone space that never occurs elsewhere, so spaces get none.
        self._pieces.update((piece, []) for piece in pieces if not piece.strip())
        new = sorted(pieces - self._pieces.keys())
        self._pieces.update(zip(new, self._without_special_tokens(new), strict=True))

    def _without_special_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts without special tokens and without truncation."""
        first, last = len(self.prefix), len(self.suffix)
        return [ids[first : len(ids) - last] for ids in self._without_truncation.encode(texts)]

    def _special_tokens(self) -> tuple[list[int], list[int]]:
        rust = self._without_truncation.rust
        bare, ids = rust.encode("a", add_special_tokens=False).ids, rust.encode("a").ids
        first = next(i for i in range(len(ids)) if ids[i : i + len(bare)] == bare)
        return ids[:first], ids[first + len(bare) :]


def _pieces(caption: str, words: Sequence[Word]) -> list[str]:
    """Return the text between words and the words, alternating, including the text at both ends."""
    pieces, position = [], 0
    for word in words:
        pieces += [caption[position : word.start], caption[word.start : word.end]]
        position = word.end
    return [*pieces, caption[position:]]
