"""Embed every image and every distinct text of a run once.

Items are cached in parts of a few hundred. Batches go across parts, and a part is cached as soon as it is complete, so
a run that is stopped resumes after the last complete part. Equal texts share one embedding, so their similarities tie
exactly.

The cache keeps the features of a tower; the head is applied to them on each run. So models that were trained on top of
one frozen tower share its features.

Several processes share the parts: each encodes some of them on its own devices, and all processes get all parts. A part
that only one process finds in its cache folder is sent to the others.
"""

import contextlib
import importlib.metadata
import itertools
import platform
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import PIL.features
from jaxtyping import Float

from rococo_jax.data.images import IMAGES_PER_RUN, MOST_BYTES, ORIGINALS, FileImages, ImageSet, chunks, read_images
from rococo_jax.data.pictures import DECODING_VERSION
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.device_steps import BatchFeatures, Prefetch
from rococo_jax.encoders.protocol import Embeds, LoadedModel
from rococo_jax.processes import gather
from rococo_jax.progress import progress
from rococo_jax.runtime import numeric_flags
from rococo_jax.version import __version__, code_hash

_TEXTS_PER_PART = 4096
# Parts that a process encodes between two exchanges with the others. An exchange interrupts the batches, and limits the
# wait for slower processes.
_PARTS_PER_ROUND = 16

_LIBRARIES = ("jax", "jaxlib", "flax", "numpy", "pillow", "tokenizers", "ftfy")
# Read when this module is imported: later changes of the files do not change the code that runs.
_CODE = code_hash()
_SIDES = {"images": "vision", "captions": "text"}

# Yields indices into the given items and their features, batch by batch.
Encode = Callable[[Any], Iterator[BatchFeatures]]
Advance = Callable[[int], None]


def embed_images(
    encoder: Embeds, images: ImageSet | Sequence[Path], cache: EmbeddingCache, *, features: bool = False
) -> Float[np.ndarray, "images dim"]:
    """Return unit embeddings of the images of a set, or of files, in order.

    Args:
        encoder: the model.
        images: the set, or the files.
        cache: where features are read and written.
        features: return the output of the tower before its head instead.

    Raises:
        InputError: a file is missing or is not a complete image.
    """
    if isinstance(images, Sequence):
        images = FileImages(tuple(map(str, images)), tuple(images))
    with embed_image_sets(encoder, [images], cache, features=features) as embeddings:
        return embeddings()[0]


@contextlib.contextmanager
def embed_image_sets(
    encoder: Embeds, sets: Sequence[ImageSet], cache: EmbeddingCache, *, features: bool = False
) -> Iterator[Callable[[], list[Float[np.ndarray, "images dim"]]]]:
    """Start decoding the images of several sets, and yield a function that returns the embeddings of each set.

    Up to 256 MB of pixels are decoded in the background while the devices do other work. Batches go across sets, and
    each file is decoded once for all of them. Arguments are those of `embed_images`.
    """
    if not sets:  # a benchmark of texts only
        yield list
        return
    runs = [(images, run) for images in sets for run in images.runs(IMAGES_PER_RUN)]
    parts = [[(images, row) for row in run] for images, run in runs]
    contents = [[images.content(row) for row in run] for images, run in runs]

    def read(items: Sequence[tuple[ImageSet, int]]) -> Iterator[Any]:
        grouped = itertools.groupby(items, lambda item: item[0])
        requests = ((images, [row for _, row in rows]) for images, rows in grouped)
        return read_images(requests, encoder.pixel_view or encoder.prepare)

    kind = "images" if sets[0].name == ORIGINALS or len(sets) > 1 else f"images ({sets[0].name})"
    embedding_pass = EmbeddingPass(encoder, kind, parts, contents, encoder.image_batches, cache, read)

    def embeddings() -> list[np.ndarray]:
        features_by_run, tables, start = embedding_pass.features(), [], 0
        for images in sets:
            rows = np.concatenate([run for run_set, run in runs if run_set is images])
            table = np.empty_like(features_by_run[: len(rows)])
            table[rows] = features_by_run[start : start + len(rows)]
            start += len(rows)
            tables.append(table if features else encoder.project_image_features(table))
        return tables

    with embedding_pass.reading_ahead():
        yield embeddings


