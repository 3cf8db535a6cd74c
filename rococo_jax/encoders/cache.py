"""A cache of embeddings by content: the key covers everything that decides them.

A part is one file named by its key, written by rename: a `.npy`, and after it the SHA-256 of its name and content. A
part that is damaged, or another part's, is computed again. Images enter the key by the hash of their bytes and captions
by their text, never by a file's name or date. Where nothing can be written, nothing is kept.

Beside the parts an index names their items, so that another part computes only what no part has: `index/ABOUT/KEY.npy`
holds 128 bits of SHA-256 of each item of part KEY, for all parts of one tower.
"""

import hashlib
import io
import json
import os
import sys
from pathlib import Path

import numpy as np

from rococo_jax.storage import atomic_write, hash_bytes, refuse_url

_DIGEST_BYTES = hashlib.sha256().digest_size


class EmbeddingCache:
    """A folder of embedding parts. `folder=None` keeps nothing. `computed` and `read` count items of this process.

    Raises InputError: the folder is a URL.
    """

    def __init__(self, folder: str | os.PathLike | None):
        refuse_url(folder or "", "cache")
        self.folder = None if folder is None else Path(folder)
        self.computed = self.read = 0
        self.writes = True

    def key(self, about: dict, items: list[bytes]) -> str:
        """The key of the embeddings of `items` under everything named in `about`."""
        return hash_bytes(json.dumps(about, sort_keys=True).encode(), *items)

    def get(self, key: str, counts: bool = True) -> np.ndarray | None:
        """The part, or None where it is not there or is not what was put there. `counts` its items as read."""
        if self.folder is None:
            return None
        part = self._load(self._path(key))
        self.read += len(part) if counts and part is not None else 0
        return part

    def _load(self, path: Path) -> np.ndarray | None:
        try:
            content = path.read_bytes()
            if self._digest(path, content[:-_DIGEST_BYTES]) != content[-_DIGEST_BYTES:]:
                return None
            return np.load(io.BytesIO(content), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None

    def _save(self, path: Path, array: np.ndarray) -> None:
        """Writes a file; where that fails, says so once and writes no more."""
        if not self.writes:
            return
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        content = file.getvalue()
        try:
            with atomic_write(path) as temporary:
                temporary.write_bytes(content + self._digest(path, content))
        except OSError as error:
            self.writes = False
            reason = error.strerror or error
            print(f"rococo: {self.folder}: embeddings cannot be kept ({reason}); going on without", file=sys.stderr)

    def _digest(self, path: Path, content: bytes) -> bytes:
        return hashlib.sha256(path.relative_to(self.folder).as_posix().encode() + content).digest()

    def find(self, about: dict, items: list[bytes]) -> dict[int, np.ndarray]:
        """The vectors of those items that some part has, by place."""
        if self.folder is None:
            return {}
        asked, found = _digests(items), {}
        for path in sorted(self._index(about).glob("*.npy")):
            held = self._load(path)
            if held is None or held.ndim != 2 or held.shape[1:] != asked.shape[1:] or not len(held):
                continue
            order = np.argsort(held[:, 0], kind="stable")
            rows = order[np.minimum(np.searchsorted(held[order, 0], asked[:, 0]), len(order) - 1)]
            places = [
                place for place in np.flatnonzero((held[rows] == asked).all(axis=1)).tolist() if place not in found
            ]
            part = self._load(self._path(path.stem)) if places else None
            if part is not None and len(part) == len(held):
                found |= {place: part[rows[place]] for place in places}
        self.read += len(found)
        return found

    def remember(self, about: dict, key: str, items: list[bytes]) -> None:
        """Notes which items a part has."""
        if self.folder is None or (path := self._index(about) / f"{key}.npy").is_file():
            return
        self._save(path, _digests(items))

    def _index(self, about: dict) -> Path:
        return self.folder / "index" / hash_bytes(json.dumps(about, sort_keys=True).encode())[:32]

    def put(self, key: str, embeddings: np.ndarray) -> None:
        """Keeps a part."""
        if self.folder is None:
            return
        self._save(self._path(key), embeddings)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.npy"


def _digests(items: list[bytes]) -> np.ndarray:
    return np.array([np.frombuffer(hashlib.sha256(item).digest()[:16], np.uint64) for item in items]).reshape(-1, 2)
