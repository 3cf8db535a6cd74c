"""Several processes as one computation: joining, barriers, exchange of Python objects, and a common end.

The environment describes the group:

    ROCOCO_COORDINATOR     host:port of process 0; `auto` on a TPU pod or under SLURM, where JAX finds the rest itself
    ROCOCO_PROCESSES       number of processes
    ROCOCO_PROCESS         number of this process, from 0
    ROCOCO_TIMEOUT         seconds to wait for the others when joining, and for a silent process (default 300)

Start, barriers, messages and data go through JAX: `jax.distributed`, its coordination service at process 0, and
`jax.experimental.multihost_utils`. No shared file system is needed. `process_group` names lost and failed processes.
"""

import contextlib
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn, TypeVar

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


def initialize_distributed(preemptible: bool = False) -> None:
    """Join the group of processes that the environment describes, if it describes one.

    Args:
        preemptible: SIGTERM does not end the process: JAX's preemption service records it for
            `reached_preemption_sync_point`.

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
    jax.config.update("jax_enable_preemption_service", preemptible)
    message = f"{this_name} ({socket.gethostname()}) has waited {seconds} s for {other_names}"
    limit = threading.Timer(seconds, _give_up, [message])
    limit.daemon = True
    limit.start()
    try:
        jax.distributed.initialize(**options, shutdown_timeout_seconds=seconds)
    finally:
        limit.cancel()
    # The client of the coordination service and the place of this process have no public name in JAX 0.10;
    # `jax.process_index` would start the devices, and block before a lost process can be named.
    if global_state.num_processes > 1:
        _group = Group(global_state.client, global_state.process_id, global_state.num_processes, seconds)


def coordination() -> Group | None:
    """Return the group of this process, with JAX's client of the coordination service; None if there is none."""
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
def distributed_run(preemptible: bool = False) -> Iterator[None]:
    """Run the block as one command on all processes of the environment, if it describes any.

    All processes end together, and all stop if one fails or is lost. An error that `gather` raised on all processes is
    raised; any other error ends the process.

    Args:
        preemptible: SIGTERM does not end the block, which calls `reached_preemption_sync_point` instead.
    """
    initialize_distributed(preemptible)
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
    """Call `make` on every process and return its result here once all have succeeded; otherwise raise as `gather`."""
    results: list[T] = []
    gather(name, lambda: results.append(make()))
    return results[0]


def broadcast_from_process_0(name: str, make: Callable[[], T]) -> T:
    """Call `make` on process 0 only and return its result on all processes, or raise as `gather`.

    All processes must call it.
    """
    return gather(name, lambda: make() if jax.process_index() == 0 else None)[0]


def sum_over_processes(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of each count over all processes, which must all call it with the same names."""
    if jax.process_count() == 1:
        return dict(counts)
    names = sorted(counts)
    sums = multihost_utils.process_allgather(np.array([counts[name] for name in names], np.int32)).sum(axis=0)
    return dict(zip(names, map(int, sums), strict=True))


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
    # Each padded size is a program to compile, so round the longest up to three significant bits.
    step = 1 << max(10, int(lengths.max()).bit_length() - 3)
    padded = np.zeros(-(-int(lengths.max()) // step) * step, np.uint8)
    padded[: len(mine)] = np.frombuffer(mine, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [row[:length].tobytes() for row, length in zip(rows, lengths.tolist(), strict=True)]