def embed_texts(
    encoder: Embeds, texts: Sequence[str], cache: EmbeddingCache, *, features: bool = False
) -> Float[np.ndarray, "texts dim"]:
    """Return unit embeddings of texts in the given order; equal strings are encoded once.

    With `features`, return the output of the tower before its head instead.
    """
    distinct = list(dict.fromkeys(texts))
    prepared, lengths = encoder.prepare_texts(distinct)
    # Texts of one padded length are neighbours, so that parts are completed one after the other.
    order = sorted(range(len(distinct)), key=lambda index: (lengths[index], distinct[index]))
    row_of_text = {distinct[index]: row for row, index in enumerate(order)}
    parts = [[prepared[index] for index in part] for part in chunks(order, _TEXTS_PER_PART)]
    contents = [[text.encode() for text in part] for part in chunks(list(row_of_text), _TEXTS_PER_PART)]
    embeddings = EmbeddingPass(encoder, "captions", parts, contents, encoder.text_batches, cache).features()
    if not features:
        embeddings = encoder.project_text_features(embeddings)
    return embeddings[[row_of_text[text] for text in texts]]


class _Part(NamedTuple):
    """Items that are cached in one file.

    Attributes:
        items: the items, as `read` takes them.
        rows: their rows in the table of all features.
    """

    items: Sequence[Any]
    rows: slice


