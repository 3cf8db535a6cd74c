"""Several processes as one computation: how they find one another, wait, exchange what they made, and end together.

They are one computation when the environment says so:

    ROCOCO_COORDINATOR     host:port of process 0; on a TPU pod or under SLURM `auto`, and JAX finds the rest itself
    ROCOCO_PROCESSES       how many there are
    ROCOCO_PROCESS         which one this is, from 0
    ROCOCO_TIMEOUT         seconds to wait for the others when joining, and for one that falls silent (default 300)

Everything passes through JAX's own service at process 0 and its collectives: no file system need be shared. A process
gives a sign of life every two seconds. Who has given none for half the timeout is gone, and who fails says so: then all
others stop within the timeout with a line that names it. Who is alive may take as long as it needs; those who wait for
it say so whenever a timeout has passed. If process 0 itself is gone, JAX ends the others at once.
"""

import contextlib
import itertools
import multiprocessing
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np

from rococo_jax.errors import InputError, as_input_error, report_in_one_line

T = TypeVar("T")

_LOOK_SECONDS = 2.0
# Barriers end by what is seen of the others, not by the clock.
_NO_LIMIT_MS = 7 * 24 * 3600 * 1000
# JAX gives up with a stack trace; what is said here comes before.
_LATER_SECONDS = 10


class _Team:
    """This process among the others: its signs of life, its place, and what is said of who is gone."""

    def __init__(self, client: Any, number: int, count: int, timeout: int):
        self.client, self.number, self.count, self.timeout = client, number, count, timeout
        self.places = itertools.count()
        self.waiting_since: float | None = None
        self.told = 0.0
        self.every = min(_LOOK_SECONDS, timeout / 8)
        self.silence = timeout / 2
        self.over = threading.Event()
        self.signs: dict[int, tuple[str | None, float]] = {}
        self._put("host", socket.gethostname())
        self.thread = threading.Thread(target=self._watch, daemon=True, name="processes")
        self.thread.start()

    def wait(self, what: str) -> None:
        """Returns when all are at this place."""
        place = next(self.places)
        self._put("at", f"{place} {what}")
        self.waiting_since = time.monotonic()
        self.client.wait_at_barrier(f"rococo/{place}", _NO_LIMIT_MS)
        self.waiting_since = None

    def leave(self) -> None:
        """After all have come to the end: nobody is missed any more."""
        self.over.set()
        self.thread.join()

    def fail(self, error: BaseException) -> NoReturn:
        """Ends this process, and tells the others why."""
        said = "Ctrl-C" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        said = str(as_input_error(error) or said)
        code = report_in_one_line(error)
        if code is None:
            code = 1
            traceback.print_exception(error)
        # Where a collective broke, somebody else is gone: the watching thread will find out who, and end this process.
        if not (isinstance(error, jax.errors.JaxRuntimeError | ValueError) and self._all_failed()):
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._put("ended", f"{code} ended with {_one_line(said)[:500]}")
        self._exit(code)

    def _all_failed(self) -> bool:
        """Whether all processes came to such an error: then it is nobody's absence that caused it."""
        print(f"rococo: {self.name(self.number)} failed; looking who else is there", file=sys.stderr, flush=True)
        limit = time.monotonic() + self.silence + 3 * self.every
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._put("failed", "yes")
            while time.monotonic() < limit:
                if len(self._all("failed")) == self.count:
                    return True
                time.sleep(self.every)
        return False

    def name(self, number: int) -> str:
        """The process and its host."""
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
                    self._look_for_silent()
                ended = self._all("ended")
                self._say_who_is_missing()
            except jax.errors.JaxRuntimeError:
                if self.over.is_set():
                    return
                ended = {0: "1 cannot be reached, where all processes meet"}
            ended.pop(self.number, None)
            if ended:
                number, how = min(ended.items())
                code, how = how.split(" ", 1)
                print(f"rococo: {self.name(number)} {how}; process {self.number} stops, too", file=sys.stderr)
                self._exit(int(code))
            if self.over.wait(self.every):
                return

    def _look_for_silent(self) -> None:
        now, alive = time.monotonic(), self._all("alive")
        for number in range(1, self.count):
            sign, since = self.signs.get(number, (None, now))
            if alive.get(number) != sign:
                since = now
            self.signs[number] = alive.get(number), since
            if now - since > self.silence:
                self._put("ended", f"1 has given no sign of life for {now - since:.0f} s", number)

    def _say_who_is_missing(self) -> None:
        since, now = self.waiting_since, time.monotonic()
        if since is None or now - max(since, self.told) < self.timeout:
            return
        places = {number: at.split(" ", 1) for number, at in self._all("at").items()}
        here = places[self.number]
        if self.number != min(number for number, place in places.items() if place == here):
            return
        self.told = now
        others = {number: places.get(number) for number in range(self.count) if places.get(number) != here}
        missing = (f"{self.name(number)}, last seen at {place[1] if place else 'its start'!r}"
                   for number, place in others.items())  # fmt: skip
        print(f"rococo: waiting at {here[1]!r} for {now - since:.0f} s; missing {'; '.join(missing)}", file=sys.stderr)

    def _exit(self, code: int) -> NoReturn:
        """At once: whatever an orderly end would wait for may never come."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self.number == 0:
            # The others hear of it from here.
            time.sleep(3 * self.every)
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(code)


_team: _Team | None = None


def initialize_distributed() -> None:
    """Joins this process with the others that the environment names; nothing where it names none.

    Raises:
        InputError: some of the variables are missing, or are no numbers.
    """
    global _team
    coordinator = os.environ.get("ROCOCO_COORDINATOR")
    if coordinator is None or _team is not None:
        return
    seconds = _number("ROCOCO_TIMEOUT", 300)
    options = {"initialization_timeout": seconds + _LATER_SECONDS, "heartbeat_timeout_seconds": seconds}
    who, whom = "this process", "all others"
    if coordinator != "auto":
        count, number = _number("ROCOCO_PROCESSES"), _number("ROCOCO_PROCESS")
        options |= {"coordinator_address": coordinator, "num_processes": count, "process_id": number}
        who, whom = f"process {number} of {count}", f"all others at {coordinator}"
    # What CPU processes talk through; other devices have their own ways.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would take SIGTERM for itself, and a command that does not ask it could not be stopped.
    jax.config.update("jax_enable_preemption_service", False)
    alone = threading.Timer(seconds, _give_up, [f"{who} ({socket.gethostname()}) has waited {seconds} s for {whom}"])
    alone.daemon = True
    alone.start()
    try:
        jax.distributed.initialize(**options, shutdown_timeout_seconds=seconds)
    finally:
        alone.cancel()
    from jax._src.distributed import global_state  # where JAX keeps the client, for which it has no public name

    if global_state.num_processes > 1:
        _team = _Team(global_state.client, global_state.process_id, global_state.num_processes, seconds)


def _number(name: str, default: int | None = None) -> int:
    value = os.environ.get(name)
    if value is None and default is not None:
        return default
    if value is None or not value.isdecimal():
        raise InputError("environment", name, repr(value), "a whole number, beside ROCOCO_COORDINATOR")
    return int(value)


def _give_up(said: str) -> NoReturn:
    print(f"rococo: {said}; every process that came says so, who does not is missing", file=sys.stderr, flush=True)
    os._exit(1)


@contextlib.contextmanager
def distributed_run() -> Iterator[None]:
    """Joins the processes that the environment names, if any. Inside they are one command: all come to its end
    together, or, when one of them fails or is gone, all stop.

    Raises:
        InputError: see `initialize_distributed`; what `gather` raises on all processes passes through.
    """
    initialize_distributed()
    if _team is None:
        yield
        return
    try:
        yield
        barrier("the end")
    except BaseException as error:
        if not getattr(error, "is_on_all_processes", False):
            _team.fail(error)
        barrier("the end")
        _team.leave()
        raise
    _team.leave()


def barrier(what: str) -> None:
    """Returns when every process has come here. `what` names the place, for the message if one does not."""
    if _team is not None:
        _team.wait(what)
    elif jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(what)


def on_any_process(flag: bool) -> bool:
    """Whether `flag` is set on any process. All must ask."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


