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
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from rococo_jax.data.images import IMAGES_PER_RUN, ORIGINALS, FileImages, ImageSet, chunks, read_images
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.device_steps import BatchFeatures, begun
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
    return embed_image_sets(encoder, [images], cache, features=features)[0]


def embed_image_sets(
    encoder: FeatureEncoder, sets: Sequence[ImageSet], cache: EmbeddingCache, *, features: bool = False
) -> list[Float[np.ndarray, "images dim"]]:
    """As `embed_images`, of several sets in one pass: batches go across sets, and files are decoded once for all."""
    with images_ahead(encoder, sets, cache, features=features) as tables:
        return tables()


@contextlib.contextmanager
def images_ahead(
    encoder: FeatureEncoder, sets: Sequence[ImageSet], cache: EmbeddingCache, *, features: bool = False
) -> Iterator[Callable[[], list[Float[np.ndarray, "images dim"]]]]:
    """What gives the result of `embed_image_sets`, and decodes the first images from now on, while devices do other
    work: as many as take 256 MB.
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
    work = _Pass(encoder, kind, parts, contents, encoder.image_batches, cache, read)

    def tables() -> list[np.ndarray]:
        of_runs, made, done = work.features(), [], 0
        for images in sets:
            rows = np.concatenate([run for of, run in runs if of is images])
            table = np.empty_like(of_runs[: len(rows)])
            table[rows] = of_runs[done : done + len(rows)]
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
    vectors = features_of_parts(encoder, "captions", parts, contents, encoder.text_batches, cache)
    if not features:
        vectors = encoder.project_text_features(vectors)
    return vectors[[place[text] for text in texts]]


def features_of_parts(
    encoder: FeatureEncoder,
    kind: str,
    parts: Sequence[Any],
    contents: Sequence[list[bytes]],
    encode: Encode,
    cache: EmbeddingCache,
) -> np.ndarray:
    """The tower's features of all parts; all processes must ask for the same, with encoders on their own devices.

    Args:
        kind: "images" or "captions", with further words in brackets for the progress bar.
        parts: the items of each, as `encode` takes them.
        contents: what decides each item.
        encode: gives the features of any items.
    """
    return _Pass(encoder, kind, parts, contents, encode, cache).features()


class _Pass:
    """A pass over parts, as `features_of_parts`. `read` makes of items what `encode` takes."""

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
        if tower is None and cache.folder is not None:  # what decides the vectors is not known
            cache = EmbeddingCache(None)
        self.parts, self.contents, self.encode, self.cache, self.read = parts, contents, encode, cache, read
        self.kind, self.what = kind, f"{encoder.name}: embedding {kind}"
        # Encoders over several processes run in step: each takes part in every round, with items of its own or without.
        self.in_step = encoder.mesh.is_multi_process
        self.about = {"kind": f"{side} features", "tower": tower, "versions": encoding_versions()}
        self.keys = [cache.key(self.about, content) for content in contents]
        self.found = {number: part for number, key in enumerate(self.keys) if (part := cache.get(key)) is not None}
        for number in self.found:
            cache.remember(self.about, self.keys[number], contents[number])
        self.held = gather(f"{self.what}, what is kept", lambda: set(self.found))
        kept_somewhere = set().union(*self.held)
        wanted = [number for number in range(len(parts)) if number not in kept_somewhere]
        # Of each round the parts of every process; empty for some in a short round.
        self.rounds = [
            [turn[place :: len(self.held)] for place in range(len(self.held))]
            for turn in chunks(wanted, _PARTS_PER_ROUND * len(self.held))
        ]
        self.begun: tuple[_Share, Iterator[Any]] | None = None

    def begin(self) -> contextlib.ExitStack:
        """Begins to read this process's items of the first round, until the stack is left."""
        stack = contextlib.ExitStack()
        if self.rounds:
            share = self._share(self.rounds[0][jax.process_index()])
            reading, end = begun(iter(self.read(share.items)), _BYTES_AHEAD)
            stack.callback(end)
            self.begun = share, reading
        return stack

    def features(self) -> np.ndarray:
        """All parts, in order."""
        found, held = self.found, self.held
        with progress(self.what, sum(map(len, self.contents)), self.kind) as advance:
            advance(sum(map(len, found.values())))
            for number in sorted(set().union(*held) - set.intersection(*held)):
                owner = next(process for process, kept in enumerate(held) if number in kept)
                sent = gather(self.what, partial(_on, owner, partial(found.get, number)))[owner]
                if number not in found:
                    advance(len(sent))
                found[number] = sent
            process = jax.process_index()
            for shares in self.rounds:
                own = shares[process]
                made_by = gather(self.what, lambda own=own: self._make(own, advance) if own or self.in_step else [])
                for place, made in enumerate(made_by):
                    found |= dict(zip(shares[place], made, strict=True))
                    if place != process:
                        advance(sum(map(len, made)))
        return np.concatenate([found[number] for number in range(len(self.parts))])

    def _share(self, numbers: Sequence[int]) -> "_Share":
        """What is to be encoded of these parts; items that the cache knows from other parts are not."""
        every = [(number, place) for number in numbers for place in range(len(self.contents[number]))]
        vectors = self.cache.find(self.about, [self.contents[number][place] for number, place in every])
        known: dict[int, dict[int, np.ndarray]] = {number: {} for number in numbers}
        for index, vector in vectors.items():
            number, place = every[index]
            known[number][place] = vector
        places = [each for index, each in enumerate(every) if index not in vectors]
        return _Share(known, places, [self.parts[number][place] for number, place in places])

    def _make(self, numbers: Sequence[int], advance: Callable[[int], None]) -> list[np.ndarray]:
        """Features of these parts."""
        share, reading = self.begun or (self._share(numbers), None)
        self.begun, made = None, {}
        left = {number: len(self.contents[number]) - len(share.known[number]) for number in numbers}
        advance(sum(map(len, share.known.values())))
        self.cache.computed += len(share.items)
        of_item, within = np.array(share.places, np.int64).reshape(-1, 2).T

        def fill(number: int, where: Any, features: np.ndarray) -> None:
            shape = len(self.contents[number]), *features.shape[1:]
            made.setdefault(number, np.empty(shape, features.dtype))[where] = features
            if not left[number]:
                self.cache.put(self.keys[number], made[number])
                self.cache.remember(self.about, self.keys[number], self.contents[number])

        for number, rows in share.known.items():
            if rows:
                fill(number, list(rows), np.stack(list(rows.values())))
        items = self.read(share.items) if reading is None else reading
        for index, features in self.encode(items) if share.items or self.in_step else ():
            for number in np.unique(of_item[index]).tolist():
                here = of_item[index] == number
                left[number] -= int(here.sum())
                fill(number, within[index[here]], features[here])
            advance(len(index))
        return [made[number] for number in numbers]


class _Share(NamedTuple):
    """Parts of a process in one round: vectors that the cache knows by place, places of the other items, and these."""

    known: dict[int, dict[int, np.ndarray]]
    places: list[tuple[int, int]]
    items: list[Any]


def _on(process: int, make: Callable[[], np.ndarray]) -> np.ndarray | None:
    return make() if jax.process_index() == process else None


def encoding_versions() -> dict[str, str]:
    """What could change an embedding's last bits without changing the model: this project, JAX, and the device kind."""
    return {
        "rococo_jax": __version__,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        **numeric_flags(),
    }
