"""Models of which only token vectors are there, scored by MaxSim.

One `.npz`: `image_names (n,)`, `image_tokens (t, e)`, `image_lengths (n,)`, `captions (m,)`, `text_tokens (u, e)`,
`text_lengths (m,)`: the token vectors of all items one after the other, and how many each item has.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.pair_scores import ImageNumbers
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.late_interaction import max_sim
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.arrays import select
from rococo_jax.evaluation.models.model import Model
from rococo_jax.evaluation.models.pairs import with_images
from rococo_jax.evaluation.pairs import outcomes_by_pairs
from rococo_jax.progress import progress
from rococo_jax.storage import hash_file, load_arrays

_WANTED = "a .npz with image_names, image_tokens, image_lengths, captions, text_tokens and text_lengths"
_SIDES = {
    "image": ("image_names", "image_tokens", "image_lengths"),
    "text": ("captions", "text_tokens", "text_lengths"),
}


class StoredTokens(Model):
    """Token vectors by image key and caption.

    Args:
        path: the file.
        name: what tables call it; the file's stem by default.

    Raises:
        InputError: the file holds something else.
    """

    scale = 1.0

    def __init__(self, path: str | os.PathLike, name: str | None = None):
        self.path, self.name = Path(path), name or Path(path).stem
        self.notes = ["scored by MaxSim of stored token vectors"]
        arrays = load_arrays(self.path, _WANTED)
        names = {name for side in _SIDES.values() for name in side}
        if not isinstance(arrays, dict) or not names <= arrays.keys():
            raise InputError(path, "arrays", ", ".join(arrays) if isinstance(arrays, dict) else "one array", _WANTED)
        self.tokens = {side: self._by_key(*(arrays[name] for name in names)) for side, names in _SIDES.items()}
        widths = {side: next(iter(items.values())).shape[1] for side, items in self.tokens.items()}
        if len(set(widths.values())) > 1:
            found = f"{widths['image']} and {widths['text']}"
            raise InputError(path, "width of the vectors", found, "one width for both")

    def describe(self) -> dict[str, Any]:
        """Kind and the hash of the file."""
        return {"class": "stored token vectors", "file": hash_file(self.path)}

    def as_read(self, benchmark: Benchmark) -> Benchmark:
        """The benchmark without items of texts alone."""
        return with_images(self.name, benchmark)

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """The outcome of each of a benchmark's tasks. Raises InputError where token vectors are missing."""
        keys = [key for images in benchmark.image_sets.values() for key in images.input_keys()]
        images, texts = (
            select(self.tokens[side], keys, self.path, f"{side}s", "token vectors")
            for side, keys in (("image", keys), ("text", benchmark.texts))
        )

        def score(numbers: ImageNumbers, pairs: np.ndarray) -> np.ndarray:
            with progress(f"{self.name}: MaxSim", len(pairs), "pairs") as advance:
                return max_sim(images, texts, np.divmod(pairs, max(1, len(texts))), advance)

        return outcomes_by_pairs(benchmark, self, cache, score=score)

    def _by_key(self, keys: np.ndarray, tokens: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
        found = f"{len(keys)} keys, tokens of shape {tokens.shape} and {len(lengths)} lengths"
        if tokens.ndim != 2 or len(keys) != len(lengths) or lengths.sum() != len(tokens) or not (lengths > 0).all():
            raise InputError(
                self.path, "lengths", found, "a length above 0 for each key, and as many rows as their sum"
            )
        if not np.isfinite(tokens).all():
            raise InputError(self.path, "tokens", "NaN or infinite values", "finite numbers")
        return dict(zip(map(str, keys.tolist()), np.split(tokens, np.cumsum(lengths)[:-1]), strict=True))
