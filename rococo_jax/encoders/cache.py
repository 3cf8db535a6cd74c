"""A cache of embeddings by content: the key covers everything that decides them.

A part is one `.npy` file named by its key, written by rename. A part that cannot be read is computed again. Images
enter the key by the hash of their bytes and captions by their text, never by a file's name or date.
"""

import json
import os
from pathlib import Path

import numpy as np

from rococo_jax.storage import atomic_write, hash_bytes


class EmbeddingCache:
    """A folder of embedding parts. `folder=None` keeps nothing."""

    def __init__(self, folder: str | os.PathLike | None):
        self.folder = None if folder is None else Path(folder)

    def key(self, about: dict, items: list[bytes]) -> str:
        """The key of the embeddings of `items` under everything named in `about`."""
        return hash_bytes(json.dumps(about, sort_keys=True).encode(), *items)

    def get(self, key: str) -> np.ndarray | None:
        """The part, or None where it is not there or cannot be read."""
        if self.folder is None:
            return None
        try:
            return np.load(self._path(key), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None

    def put(self, key: str, embeddings: np.ndarray) -> None:
        """Keeps a part."""
        if self.folder is None:
            return
        with atomic_write(self._path(key)) as temporary, temporary.open("wb") as file:
            np.save(file, embeddings, allow_pickle=False)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.npy"
