"""Embed once: every image and every distinct text of a run goes through the towers one time.

Parts of a few hundred items are units of caching only: batches go across them, and a part is kept as soon as it is
whole. A run that is stopped goes on after the last whole part. Equal texts share one vector, so they tie exactly, as
they should.

The cache keeps a tower's features; the head is applied to them anew. So models that were trained on top of one frozen
tower share its work.

Several processes share the parts: each encodes some on its own devices, and all have all of them. A part that is in the
cache folder of one process alone is sent to the others.
"""

import contextlib
import importlib.metadata
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from rococo_jax.data.images import IMAGES_PER_RUN, ORIGINALS, FileImages, ImageSet, chunks, read_images
from rococo_jax.data.pictures import DECODING_VERSION
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.device_steps import BatchFeatures, MadeAhead
from rococo_jax.encoders.protocol import FeatureEncoder
from rococo_jax.processes import gather
from rococo_jax.progress import progress
from rococo_jax.runtime import numeric_flags
from rococo_jax.version import __version__

_TEXTS_PER_PART = 4096
# Parts of a process between two exchanges with the others: an exchange ends a batch early, and bounds the wait for
# processes that are behind.
_PARTS_PER_ROUND = 16
# Of pixels that are decoded while devices do other work.
_BYTES_AHEAD = 2**28

_INPUT_LIBRARIES = ("pillow", "tokenizers", "ftfy")

# Batch by batch the places of the items given, and their features.
Encode = Callable[[Any], Iterator[BatchFeatures]]


def embed_images(
    encoder: FeatureEncoder, images: ImageSet | Sequence[Path], cache: EmbeddingCache, *, features: bool = False
) -> Float[np.ndarray, "images dim"]:
    """Unit vectors of the images of a set, or of files, row by row; with `features`, before the head.

    Raises InputError: a file is missing or is not a whole image.
    """
    if isinstance(images, Sequence):
        images = FileImages(tuple(map(str, images)), tuple(images))
    with images_ahead(encoder, [images], cache, features=features) as tables:
        return tables()[0]


@contextlib.contextmanager
def images_ahead(
    encoder: FeatureEncoder, sets: Sequence[ImageSet], cache: EmbeddingCache, *, features: bool = False
) -> Iterator[Callable[[], list[Float[np.ndarray, "images dim"]]]]:
    """What gives the vectors of several sets, as `embed_images`, in one pass: batches go across sets, and files are
    decoded once for all. It decodes the first images from now on, while devices do other work: as many as take 256 MB.
    """
    if not sets:  # a benchmark of texts alone
        yield list
        return
    runs = [(images, run) for images in sets for run in images.runs(IMAGES_PER_RUN)]
    parts = [[(images, row) for row in run] for images, run in runs]
    contents = [[images.content(row) for row in run] for images, run in runs]

    def read(items: Sequence[tuple[ImageSet, int]]) -> Iterator[Any]:
        of_sets = itertools.groupby(items, lambda item: item[0])
        requests = ((images, [row for _, row in rows]) for images, rows in of_sets)
        return read_images(requests, encoder.pixel_view or encoder.prepare)

    kind = "images" if sets[0].name == ORIGINALS or len(sets) > 1 else f"images ({sets[0].name})"
    work = EmbeddingPass(encoder, kind, parts, contents, encoder.image_batches, cache, read)

    def tables() -> list[np.ndarray]:
        features_by_run, made, done = work.features(), [], 0
        for images in sets:
            rows = np.concatenate([run for of, run in runs if of is images])
            table = np.empty_like(features_by_run[: len(rows)])
            table[rows] = features_by_run[done : done + len(rows)]
            done += len(rows)
            made.append(table if features else encoder.project_image_features(table))
        return made

    with work.begin():
        yield tables


def embed_texts(
    encoder: FeatureEncoder, texts: Sequence[str], cache: EmbeddingCache, *, features: bool = False
) -> Float[np.ndarray, "texts dim"]:
    """Unit vectors of captions, in the order given; equal strings are encoded once and have equal vectors.

    With `features`, what the tower gives before its head.
    """
    distinct = list(dict.fromkeys(texts))
    prepared, lengths = encoder.prepare_texts(distinct)
    # Texts of one padded length stand together, so that parts are whole one after the other.
    order = sorted(range(len(distinct)), key=lambda index: (lengths[index], distinct[index]))
    place = {distinct[index]: row for row, index in enumerate(order)}
    parts = [[prepared[index] for index in part] for part in chunks(order, _TEXTS_PER_PART)]
    contents = [[text.encode() for text in part] for part in chunks(list(place), _TEXTS_PER_PART)]
    vectors = EmbeddingPass(encoder, "captions", parts, contents, encoder.text_batches, cache).features()
    if not features:
        vectors = encoder.project_text_features(vectors)
    return vectors[[place[text] for text in texts]]


