"""This process as a member of a group of processes: barriers, and the report of failed ones.

JAX's coordination service, which `jax.distributed` starts at process 0, does not tell the others why a process failed.
Here the error and the exit code reach all of them. A process that is lost without a word is left to JAX, which aborts
the others with a message that names its task once its heartbeats have stopped for the timeout, and to the launcher.
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

_POLL_SECONDS = 1.0
# JAX requires a limit for a barrier; a lost process ends the wait much earlier.
_BARRIER_MILLISECONDS = 7 * 24 * 3600 * 1000


class Group:
    """This process as a member of the group.

    Args:
        client: JAX's client of the coordination service.
        number: number of this process.
        count: number of processes.
        timeout: seconds to wait for the errors of other processes, at most.

    State is shared as keys `rococo/TOPIC/NUMBER` of the coordination service:

        host     host name
        failed-N error of a process that looks for its cause, the Nth time
        ended    exit code and reason of a process that failed
    """

    def __init__(self, client: Any, number: int, count: int, timeout: int):
        self.client, self.number, self.count, self.timeout = client, number, count, timeout
        self.barriers, self.failures = itertools.count(), itertools.count()
        self.has_left = threading.Event()
        self._put("host", socket.gethostname())
        self.thread = threading.Thread(target=self._watch, daemon=True, name="processes")
        self.thread.start()

    def barrier(self, name: str) -> None:
        """Wait until all processes have called it. JAX's messages show `name`."""
        self.client.wait_at_barrier(f"rococo/{next(self.barriers)} {name}", _BARRIER_MILLISECONDS)

    def leave(self) -> None:
        """Stop watching the others; call it after the last barrier."""
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
        # A collective raises these when another process has ended. Its reason arrives first if it could report one, and
        # then ends this process.
        if isinstance(error, jax.errors.JaxRuntimeError | ValueError):
            time.sleep(3 * _POLL_SECONDS)
        self.end(code, f"ended with {' '.join(reason.split())[:500]}")

    def end(self, code: int, reason: str) -> NoReturn:
        """End this process, and tell the others why; they stop, too."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._put("ended", f"{code} {reason}")
        self._exit(code)

    def gather_errors(self, error: str) -> dict[int, str]:
        """Return the errors by process, once all have one, or the others have had time to report one."""
        print(f"rococo: {self.name(self.number)} failed; checking the other processes", file=sys.stderr, flush=True)
        limit = time.monotonic() + self.timeout / 2
        topic = f"failed-{next(self.failures)}"
        self._put(topic, error)
        while len(errors := self._all(topic)) < self.count and time.monotonic() < limit:
            time.sleep(_POLL_SECONDS / 5)
        return errors

    def name(self, number: int) -> str:
        """Return number and host of a process, for messages."""
        return f"process {number} ({self._all('host').get(number)})"

    def _put(self, topic: str, value: str) -> None:
        self.client.key_value_set(f"rococo/{topic}/{self.number}", value, allow_overwrite=True)

    def _all(self, topic: str) -> dict[int, str]:
        entries = self.client.key_value_dir_get(f"rococo/{topic}")
        return {int(key.rsplit("/", 1)[1]): value for key, value in entries}

    def _watch(self) -> None:
        # If process 0 cannot be reached, the coordination service is lost, and JAX ends this process.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            while not self.has_left.wait(_POLL_SECONDS):
                ended = self._all("ended")
                ended.pop(self.number, None)
                if ended:
                    number, content = min(ended.items())
                    code, reason = content.split(" ", 1)
                    print(f"rococo: {self.name(number)} {reason}; process {self.number} stops, too", file=sys.stderr)
                    self._exit(int(code))

    def _exit(self, code: int) -> NoReturn:
        """End this process at once, since an orderly shutdown may wait for a lost process."""
        self.has_left.set()  # so that this process prints no second reason
        sys.stdout.flush()
        sys.stderr.flush()
        if self.number == 0:
            # Time for the others to read the reason from the service that ends with this process.
            time.sleep(3 * _POLL_SECONDS)
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(code)
