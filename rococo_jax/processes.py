"""Several processes as one computation: joining, barriers, exchange of Python objects, and a common end.

The environment describes the group:

    ROCOCO_COORDINATOR     host:port of process 0; `auto` on a TPU pod or under SLURM, where JAX finds the rest itself
    ROCOCO_PROCESSES       number of processes
    ROCOCO_PROCESS         number of this process, from 0
    ROCOCO_TIMEOUT         seconds to wait for the others when joining, and for a silent process (default 300)

Start, barriers, messages and data go through JAX: `jax.distributed`, its coordination service at process 0, and
`jax.experimental.multihost_utils`. No shared file system is needed. `process_group` reports why a process failed.
"""

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax._src.distributed import global_state
from jax.experimental import multihost_utils

from rococo_jax.errors import InputError
from rococo_jax.process_group import Group

T = TypeVar("T")

# JAX's own limit for joining lies this much later, because it aborts with a stack trace.
_GRACE_SECONDS = 10

_group: Group | None = None


def initialize_distributed() -> None:
    """Join the group of processes that the environment describes, if it describes one.

    Raises:
        InputError: a variable of the environment is bad.
    """
    global _group
    coordinator = os.environ.get("ROCOCO_COORDINATOR")
    if coordinator is None or _group is not None:
        return
    seconds = _number("ROCOCO_TIMEOUT", 300)
    options = {"initialization_timeout": seconds + _GRACE_SECONDS, "heartbeat_timeout_seconds": seconds}
    this_name, other_names = "this process", "all others"
    if coordinator != "auto":
        count, number = _number("ROCOCO_PROCESSES"), _number("ROCOCO_PROCESS")
        options |= {"coordinator_address": coordinator, "num_processes": count, "process_id": number}
        this_name, other_names = f"process {number} of {count}", f"all others at {coordinator}"
    # Collectives between processes on CPU; other devices ignore it.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would take SIGTERM away from `end_together_on_signals`.
    jax.config.update("jax_enable_preemption_service", False)
    message = f"{this_name} ({socket.gethostname()}) has waited {seconds} s for {other_names}"
    limit = threading.Timer(seconds, _give_up, [message])
    limit.daemon = True
    limit.start()
    try:
        jax.distributed.initialize(**options, shutdown_timeout_seconds=seconds)
    finally:
        limit.cancel()
    # JAX has no public name for the client of its coordination service, which carries the reasons of failures to the
    # others, nor for the place of this process before the devices are started; Orbax uses the same module.
    if global_state.num_processes > 1:
        _group = Group(global_state.client, global_state.process_id, global_state.num_processes, seconds)


def current_group() -> Group | None:
    """Return the group of this process; None if it is the only one."""
    return _group


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
    """Run the block as one command on all processes of the environment, if it describes any.

    All processes end together, and all stop if one fails. An error that `gather` raised on all processes is
    raised; any other error ends the process, as SIGTERM and Ctrl-C do unless the block handles them.
    """
    if "ROCOCO_COORDINATOR" not in os.environ:
        yield
        return
    with end_together_on_signals():
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


@contextlib.contextmanager
def end_together_on_signals() -> Iterator[None]:
    """End this process and the others on SIGTERM or Ctrl-C, also while the main thread is in a call of a library.

    Python runs a signal handler only when such a call returns: after a compilation, or never in an exchange with a
    process that has ended. So a thread waits for the signals. `signals_handled_by` hands them to other handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    threading.Thread(target=_end_on_signal, args=(read_end,), daemon=True, name="signals").start()
    try:
        with signals_handled_by(lambda *_: None, write_end):
            yield
    finally:
        os.close(write_end)  # ends the thread


@contextlib.contextmanager
def signals_handled_by(handler: Callable[..., None], wakeup_fd: int = -1) -> Iterator[None]:
    """Let `handler` receive SIGTERM and Ctrl-C while the block runs. Outside the main thread, change nothing.

    Args:
        wakeup_fd: as of `signal.set_wakeup_fd`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_fd = signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
    previous_handlers = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, previous in previous_handlers.items():
            signal.signal(number, previous)
        signal.set_wakeup_fd(previous_fd)


