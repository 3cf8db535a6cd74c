"""Made-up inputs of towers."""

import numpy as np


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
