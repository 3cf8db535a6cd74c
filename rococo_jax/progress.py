"""Progress on standard error: a bar in a terminal, a line every 30 seconds and at the end elsewhere, nothing in the
first two. Both have the same words.

The rate is that since the first item was done, so that the time to start up (compilation, worker processes) does not
count, and what is left is estimated once five seconds and a fiftieth of all items have been measured so.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

_QUIET_SECONDS = 2.0
_LINE_EVERY_SECONDS = 30.0
_MEASURED_SECONDS, _MEASURED_SHARE = 5.0, 0.02
_quiet = False


def be_quiet(quiet: bool = True) -> None:
    """From now on shows no progress and says nothing by `say`. Errors and warnings are not affected."""
    global _quiet
    _quiet = quiet


def say(text: str) -> None:
    """One line about the work under way, on standard error."""
    if not _quiet:
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(description: str, total: int | None, unit: str = "") -> Iterator[Callable[..., None]]:
    """Yields `advance(count, note="")`, to be called with the number of items done, of `total` (None if unknown)
    `unit`s ("images"), and what to show beside it.
    """
    kind = _Nothing if _quiet else _Bar if sys.stderr.isatty() else _Lines
    shown = kind(description, total, unit)
    try:
        yield shown.advance
    finally:
        shown.close()


@contextlib.contextmanager
def elapsed_time(description: str) -> Iterator[None]:
    """Show that work of unknown length is under way: one line at once, and then how many seconds it has taken.

    A terminal counts the seconds in that line, which disappears at the end; elsewhere a line appears every 30 seconds.
    """
    if _quiet:
        yield
        return
    in_terminal = sys.stderr.isatty()
    print(f"{description} ...", end="" if in_terminal else "\n", file=sys.stderr, flush=True)
    finished = threading.Event()

    def count_seconds() -> None:
        start = time.monotonic()
        while not finished.wait(1.0 if in_terminal else _LINE_EVERY_SECONDS):
            line = f"{description} ... {time.monotonic() - start:.0f} s"
            print(f"\r{line}" if in_terminal else line, end="" if in_terminal else "\n", file=sys.stderr, flush=True)

    counter = threading.Thread(target=count_seconds, daemon=True, name="elapsed time")
    counter.start()
    try:
        yield
    finally:
        finished.set()
        counter.join()
        if in_terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)  # erase the line


class _Nothing:
    def __init__(self, *about: object):
        pass

    def advance(self, count: int, note: str = "") -> None:
        pass

    def close(self) -> None:
        pass


class Count:
    """How many of a number of items are done, and how fast.

    Args:
        description: what is done.
        total: how many there are; None if unknown.
        unit: what they are.
    """

    def __init__(self, description: str, total: int | None, unit: str):
        self.description, self.total, self.unit, self.done, self.note = description, total, unit, 0, ""
        self.start = time.monotonic()
        self.first: tuple[float, int] | None = None

    def add(self, count: int, note: str) -> None:
        """Counts items that are done."""
        self.done, self.note = self.done + count, note
        if self.first is None:
            self.first = (time.monotonic(), self.done)

    def words(self) -> str:
        """What is done, how fast, what is left and the note, as far as each is known."""
        line = (
            f"{self.description}: {self.done}{'' if self.total is None else f' of {self.total}'} {self.unit}".rstrip()
        )
        began, before = self.first or (self.start, 0)
        seconds, measured = time.monotonic() - began, self.done - before
        if measured > 0 and seconds > 0:
            rate = measured / seconds
            line += f" ({rate:.1f}/s)"
            enough = (
                self.total is not None and seconds >= _MEASURED_SECONDS and measured >= _MEASURED_SHARE * self.total
            )
            if enough and self.done < self.total:
                line += f", {_duration((self.total - self.done) / rate)} left"
        return f"{line}, {self.note}" if self.note else line


class _Bar:
    def __init__(self, description: str, total: int | None, unit: str):
        self.count, self.bar = Count(description, total, unit), None

    def advance(self, count: int, note: str = "") -> None:
        self.count.add(count, note)
        if self.bar is None and time.monotonic() - self.count.start > _QUIET_SECONDS:
            self._open()
        elif self.bar is not None:
            self.bar.update(self.task, completed=self.count.done, description=self.count.words())

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (BarColumn(), TextColumn("{task.description}", markup=False))
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.bar.start()
        self.task = self.bar.add_task(self.count.words(), total=self.count.total, completed=self.count.done)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


class _Lines:
    def __init__(self, description: str, total: int | None, unit: str):
        self.count, self.reported = Count(description, total, unit), None
        self.last = self.count.start + _QUIET_SECONDS - _LINE_EVERY_SECONDS

    def advance(self, count: int, note: str = "") -> None:
        self.count.add(count, note)
        if time.monotonic() - self.last > _LINE_EVERY_SECONDS:
            self._tell()

    def _tell(self) -> None:
        self.last, self.reported = time.monotonic(), self.count.done
        print(self.count.words(), file=sys.stderr, flush=True)

    def close(self) -> None:
        # Who was shown a part is shown the end.
        if self.reported is not None and self.reported != self.count.done:
            self._tell()


def _duration(seconds: float) -> str:
    """
    >>> _duration(42.0), _duration(150.0), _duration(8000.0)
    ('42 s', '2 min', '2 h 13 min')
    """
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
