"""Progress on standard error: a bar in a terminal, a line every 30 seconds elsewhere, nothing in the first two."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_QUIET_SECONDS = 2.0
_LINE_EVERY_SECONDS = 30.0


@contextlib.contextmanager
def progress(description: str, total: int | None, unit: str = "") -> Iterator[Callable[..., None]]:
    """Yields `advance(count, note="")`, to be called with the number of items done, of `total` (None if unknown)
    `unit`s ("images"), and what to show beside it.
    """
    shown = _Bar(description, total) if sys.stderr.isatty() else _Lines(description, total, unit)
    try:
        yield shown.advance
    finally:
        shown.close()


class _Bar:
    def __init__(self, description: str, total: int | None):
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

    def advance(self, count: int, note: str = "") -> None:
        self.done += count
        now = time.monotonic()
        if now - self.last > _LINE_EVERY_SECONDS:
            self.last = now
            of = "" if self.total is None else f" of {self.total}"
            rate = self.done / max(now - self.start, 1e-9)
            told = f"{self.description}: {self.done}{of} {self.unit} ({rate:.1f}/s)"
            print(f"{told}, {note}" if note else told, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass
