"""Stop a command at a file operation of its choice, by Python's audit events: no strace, no preloaded library.

Operations are the events of opening a file to write, renaming, removing, truncating, and making or removing a folder,
below one folder. What libraries write without Python is not seen; kills by the clock reach that.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Killed(BaseException):
    """Ends a command as SIGKILL would: nothing that it does afterwards reaches the disk."""


_folder, _count, _act = "", 0, None


def _watch(event: str, details: tuple) -> None:
    global _count
    if _act is None or event not in _EVENTS:
        return
    if event == "open" and not (isinstance(details[2], int) and details[2] & _WRITING):
        return
    if isinstance(details[0], str | bytes | os.PathLike) and str(os.fsdecode(details[0])).startswith(_folder):
        _count += 1
        _act(_count)


@functools.cache
def _begin() -> None:
    """The one hook of this process: hooks cannot be taken off again."""
    sys.addaudithook(_watch)


def watched(folder: Path, act: Callable[[int], None], run: Callable[[], None]) -> int:
    """Runs `run` and calls `act` with the number of each file operation below `folder`. Returns how many there were."""
    global _folder, _count, _act
    _begin()
    _folder, _count, _act = str(folder), 0, act
    try:
        run()
    finally:
        _act = None
    return _count


def killed_at(number: int) -> Callable[[int], None]:
    """Return an action that makes operation `number` and all later ones fail."""

    def act(count: int) -> None:
        if count >= number:
            raise Killed

    return act


def sigkill_at(number: int) -> Callable[[int], None]:
    """SIGKILL to this process before operation `number`."""

    def act(count: int) -> None:
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return act