def _end_on_signal(read_end: int) -> None:
    for number in iter(lambda: os.read(read_end, 1), b""):
        if number[0] in (signal.SIGTERM, signal.SIGINT):
            name = signal.Signals(number[0]).name
            print(f"rococo: {name}: stopped; the same command starts again", file=sys.stderr, flush=True)
            if _group is None:
                os._exit(128 + number[0])
            _group.end(128 + number[0], f"received {name}")
    os.close(read_end)


def raised_everywhere(error: Exception) -> bool:
    """Return whether all processes raised this error, so that they can continue together.

    Each process with an error must call it. If one has none, the others wait for half the timeout.
    """
    if getattr(error, "is_on_all_processes", False) or jax.process_count() == 1:
        return True
    if _group is None:
        return False
    errors = _group.gather_errors(" ".join(f"{type(error).__name__}: {error}".split())[:500])
    return len(errors) == _group.count and len(set(errors.values())) == 1


def barrier(name: str) -> None:
    """Wait until every process has called it. Messages show `name`."""
    if _group is not None:
        _group.barrier(name)
    else:
        multihost_utils.sync_global_devices(name)


def on_any_process(flag: bool) -> bool:
    """Return whether `flag` is true on any process. All processes must call it."""
    return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


def gather(name: str, make: Callable[[], T]) -> list[T]:
    """Call `make` on every process and return all results on all of them, in order of process numbers.

    All processes must call it. Results are any objects that can be pickled (`multihost_utils.process_allgather` takes
    arrays of one shape). If `make` fails on a process, the error of the first such process is raised on all of them.
    """
    if jax.process_count() == 1:
        return [make()]
    error, content = _call_and_pickle(make)
    results = _exchange_bytes(name, content)
    return [_result_of(number, result, error) for number, result in enumerate(results)]


def run_on_all_processes(name: str, make: Callable[[], T]) -> T:
    """Call `make` on every process and return its result here once all have succeeded; otherwise raise as `gather`."""
    results: list[T] = []
    gather(name, lambda: results.append(make()))
    return results[0]


def broadcast_from_process_0(name: str, make: Callable[[], T]) -> T:
    """Call `make` on process 0 only and return its result on all processes, or raise as `gather`.

    All processes must call it.
    """
    if jax.process_count() == 1:
        return make()
    error, content = None, b""
    if jax.process_index() == 0:
        error, content = _call_and_pickle(make)
    barrier(name)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    padded = multihost_utils.broadcast_one_to_all(_padded(content, length))
    return _result_of(0, padded[:length].tobytes(), error)


def sum_over_processes(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of each count over all processes, which must all call it with the same names."""
    if jax.process_count() == 1:
        return dict(counts)
    names = sorted(counts)
    sums = multihost_utils.process_allgather(np.array([counts[name] for name in names], np.int32)).sum(axis=0)
    return dict(zip(names, map(int, sums), strict=True))


def _call_and_pickle(make: Callable[[], T]) -> tuple[Exception | None, bytes]:
    """Return the error that `make` raises, or None, and the pickled pair of its success and its result or error."""
    try:
        return None, pickle.dumps((True, make()), protocol=5)
    except Exception as error:
        return error, _pickle_error(error)


def _result_of(number: int, content: bytes, error: Exception | None) -> Any:
    """Return the result of process `number`, or raise its error; `error` is that of this process."""
    succeeded, value = pickle.loads(content)
    if succeeded:
        return value
    first = error if number == jax.process_index() else value
    first.is_on_all_processes = True
    raise first


def _pickle_error(error: Exception) -> bytes:
    try:
        pickled = pickle.dumps((False, error))
        pickle.loads(pickled)
    except Exception:  # an exception may hold anything
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
    return pickled


def _exchange_bytes(name: str, mine: bytes) -> list[bytes]:
    """Return the bytes of every process, gathered through the devices."""
    barrier(name)
    lengths = multihost_utils.process_allgather(np.int32(len(mine)))
    rows = multihost_utils.process_allgather(_padded(mine, int(lengths.max())))
    return [row[:length].tobytes() for row, length in zip(rows, lengths.tolist(), strict=True)]


def _padded(content: bytes, length: int) -> np.ndarray:
    """Return bytes in an array of at least `length`."""
    # Each size is a program to compile, so round it up to three significant bits.
    step = 1 << max(10, length.bit_length() - 3)
    padded = np.zeros(-(-length // step) * step, np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    return padded
