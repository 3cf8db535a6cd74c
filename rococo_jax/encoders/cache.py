"""A cache of embeddings by content: the key covers everything that decides them.

A part is one file named by its key and written by rename: a `.npy`, followed by the SHA-256 of its name and content. A
part that is damaged, or belongs to another key, is computed again. Images enter the key by the hash of their bytes and
captions by their text, never by a file's name or date. If the folder cannot be written, nothing is cached.

An index beside the parts lists their items, so that a new part computes only items that no other part has:
`index/TOWER/KEY.npy` holds 128 bits of SHA-256 of each item of part KEY, for all parts of one tower. A run reads each
of these files once.

Opening a cache removes what killed processes left in it more than a day ago: temporary files, and parts without an
index.
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

from rococo_jax.errors import InputError
from rococo_jax.storage import atomic_write, hash_bytes, refuse_url, remove_old, target_name

_DIGEST_BYTES = hashlib.sha256().digest_size


class EmbeddingCache:
    """A folder of embedding parts.

    Args:
        folder: the folder; None caches nothing.
        read_only: write nothing, and raise InputError where anything is missing.

    Attributes:
        computed: number of items that this process has computed.
        unidentified: number of items among them that are not cached, because their model has no fingerprint.
        read: number of items that this process has read from the cache.

    Raises:
        InputError: the folder is a URL.
    """

    def __init__(self, folder: str | os.PathLike | None, *, read_only: bool = False):
        refuse_url(folder or "", "cache")
        self.folder = None if folder is None else Path(folder)
        self.computed = self.unidentified = self.read = 0
        self.is_read_only = read_only
        self._is_writable = not read_only
        self._indices: dict[Path, _Index] = {}
        if self.folder is not None and not read_only:
            self._remove_leftovers()

    def key(self, description: dict, items: list[bytes]) -> str:
        """Return the key of the embeddings of `items` under everything in `description`."""
        return hash_bytes(json.dumps(description, sort_keys=True).encode(), *items)

    def get(self, key: str) -> np.ndarray | None:
        """Return the array of a key; None if there is none or it is damaged."""
        array = None if self.folder is None else self._load(self.folder / "values" / f"{key}.npy")
        if array is None:
            self.refuse_missing("scores", 1)
        return array

    def refuse_missing(self, kind: str, count: int) -> None:
        """Raise InputError if the cache is read only and `count` items have no stored values."""
        if self.is_read_only and count:
            expected = "the cache of an evaluation by this version; run `rococo evaluate` again"
            raise InputError(self.folder, kind, f"{count:,} that are not stored", expected)

    def put(self, key: str, array: np.ndarray) -> None:
        """Store an array under a key."""
        if self.folder is not None:
            self._save(self.folder / "values" / f"{key}.npy", array)

    def find(self, description: dict, items: list[bytes]) -> Iterator[tuple[Int[np.ndarray, " rows"], np.ndarray]]:
        """Yield the embeddings of the items that some part has, part by part, with their indices into `items`."""
        if self.folder is None or not items:
            return
        folder = self._index_folder(description)
        index = self._updated_index(folder)
        part_numbers, rows_in_part = index.find(_digests(items))
        keys = list(index.lengths)
        for number in np.unique(part_numbers[part_numbers >= 0]).tolist():
            rows = np.flatnonzero(part_numbers == number)
            part = self._load(self._path(keys[number]))
            if part is not None and len(part) == index.lengths[keys[number]]:
                self.read += len(rows)
                yield rows, part[rows_in_part[rows]]
            else:  # a damaged part; without its index file, an undamaged part may provide the same items
                with contextlib.suppress(OSError):
                    (folder / f"{keys[number]}.npy").unlink()

    def add(self, description: dict, items: list[bytes], embeddings: np.ndarray) -> None:
        """Store a part, the embeddings of some items, and its index file."""
        if self.folder is not None:
            key = self.key(description, items)
            self._save(self._path(key), embeddings)
            self._save(self._index_folder(description) / f"{key}.npy", _digests(items))

    def _remove_leftovers(self) -> None:
        indexed = {path.name for path in self.folder.glob("index/*/*.npy")}
        remove_old(path for path in self.folder.glob("??/*.npy") if path.name[0] != "." and path.name not in indexed)
        for folder in ("??", "index/*", "values"):
            remove_old(filter(target_name, self.folder.glob(f"{folder}/.*.npy.*.part")))

    def _updated_index(self, folder: Path) -> "_Index":
        """Return the index of a tower with all files that are in its folder now."""
        index = self._indices.setdefault(folder, _Index())
        for path in sorted(folder.glob("*.npy")):
            if path.stem not in index.lengths:
                index.add(path.stem, self._load(path))
        return index

    def _index_folder(self, description: dict) -> Path:
        return self.folder / "index" / hash_bytes(json.dumps(description, sort_keys=True).encode())[:32]

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.npy"

    def _load(self, path: Path) -> np.ndarray | None:
        """Return the array in a file; None if it is missing or damaged."""
        try:
            content = path.read_bytes()
            if self._digest(path, content[:-_DIGEST_BYTES]) != content[-_DIGEST_BYTES:]:
                return None
            return np.load(io.BytesIO(content), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None

    def _save(self, path: Path, array: np.ndarray) -> None:
        """Write an array to a file; after the first failure, warn and write no more."""
        if not self._is_writable:
            return
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        content = file.getvalue()
        try:
            with atomic_write(path) as temporary:
                temporary.write_bytes(content + self._digest(path, content))
        except OSError as error:
            self._is_writable = False
            reason = error.strerror or error
            print(f"rococo: {self.folder}: cannot cache embeddings ({reason}); continuing without", file=sys.stderr)

    def _digest(self, path: Path, content: bytes) -> bytes:
        return hashlib.sha256(path.relative_to(self.folder).as_posix().encode() + content).digest()


class _Index:
    """The items of all parts of one tower, by digest.

    Attributes:
        lengths: number of items of each part, by key.
    """

    def __init__(self):
        self.lengths: dict[str, int] = {}
        # Digests in ascending order of their first half, and part number and row of each.
        self._digests = np.empty((0, 2), np.uint64)
        self._positions = np.empty((0, 2), np.int64)
        self._unsorted: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, key: str, digests: np.ndarray | None) -> None:
        """Add the index file of a part. A damaged one, None or of another shape, has no items."""
        if digests is None or digests.shape[1:] != (2,):
            digests = np.empty((0, 2), np.uint64)
        part_number = np.full(len(digests), len(self.lengths))
        self.lengths[key] = len(digests)
        self._unsorted.append((digests, np.stack([part_number, np.arange(len(digests))], axis=1)))

    def find(self, digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each item the number of a part that has it, -1 for none, and its row in that part."""
        self._sort()
        if not len(self._digests):
            return np.full(len(digests), -1), np.zeros(len(digests), np.int64)
        nearest = np.searchsorted(self._digests[:, 0], digests[:, 0])
        nearest = np.minimum(nearest, len(self._digests) - 1)
        is_equal = (self._digests[nearest] == digests).all(axis=1)
        part_numbers, rows = self._positions[nearest].T
        return np.where(is_equal, part_numbers, -1), rows

    def _sort(self) -> None:
        if not self._unsorted:
            return
        digests = np.concatenate([self._digests, *(digests for digests, _ in self._unsorted)])
        positions = np.concatenate([self._positions, *(positions for _, positions in self._unsorted)])
        order = np.argsort(digests[:, 0], kind="stable")
        self._digests, self._positions, self._unsorted = digests[order], positions[order], []


def _digests(items: list[bytes]) -> np.ndarray:
    """Return 128 bits of the SHA-256 of each item."""
    return np.array([np.frombuffer(hashlib.sha256(item).digest()[:16], np.uint64) for item in items]).reshape(-1, 2)
