"""Features of all images of a frozen image tower, beside a text tower that is trained (LiT, arXiv 2111.07991).

Images are decoded and encoded once, 4,096 at a time; processes share the encoding, and features are kept by content in
the embedding cache. An image has one feature, of its whole centre crop.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.data.images import Task, run_tasks
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_bytes, hash_json
from rococo_jax.training.inputs.feature_pool import image_features
from rococo_jax.training.inputs.loss_input import Making

_AT_ONCE = 4096


class ChosenPairs:
    """Some images of a source."""

    def __init__(self, source: PairSource, chosen: Sequence[int]):
        self.source, self.chosen = source, np.asarray(chosen, np.int64)

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> PairSample:
        return self.source[int(self.chosen[index])]

    def hash(self) -> str:
        """Hash of the source's hash and the chosen numbers."""
        return hash_json([self.source.hash(), hash_bytes(self.chosen.tobytes())])


def locked_features(making: Making, cache: EmbeddingCache) -> tuple[Float[np.ndarray, "images f"], PairSource]:
    """The features of all images that can be decoded, and the source of these images, in the same order.

    Raises InputError where an image is broken and `data.on_decode_error` is "raise", or all are.
    """
    encoder, source = making.encoder, making.source
    skips = making.config.data.on_decode_error == "skip"

    def decoded(number: int) -> list[Any]:
        sample = source[number]
        try:
            return [encoder.preprocessing.resize(sample.open())]
        except InputError as error:
            if not skips:
                raise InputError(sample.source, error.field, error.found, error.wanted) from None
            return [None]

    found, chosen = [], []
    for start in range(0, len(source), _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, len(source)))
        made = list(run_tasks(Task(1, lambda number=number: decoded(number)) for number in numbers))
        whole = [(number, pixels) for number, pixels in zip(numbers, made, strict=True) if pixels is not None]
        if whole:
            chosen += [number for number, _ in whole]
            pixels = np.stack([pixels for _, pixels in whole])
            hashes = [hash_bytes(each.tobytes()) for each in pixels]
            found.append(image_features(encoder, pixels, hashes, cache, f"images (from {start:,} on)"))
    if not chosen:
        wanted = "image files"
        raise InputError("training data", "images", f"{len(source)} images and none that can be decoded", wanted)
    kept = source if len(chosen) == len(source) else ChosenPairs(source, chosen)
    return np.concatenate(found), kept
