"""Captions with one word removed or masked: their token ids and embeddings.

A caption without a word is the caption with a space in the word's place. If the caption's tokens are the tokens of its
pieces (words, and the text between words) in order, removing a word is a shift of token ids, done on the device. This
holds for tokenizers that split at white space and punctuation, and is checked for every caption. Where it does not hold
(SigLIP drops punctuation, so "man's" becomes one word), the shortened captions are tokenised one by one.

On the device, rows are uncut bodies (token ids without special tokens) with the span that changes. The tower reads

    prefix  body, changed and cut to the room  suffix  padding

which is what the tokenizer gives for the shortened caption. Bodies are uncut because removing a word from a caption
longer than the tower's context moves tokens into the context.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import tokenizers
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec
from rococo_jax.models import DualEncoder
from rococo_jax.perturb.text.words import Word, split_words

_CACHED_PIECES = 200_000


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
    def spec(self) -> TokenizerSpec:
        """The tokenizer's spec."""
        return self.tokenizer.spec

    @property
    def room(self) -> int:
        """Number of tokens of a text that the tower reads besides the special ones."""
        return self.spec.context_length - len(self.prefix) - len(self.suffix)

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


class Layout(NamedTuple):
    """The shape of a row around its body.

    Attributes:
        length: tokens of a padded row.
        room: the most tokens of a body that the tower reads.
        prefix, suffix: special tokens.
        pad_id: the padding token.
        reads_padding: whether the tower attends to padding (SigLIP).
    """

    length: int
    room: int
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad_id: int
    reads_padding: bool


def lay_out(
    layout: Layout, bodies: Int[Array, "b n"], spans: Int[Array, "b 3"], mask_id: int | None
) -> tuple[Int[Array, "b t"], Bool[Array, "b t"]]:
    """Token ids and attention mask, the word's tokens removed or, with `mask_id`, each masked.

    `spans` has for each row the number of tokens of the body, the word's first token, and its number of tokens.
    """
    count, start, length = spans[:, 0:1], spans[:, 1:2], spans[:, 2:3]
    removes = mask_id is None
    room = jnp.minimum(count - length if removes else count, layout.room)
    place = jnp.arange(layout.length, dtype=jnp.int32)[None]
    inside = jnp.broadcast_to(place - len(layout.prefix), (bodies.shape[0], layout.length))
    source = jnp.where(inside >= start, inside + length, inside) if removes else inside
    ids = jnp.take_along_axis(bodies, jnp.clip(source, 0, bodies.shape[1] - 1), axis=1)
    ids = jnp.where(inside < room, ids, layout.pad_id)
    for offset, token in enumerate(layout.suffix):
        ids = jnp.where(inside == room + offset, token, ids)
    for offset, token in enumerate(layout.prefix):
        ids = jnp.where(place == offset, token, ids)
    mask = jnp.full(ids.shape, True) if layout.reads_padding else inside < room + len(layout.suffix)
    if not removes:
        ids = jnp.where((inside >= start) & (inside < jnp.minimum(start + length, room)), mask_id, ids)
    return ids, mask


@partial(jax.jit, static_argnums=(0, 1, 2))
def embed_changed(
    graph: nnx.GraphDef,
    layout: Layout,
    mask_id: int | None,
    state: nnx.State,
    bodies: Int[Array, "b n"],
    spans: Int[Array, "b 3"],
) -> Float[Array, "b dim"]:
    """Unit vectors of the changed texts, float32; see `lay_out`."""
    model: DualEncoder = nnx.merge(graph, state)
    return model.text_embeddings(*lay_out(layout, bodies, spans, mask_id))
