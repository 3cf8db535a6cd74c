"""Several processes as one computation: joining, barriers, exchange of Python objects, and a common end.

The environment describes the group:

    ROCOCO_COORDINATOR     host:port of process 0; `auto` on a TPU pod or under SLURM, where JAX finds the rest itself
    ROCOCO_PROCESSES       number of processes
    ROCOCO_PROCESS         number of this process, from 0
    ROCOCO_TIMEOUT         seconds to wait for the others when joining, and for a silent process (default 300)

Start, barriers, messages and data go through JAX: `jax.distributed`, its coordination service at process 0, and
`jax.experimental.multihost_utils`. No shared file system is needed. Three things are added to the library:

    loss        JAX aborts every process with a C++ stack trace when heartbeats stop. Here each process writes a
                heartbeat to the coordination service every two seconds; a process that is silent for half the timeout
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
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from rococo_jax.errors import InputError, as_input_error, report_in_one_line

T = TypeVar("T")

_HEARTBEAT_SECONDS = 2.0
# JAX requires a limit for a barrier; a lost process ends the wait much earlier.
_BARRIER_MILLISECONDS = 7 * 24 * 3600 * 1000
# JAX's own limit for joining lies this much later, because it aborts with a stack trace.
_GRACE_SECONDS = 10


class _Group:
    """This process as a member of the group: heartbeats, barriers, and the report of failed or lost processes.

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
        self.left = threading.Event()
        # Process 0: the last heartbeat of each process, and when it arrived.
        self.heartbeats: dict[int, tuple[str | None, float]] = {}
        self._put("host", socket.gethostname())
        self.thread = threading.Thread(target=self._watch, daemon=True, name="processes")
        self.thread.start()

    def barrier(self, name: str) -> None:
        """Returns when all processes have called it."""
        number = next(self.barriers)
        self._put("at", f"{number} {name}")
        self.waiting_since = time.monotonic()
        self.client.wait_at_barrier(f"rococo/{number}", _BARRIER_MILLISECONDS)
        self.waiting_since = None

    def leave(self) -> None:
        """Stops the heartbeats, after a last barrier."""
        self.left.set()
        self.thread.join()

    def fail(self, error: BaseException) -> NoReturn:
        """Reports `error` here and to the other processes, and ends this process."""
        reason = "Ctrl-C" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        reason = str(as_input_error(error) or reason)
        code = report_in_one_line(error)
        if code is None:
            code = 1
            traceback.print_exception(error)
        # A collective raises these when another process is lost. The heartbeats then name that process and end this
        # one; this error is the cause only where all processes have raised one.
        in_collective = isinstance(error, jax.errors.JaxRuntimeError | ValueError)
        if not (in_collective and len(self.errors_of_all("yes")) == self.count):
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._put("ended", f"{code} ended with {' '.join(reason.split())[:500]}")
        self._exit(code)

    def errors_of_all(self, error: str) -> dict[int, str]:
        """Errors by process, once all have one or those without one should count as lost."""
        print(f"rococo: {self.name(self.number)} failed; checking the other processes", file=sys.stderr, flush=True)
        limit = time.monotonic() + self.silence_limit + 3 * self.interval
        topic, errors = f"failed-{next(self.failures)}", {}
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._put(topic, error)
            while len(errors) < self.count and time.monotonic() < limit:
                if errors:
                    time.sleep(self.interval)
                errors = self._all(topic)
        return errors

    def name(self, number: int) -> str:
        """The number and host of a process."""
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
                if self.left.is_set():
                    return
                ended = {0: "1 cannot be reached; it runs the coordination service"}
            ended.pop(self.number, None)
            if ended:
                number, reason = min(ended.items())
                code, reason = reason.split(" ", 1)
                print(f"rococo: {self.name(number)} {reason}; process {self.number} stops, too", file=sys.stderr)
                self._exit(int(code))
            if self.left.wait(self.interval):
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
        """The lowest process at this barrier names those that have not come, once a timeout."""
        since, now = self.waiting_since, time.monotonic()
        if since is None or now - max(since, self.last_notice) < self.timeout:
            return
        places = {number: at.split(" ", 1) for number, at in self._all("at").items()}
        here = places[self.number]
        if self.number != min(number for number, place in places.items() if place == here):
            return
        self.last_notice = now
        others = {number: places.get(number) for number in range(self.count) if places.get(number) != here}
        missing = (f"{self.name(number)}, last seen at {place[1] if place else 'its start'!r}"
                   for number, place in others.items())  # fmt: skip
        print(f"rococo: waiting at {here[1]!r} for {now - since:.0f} s; missing {'; '.join(missing)}", file=sys.stderr)

    def _exit(self, code: int) -> NoReturn:
        """Ends this process at once: an orderly shutdown may wait for a process that is lost."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self.number == 0:
            # Time for the others to read the reason from the service that ends with this process.
            time.sleep(3 * self.interval)
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(code)


_group: _Group | None = None


def initialize_distributed() -> None:
    """Joins the group of processes that the environment describes, if it does. Raises InputError for a bad variable."""
    global _group
    coordinator = os.environ.get("ROCOCO_COORDINATOR")
    if coordinator is None or _group is not None:
        return
    seconds = _number("ROCOCO_TIMEOUT", 300)
    options = {"initialization_timeout": seconds + _GRACE_SECONDS, "heartbeat_timeout_seconds": seconds}
    this, others = "this process", "all others"
    if coordinator != "auto":
        count, number = _number("ROCOCO_PROCESSES"), _number("ROCOCO_PROCESS")
        options |= {"coordinator_address": coordinator, "num_processes": count, "process_id": number}
        this, others = f"process {number} of {count}", f"all others at {coordinator}"
    # Collectives between processes on CPU; other devices ignore it.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX's preemption service would catch SIGTERM, and commands that do not poll it could not be stopped.
    jax.config.update("jax_enable_preemption_service", False)
    message = f"{this} ({socket.gethostname()}) has waited {seconds} s for {others}"
    limit = threading.Timer(seconds, _give_up, [message])
    limit.daemon = True
    limit.start()
    try:
        jax.distributed.initialize(**options, shutdown_timeout_seconds=seconds)
    finally:
        limit.cancel()
    state = _coordination_state()
    if state is not None and state.num_processes > 1:
        _group = _Group(state.client, state.process_id, state.num_processes, seconds)


def _coordination_state() -> Any | None:
    """JAX's client of the coordination service and the place of this process, which have no public name in JAX 0.10.

    `jax.process_index` would start the devices, and block before a lost process can be named. Where a later JAX moves
    the client, the group runs on public functions alone, without the three additions.
    """
    try:
        from jax._src.distributed import global_state
    except ImportError:
        return None
    return global_state if hasattr(getattr(global_state, "client", None), "wait_at_barrier") else None


class Coordination(NamedTuple):
    """JAX's client of the coordination service, the number of this process, and of all processes."""

    client: Any
    number: int
    count: int


