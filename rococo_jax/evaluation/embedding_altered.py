"""Altered images on their way to the image tower: made in memory, embedded once; only their vectors are kept."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float
from PIL import Image

from rococo_jax.benchmarks.rococo.mixed_files import squash_files
from rococo_jax.benchmarks.rococo.published_mixing import MixingPlan, mixed_batches, plan_batches
from rococo_jax.benchmarks.tasks import CorruptedImages
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import IMAGES_PER_PART, cut, features_of_parts
from rococo_jax.perturb.images.corrupted_files import image_id, read_rgb
from rococo_jax.perturb.images.corruptions import find_corruption

_BATCHES_PER_PART = 8
# The constants of ImageNet-C were chosen for this size.
_CORRUPTED_SIDE = 224
_CORRUPTED_AT_ONCE = 32


def embed_mixed(
    encoder: Encoder, plan: MixingPlan, paths: Sequence[Path], hashes: Sequence[str], cache: EmbeddingCache
) -> Float[np.ndarray, "images dim"]:
    """Unit vectors of a mixed gallery, in the order of `plan.images`. The images are mixed on the way and never kept.

    Args:
        encoder: the model.
        plan: who is mixed with whom.
        paths: the files of `plan.images`.
        hashes: their SHA-256.
        cache: where parts are kept.
    """
    squashed = squash_files(dict(zip(plan.images, paths, strict=True)), plan.images)
    batches = plan_batches(plan)
    parts = [batches[start : start + _BATCHES_PER_PART] for start in range(0, len(batches), _BATCHES_PER_PART)]

    def encode(part: list[np.ndarray], advance: Callable[[int], None]) -> np.ndarray:
        mixed = mixed_batches(plan, squashed, batches=part)
        return encoder.image_features((Image.fromarray(image) for _, images in mixed for image in images), advance)

    contents = [[mixed_content(plan, hashes, place) for place in np.concatenate(part).tolist()] for part in parts]
    vectors = features_of_parts(encoder, f"images ({plan.variant}, seed {plan.seed})", parts, contents, encode, cache)
    in_order = np.empty_like(vectors)
    in_order[plan.first] = vectors
    return encoder.project_image_features(in_order)


def mixed_content(plan: MixingPlan, hashes: Sequence[str], place: int) -> bytes:
    """All that decides the mixed image at a place of the plan."""
    pair = [hashes[plan.first[place]], hashes[plan.partner[place]]]
    box = plan.boxes[plan.batch[place]].tolist()
    return json.dumps([*pair, plan.method, plan.ratio, box, plan.compressed]).encode()


def embed_corrupted(
    encoder: Encoder,
    images: CorruptedImages,
    names: Sequence[str],
    paths: Sequence[Path],
    hashes: Sequence[str],
    cache: EmbeddingCache,
) -> Float[np.ndarray, "images dim"]:
    """Unit vectors of corrupted images, in the order given.

    Every image is cut to a square of 224 pixels, corrupted, and then prepared as the model prepares any image. What is
    random about it depends on its name and the seed alone.
    """
    contents = corrupted_contents(images, names, hashes)

    def encode(part: list[tuple[str, Path]], advance: Callable[[int], None]) -> np.ndarray:
        return encoder.image_features(corrupted_images(images, part), advance)

    parts = cut(list(zip(names, paths, strict=True)), IMAGES_PER_PART)
    of_parts = cut(contents, IMAGES_PER_PART)
    features = features_of_parts(encoder, f"images ({images.variant})", parts, of_parts, encode, cache)
    return encoder.project_image_features(features)


def corrupted_contents(images: CorruptedImages, names: Sequence[str], hashes: Sequence[str]) -> list[bytes]:
    """All that decides each corrupted image."""
    about = [images.kind, images.severity, images.seed, _CORRUPTED_SIDE]
    return [json.dumps([name, digest, *about]).encode() for name, digest in zip(names, hashes, strict=True)]


def corrupted_images(images: CorruptedImages, part: Sequence[tuple[str, Path]]) -> Iterator[Image.Image]:
    """The images of (name, file), corrupted."""
    key = jax.random.key(images.seed)
    with ThreadPoolExecutor(2, thread_name_prefix="images") as pool:
        for run in cut(list(part), _CORRUPTED_AT_ONCE):
            pixels = np.stack(list(pool.map(lambda item: read_rgb(item[1], _CORRUPTED_SIDE), run)))
            if images.kind is not None:
                ids = np.array([image_id(name) for name, _ in run], np.int64)
                pixels = np.asarray(find_corruption(images.kind)(pixels, images.severity, key, ids=ids))
            yield from map(Image.fromarray, pixels)