class EmbeddingPass:
    """Pass over the items of all parts that reads features from the cache or other processes, or computes them.

    All processes must create it with the same items, each with an encoder on its own devices. An item that is in the
    cache in any part is not encoded.

    Args:
        encoder: the model.
        kind: "images" or "captions", optionally with further words in brackets for the progress bar.
        parts: the items of each part.
        contents: for each item of each part, the bytes that decide its features.
        encode: yields the features of items, as `read` returns them.
        cache: where features are read and written.
        read: prepares items for `encode`.
    """

    def __init__(
        self,
        encoder: Embeds,
        kind: str,
        parts: Sequence[Any],
        contents: Sequence[list[bytes]],
        encode: Encode,
        cache: EmbeddingCache,
        read: Callable[[Sequence[Any]], Any] = list,
    ):
        self.kind, self.title = kind, f"{encoder.name}: embedding {kind}"
        self.encode, self.read = encode, read
        # Only the side is part of the key: the words in brackets may contain a seed, which decides nothing.
        side = _SIDES[kind.split(" (")[0]]
        tower = None if cache.folder is None else encoder.describe_tower(side)
        self.cache_key = cache_key(f"{side} features", encoder, tower)
        # Without a description of everything that decides the features, nothing is cached.
        self.has_no_fingerprint = tower is None and cache.folder is not None
        self.cache = EmbeddingCache(None) if tower is None else cache
        self.counters = cache
        # Encoders over several processes run in step: every process takes part in each round, even without items.
        self.runs_in_step = encoder.mesh.is_multi_process
        self.contents = list(itertools.chain.from_iterable(contents))
        sizes = list(map(len, contents))
        self.part_of_row = np.repeat(np.arange(len(parts)), sizes)
        ends = itertools.accumulate(sizes)
        self.parts = [_Part(items, slice(end - size, end)) for items, size, end in zip(parts, sizes, ends, strict=True)]
        self.table: np.ndarray | None = None
        self.is_done = np.zeros(len(self.contents), bool)
        self._look_up()
        cache.refuse_missing(f"embeddings of {kind}", int((~self.is_done).sum()))
        self.complete_parts = self._gather_complete_parts()
        self.rounds = self._plan_rounds()
        self._first_items: Prefetch | None = None

    def features(self) -> np.ndarray:
        """Return all features in the order of the items."""
        process = jax.process_index()
        done = int(self.is_done.sum())
        with progress(self.title, len(self.contents), self.kind, done) as advance:
            self._exchange_complete_parts(advance)
            for shares in self.rounds:
                gathered = gather(self.title, partial(self._compute, shares[process], advance))
                for numbers, arrays in zip(shares, gathered, strict=True):
                    for number, array in zip(numbers, arrays, strict=True):
                        self._fill(self.parts[number].rows, array, advance)
        return self.table

    @contextlib.contextmanager
    def reading_ahead(self) -> Iterator[None]:
        """Read this process's items of the first round in the background, until the block ends."""
        if not self.rounds:
            yield
            return
        rows = self._rows_to_encode(self.rounds[0][jax.process_index()])
        self._first_items = Prefetch(iter(self.read(self._items(rows))), most_bytes=MOST_BYTES)
        with contextlib.closing(self._first_items):
            yield

    def _look_up(self) -> None:
        """Fill in the features that the cache of this process has."""
        for rows, features in self.cache.find(self.cache_key, self.contents):
            self._fill(rows, features)

    def _gather_complete_parts(self) -> list[set[int]]:
        """Return for each process the numbers of the parts that its cache has completely."""
        incomplete = set(self.part_of_row[~self.is_done].tolist())
        return gather(f"{self.title}, cached parts", lambda: set(range(len(self.parts))) - incomplete)

    def _plan_rounds(self) -> list[list[list[int]]]:
        """Return for each round and each process the parts to encode; the last round may be short."""
        processes = len(self.complete_parts)
        missing = sorted(set(range(len(self.parts))).difference(*self.complete_parts))
        return [
            [numbers[process::processes] for process in range(processes)]
            for numbers in chunks(missing, _PARTS_PER_ROUND * processes)
        ]

    def _exchange_complete_parts(self, advance: Advance) -> None:
        """Send each part that some but not all processes have from the first process that has it."""
        for number in sorted(set().union(*self.complete_parts) - set.intersection(*self.complete_parts)):
            owner = next(process for process, numbers in enumerate(self.complete_parts) if number in numbers)
            numbers_to_send = [number] if jax.process_index() == owner else []
            received = gather(self.title, partial(self._features_of, numbers_to_send))[owner]
            self._fill(self.parts[number].rows, received[0], advance)

    def _compute(self, numbers: Sequence[int], advance: Advance) -> list[np.ndarray]:
        """Return the features of these parts, and cache each part as soon as it is complete."""
        rows = self._rows_to_encode(numbers)
        if not len(rows) and not self.runs_in_step:
            return self._features_of(numbers)
        items, self._first_items = self._first_items or self.read(self._items(rows)), None
        self.counters.computed += len(rows)
        self.counters.unidentified += len(rows) if self.has_no_fingerprint else 0
        for index, features in self.encode(items):
            self._fill(rows[index], features, advance)
            for number in np.unique(self.part_of_row[rows[index]]).tolist():
                if self.is_done[self.parts[number].rows].all():
                    part = rows[self.part_of_row[rows] == number]
                    self.cache.add(self.cache_key, [self.contents[row] for row in part], self.table[part])
        return self._features_of(numbers)

    def _rows_to_encode(self, numbers: Sequence[int]) -> np.ndarray:
        return np.flatnonzero(~self.is_done & np.isin(self.part_of_row, numbers))

    def _items(self, rows: np.ndarray) -> list[Any]:
        parts = [self.parts[number] for number in self.part_of_row[rows]]
        return [part.items[row - part.rows.start] for part, row in zip(parts, rows.tolist(), strict=True)]

    def _features_of(self, numbers: Sequence[int]) -> list[np.ndarray]:
        return [self.table[self.parts[number].rows] for number in numbers]

    def _fill(self, rows: np.ndarray | slice, features: np.ndarray, advance: Advance = lambda count: None) -> None:
        if self.table is None:
            self.table = np.empty((len(self.contents), *features.shape[1:]), features.dtype)
        advance(int((~self.is_done[rows]).sum()))
        self.table[rows], self.is_done[rows] = features, True


def cache_key(kind: str, model: LoadedModel, identity: dict[str, Any] | None) -> dict[str, Any]:
    """Return everything that decides the values of a kind that a model computes, for `EmbeddingCache`.

    Args:
        kind: of the values, such as "text features".
        model: the model; its mesh decides the device.
        identity: everything that the model itself contributes, from its `describe_tower` or `describe`.
    """
    return {"kind": kind, "model": identity, "versions": encoding_versions(model.mesh.devices.flat[0])}


def encoding_versions(device: jax.Device | None = None) -> dict[str, str]:
    """Return everything that can change an embedding without a change of the model.

    This covers the code of this project, libraries that compute, decode images or tokenize texts, the kinds of the
    processor and of the device (by default JAX's first), and the rules by which images are converted to RGB.
    """
    device = device or jax.devices()[0]
    return {
        "rococo_jax": __version__,
        "code": _CODE,
        "processor": platform.machine(),
        "device": f"{device.device_kind}, {device.client.platform_version}",
        **{library: importlib.metadata.version(library) for library in _LIBRARIES},
        "jpeg": f"{PIL.features.version('libjpeg_turbo')} {PIL.features.version('jpg')}",
        "pictures": str(DECODING_VERSION),
        **numeric_flags(),
    }
