"""The state of a file: size, times and versions that its storage records, to recognise an unchanged file.

Contents identify data. A state only avoids reading a file a second time, and it is used only if other contents cannot
have the same state:

- On a local file system, the state is the size, both times and the inode. Programs can set the modification time
  (`touch -r`, `rsync -t`), but not the time of the last change (ctime).
- Behind a URL, it is the size and the version that the service records: ETag, checksum, generation or date. If a
  service records none, or only a modification time, its files are read again.
- A file that was changed just before it was read may change again within the same tick of the clock. Its state counts
  only if the file had not changed for longer than a tick (`settle`), as in git's index.
"""

import time
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

    def settle(self) -> bool:
        """Wait until the tick of the clock in which the file was last changed has passed.

        Return whether any change from now on would change the state.
        """
        rest = self.changed_at + self._tick() - time.time()
        if 0 < rest <= self._tick():
            time.sleep(rest)
        return bool(self.version) and time.time() - self.changed_at > self._tick()

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
