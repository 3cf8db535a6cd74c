"""Embed once: every image and every distinct text of a run goes through the towers one time, in parts that are cached.

The cache keeps a tower's features; the head is applied to them anew. So models that were trained on top of one frozen
tower share its work.

Several processes share the parts: each encodes some on its own devices, and all have all of them. A part that is in the
cache folder of one process alone is sent to the others.

A part holds a few hundred items; a run that is stopped goes on after the last whole part. Equal texts share one vector,
so they tie exactly, as they should.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from rococo_jax.data.images import IMAGES_PER_RUN, ORIGINALS, FileImages, ImageSet, chunks
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.protocol import FeatureEncoder, OnProgress
from rococo_jax.processes import gather
from rococo_jax.progress import progress
from rococo_jax.runtime import numeric_flags
from rococo_jax.version import __version__

_TEXTS_PER_PART = 4096


def embed_images(
    encoder: FeatureEncoder, images: ImageSet | Sequence[Path], cache: EmbeddingCache, *, features: bool = False
) -> Float[np.ndarray, "images dim"]:
    """Unit vectors of the images of a set, or of files, row by row; with `features`, before the head.

    Raises:
        InputError: a file is missing or is not a whole image.
    """
    if isinstance(images, Sequence):
        images = FileImages(tuple(map(str, images)), tuple(images))
    runs = images.runs(IMAGES_PER_RUN)
    contents = [[images.content(row) for row in run] for run in runs]

    def encode(run: list[int], on_progress: OnProgress) -> np.ndarray:
        return encoder.image_features(images.read(run, encoder.prepare), on_progress)

    kind = "images" if images.name == ORIGINALS else f"images ({images.name})"
    of_runs = features_of_parts(encoder, kind, runs, contents, encode, cache)
    of_tower = np.empty_like(of_runs)
    of_tower[np.concatenate(runs)] = of_runs
    return of_tower if features else encoder.project_image_features(of_tower)


def embed_texts(
    encoder: FeatureEncoder, texts: Sequence[str], cache: EmbeddingCache, *, features: bool = False
) -> Float[np.ndarray, "texts dim"]:
    """Unit vectors of captions, in the order given; equal strings are encoded once and have equal vectors.

    With `features`, what the tower gives before its head.
    """
    distinct = sorted(set(texts), key=lambda text: (len(text), text))
    place = {text: index for index, text in enumerate(distinct)}
    parts = chunks(distinct, _TEXTS_PER_PART)
    contents = [[text.encode() for text in part] for part in parts]
    vectors = features_of_parts(encoder, "captions", parts, contents, encoder.text_features, cache)
    if not features:
        vectors = encoder.project_text_features(vectors)
    return vectors[[place[text] for text in texts]]


def features_of_parts(
    encoder: FeatureEncoder,
    kind: str,
    parts: Sequence[Any],
    contents: Sequence[list[bytes]],
    encode: Callable[[Any, OnProgress], np.ndarray],
    cache: EmbeddingCache,
) -> np.ndarray:
    """The tower's features of all parts; `contents` says for each part what decides its items.

    `kind` is "images" or "captions", with further words in brackets for the progress bar. All processes must ask for
    the same, with encoders on their own devices.
    """
    # The kind that is shown may carry a seed; what is embedded decides the key, not what it is called.
    side = {"images": "vision", "captions": "text"}[kind.split(" (")[0]]
    tower = encoder.describe_tower(side)
    if tower is None:  # what decides the vectors is not known
        cache = EmbeddingCache(None)
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

        def make(number: int) -> np.ndarray:
            known = cache.find(about, contents[number])
            missing = [place for place in range(len(contents[number])) if place not in known]
            advance(len(known))
            cache.computed += len(missing)
            made = encode([parts[number][place] for place in missing], advance) if missing else None
            if known:
                first = next(iter(known.values()))
                part = np.empty((len(contents[number]), *first.shape), first.dtype)
                part[list(known)] = list(known.values())
                if missing:
                    part[missing] = made
            else:
                part = made
            cache.put(keys[number], part)
            cache.remember(about, keys[number], contents[number])
            return part

        # A round of parts, one for each process, so that none waits for the others longer than a part takes.
        for turn in chunks([number for number in range(len(parts)) if number not in kept_somewhere], len(held)):
            made = gather(what, partial(_mine, turn, make))
            for process, number in enumerate(turn):
                found[number] = made[process]
                if process != jax.process_index():
                    advance(len(made[process]))
    return np.concatenate([found[number] for number in range(len(parts))])


def _on(process: int, make: Callable[[], np.ndarray]) -> np.ndarray | None:
    return make() if jax.process_index() == process else None


def _mine(turn: Sequence[int], make: Callable[[int], np.ndarray]) -> np.ndarray | None:
    """The part of this process, where the round has one for it."""
    return make(turn[jax.process_index()]) if jax.process_index() < len(turn) else None


def encoding_versions() -> dict[str, str]:
    """What could change an embedding's last bits without changing the model: this project, JAX, and the device kind."""
    return {
        "rococo_jax": __version__,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        **numeric_flags(),
    }
