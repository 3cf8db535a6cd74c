"""SHA-256 of the contents of files, with each file read again only if it may have changed.

A `FileHashes` has the hash of each file together with the state of the file (`remote.FileState`) when it was read. A
hash counts as long as the file is still in that state. The table is remembered in the cache folder, so that other
processes can use it. If the files are small, or the cache folder is not writable, the table exists only in memory.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rococo_jax.cores import usable_cores
from rococo_jax.data.remember import Kind, map_content, remembered
from rococo_jax.data.remote import FileState, local_state
from rococo_jax.progress import progress
from rococo_jax.storage import hash_file, hash_json

_TABLE = Kind("content_hashes", ".hashes", 1)
_ENTRY = np.dtype([("state", "u1", 16), ("sha256", "u1", 32)])
# Reading fewer bytes takes no longer than loading a saved table.
_BYTES_WORTH_SAVING = 64 * 2**20
# Stands for a file that does not exist.
MISSING_FILE = bytes(32).hex()
_NO_STATE = bytes(16)
_States = Sequence[FileState | None]
Item = TypeVar("Item")
Hash = TypeVar("Hash")


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
    """The hashes of a list of local files, which are read once and again only after a change.

    Args:
        files: paths, or images inside tables or sources, which have their hashes by `sha256()`.
    """

    def __init__(self, files: Sequence[Any]):
        self._files = files
        self._paths = [str(Path(file).absolute()) for file in files if isinstance(file, str | Path)]
        self._entries = np.zeros(len(self._paths), _ENTRY)
        self._inside: list[str] | None = None

    def read(self) -> list[str | None]:
        """Return the SHA-256 of each file as 64 hex digits; None for a file that does not exist."""
        states = list(map(_state_of, self._paths))
        if self._changed_rows(states):
            if sum(state.size for state in states if state is not None) >= _BYTES_WORTH_SAVING:
                folder, key = os.path.commonpath(self._paths), hash_json(self._paths)
                table = remembered(_TABLE, folder, key, partial(self._write_table, states), lambda: states)
                self._entries = np.frombuffer(map_content(table), _ENTRY).copy()
            else:
                self._read_changed(states)
        hashes = (
            None if state is None else entry["sha256"].tobytes().hex()
            for entry, state in zip(self._entries, states, strict=True)
        )
        if self._inside is None:
            others = [file for file in self._files if not isinstance(file, str | Path)]
            self._inside = hash_in_threads(lambda file: file.sha256(), others)
        inside = iter(self._inside)
        return [next(hashes if isinstance(file, str | Path) else inside) for file in self._files]

    def _changed_rows(self, states: _States) -> list[int]:
        entries = zip(self._entries["state"], states, strict=True)
        return [
            row
            for row, (known, state) in enumerate(entries)
            if state is not None and known.tobytes() != _digest_of(state)
        ]

    def _write_table(self, states: _States, file: BufferedIOBase, earlier: memoryview | None) -> None:
        if earlier is not None and not self._entries["state"].any():
            self._entries = np.frombuffer(earlier, _ENTRY).copy()
        self._read_changed(states)
        file.write(self._entries.tobytes())

    def _read_changed(self, states: _States) -> None:
        """Read the files whose hashes are unknown."""
        rows = self._changed_rows(states)
        results = hash_in_threads(lambda row: _hash_of(self._paths[row], states[row]), rows)
        for row, (state, content) in zip(rows, results, strict=True):
            self._entries[row] = list(state), list(bytes.fromhex(content))


def hash_files(paths: Sequence[str | Path]) -> list[str]:
    """Return the SHA-256 of each local file as 64 hex digits; zeros for a file that does not exist."""
    return [content or MISSING_FILE for content in FileHashes(paths).read()]


def _state_of(path: str | Path) -> FileState | None:
    try:
        return local_state(path)
    except FileNotFoundError:
        return None


def _digest_of(state: FileState) -> bytes:
    return hashlib.sha256(json.dumps(state.to_json()).encode()).digest()[:16]


def _hash_of(path: str, state: FileState) -> tuple[bytes, str]:
    """Return the hash of a file, and its state unless it may have had another one while it was read."""
    is_settled = state.settle()
    content = hash_file(path)
    return _digest_of(state) if is_settled and _state_of(path) == state else _NO_STATE, content
