"""SHA-256 of the contents of files, which are read again only where they may have changed.

The hashes of a list of files are kept in the cache folder, each with the state (`file_state`) that its file had when it
was read. Where nothing can be kept, or the files are small, all are read each time.
"""

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
from rococo_jax.progress import progress
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import atomic_write, hash_file, hash_json

_ENTRY = np.dtype([("state", "u1", 16), ("sha256", "u1", 32)])
# Below, reading files again takes no longer than finding out whether they have changed.
_BYTES_WORTH_KEEPING = 64 * 2**20
_MISSING = bytes(32).hex()
Item = TypeVar("Item")
Hash = TypeVar("Hash")


class KeptHashes:
    """The hashes of a list of files, as far as they are known from an earlier reading.

    Args:
        names: absolute paths or URLs.
        states: of the files now; None for one that is not there.
    """

    def __init__(self, names: Sequence[str], states: Sequence[FileState | None]):
        self.states = states
        self.file = cache_folder() / "content_hashes" / hash_json(list(names))[:32]
        content = map_verified(self.file)
        is_of_list = content is not None and len(content) == len(names) * _ENTRY.itemsize
        self._entries = np.frombuffer(content, _ENTRY).copy() if is_of_list else np.zeros(len(names), _ENTRY)

    def get(self, row: int) -> str | None:
        """Return the hash of a file, or None where it has to be read."""
        state = self.states[row]
        if state is None or not state.version or self._entries["state"][row].tobytes() != _digest_of(state):
            return None
        return self._entries["sha256"][row].tobytes().hex()

    def put(self, row: int, content: str) -> None:
        """Take the hash of a file that was read in its present, settled state."""
        state = self.states[row]
        if state is not None:
            self._entries[row] = list(_digest_of(state)), list(bytes.fromhex(content))

    def save(self) -> bool:
        """Keep the hashes; return whether that was possible."""
        try:
            with atomic_write(self.file) as temporary:
                temporary.write_bytes(self._entries.tobytes())
                append_digest(temporary, self.file.name)
        except OSError:
            return False
        return True


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


def hash_files(paths: Sequence[str | Path]) -> list[str]:
    """Return the SHA-256 of each file as 64 hex digits; zeros for a file that is not there."""
    states = [_state_of(path) for path in paths]
    if sum(state.size for state in states if state is not None) < _BYTES_WORTH_KEEPING:
        return hash_in_threads(lambda path: hash_file(path) if Path(path).is_file() else _MISSING, paths)
    kept = KeptHashes([str(Path(path).absolute()) for path in paths], states)
    hashes = [kept.get(row) if state is not None else _MISSING for row, state in enumerate(states)]
    changed = [row for row, content in enumerate(hashes) if content is None]
    for row, (content, is_settled) in zip(
        changed, hash_in_threads(lambda row: _hash_of(paths[row], states[row]), changed), strict=True
    ):
        hashes[row] = content
        if is_settled:
            kept.put(row, content)
    if changed:
        kept.save()
    return [content or _MISSING for content in hashes]


def _state_of(path: str | Path) -> FileState | None:
    try:
        return local_state(path)
    except FileNotFoundError:
        return None


def _hash_of(path: str | Path, state: FileState) -> tuple[str, bool]:
    """The hash of a file, and whether its state then counts for it."""
    state.wait_until_settled()
    is_settled = state.is_settled(time.time())
    content = hash_file(path)
    return content, is_settled and _state_of(path) == state
