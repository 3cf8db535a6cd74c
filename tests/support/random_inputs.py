"""Made-up inputs of towers, and made-up vectors of a benchmark."""

from collections.abc import Callable

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.tables import TEXTS, Embeddings


def embeddings_of(benchmark: Benchmark, make: Callable | None = None, width: int = 8, **options) -> Embeddings:
    """Return vectors of every row of every table, by `make(shape)`; random ones by default."""
    make = make or np.random.default_rng(0).standard_normal
    sizes = {TEXTS: len(benchmark.texts)} | {name: len(images) for name, images in benchmark.image_sets.items()}
    return Embeddings({name: make((rows, width)) for name, rows in sizes.items()}, **options)


def random_pixels(size: int, count: int = 3, seed: int = 0) -> np.ndarray:
    """Pixels as after normalisation, (count, size, size, 3)."""
    return np.random.default_rng(seed).normal(size=(count, size, size, 3)).astype(np.float32)


def random_texts(length: int, vocabulary: int, end: int, padding: int = 0, count: int = 5, seed: int = 0):
    """Ids (count, length) that end with `end` at different places, the last row full, and the mask of their tokens."""
    random = np.random.default_rng(seed)
    counts = np.append(random.integers(2, length, count - 1), length)
    words = np.array([word for word in range(vocabulary) if word != end])
    ids = random.choice(words, (count, length)).astype(np.int32)
    mask = np.arange(length)[None] < counts[:, None]
    ids[np.arange(count), counts - 1] = end
    return np.where(mask, ids, padding).astype(np.int32), mask
