"""Make weights and inputs that both the golden script and the tests make from nothing but names and shapes.

Golden files so hold shapes and results only. `RandomState` gives the same numbers in every NumPy there will be.
"""

import math
import zlib

import numpy as np


def weights_for(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """A checkpoint's tensors: spread like trained ones, no bias zero, no norm one, no two parameters alike."""
    return {name: _weight(name, tuple(shape)) for name, shape in shapes.items()}


def _weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    noise = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith("num_batches_tracked"):
        return np.array(3, np.int64)
    if not shape or shape == (1,):
        return np.asarray((-10 if name == "logit_bias" else 2.5) + 0.1 * noise, np.float32).reshape(shape)
    if len(shape) == 1:
        centred = name.endswith(("weight", "gamma", "running_var"))
        return (np.abs(1 + 0.2 * noise) if centred else 0.2 * noise).astype(np.float32)
    embeddings = any(part in name for part in ("embed", "latent", "cls_token"))
    return (noise * (0.3 if embeddings else 1 / math.sqrt(math.prod(shape[1:])))).astype(np.float32)


def pixels_for(size: int, count: int = 3) -> np.ndarray:
    """Pixels as after normalisation, (count, size, size, 3)."""
    return np.random.RandomState(5).standard_normal((count, size, size, 3)).astype(np.float32)


def ids_for(length: int, first: int, end: int, padding: int, smallest: int, largest: int, count: int = 4) -> np.ndarray:
    """Token ids (count, length): `first`, words, `end`, padding; the last text fills the length."""
    random = np.random.RandomState(6)
    rows = []
    for number in range(count):
        words = length - 2 if number == count - 1 else int(random.randint(1, length - 2))
        row = [first, *(int(random.randint(smallest, largest + 1)) for _ in range(words)), end]
        rows.append(row + [padding] * (length - len(row)))
    return np.array(rows, np.int32)
