"""SHA-256 of the contents of files, which are read again only where they may have changed.

The hashes of a list of files are kept in the cache folder, each with the state (`file_state`) that its file had when it
was read. Where nothing can be kept, or the files are small, all are read each time.
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
from rococo_jax.progress import progress
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import atomic_write, hash_file, hash_json, hold

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

    Attributes:
        contents: the hash of each file as 64 hex digits; None where the file has to be read.
    """

    def __init__(self, names: Sequence[str], states: Sequence[FileState | None]):
        self.states = states
        self.file = cache_folder() / "content_hashes" / hash_json(list(names))[:32]
        content = map_verified(self.file)
        is_of_list = content is not None and len(content) == len(names) * _ENTRY.itemsize
        self._entries = np.frombuffer(content, _ENTRY).copy() if is_of_list else np.zeros(len(names), _ENTRY)
        self.contents = [
            entry["sha256"].tobytes().hex() if _is_in_state(entry, state) else None
            for entry, state in zip(self._entries, states, strict=True)
        ]

    def is_complete(self) -> bool:
        """Return whether no file that is there has to be read."""
        return all(content or state is None for content, state in zip(self.contents, self.states, strict=True))

    def put(self, row: int, content: str, is_settled: bool) -> None:
        """Take the hash of a file that was read; it is kept where the state of the file was settled then."""
        self.contents[row] = content
        state = self.states[row]
        if is_settled and state is not None:
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


def _is_in_state(entry: np.void, state: FileState | None) -> bool:
    """Whether a kept hash is of a file in this state; one without a version has to be read in any case."""
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


def hash_files(paths: Sequence[str | Path]) -> list[str]:
    """Return the SHA-256 of each file as 64 hex digits; zeros for a file that is not there."""
    states = [_state_of(path) for path in paths]
    if sum(state.size for state in states if state is not None) < _BYTES_WORTH_KEEPING:
        return hash_in_threads(lambda path: hash_file(path) if Path(path).is_file() else _MISSING, paths)
    names = [str(Path(path).absolute()) for path in paths]
    kept = KeptHashes(names, states)
    if not kept.is_complete():
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, InputError):  # without a lock, processes do the same work
                stack.enter_context(hold(kept.file, wait=True))
            kept = KeptHashes(names, states)  # which another process may have completed meanwhile
            _hash_changed(paths, kept)
            kept.save()
    return [kept.contents[row] or _MISSING for row in range(len(paths))]


def _hash_changed(paths: Sequence[str | Path], kept: KeptHashes) -> None:
    """Read the files whose hashes are not known."""
    changed = [row for row, state in enumerate(kept.states) if state is not None and kept.contents[row] is None]
    hashes = hash_in_threads(lambda row: _hash_of(paths[row], kept.states[row]), changed)
    for row, (content, is_settled) in zip(changed, hashes, strict=True):
        kept.put(row, content, is_settled)


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
