"""Progress on standard error: a bar in a terminal, elsewhere a line every 30 seconds and at the end.

Nothing is shown in the first two seconds. The rate is measured between calls that report finished items: neither the
time to the first call nor an interval in which a program was compiled counts. The remaining time is estimated after
five measured seconds and a fiftieth of all items.

Work of many stages has an overall progress as well (`overall_progress`), which is shown with that of each stage.
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
# The overall progress that is under way.
_overall: "Overall | None" = None
# Number of programs that JAX has traced, lowered or compiled in this process; `runtime` reports them.
_compilations = 0


@contextlib.contextmanager
def be_quiet(quiet: bool = True) -> Iterator[None]:
    """Turn progress and `say` off, or on, while the block runs. Errors and warnings are still printed."""
    global _quiet
    before, _quiet = _quiet, quiet
    try:
        yield
    finally:
        _quiet = before


def say(text: str) -> None:
    """Print a line about the current work on standard error."""
    if not _quiet:
        print(text, file=sys.stderr, flush=True)


def report_compilation() -> None:
    """Exclude the current interval of every running display from its rate, because a program was compiled in it."""
    global _compilations
    _compilations += 1


class Overall:
    """Share of finished work of several stages, with the remaining time.

    Args:
        total: amount of all work, in any unit.
    """

    def __init__(self, total: int):
        self.total, self.done = total, 0
        self.start = self.last_report = time.monotonic()

    def finish(self, work: int) -> None:
        """Count finished work."""
        self.done += work
        self.last_report = time.monotonic()

    def drop(self, work: int) -> None:
        """Leave out work that turns out not to be needed."""
        self.total -= work

    def words(self) -> str:
        """Return the share of finished work, and the remaining time once enough was measured."""
        share = self.done / self.total if self.total else 1.0
        measured = self.last_report - self.start
        if share >= 1 or share < _MEASURED_SHARE or measured < _MEASURED_SECONDS:
            return f"overall {share:.0%}"
        remaining = measured * (1 - share) / share - (time.monotonic() - self.last_report)
        return f"overall {share:.0%}, {_duration(max(remaining, 0.0))} left"


@contextlib.contextmanager
def overall_progress(total: int, is_shown: bool = True) -> Iterator[Overall]:
    """Yield the overall progress of the block.

    Args:
        total: amount of all work, in any unit.
        is_shown: show it with the progress of each stage; of a single stage it would say the same twice.
    """
    global _overall
    overall = Overall(total)
    before, _overall = _overall, overall if is_shown else None
    try:
        yield overall
    finally:
        _overall = before


def report_finished(work: int) -> None:
    """Count finished work in the overall progress, if there is one."""
    if _overall is not None:
        _overall.finish(work)


@contextlib.contextmanager
def progress(description: str, total: int | None, unit: str = "", done: int = 0) -> Iterator[Callable[..., None]]:
    """Show progress while the block runs. Yield `advance(count, note="")`, to be called after `count` more items.

    Args:
        description: what is being done.
        total: number of items, None if unknown.
        unit: what the items are, such as "images".
        done: number of items that need no work, such as those in a cache.
    """
    if _quiet:
        yield lambda count, note="": None
        return
    display = (_Bar if sys.stderr.isatty() else _Lines)(Count(description, total, unit, done))
    try:
        yield display.advance
    finally:
        display.close()


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


class Count:
    """Counter of finished items, with their rate.

    Args:
        description: what is being done.
        total: number of items, None if unknown.
        unit: what the items are.
        done: number of items that need no work.
    """

    def __init__(self, description: str, total: int | None, unit: str, done: int = 0):
        self.description, self.total, self.unit, self.done, self.note = description, total, unit, done, ""
        self.start = time.monotonic()
        # Time of the last report of finished items, and the number of compilations before it.
        self.last_report: tuple[float, int] | None = None
        # Items and seconds of all intervals between two reports in which nothing was compiled.
        self.measured_items, self.measured_seconds = 0, 0.0

    def add(self, count: int, note: str) -> None:
        """Count finished items."""
        self.done, self.note = self.done + count, note
        if not count:
            return
        now = time.monotonic()
        if self.last_report is not None:
            then, compilations = self.last_report
            if compilations == _compilations:
                self.measured_items += count
                self.measured_seconds += now - then
        self.last_report = (now, _compilations)

    def words(self) -> str:
        """Return the line to show: items, rate, remaining time and note, as far as they are known."""
        line = (
            f"{self.description}: {self.done}{'' if self.total is None else f' of {self.total}'} {self.unit}".rstrip()
        )
        if self.measured_seconds > 0:
            rate = self.measured_items / self.measured_seconds
            line += f" ({rate:.1f}/s)"
            if self._is_predictable():
                line += f", {_duration((self.total - self.done) / rate)} left"
        return f"{line}, {self.note}" if self.note else line

    def _is_predictable(self) -> bool:
        """Whether items remain and enough was measured to estimate their time."""
        if self.total is None or self.done >= self.total:
            return False
        return self.measured_seconds >= _MEASURED_SECONDS and self.measured_items >= _MEASURED_SHARE * self.total


class _Bar:
    def __init__(self, count: Count):
        self.count, self.bar, self.overall = count, None, None

    def advance(self, count: int, note: str = "") -> None:
        self.count.add(count, note)
        if self.bar is None and time.monotonic() - self.count.start > _QUIET_SECONDS:
            self._open()
        elif self.bar is not None:
            self.bar.update(self.task, completed=self.count.done, description=self.count.words())
            if _overall is not None and self.overall is not None:
                self.bar.update(self.overall, description=_overall.words())

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (BarColumn(), TextColumn("{task.description}", markup=False))
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.bar.start()
        self.task = self.bar.add_task(self.count.words(), total=self.count.total, completed=self.count.done)
        if _overall is not None:
            self.overall = self.bar.add_task(_overall.words(), total=_overall.total, completed=_overall.done)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


class _Lines:
    def __init__(self, count: Count):
        self.count, self.reported = count, None
        self.last = self.count.start + _QUIET_SECONDS - _LINE_EVERY_SECONDS

    def advance(self, count: int, note: str = "") -> None:
        self.count.add(count, note)
        if time.monotonic() - self.last > _LINE_EVERY_SECONDS:
            self._print()

    def _print(self) -> None:
        self.last, self.reported = time.monotonic(), self.count.done
        overall = "" if _overall is None else f"; {_overall.words()}"
        print(self.count.words() + overall, file=sys.stderr, flush=True)

    def close(self) -> None:
        # Print the last line if one was printed before.
        if self.reported is not None and self.reported != self.count.done:
            self._print()


def _duration(seconds: float) -> str:
    """
    >>> _duration(42.0), _duration(150.0), _duration(8000.0)
    ('42 s', '2 min', '2 h 13 min')
    """
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
