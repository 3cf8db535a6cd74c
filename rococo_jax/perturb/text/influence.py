"""Embedding influence: how much a caption's embedding changes when one word is removed.

    EI(w) = 1 - cos(f(T), f(T without w)) = |f(T) - f(T without w)|^2 / 2        for unit vectors f

[RoCOCO, arXiv 2304.10727, from the description]. The right-hand side loses no digits where the two vectors are close,
and is exactly 0 where they are equal. Instead of being removed a word can be masked (BERT), which keeps the positions
of the other words.

Words are removed on the device, from token ids (`ablated_text.py` states when that equals tokenising the shortened
caption). In a causal tower the tokens before a word are the same with and without it and are computed once
(`shared_prefix.py`); the host then removes the tokens, since it lays out the shared prefixes. Rows of one length share
a batch; memory is bounded by the captions held at once.

A score does not depend on the other captions or on the number of devices, to the last bit. With shared prefixes the
captions held at once change its last bits, by about 1e-7.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice, repeat
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Float

from rococo_jax.encoders import Encoder
from rococo_jax.encoders.programs import one_ahead, pad_rows, text_batches
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.ablated_text import Layout, WordTokenizer, WordTokens, embed_changed
from rococo_jax.perturb.text.shared_prefix import Tree, build_prefix_trees, can_share_prefix, embed_trees
from rococo_jax.runtime import AXES

METHODS = ("remove", "mask")
# About 40 MB of vectors at ten words a caption and 512 dimensions.
_CAPTIONS_AT_ONCE = 2048
_CPU_TOKENS, _ACCELERATOR_TOKENS = 1024, 32768
# A batch's bodies are wider than its rows by this many tokens, so that one program serves all usual words.
_USUAL_WORD = 8


class _Row(NamedTuple):
    """A text to embed: caption `caption`, unchanged (`word` None) or with `length` tokens from `start` changed."""

    caption: int
    word: int | None
    ids: Sequence[int]
    start: int
    length: int


def word_influence(
    encoder: Encoder,
    captions: Iterable[str],
    *,
    method: str = "remove",
    wanted: Iterable[Sequence[int]] | None = None,
    share_prefix: bool = True,
    captions_at_once: int = _CAPTIONS_AT_ONCE,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[Float[np.ndarray, " words"]]:
    """Yield the influence of every word, caption by caption: float32, between 0 and 2.

    A word that the tower does not read (beyond its context, or without tokens) has influence 0.

    Args:
        captions: strings; words are those of `split_words`.
        method: `remove`, or `mask`: each of the word's tokens becomes the mask token.
        wanted: for each caption the words to compute, NaN for the others; all by default.
        share_prefix: compute common prefixes once, where the tower and the method allow it.
        captions_at_once: how many captions are held at once; `on_progress` is called with as many.

    Raises:
        InputError: the model has no text tower, has no mask token for `mask`, or the method is unknown.
    """
    engine = _Engine(encoder, method, share_prefix)
    captions, words = iter(captions), repeat(None) if wanted is None else iter(wanted)

    def in_chunks() -> Iterator[Float[np.ndarray, " words"]]:
        while chunk := list(islice(captions, captions_at_once)):
            yield from engine(chunk, list(islice(words, len(chunk))))
            if on_progress is not None:
                on_progress(len(chunk))

    return in_chunks()


class _Engine:
    """A text tower on its mesh with its word tokenizer."""

    def __init__(self, encoder: Encoder, method: str, share_prefix: bool):
        if encoder.spec.text is None:
            raise InputError(encoder.name, "text tower", "none", "a model with a text tower")
        if method not in METHODS:
            raise InputError(encoder.name, "method", repr(method), f"one of {', '.join(METHODS)}")
        self.encoder, self.method, self.mesh = encoder, method, encoder.mesh
        self.spec, self.words = encoder.tokenizer.spec, WordTokenizer(encoder.tokenizer)
        self.mask_id = _mask_id(encoder) if method == "mask" else None
        self.graph, state = nnx.split(encoder.model)
        self.state = jax.device_put(state, NamedSharding(self.mesh, PartitionSpec()))
        can_share = can_share_prefix(encoder.spec.text, self.words.prefix, self.words.suffix)
        self.share_prefix = share_prefix and self.mask_id is None and can_share
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
            words = [word for word in requested if self._is_seen(part, word)]
            if words:
                shares = self.share_prefix and part.spans is not None and self.words.suffix[0] not in part.ids
                (sharing if shares else rows).extend(self._rows(number, part, words))
        for some, embed in ((rows, self._embed), (sharing, self._embed_sharing)):
            _compare(some, embed(some), result)
        return result

    def _is_seen(self, part: WordTokens, word: int) -> bool:
        """Whether the word has tokens within the tower's context."""
        if part.spans is None:
            return part.shortened[word][: self.words.room] != part.ids[: self.words.room]
        start, end = part.spans[word]
        return start < min(end, self.words.room)

    def _rows(self, number: int, part: WordTokens, words: Sequence[int]) -> list[_Row]:
        rows = [_Row(number, None, part.ids, 0, 0)]
        for word in words:
            if part.spans is not None:
                start, end = part.spans[word]
                rows.append(_Row(number, word, part.ids, start, end - start))
            elif self.mask_id is None:
                rows.append(_Row(number, word, part.shortened[word], 0, 0))
            else:
                found = "a caption whose words share tokens with their surroundings"
                raise InputError(self.encoder.name, f"method {self.method!r}", found, "method 'remove'")
        return rows

    def _embed(self, rows: list[_Row]) -> Float[np.ndarray, "rows dim"]:
        special = len(self.words.prefix) + len(self.words.suffix)
        removed = [row.length if self.mask_id is None else 0 for row in rows]
        counts = [min(len(row.ids) - gone, self.words.room) + special for row, gone in zip(rows, removed, strict=True)]
        output = np.empty((len(rows), self.encoder.spec.text_dim), np.float32)
        fixed = self.spec.fixed_length
        batches = text_batches(counts, self.spec.context_length, self.tokens, self.mesh.size, fixed)

        def run(batch):
            prefix, suffix = tuple(self.words.prefix), tuple(self.words.suffix)
            layout = Layout(batch.length, self.words.room, prefix, suffix, self.spec.pad_id, fixed is not None)
            arrays = _row_arrays([rows[place] for place in batch.index], batch.length)
            arrays = [self._place(pad_rows(each, batch.unit * self.mesh.size)) for each in arrays]
            return batch.index, embed_changed(self.graph, layout, self.mask_id, self.state, *arrays)

        for index, vectors in one_ahead(map(run, batches)):
            output[index] = np.asarray(vectors)[: len(index)]
        return output

    def _embed_sharing(self, rows: list[_Row]) -> Float[np.ndarray, "rows dim"]:
        texts = [self._text(row) for row in rows]
        output = np.empty((len(rows), self.encoder.spec.text_dim), np.float32)
        trees = build_prefix_trees(texts, self.tokens, self.spec.context_length)

        def run(batch: list[Tree]):
            placed = [self._place(np.stack(arrays)) for arrays in zip(*(tree[:-1] for tree in batch), strict=True)]
            return batch, embed_trees(self.graph, self.state, *placed)

        for batch, vectors in one_ahead(map(run, _alike(trees, self.mesh.size))):
            for tree, values in zip(batch, np.asarray(vectors), strict=True):
                output[tree.texts] = values[: len(tree.texts)]
        return output

    def _text(self, row: _Row) -> list[int]:
        """The tokens of a row without its word, as the tower reads them."""
        body = [*row.ids[: row.start], *row.ids[row.start + row.length :]]
        return [*self.words.prefix, *body[: self.words.room], *self.words.suffix]

    def _place(self, rows: np.ndarray) -> jax.Array:
        return jax.device_put(rows, NamedSharding(self.mesh, PartitionSpec(AXES)))


def _mask_id(encoder: Encoder) -> int:
    for token in ("[MASK]", "<mask>"):
        number = encoder.tokenizer.rust.token_to_id(token)
        if number is not None:
            return number
    raise InputError(encoder.name, "mask token", "none in the vocabulary", "a BERT-like tower, or method 'remove'")


def _row_arrays(rows: Sequence[_Row], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Bodies `(b, n)`, padded with zeros, and `(b, 3)`: their lengths, the words' starts and lengths."""
    longest = max(row.length for row in rows)
    width = length + max(_USUAL_WORD, 1 << (longest - 1).bit_length())
    bodies = np.zeros((len(rows), width), np.int32)
    for i, row in enumerate(rows):
        bodies[i, : min(len(row.ids), width)] = row.ids[:width]
    return bodies, np.array([[len(row.ids), row.start, row.length] for row in rows], np.int32)


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
