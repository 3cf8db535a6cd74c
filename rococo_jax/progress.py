"""Progress on standard error: a bar in a terminal, a line every 30 seconds and at the end elsewhere, nothing in the
first two.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_QUIET_SECONDS = 2.0
_LINE_EVERY_SECONDS = 30.0
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


class _Nothing:
    def __init__(self, *about: object):
        pass

    def advance(self, count: int, note: str = "") -> None:
        pass

    def close(self) -> None:
        pass


class _Bar:
    def __init__(self, description: str, total: int | None, unit: str):
        del unit
        self.description, self.total, self.done = description, total, 0
        self.start, self.bar = time.monotonic(), None

    def advance(self, count: int, note: str = "") -> None:
        self.done += count
        if self.bar is None and time.monotonic() - self.start > _QUIET_SECONDS:
            self._open()
        elif self.bar is not None:
            shown = f"{self.description}, {note}" if note else self.description
            self.bar.update(self.task, completed=self.done, description=shown)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.bar.start()
        self.task = self.bar.add_task(self.description, total=self.total, completed=self.done)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


class _Lines:
    def __init__(self, description: str, total: int | None, unit: str):
        self.description, self.total, self.unit, self.done = description, total, unit, 0
        self.start = time.monotonic()
        self.last = self.start + _QUIET_SECONDS - _LINE_EVERY_SECONDS
        self.told, self.note = None, ""

    def advance(self, count: int, note: str = "") -> None:
        self.done, self.note = self.done + count, note
        if time.monotonic() - self.last > _LINE_EVERY_SECONDS:
            self._tell()

    def _tell(self) -> None:
        self.last, self.told = time.monotonic(), self.done
        rate = self.done / max(self.last - self.start, 1e-9)
        told = f"{self.description}: {self.done}{'' if self.total is None else f' of {self.total}'} {self.unit}"
        told += f" ({rate:.1f}/s)"
        if self.total is not None and 0 < self.done < self.total:
            told += f", {_duration((self.total - self.done) / max(rate, 1e-9))} left"
        print(f"{told}, {self.note}" if self.note else told, file=sys.stderr, flush=True)

    def close(self) -> None:
        # Who was shown a part is shown the end.
        if self.told is not None and self.told != self.done:
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
