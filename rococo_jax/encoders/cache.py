"""A cache of embeddings by content: the key covers everything that decides them.

A part is one file named by its key, written by rename: a `.npy`, and after it the SHA-256 of its name and content. A
part that is damaged, or another part's, is computed again. Images enter the key by the hash of their bytes and captions
by their text, never by a file's name or date. Where nothing can be written, nothing is kept.

Beside the parts an index names their items, so that another part computes only what no part has: `index/ABOUT/KEY.npy`
holds 128 bits of SHA-256 of each item of part KEY, for all parts of one tower. A run reads each of these files once.
"""

import contextlib
import hashlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int

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
        self._known: dict[Path, _Items] = {}

    def key(self, about: dict, items: list[bytes]) -> str:
        """The key of what is computed of `items` under everything named in `about`."""
        return hash_bytes(json.dumps(about, sort_keys=True).encode(), *items)

    def get(self, key: str) -> np.ndarray | None:
        """The array under a key, or None where it is not there or is not what was put there."""
        return None if self.folder is None else self._load(self._path(key))

    def put(self, key: str, array: np.ndarray) -> None:
        """Keeps an array under a key."""
        if self.folder is not None:
            self._save(self._path(key), array)

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

    def find(self, about: dict, items: list[bytes]) -> Iterator[tuple[Int[np.ndarray, " rows"], np.ndarray]]:
        """The vectors of those items that some part has: their rows among the items, and the vectors, part by part."""
        if self.folder is None or not items:
            return
        index = self._index(about)
        known = self._known.setdefault(index, _Items())
        for path in sorted(index.glob("*.npy")):
            if path.stem not in known.lengths:
                known.add(path.stem, self._load(path))
        keys, part_of_row, places = list(known.lengths), *known.find(_digests(items))
        order = np.argsort(part_of_row, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(part_of_row[order])) + 1):
            if (number := part_of_row[rows[0]]) < 0:
                continue
            part = self._load(self._path(keys[number]))
            if part is not None and len(part) == known.lengths[keys[number]]:
                self.read += len(rows)
                yield rows, part[places[rows]]
            else:  # of a damaged part: a whole one may have the same items
                with contextlib.suppress(OSError):
                    (index / f"{keys[number]}.npy").unlink()

    def add(self, about: dict, items: list[bytes], vectors: np.ndarray) -> None:
        """Keeps a part: the vectors of some items, and the index that names them."""
        if self.folder is not None:
            key = self.key(about, items)
            self.put(key, vectors)
            self._save(self._index(about) / f"{key}.npy", _digests(items))

    def _index(self, about: dict) -> Path:
        return self.folder / "index" / hash_bytes(json.dumps(about, sort_keys=True).encode())[:32]

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.npy"


class _Items:
    """Which part has which item, of one tower: digests of all index files, each read once.

    Attributes:
        lengths: number of items of each part, by key.
    """

    def __init__(self):
        self.lengths: dict[str, int] = {}
        self._digests, self._places = np.empty((0, 2), np.uint64), np.empty((0, 2), np.int64)
        self._new: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, key: str, digests: np.ndarray | None) -> None:
        """Adds an index file; None, or another shape, is a damaged one, and has no items."""
        if digests is None or digests.shape[1:] != (2,):
            digests = self._digests[:0]
        number, rows = np.full(len(digests), len(self.lengths)), np.arange(len(digests))
        self.lengths[key] = len(digests)
        self._new.append((digests, np.stack([number, rows], axis=1)))

    def find(self, digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find for each item the number of a part that has it, -1 for none, and its row there."""
        if self._new:
            of_parts = zip((self._digests, self._places), *self._new, strict=True)
            held, places = map(np.concatenate, of_parts)
            order = np.argsort(held[:, 0], kind="stable")
            self._digests, self._places, self._new = held[order], places[order], []
        if not len(self._digests):
            return np.full(len(digests), -1), np.zeros(len(digests), np.int64)
        at = np.minimum(np.searchsorted(self._digests[:, 0], digests[:, 0]), len(self._digests) - 1)
        parts, rows = self._places[at].T
        return np.where((self._digests[at] == digests).all(axis=1), parts, -1), rows


def _digests(items: list[bytes]) -> np.ndarray:
    return np.array([np.frombuffer(hashlib.sha256(item).digest()[:16], np.uint64) for item in items]).reshape(-1, 2)
