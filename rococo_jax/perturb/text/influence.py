"""Embedding influence: how much a caption's embedding changes when one word is removed.

    EI(w) = 1 - cos(f(T), f(T without w)) = |f(T) - f(T without w)|^2 / 2        for unit vectors f

[RoCOCO, arXiv 2304.10727, from the description]. The right-hand side loses no digits where the two vectors are close,
and is exactly 0 where they are equal.

A caption without a word is the caption with a space in the word's place. If the caption's tokens are the tokens of its
pieces (words, and the text between words) in order, a word's tokens are left out of the caption's. This holds for
tokenizers that split at white space and punctuation, and is checked for every caption. Where it does not hold (SigLIP
drops punctuation, so "man's" becomes one word), the shortened captions are tokenised one by one. Token ids are cut to
the tower's context after a word is gone, since its absence moves others into the context.

In a causal tower the tokens before a word are the same with and without it and are computed once (`shared_prefix.py`).
A score does not depend on the other captions or on the number of devices, to the last bit. With shared prefixes the
captions held at once change its last bits, by about 1e-7.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, repeat
from typing import NamedTuple

import jax
import numpy as np
import tokenizers
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Float

from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.programs import one_ahead
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.shared_prefix import Tree, build_prefix_trees, can_share_prefix, embed_trees
from rococo_jax.perturb.text.words import Word, split_words
from rococo_jax.runtime import AXES

# About 40 MB of vectors at ten words a caption and 512 dimensions.
_CAPTIONS_AT_ONCE = 2048
_CPU_TOKENS, _ACCELERATOR_TOKENS = 1024, 32768
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
        captions: strings; words are those of `split_words`.
        wanted: for each caption the words to compute, NaN for the others; all by default.
        share_prefix: compute common prefixes once, where the tower allows it.
        captions_at_once: how many captions are held at once; `on_progress` is called with as many.

    Raises:
        InputError: the model has no text tower.
    """
    engine = _Engine(encoder, share_prefix)
    captions, words = iter(captions), repeat(None) if wanted is None else iter(wanted)

    def in_chunks() -> Iterator[Float[np.ndarray, " words"]]:
        while chunk := list(islice(captions, captions_at_once)):
            yield from engine(chunk, list(islice(words, len(chunk))))
            if on_progress is not None:
                on_progress(len(chunk))

    return in_chunks()


class _Row(NamedTuple):
    """A text to embed: caption `caption`, whole (`word` None) or without a word; `ids` as the tower reads them."""

    caption: int
    word: int | None
    ids: list[int]


class _Engine:
    """A text tower on its mesh with its word tokenizer."""

    def __init__(self, encoder: Encoder, share_prefix: bool):
        if encoder.spec.text is None:
            raise InputError(encoder.name, "text tower", "none", "a model with a text tower")
        self.encoder, self.mesh, self.words = encoder, encoder.mesh, WordTokenizer(encoder.tokenizer)
        can_share = can_share_prefix(encoder.spec.text, self.words.prefix, self.words.suffix)
        self.share_prefix = share_prefix and can_share
        if self.share_prefix:
            self.graph, state = nnx.split(encoder.model)
            self.state = jax.device_put(state, NamedSharding(self.mesh, PartitionSpec()))
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        self.tokens = _CPU_TOKENS if on_cpu else _ACCELERATOR_TOKENS

    def __call__(self, captions: list[str], wanted: list[Sequence[int] | None]) -> list[np.ndarray]:
        parts = self.words(captions)
        result = [np.full(len(part.words), np.nan, np.float32) for part in parts]
        rows: list[_Row] = []
        sharing: list[_Row] = []
        for number, part in enumerate(parts):
            requested = list(range(len(part.words)) if wanted[number] is None else wanted[number])
            result[number][requested] = 0.0
            whole = self.words.around(part.ids)
            shortened = [(word, self.words.around(part.without(word))) for word in requested]
            if changed := [_Row(number, word, ids) for word, ids in shortened if ids != whole]:
                shares = self.share_prefix and part.spans is not None and self.words.suffix[0] not in part.ids
                (sharing if shares else rows).extend([_Row(number, None, whole), *changed])
        for some, embed in ((rows, self.encoder.encode_text), (sharing, self._embed_sharing)):
            if some:
                _compare(some, embed([row.ids for row in some]), result)
        return result

    def _embed_sharing(self, texts: list[list[int]]) -> Float[np.ndarray, "texts dim"]:
        output = np.empty((len(texts), self.encoder.spec.text_dim), np.float32)
        trees = build_prefix_trees(texts, self.tokens, self.encoder.tokenizer.spec.context_length)

        def run(batch: list[Tree]):
            placed = [self._place(np.stack(arrays)) for arrays in zip(*(tree[:-1] for tree in batch), strict=True)]
            return batch, embed_trees(self.graph, self.state, *placed)

        for batch, vectors in one_ahead(map(run, _alike(trees, self.mesh.size))):
            for tree, values in zip(batch, np.asarray(vectors), strict=True):
                output[tree.texts] = values[: len(tree.texts)]
        return output

    def _place(self, rows: np.ndarray) -> jax.Array:
        return jax.device_put(rows, NamedSharding(self.mesh, PartitionSpec(AXES)))


