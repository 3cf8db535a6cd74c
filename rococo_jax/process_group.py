"""This process as a member of a group of processes: heartbeats, barriers, and the report of failed or lost ones.

Three things are added to JAX's coordination service, which `jax.distributed` starts at process 0:

    loss        JAX aborts every process with a C++ stack trace when heartbeats stop. Here each process writes a
                heartbeat to the coordination service every second; a process that is silent for half the timeout
                is lost, and all others name it with its host and exit within the timeout.
    failure     JAX does not tell the others why a process failed. Here the error and the exit code reach all of them.
    waiting     A barrier has no time limit while all processes are alive. After each timeout, one of the waiting
                processes prints which ones are missing and where they were last.

If process 0 itself is lost, the coordination service is too, and JAX ends the other processes at once.
"""

import contextlib
import itertools
import multiprocessing
import os
import socket
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

import jax

from rococo_jax.errors import as_input_error, report_in_one_line

_HEARTBEAT_SECONDS = 1.0
# JAX requires a limit for a barrier; a lost process ends the wait much earlier.
_BARRIER_MILLISECONDS = 7 * 24 * 3600 * 1000


class Group:
    """This process as a member of the group.

    Args:
        client: JAX's client of the coordination service.
        number: number of this process.
        count: number of processes.
        timeout: seconds after which a silent process is lost.

    State is shared as keys `rococo/TOPIC/NUMBER` of the coordination service:

        host     host name
        alive    count of heartbeats
        at       number and name of the last barrier
        failed-N error of a process that looks for its cause, the Nth time
        ended    exit code and reason of a process that failed or is lost
    """

    def __init__(self, client: Any, number: int, count: int, timeout: int):
        self.client, self.number, self.count, self.timeout = client, number, count, timeout
        self.barriers, self.failures = itertools.count(), itertools.count()
        self.waiting_since: float | None = None
        self.last_notice = 0.0
        self.interval = min(_HEARTBEAT_SECONDS, timeout / 8)
        self.silence_limit = timeout / 2
        self.has_left = threading.Event()
        # Process 0: the last heartbeat of each process, and when it arrived.
        self.heartbeats: dict[int, tuple[str | None, float]] = {}
        self._put("host", socket.gethostname())
        self.thread = threading.Thread(target=self._watch, daemon=True, name="processes")
        self.thread.start()

    def barrier(self, name: str) -> None:
        """Wait until all processes have called it."""
        number = next(self.barriers)
        self._put("at", f"{number} {name}")
        self.waiting_since = time.monotonic()
        self.client.wait_at_barrier(f"rococo/{number}", _BARRIER_MILLISECONDS)
        self.waiting_since = None

    def leave(self) -> None:
        """Stop the heartbeats; call it after the last barrier."""
        self.has_left.set()
        self.thread.join()

    def fail(self, error: BaseException) -> NoReturn:
        """Report `error` here and to the other processes, and end this process."""
        reason = "Ctrl-C" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        reason = str(as_input_error(error) or reason)
        code = report_in_one_line(error)
        if code is None:
            code = 1
            traceback.print_exception(error)
        # A collective raises these when another process is lost. The heartbeats then name that process and end this
        # one; this error is the cause only where all processes have raised one, or the others are alive.
        in_collective = isinstance(error, jax.errors.JaxRuntimeError | ValueError)
        if not (in_collective and len(self.gather_errors("yes", while_silent=True)) == self.count):
            self.end(code, f"ended with {' '.join(reason.split())[:500]}")
        self._exit(code)

    def end(self, code: int, reason: str) -> NoReturn:
        """End this process, and tell the others why; they stop, too."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._put("ended", f"{code} {reason}")
        self._exit(code)

    def gather_errors(self, error: str, while_silent: bool = False) -> dict[int, str]:
        """Return the errors by process, once all have one, or the others have had time to report one.

        Args:
            while_silent: wait only as long as a process without an error gives no sign of life.
        """
        print(f"rococo: {self.name(self.number)} failed; checking the other processes", file=sys.stderr, flush=True)
        limit = time.monotonic() + self.silence_limit + 3 * self.interval
        topic, errors = f"failed-{next(self.failures)}", {}
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._put(topic, error)
            first_beats: dict[int, str] = {}
            while len(errors) < self.count and time.monotonic() < limit:
                if errors:
                    time.sleep(self.interval)
                errors, beats = self._all(topic), self._all("alive")
                first_beats = beats | first_beats  # a process that has just joined had none
                # Two beats later, an error that a lost process causes has reached the others, too.
                is_alive = (int(beats[number]) >= int(beat) + 2 for number, beat in first_beats.items())
                if while_silent and len(first_beats) == self.count and all(is_alive):
                    break
        return errors

    def name(self, number: int) -> str:
        """Return number and host of a process, for messages."""
        try:
            return f"process {number} ({self.client.key_value_try_get(f'rococo/host/{number}')})"
        except jax.errors.JaxRuntimeError:
            return f"process {number}"

    def _put(self, topic: str, value: str, number: int | None = None) -> None:
        number = self.number if number is None else number
        self.client.key_value_set(f"rococo/{topic}/{number}", value, allow_overwrite=True)

    def _all(self, topic: str) -> dict[int, str]:
        entries = self.client.key_value_dir_get(f"rococo/{topic}")
        return {int(key.rsplit("/", 1)[1]): value for key, value in entries}

    def _watch(self) -> None:
        for beat in itertools.count():
            try:
                self._put("alive", str(beat))
                if self.number == 0:
                    self._find_lost()
                ended = self._all("ended")
                self._print_missing()
            except jax.errors.JaxRuntimeError:
                if self.has_left.is_set():
                    return
                ended = {0: "1 cannot be reached; it runs the coordination service"}
            ended.pop(self.number, None)
            if ended:
                number, reason = min(ended.items())
                code, reason = reason.split(" ", 1)
                print(f"rococo: {self.name(number)} {reason}; process {self.number} stops, too", file=sys.stderr)
                self._exit(int(code))
            if self.has_left.wait(self.interval):
                return

    def _find_lost(self) -> None:
        now, alive = time.monotonic(), self._all("alive")
        for number in range(1, self.count):
            beat, since = self.heartbeats.get(number, (None, now))
            if alive.get(number) != beat:
                since = now
            self.heartbeats[number] = alive.get(number), since
            if now - since > self.silence_limit:
                self._put("ended", f"1 has given no sign of life for {now - since:.0f} s", number)

    def _print_missing(self) -> None:
        """Print, once per timeout and from the first process at this barrier, which processes have not reached it."""
        since, now = self.waiting_since, time.monotonic()
        if since is None or now - max(since, self.last_notice) < self.timeout:
            return
        places = {number: at.split(" ", 1) for number, at in self._all("at").items()}
        this_place = places[self.number]
        if self.number != min(number for number, place in places.items() if place == this_place):
            return
        self.last_notice = now
        missing = []
        for number in range(self.count):
            place = places.get(number)
            if place != this_place:
                missing.append(f"{self.name(number)}, last seen at {place[1] if place else 'its start'!r}")
        seconds = f"{now - since:.0f} s"
        print(f"rococo: waiting at {this_place[1]!r} for {seconds}; missing {'; '.join(missing)}", file=sys.stderr)

    def _exit(self, code: int) -> NoReturn:
        """End this process at once, since an orderly shutdown may wait for a lost process."""
        self.has_left.set()  # so that this process prints no second reason
        sys.stdout.flush()
        sys.stderr.flush()
        if self.number == 0:
            # Time for the others to read the reason from the service that ends with this process.
            time.sleep(3 * self.interval)
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(code)
