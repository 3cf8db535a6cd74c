"""SHA-256 of the contents of files, with each file read again only if it may have changed.

A `HashTable` records the hash of each file together with the state of the file (`file_state`) when it was read. A hash
counts as long as the file is still in that state. The table is also saved in the cache folder, so that other processes
can use it. If the files are small, or the cache folder is not writable, the table exists only in memory.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from rococo_jax.cores import usable_cores
from rococo_jax.data.file_state import FileState, local_state
from rococo_jax.data.verified_files import append_digest, map_verified
from rococo_jax.errors import InputError
from rococo_jax.locks import hold
from rococo_jax.progress import progress
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import atomic_write, hash_file, hash_json

_ENTRY = np.dtype([("state", "u1", 16), ("sha256", "u1", 32)])
# Reading fewer bytes takes no longer than loading a saved table.
_BYTES_WORTH_SAVING = 64 * 2**20
# Stands for a file that does not exist.
MISSING_FILE = bytes(32).hex()
Item = TypeVar("Item")
Hash = TypeVar("Hash")


class HashTable:
    """The hashes of a list of files, each with the state of the file when it was read.

    Args:
        names: absolute paths or URLs.
    """

    def __init__(self, names: Sequence[str]):
        self.file = cache_folder() / "content_hashes" / hash_json(list(names))[:32]
        self._entries = np.zeros(len(names), _ENTRY)

    def load(self) -> None:
        """Take the entries of the table that an earlier process saved, if there is one."""
        content = map_verified(self.file)
        if content is not None and len(content) == self._entries.nbytes:
            self._entries = np.frombuffer(content, _ENTRY).copy()

    def lookup(self, states: Sequence[FileState | None]) -> list[str | None]:
        """Return the hash of each file as 64 hex digits, or None if the file has to be read.

        Args:
            states: the current states of the files, in their order; None for a file that does not exist.
        """
        return [
            entry["sha256"].tobytes().hex() if _has_state(entry, state) else None
            for entry, state in zip(self._entries, states, strict=True)
        ]

    def put(self, row: int, state: FileState, content: str) -> None:
        """Record the hash of a file that was read in this state, which must have been settled."""
        self._entries[row] = list(_digest_of(state)), list(bytes.fromhex(content))

    def save(self) -> bool:
        """Save the table in the cache folder; return whether that was possible."""
        try:
            with atomic_write(self.file) as temporary:
                temporary.write_bytes(self._entries.tobytes())
                append_digest(temporary, self.file.name)
        except OSError:
            return False
        return True


def _has_state(entry: np.void, state: FileState | None) -> bool:
    """Return whether an entry is of this state; a state without a version proves nothing."""
    return state is not None and bool(state.version) and entry["state"].tobytes() == _digest_of(state)


def _digest_of(state: FileState) -> bytes:
    return hashlib.sha256(json.dumps(state.to_json()).encode()).digest()[:16]


def hash_in_threads(hash_of: Callable[[Item], Hash], items: Sequence[Item]) -> list[Hash]:
    """Return the hash of each item, in order."""
    hashes = []
    with (
        ThreadPoolExecutor(usable_cores(), thread_name_prefix="hash") as pool,
        progress("hashing", len(items), "files") as advance,
    ):
        for each in pool.map(hash_of, items):
            hashes.append(each)
            advance(1)
    return hashes


class FileHashes:
    """The hashes of a list of local files, which are read once and again only after a change."""

    def __init__(self, paths: Sequence[str | Path]):
        self._paths = paths
        self._table = HashTable([str(Path(path).absolute()) for path in paths])

    def read(self) -> list[str | None]:
        """Return the SHA-256 of each file as 64 hex digits; None for a file that does not exist."""
        states = [_state_of(path) for path in self._paths]
        hashes = self._table.lookup(states)
        if not _is_complete(hashes, states):
            if sum(state.size for state in states if state is not None) >= _BYTES_WORTH_SAVING:
                hashes = self._read_and_save(states)
            else:
                self._read_changed(hashes, states)
        return hashes

    def _read_and_save(self, states: Sequence[FileState | None]) -> list[str | None]:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, InputError):  # without a lock, processes do the same work
                stack.enter_context(hold(self._table.file, wait=True))
            self._table.load()  # another process may have completed it meanwhile
            hashes = self._table.lookup(states)
            if not _is_complete(hashes, states):
                self._read_changed(hashes, states)
                self._table.save()
        return hashes

    def _read_changed(self, hashes: list[str | None], states: Sequence[FileState | None]) -> None:
        """Read the files whose hashes are unknown, and fill these in."""
        rows = [row for row, state in enumerate(states) if state is not None and hashes[row] is None]
        results = hash_in_threads(lambda row: _hash_of(self._paths[row], states[row]), rows)
        for row, (content, is_settled) in zip(rows, results, strict=True):
            hashes[row] = content
            if is_settled:
                self._table.put(row, states[row], content)


def _is_complete(hashes: Sequence[str | None], states: Sequence[FileState | None]) -> bool:
    """Return whether the hash of every existing file is known."""
    return all(content or state is None for content, state in zip(hashes, states, strict=True))


def hash_files(paths: Sequence[str | Path]) -> list[str]:
    """Return the SHA-256 of each local file as 64 hex digits; zeros for a file that does not exist."""
    return [content or MISSING_FILE for content in FileHashes(paths).read()]


def _state_of(path: str | Path) -> FileState | None:
    try:
        return local_state(path)
    except FileNotFoundError:
        return None


def _hash_of(path: str | Path, state: FileState) -> tuple[str, bool]:
    """Return the hash of a file, and whether it is certain that the file had this state while it was read."""
    state.wait_until_settled()
    is_settled = state.is_settled(time.time())
    content = hash_file(path)
    return content, is_settled and _state_of(path) == state