def _compare(rows: list[_Row], vectors: np.ndarray, result: list[np.ndarray]) -> None:
    unchanged = None
    for row, vector in zip(rows, vectors, strict=True):
        if row.word is None:
            unchanged = vector
        else:
            result[row.caption][row.word] = np.square(unchanged - vector).sum() / 2


def _alike(trees: Iterable[Tree], count: int) -> Iterator[list[Tree]]:
    """Batches of `count` trees of one shape; a short batch repeats its first tree without texts."""
    for _, some in groupby(trees, key=lambda tree: tree.paths.shape):
        while batch := list(islice(some, count)):
            yield [*batch, *[batch[0]._replace(texts=[])] * (count - len(batch))]


@dataclass(frozen=True)
class WordTokens:
    """A caption's tokens without special tokens, uncut.

    Attributes:
        words: the caption's words.
        ids: the tokens of the whole caption.
        spans: for each word the indices into `ids` of its first token and after its last one; None where a token
            covers parts of two pieces.
        shortened: where `spans` is None: for each word the tokens of the caption without it.
    """

    words: tuple[Word, ...]
    ids: list[int]
    spans: list[tuple[int, int]] | None
    shortened: list[list[int]] | None = None

    def without(self, word: int) -> list[int]:
        """The tokens of the caption without this word."""
        if self.spans is None:
            return self.shortened[word]
        start, end = self.spans[word]
        return [*self.ids[:start], *self.ids[end:]]


def without_word(caption: str, word: Word) -> str:
    """The caption with a space in the word's place, stripped."""
    return f"{caption[: word.start]} {caption[word.end :]}".strip()


class WordTokenizer:
    """Find the tokens of words; `prefix` and `suffix` are special tokens around a text. Keeps pieces it has seen."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        rust = tokenizers.Tokenizer.from_str(tokenizer.rust.to_str())
        rust.no_truncation()
        # A copy that does not truncate.
        self._uncut = copy.copy(tokenizer)
        self._uncut.rust = rust
        self._pieces: dict[str, list[int]] = {}
        self.prefix, self.suffix = self._special_tokens()

    @property
    def room(self) -> int:
        """Number of tokens of a text that the tower reads besides the special ones."""
        return self.tokenizer.spec.context_length - len(self.prefix) - len(self.suffix)

    def around(self, ids: Sequence[int]) -> list[int]:
        """A text's tokens as the tower reads them: cut, between special tokens."""
        return [*self.prefix, *ids[: self.room], *self.suffix]

    def __call__(self, captions: Sequence[str]) -> list[WordTokens]:
        """The tokens of each caption and of its words."""
        words = [split_words(caption) for caption in captions]
        pieces = [_pieces(caption, each) for caption, each in zip(captions, words, strict=True)]
        self._tokenize({piece for each in pieces for piece in each})
        bodies = self._bodies(captions)
        return [self._align(caption, *parts) for caption, *parts in zip(captions, words, pieces, bodies, strict=True)]

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

    def _tokenize(self, pieces: set[str]) -> None:
        if len(self._pieces) > _CACHED_PIECES:
            self._pieces.clear()
        # Some sentencepiece tokenizers give a lone space a token that it has nowhere else, hence no tokens here.
        self._pieces.update((piece, []) for piece in pieces if not piece.strip())
        new = sorted(pieces - self._pieces.keys())
        self._pieces.update(zip(new, self._bodies(new), strict=True))

    def _bodies(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids without the special tokens, uncut."""
        first, last = len(self.prefix), len(self.suffix)
        return [ids[first : len(ids) - last] for ids in self._uncut.encode(texts)]

    def _special_tokens(self) -> tuple[list[int], list[int]]:
        rust = self._uncut.rust
        bare, ids = rust.encode("a", add_special_tokens=False).ids, rust.encode("a").ids
        first = next(i for i in range(len(ids)) if ids[i : i + len(bare)] == bare)
        return ids[:first], ids[first + len(bare) :]


def _pieces(caption: str, words: Sequence[Word]) -> list[str]:
    """Text between words and words, alternating; the text before the first and after the last word included."""
    pieces, done = [], 0
    for word in words:
        pieces += [caption[done : word.start], caption[word.start : word.end]]
        done = word.end
    return [*pieces, caption[done:]]
