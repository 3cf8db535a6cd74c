"""The state of a file: size, times and versions that its storage records, to recognise an unchanged file.

Contents identify data. A state only avoids reading a file a second time, and it is used only if other contents cannot
have the same state:

- On a local file system, the state is the size, both times and the inode. Programs can set the modification time
  (`touch -r`, `rsync -t`), but not the time of the last change (ctime).
- Behind a URL, it is the size and the version that the service records: ETag, checksum, generation or date. If a
  service records none, or only a modification time, its files are read again.
- A file that was changed just before it was read may change again within the same tick of the clock. Its state counts
  only if the file had not changed for longer than a tick (`is_settled`), as in git's index.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.data.remote import url_facts, why_refused
from rococo_jax.errors import InputError
from rococo_jax.storage import is_url

# The clocks of most file systems tick about every hundredth of a second; some record seconds, FAT every second one.
_TICK_SECONDS, _COARSE_TICK_SECONDS = 0.1, 2.0


class FileState(NamedTuple):
    """The state of a file.

    Attributes:
        size: in bytes.
        version: values that differ for each version of the file; empty if the storage has none.
        changed_at: time of the last change in seconds; 0 if the version does not depend on a clock.
    """

    size: int
    version: tuple[Any, ...] = ()
    changed_at: float = 0.0

    def is_settled(self, read_at: float) -> bool:
        """Return whether any change after this time would change the state."""
        return bool(self.version) and read_at - self.changed_at > self._tick()

    def wait_until_settled(self) -> None:
        """Wait until the tick of the clock in which the file was last changed has passed."""
        rest = self.changed_at + self._tick() - time.time()
        if 0 < rest <= self._tick():
            time.sleep(rest)

    def _tick(self) -> float:
        return _COARSE_TICK_SECONDS if self.changed_at == int(self.changed_at) else _TICK_SECONDS

    def to_json(self) -> list[Any]:
        """Return the facts as a JSON value."""
        return [self.size, *self.version]


def file_state(path: str, expected: str) -> FileState:
    """Return the state of a local file, or of the file behind a URL.

    Raises InputError: the file does not exist or cannot be read; `expected` describes its contents for errors.
    """
    if is_url(path):
        return FileState(*url_facts(path, expected))
    if Path(path).is_dir():
        raise InputError(path, "file", "a folder", expected)
    try:
        return local_state(path)
    except OSError as error:
        raise why_refused(path, error, expected) from None


def local_state(path: str | Path) -> FileState:
    """Return the state of a local file. Raises OSError: it does not exist."""
    about = Path(path).stat()
    version = (about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
    return FileState(about.st_size, version, about.st_ctime_ns / 1e9)


def local_stamp(path: str | Path) -> str:
    """Return the state of a local file as a text. Raises OSError: it does not exist."""
    return " ".join(map(str, local_state(path).to_json()))


def is_unchanged(
    recorded_state: Sequence[Any], was_settled: bool, read_at: float, state: FileState, since: float
) -> bool:
    """Return whether a file has not changed since it was read.

    Args:
        recorded_state: its state when it was read, from `FileState.to_json`.
        was_settled: whether that state was settled.
        read_at: the time when it was read.
        state: its current state.
        since: a file that was read after this time needs no settled state, as reading it now would give the same.
    """
    return list(recorded_state) == state.to_json() and (was_settled or read_at >= since)
