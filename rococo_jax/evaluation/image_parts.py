"""The images of a benchmark in parts, the altered ones made on the way: for what needs more of them than a vector."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from PIL import Image

from rococo_jax.benchmarks.rococo.mixed_files import squash_files
from rococo_jax.benchmarks.rococo.published_mixing import BATCH, MixingPlan, SquashedImages, mixed_batches, plan_batches
from rococo_jax.benchmarks.tasks import CorruptedImages, RankBenchmark
from rococo_jax.data.images import load_images
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders.embedding import cut
from rococo_jax.evaluation.embedding_altered import corrupted_contents, corrupted_images, mixed_content


@dataclasses.dataclass(frozen=True, eq=False)
class ImagePart:
    """Some images.

    Attributes:
        rows: their rows in the benchmark's table of images, derived sets after the originals.
        contents: what decides each of them.
        read: gives them in this order, as an encoder takes them.
    """

    rows: Int[np.ndarray, " images"]
    contents: list[bytes]
    read: Callable[[], Iterable[Any]]


def image_parts(
    benchmark: RankBenchmark,
    paths: Sequence[Path],
    hashes: Sequence[str],
    preprocessing: Preprocessing,
    wanted: Bool[np.ndarray, " rows"],
    at_once: int,
) -> Iterator[ImagePart]:
    """The wanted images, at most about `at_once` in a part.

    Args:
        benchmark: which images there are.
        paths, hashes: the files of `benchmark.images`, and their SHA-256.
        preprocessing: how files become pixels.
        wanted: True for each row of the table that is wanted.
        at_once: images of a part; those of mixed galleries come in whole batches of the published 64.
    """
    count = len(benchmark.images)
    for part in cut(np.flatnonzero(wanted[:count]).tolist(), at_once):
        read = partial(_files, [paths[row] for row in part], preprocessing)
        yield ImagePart(np.array(part), [bytes.fromhex(hashes[row]) for row in part], read)
    for number, derived in enumerate(benchmark.derived, 1):
        first_row = number * count
        here = wanted[first_row : first_row + count]
        if isinstance(derived, CorruptedImages):
            contents = corrupted_contents(derived, benchmark.images, hashes)
            for part in cut(np.flatnonzero(here).tolist(), at_once):
                named = [(benchmark.images[row], paths[row]) for row in part]
                read = partial(corrupted_images, derived, named)
                yield ImagePart(first_row + np.array(part), [contents[row] for row in part], read)
        else:
            squashed = squash_files(dict(zip(derived.images, paths, strict=True)), derived.images)
            batches = [places for places in plan_batches(derived) if here[derived.first[places]].any()]
            for part in cut(batches, max(1, at_once // BATCH)):
                places = np.concatenate(part)
                kept = here[derived.first[places]]
                contents = [mixed_content(derived, hashes, place) for place in places[kept].tolist()]
                read = partial(_mixed, derived, squashed, part, kept)
                yield ImagePart(first_row + derived.first[places[kept]], contents, read)


def _files(paths: list[Path], preprocessing: Preprocessing) -> Iterator[np.ndarray]:
    return (image for batch in load_images(paths, preprocessing) for image in batch)


def _mixed(
    plan: MixingPlan, squashed: SquashedImages, batches: list[np.ndarray], kept: np.ndarray
) -> Iterator[Image.Image]:
    images = (image for _, images in mixed_batches(plan, squashed, batches=batches) for image in images)
    return (Image.fromarray(image) for image, keep in zip(images, kept, strict=True) if keep)
