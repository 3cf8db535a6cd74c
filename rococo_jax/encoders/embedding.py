"""Embed once: every image and every distinct text of a run goes through the towers one time.

Parts of a few hundred items are units of caching only: batches go across them, and a part is kept as soon as it is
whole. A run that is stopped goes on after the last whole part. Equal texts share one vector, so they tie exactly, as
they should.

The cache keeps a tower's features; the head is applied to them anew. So models that were trained on top of one frozen
tower share its work.

Several processes share the parts: each encodes some on its own devices, and all have all of them. A part that is in the
cache folder of one process alone is sent to the others.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from rococo_jax.data.images import IMAGES_PER_RUN, ORIGINALS, FileImages, ImageSet, chunks, read_images
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.device_steps import BatchFeatures
from rococo_jax.encoders.protocol import FeatureEncoder
from rococo_jax.processes import gather
from rococo_jax.progress import progress
from rococo_jax.runtime import numeric_flags
from rococo_jax.version import __version__

_TEXTS_PER_PART = 4096
# Parts of a process between two exchanges with the others: an exchange ends a batch early, and bounds the wait for
# processes that are behind.
_PARTS_PER_ROUND = 16

# Batch by batch the places of the items given, and their features.
Encode = Callable[[Sequence[Any]], Iterator[BatchFeatures]]


def embed_images(
    encoder: FeatureEncoder, images: ImageSet | Sequence[Path], cache: EmbeddingCache, *, features: bool = False
) -> Float[np.ndarray, "images dim"]:
    """Unit vectors of the images of a set, or of files, row by row; with `features`, before the head.

    Raises:
        InputError: a file is missing or is not a whole image.
    """
    if isinstance(images, Sequence):
        images = FileImages(tuple(map(str, images)), tuple(images))
    return embed_image_sets(encoder, [images], cache, features=features)[0]


def embed_image_sets(
    encoder: FeatureEncoder, sets: Sequence[ImageSet], cache: EmbeddingCache, *, features: bool = False
) -> list[Float[np.ndarray, "images dim"]]:
    """As `embed_images`, of several sets in one pass: batches go across sets, and files are decoded once for all."""
    if not sets:  # a benchmark of texts alone
        return []
    runs = [(images, run) for images in sets for run in images.runs(IMAGES_PER_RUN)]
    parts = [[(images, row) for row in run] for images, run in runs]
    contents = [[images.content(row) for row in run] for images, run in runs]
    view = getattr(encoder, "pixel_view", None)

    def encode(items: Sequence[tuple[ImageSet, int]]) -> Iterator[BatchFeatures]:
        of_sets = itertools.groupby(items, lambda item: item[0])
        requests = ((images, [row for _, row in rows]) for images, rows in of_sets)
        return encoder.image_batches(read_images(requests, view or encoder.prepare))

    kind = "images" if sets[0].name == ORIGINALS or len(sets) > 1 else f"images ({sets[0].name})"
    of_runs = features_of_parts(encoder, kind, parts, contents, encode, cache)
    tables, done = [], 0
    for images in sets:
        rows = np.concatenate([run for of, run in runs if of is images])
        table = np.empty_like(of_runs[: len(rows)])
        table[rows] = of_runs[done : done + len(rows)]
        done += len(rows)
        tables.append(table if features else encoder.project_image_features(table))
    return tables


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
        encoder: whose features.
        kind: "images" or "captions", with further words in brackets for the progress bar.
        parts: the items of each, as `encode` takes them.
        contents: what decides each item.
        encode: gives the features of any items.
        cache: where parts are kept.
    """
    # The kind that is shown may carry a seed; what is embedded decides the key, not what it is called.
    side = {"images": "vision", "captions": "text"}[kind.split(" (")[0]]
    tower = None if cache.folder is None else encoder.describe_tower(side)
    if tower is None and cache.folder is not None:  # what decides the vectors is not known
        cache = EmbeddingCache(None)
    # Encoders over several processes run in step: each takes part in every round, with items of its own or without.
    in_step = encoder.mesh.is_multi_process
    about = {"kind": f"{side} features", "tower": tower, "versions": encoding_versions()}
    keys = [cache.key(about, content) for content in contents]
    found = {number: part for number, key in enumerate(keys) if (part := cache.get(key)) is not None}
    for number in found:
        cache.remember(about, keys[number], contents[number])
    what = f"{encoder.name}: embedding {kind}"
    with progress(what, sum(map(len, contents)), kind) as advance:
        advance(sum(map(len, found.values())))
        held = gather(f"{what}, what is kept", lambda: set(found))
        kept_somewhere, kept_everywhere = set().union(*held), set.intersection(*held)
        for number in sorted(kept_somewhere - kept_everywhere):
            owner = next(process for process, kept in enumerate(held) if number in kept)
            sent = gather(what, partial(_on, owner, partial(found.get, number)))[owner]
            if number not in found:
                advance(len(sent))
            found[number] = sent

        def make(numbers: Sequence[int]) -> list[np.ndarray]:
            """Features of these parts; items that the cache knows from other parts are not encoded again."""
            made, items, places = {}, [], []
            known = {number: cache.find(about, contents[number]) for number in numbers}
            left = {number: len(contents[number]) - len(known[number]) for number in numbers}
            for number in numbers:
                wanted = [place for place in range(len(contents[number])) if place not in known[number]]
                items += [parts[number][place] for place in wanted]
                places += [(number, place) for place in wanted]
            advance(sum(map(len, known.values())))
            cache.computed += len(items)
            of_item, within = np.array(places, np.int64).reshape(-1, 2).T

            def fill(number: int, where: Any, features: np.ndarray) -> None:
                shape = len(contents[number]), *features.shape[1:]
                made.setdefault(number, np.empty(shape, features.dtype))[where] = features
                if not left[number]:
                    cache.put(keys[number], made[number])
                    cache.remember(about, keys[number], contents[number])

            for number, rows in known.items():
                if rows:
                    fill(number, list(rows), np.stack(list(rows.values())))
            for index, features in encode(items) if items or in_step else ():
                for number in np.unique(of_item[index]).tolist():
                    here = of_item[index] == number
                    left[number] -= int(here.sum())
                    fill(number, within[index[here]], features[here])
                advance(len(index))
            return [made[number] for number in numbers]

        wanted, process = [number for number in range(len(parts)) if number not in kept_somewhere], jax.process_index()
        for turn in chunks(wanted, _PARTS_PER_ROUND * len(held)):
            shares = [turn[place :: len(held)] for place in range(len(held))]  # empty for some in a short round
            for place, made in enumerate(gather(what, lambda own=shares[process]: make(own) if own or in_step else [])):
                found |= dict(zip(shares[place], made, strict=True))
                if place != process:
                    advance(sum(map(len, made)))
    return np.concatenate([found[number] for number in range(len(parts))])


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