def gather(what: str, make: Callable[[], T]) -> list[T]:
    """What `make` gives on each process, in order of their numbers, on all of them. All must come here.

    Raises:
        Exception: what `make` raised on the first process where it did, on all of them.
    """
    if jax.process_count() == 1:
        return [make()]
    error = None
    try:
        mine = pickle.dumps((True, make()), protocol=5)
    except Exception as caught:
        error, mine = caught, _pickled(caught)
    answers = [pickle.loads(answer) for answer in _exchange(what, mine)]
    for number, (fine, value) in enumerate(answers):
        if not fine:
            first = error if number == jax.process_index() else value
            first.is_on_all_processes = True
            raise first
    return [value for _, value in answers]


def run_on_all_processes(what: str, make: Callable[[], T]) -> T:
    """What `make` gives here, once it has come to its end everywhere. All must come here.

    Raises:
        Exception: as `gather`.
    """
    made: list[T] = []
    gather(what, lambda: made.append(make()))
    return made[0]


def broadcast_from_process_0(what: str, make: Callable[[], T]) -> T:
    """What `make` gives on process 0, where alone it is called, on all of them. All must come here.

    Raises:
        Exception: as `gather`.
    """
    return gather(what, lambda: make() if jax.process_index() == 0 else None)[0]


def _pickled(error: Exception) -> bytes:
    try:
        whole = pickle.dumps((False, error))
        pickle.loads(whole)
    except Exception:  # an exception may hold anything
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
    return whole


def _exchange(what: str, mine: bytes) -> list[bytes]:
    """The bytes of every process, through the devices: floating-point numbers arrive with the bits they had."""
    from jax.experimental import multihost_utils

    barrier(what)
    lengths = multihost_utils.process_allgather(np.int32(len(mine)))
    # Few sizes, since each is a program to compile: three bits of the longest, rounded up.
    step = 1 << max(10, int(lengths.max()).bit_length() - 3)
    padded = np.zeros(-(-int(lengths.max()) // step) * step, np.uint8)
    padded[: len(mine)] = np.frombuffer(mine, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [row[:length].tobytes() for row, length in zip(rows, lengths.tolist(), strict=True)]


def _one_line(text: str) -> str:
    return " ".join(text.split())