def coordination() -> Coordination | None:
    """The coordination service of this group of processes, None where there is no group or no client."""
    return None if _group is None else Coordination(_group.client, _group.number, _group.count)


def _number(name: str, default: int | None = None) -> int:
    value = os.environ.get(name)
    if value is None and default is not None:
        return default
    if value is None or not value.isdecimal():
        raise InputError("environment", name, repr(value), "a whole number, beside ROCOCO_COORDINATOR")
    return int(value)


def _give_up(message: str) -> NoReturn:
    line = f"rococo: {message}; a process that prints no such line is missing"
    print(line, file=sys.stderr, flush=True)
    os._exit(1)


@contextlib.contextmanager
def distributed_run() -> Iterator[None]:
    """Runs the block as one command on all processes of the environment, if it describes any: all end together, and
    all stop when one fails or is lost.

    An error that `gather` raised on all processes is raised; any other error ends the process.
    """
    initialize_distributed()
    if _group is None:
        yield
        return
    try:
        yield
        barrier("the end")
    except BaseException as error:
        if not getattr(error, "is_on_all_processes", False):
            _group.fail(error)
        barrier("the end")
        _group.leave()
        raise
    _group.leave()


def is_error_of_all(error: Exception) -> bool:
    """Whether all processes have come to this error, so that they can go on together. Each that has one must call it.

    Where one has none, the others wait for half the timeout.
    """
    if getattr(error, "is_on_all_processes", False) or jax.process_count() == 1:
        return True
    if _group is None:
        return False
    errors = _group.errors_of_all(" ".join(f"{type(error).__name__}: {error}".split())[:500])
    return len(errors) == _group.count and len(set(errors.values())) == 1


def barrier(name: str) -> None:
    """Returns when every process has called it. `name` tells people which barrier it is."""
    if _group is not None:
        _group.barrier(name)
    else:
        multihost_utils.sync_global_devices(name)


def on_any_process(flag: bool) -> bool:
    """Whether `flag` is true on any process. All processes must call it."""
    return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


def gather(name: str, make: Callable[[], T]) -> list[T]:
    """Calls `make` on every process and returns all results on all of them, in order of process numbers.

    All processes must call it. `multihost_utils.process_allgather` takes arrays of one shape only; here results are any
    objects that pickle, and errors travel too: what the first process to fail raised is raised on all of them.
    """
    if jax.process_count() == 1:
        return [make()]
    error = None
    try:
        mine = pickle.dumps((True, make()), protocol=5)
    except Exception as caught:
        error, mine = caught, _pickle_error(caught)
    results = [pickle.loads(part) for part in _exchange_bytes(name, mine)]
    for number, (succeeded, value) in enumerate(results):
        if not succeeded:
            first = error if number == jax.process_index() else value
            first.is_on_all_processes = True
            raise first
    return [value for _, value in results]


def run_on_all_processes(name: str, make: Callable[[], T]) -> T:
    """Calls `make` on every process and returns its result here once all have succeeded; otherwise raises
    as `gather`.
    """
    made: list[T] = []
    gather(name, lambda: made.append(make()))
    return made[0]


def broadcast_from_process_0(name: str, make: Callable[[], T]) -> T:
    """Calls `make` on process 0 only and returns its result on all processes, or raises as `gather`. All
    must call it.
    """
    return gather(name, lambda: make() if jax.process_index() == 0 else None)[0]


def _pickle_error(error: Exception) -> bytes:
    try:
        pickled = pickle.dumps((False, error))
        pickle.loads(pickled)
    except Exception:  # an exception may hold anything
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
    return pickled


def _exchange_bytes(name: str, mine: bytes) -> list[bytes]:
    """The bytes of every process, gathered through the devices."""
    barrier(name)
    lengths = multihost_utils.process_allgather(np.int32(len(mine)))
    # Each padded size is a program to compile, so round the longest up to three significant bits.
    step = 1 << max(10, int(lengths.max()).bit_length() - 3)
    padded = np.zeros(-(-int(lengths.max()) // step) * step, np.uint8)
    padded[: len(mine)] = np.frombuffer(mine, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [row[:length].tobytes() for row, length in zip(rows, lengths.tolist(), strict=True)]
