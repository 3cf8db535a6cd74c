"""The state of a file: what its storage records of it, by which an unchanged file is known without reading it.

Contents identify data. A state is only a shortcut past reading a file a second time, and it is taken only where
another content cannot have the same one:

- On a local file system a state is the size, both times and the inode. Programs can set the time of the last
  modification (`touch -r`, `rsync -t`), but not the time of the last change (ctime).
- Behind a URL it is the size with what the service records of a version: ETag, checksum, generation or date. A service
  that records none, or only a time of modification, gives no shortcut.
- A file that was changed just before it was read may change again within one tick of the clock. Its state counts only
  where the file had been left alone for longer (`is_settled`), as git decides it for its index.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.data.remote import url_facts, why_refused
from rococo_jax.errors import InputError
from rococo_jax.storage import is_url

# Clocks of file systems tick about every hundredth of a second; some record whole seconds, FAT every second one.
_TICK_SECONDS, _COARSE_TICK_SECONDS = 0.1, 2.0


class FileState(NamedTuple):
    """Facts of a file.

    Attributes:
        size: bytes.
        version: facts that differ for each version of the file; empty where the storage has none.
        changed: time of the last change in seconds; 0 where the version does not depend on a clock.
    """

    size: int
    version: tuple[Any, ...] = ()
    changed: float = 0.0

    def is_settled(self, read_at: float) -> bool:
        """Return whether a later change would have changed the state, if the file was read at this time."""
        return bool(self.version) and read_at - self.changed > self._tick()

    def wait_until_settled(self) -> None:
        """Wait for the tick of the clock in which the file was just changed, if it was, to pass."""
        rest = self.changed + self._tick() - time.time()
        if 0 < rest <= self._tick():
            time.sleep(rest)

    def _tick(self) -> float:
        return _COARSE_TICK_SECONDS if self.changed == int(self.changed) else _TICK_SECONDS

    def to_json(self) -> list[Any]:
        """Return the facts as a JSON value."""
        return [self.size, *self.version]


def file_state(path: str, wanted: str) -> FileState:
    """Return the state of a local file, or of the one behind a URL.

    Raises InputError: there is none, or it cannot be read; `wanted` describes the content for errors.
    """
    if is_url(path):
        return FileState(*url_facts(path, wanted))
    if Path(path).is_dir():
        raise InputError(path, "file", "a folder", wanted)
    try:
        return local_state(path)
    except OSError as error:
        raise why_refused(path, error, wanted) from None


def local_state(path: str | Path) -> FileState:
    """Return the state of a local file. Raises OSError where there is none."""
    about = Path(path).stat()
    version = (about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
    return FileState(about.st_size, version, about.st_ctime_ns / 1e9)


def local_stamp(path: str | Path) -> str:
    """Return the state of a local file as a text. Raises OSError where there is none."""
    return " ".join(map(str, local_state(path).to_json()))


def is_unchanged(recorded: Sequence[Any], settled: bool, read_at: float, state: FileState, since: float) -> bool:
    """Return whether a file still is what was read of it.

    Args:
        recorded: its state then, as `FileState.to_json` gives it.
        settled: whether that state was settled.
        read_at: when it was read.
        state: its state now.
        since: what was read later than this counts in any case, as reading it now would give the same.
    """
    return list(recorded) == state.to_json() and (settled or read_at >= since)
