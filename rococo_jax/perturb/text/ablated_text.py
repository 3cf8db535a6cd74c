"""Captions with one word removed, masked or replaced by the mean embedding: their token ids and embeddings.

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

_KEPT_PIECES = 200_000


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
    """Find the tokens of words. Keeps the tokens of pieces it has seen.

    Attributes:
        tokenizer: the model's tokenizer.
        prefix, suffix: the special tokens before and after a text.
    """

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
        """How many tokens of a text the tower reads besides the special ones."""
        return self.spec.context_length - len(self.prefix) - len(self.suffix)

    def __call__(self, captions: Sequence[str]) -> list[WordTokens]:
        """The tokens of each caption and of its words."""
        words = [split_words(caption) for caption in captions]
        pieces = [_pieces(caption, each) for caption, each in zip(captions, words, strict=True)]
        self._tokenize({piece for each in pieces for piece in each})
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

    def _tokenize(self, pieces: set[str]) -> None:
        if len(self._pieces) > _KEPT_PIECES:
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
        bare, whole = rust.encode("a", add_special_tokens=False).ids, rust.encode("a").ids
        first = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        return whole[:first], whole[first + len(bare) :]


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
    layout: Layout, bodies: Int[Array, "b n"], spans: Int[Array, "b 3"], removes: bool
) -> tuple[Int[Array, "b t"], Bool[Array, "b t"], Bool[Array, "b t"]]:
    """Token ids, attention mask, and which tokens belong to the word (none where it is removed).

    `spans` has for each row the number of tokens of the body, the word's first token, and its number of tokens.
    """
    count, start, length = spans[:, 0:1], spans[:, 1:2], spans[:, 2:3]
    kept = jnp.minimum(count - length if removes else count, layout.room)
    place = jnp.arange(layout.length, dtype=jnp.int32)[None]
    inside = jnp.broadcast_to(place - len(layout.prefix), (bodies.shape[0], layout.length))
    source = jnp.where(inside >= start, inside + length, inside) if removes else inside
    ids = jnp.take_along_axis(bodies, jnp.clip(source, 0, bodies.shape[1] - 1), axis=1)
    ids = jnp.where(inside < kept, ids, layout.pad_id)
    for offset, token in enumerate(layout.suffix):
        ids = jnp.where(inside == kept + offset, token, ids)
    for offset, token in enumerate(layout.prefix):
        ids = jnp.where(place == offset, token, ids)
    mask = jnp.full(ids.shape, True) if layout.reads_padding else inside < kept + len(layout.suffix)
    in_word = (inside >= start) & (inside < jnp.minimum(start + length, kept))
    return ids, mask, jnp.zeros_like(in_word) if removes else in_word


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def embed_changed(
    graph: nnx.GraphDef,
    layout: Layout,
    method: str,
    mask_id: int,
    state: nnx.State,
    bodies: Int[Array, "b n"],
    spans: Int[Array, "b 3"],
) -> Float[Array, "b dim"]:
    """Unit vectors of the changed texts, float32. `method` is `remove`, `mask` or `mean`; see `lay_out`."""
    model: DualEncoder = nnx.merge(graph, state)
    ids, mask, in_word = lay_out(layout, bodies, spans, method == "remove")
    if method == "remove":
        return model.text_embeddings(ids, mask)
    if method == "mask":
        return model.text_embeddings(jnp.where(in_word, mask_id, ids), mask)
    return embed_pooled(model, _tokens_with_mean(model, ids, mask, in_word), ids, mask)


def _tokens_with_mean(model: DualEncoder, ids: Array, mask: Array, in_word: Array) -> Float[Array, "b t width"]:
    """The tower's output tokens, with the mean of its token table in place of the word's embeddings."""
    table = model.text.words[...]
    model.text.words = nnx.Param(jnp.concatenate([table, table.mean(0, keepdims=True)]))
    return model.text.tokens(jnp.where(in_word, table.shape[0], ids), mask)


def embed_pooled(model: DualEncoder, tokens: Float[Array, "b t width"], ids: Array, mask: Array) -> Array:
    """Unit vectors from the tower's output tokens."""
    return embed_features(model, model.text.pool(tokens, ids, mask))


def embed_features(model: DualEncoder, features: Float[Array, "... width"]) -> Float[Array, "... dim"]:
    """Unit vectors from pooled features, through the model's head; a zero vector stays zero."""
    vectors = features if model.text_head is None else model.text_head(features)
    squares = jnp.square(vectors).sum(-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, jnp.finfo(jnp.float32).tiny))