class EmbeddingPass:
    """Embed the items of all parts once. All processes must ask for the same, with encoders on their own devices.

    Items that the cache has, from whatever part, are not encoded. Items are numbered through all parts by rows.

    Args:
        kind: "images" or "captions", with further words in brackets for the progress bar.
        parts: the items of each.
        contents: what decides each item.
        encode: gives the features of any items, as `read` makes them.
    """

    def __init__(
        self,
        encoder: FeatureEncoder,
        kind: str,
        parts: Sequence[Any],
        contents: Sequence[list[bytes]],
        encode: Encode,
        cache: EmbeddingCache,
        read: Callable[[Sequence[Any]], Any] = list,
    ):
        # The kind that is shown may carry a seed; what is embedded decides the key, not what it is called.
        side = {"images": "vision", "captions": "text"}[kind.split(" (")[0]]
        tower = None if cache.folder is None else encoder.describe_tower(side)
        self.cache = EmbeddingCache(None) if tower is None else cache  # what decides the vectors may not be known
        self.counts = cache
        self.about = {"kind": f"{side} features", "tower": tower, "versions": encoding_versions()}
        self.parts, self.encode, self.read = parts, encode, read
        self.kind, self.what = kind, f"{encoder.name}: embedding {kind}"
        # Encoders over several processes run in step: each takes part in every round, with items of its own or without.
        self.in_step = encoder.mesh.is_multi_process
        self.contents = list(itertools.chain.from_iterable(contents))
        sizes = list(map(len, contents))
        self.part_of_row = np.repeat(np.arange(len(parts)), sizes)
        self.spans = [slice(end - size, end) for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]
        self.table: np.ndarray | None = None
        self.done = np.zeros(len(self.contents), bool)
        for rows, features in self.cache.find(self.about, self.contents):
            self._fill(rows, features)
        unfinished = set(self.part_of_row[~self.done].tolist())
        self.whole_parts = gather(f"{self.what}, what is kept", lambda: set(range(len(parts))) - unfinished)
        missing = sorted(set(range(len(parts))).difference(*self.whole_parts))
        # Of each round the parts of every process; empty for some in a short round.
        processes = len(self.whole_parts)
        self.rounds = [
            [turn[place::processes] for place in range(processes)]
            for turn in chunks(missing, _PARTS_PER_ROUND * processes)
        ]
        self.reading: Iterator[Any] | None = None

    def begin(self) -> contextlib.ExitStack:
        """Begins to read this process's items of the first round, until the stack is left."""
        stack = contextlib.ExitStack()
        if self.rounds:
            rows = self._rows_to_encode(self.rounds[0][jax.process_index()])
            self.reading = MadeAhead(iter(self.read(self._items(rows))), most_bytes=_BYTES_AHEAD)
            stack.callback(self.reading.close)
        return stack

    def features(self) -> np.ndarray:
        """All features, row by row."""
        process = jax.process_index()
        with progress(self.what, len(self.contents), self.kind) as advance:
            advance(int(self.done.sum()))
            for number in sorted(set().union(*self.whole_parts) - set.intersection(*self.whole_parts)):
                owner = next(place for place, whole in enumerate(self.whole_parts) if number in whole)
                own = [number] if process == owner else []
                sent = gather(self.what, partial(self._of_parts, own))[owner]
                self._fill(self.spans[number], sent[0], advance)
            for shares in self.rounds:
                made = gather(self.what, partial(self._make, shares[process], advance))
                for numbers, of_parts in zip(shares, made, strict=True):
                    for number, features in zip(numbers, of_parts, strict=True):
                        self._fill(self.spans[number], features, advance)
        return self.table

    def _rows_to_encode(self, numbers: Sequence[int]) -> np.ndarray:
        return np.flatnonzero(~self.done & np.isin(self.part_of_row, numbers))

    def _items(self, rows: np.ndarray) -> list[Any]:
        parts = self.part_of_row[rows].tolist()
        return [self.parts[part][row - self.spans[part].start] for part, row in zip(parts, rows.tolist(), strict=True)]

    def _of_parts(self, numbers: Sequence[int]) -> list[np.ndarray]:
        return [self.table[self.spans[number]] for number in numbers]

    def _fill(
        self, rows: np.ndarray | slice, features: np.ndarray, advance: Callable[[int], None] = lambda count: None
    ) -> None:
        if self.table is None:
            self.table = np.empty((len(self.contents), *features.shape[1:]), features.dtype)
        advance(int((~self.done[rows]).sum()))
        self.table[rows], self.done[rows] = features, True

    def _make(self, numbers: Sequence[int], advance: Callable[[int], None]) -> list[np.ndarray]:
        """Features of these parts, each kept in the cache as soon as it is whole."""
        rows = self._rows_to_encode(numbers)
        if not len(rows) and not self.in_step:
            return self._of_parts(numbers)
        items, self.reading = self.reading or self.read(self._items(rows)), None
        self.counts.computed += len(rows)
        for index, features in self.encode(items):
            self._fill(rows[index], features, advance)
            for number in np.unique(self.part_of_row[rows[index]]).tolist():
                if self.done[self.spans[number]].all():
                    new = rows[self.part_of_row[rows] == number]
                    self.cache.add(self.about, [self.contents[row] for row in new], self.table[new])
        return self._of_parts(numbers)


def encoding_versions() -> dict[str, str]:
    """Return what can change an embedding without changing the model: this project, JAX and the kind of device, the
    libraries that decode images and tokenize texts, and how images become the pictures that models are given.
    """
    return {
        "rococo_jax": __version__,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        **{library: importlib.metadata.version(library) for library in _INPUT_LIBRARIES},
        "pictures": str(DECODING_VERSION),
        **numeric_flags(),
    }
