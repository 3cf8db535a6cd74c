"""Draws in several processes, from any script.

The pools of the standard library import the caller's script again in every process they spawn, so a script without
`if __name__ == "__main__":` would start itself over; forks are no way out where JAX runs. These processes run this
module and nothing of the caller's.
"""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

_MOST_WORKERS = 4


def map_in_processes(function: Callable[[int], Any], numbers: Sequence[int], chunk: int = 16) -> Iterator[Any]:
    """Yields `function` of every number, in order; computed here where there is one core or little to do.

    `function` is one of a module of the package, or a `functools.partial` of one, and takes `chunk` numbers a process
    at
    once. What it raises for the first number where it does is raised here.
    """
    workers = min(_MOST_WORKERS, _usable_cores())
    if workers < 2 or len(numbers) < 4 * chunk or not sys.executable:
        yield from map(function, numbers)
        return
    chunks = [list(numbers[start : start + chunk]) for start in range(0, len(numbers), chunk)]
    idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()

    def run(chunk: list[int]) -> list[Any]:
        process = idle.get()
        try:
            pickle.dump((function, chunk), process.stdin)
            process.stdin.flush()
            result = pickle.load(process.stdout)
        except (EOFError, OSError):
            raise RuntimeError("a drawing process died") from None
        finally:
            idle.put(process)
        if isinstance(result, Exception):
            raise result
        return result

    with contextlib.ExitStack() as stack:
        for _ in range(workers):
            idle.put(stack.enter_context(_started()))
        threads = ThreadPoolExecutor(workers, thread_name_prefix="drawing")
        stack.callback(threads.shutdown, cancel_futures=True)
        for results in threads.map(run, chunks):
            yield from results


@contextlib.contextmanager
def _started() -> Iterator[subprocess.Popen]:
    """A process that runs `_serve`."""
    # Its modules are found where this process finds them.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    command = [sys.executable, "-c", "from rococo_jax.demo.workers import _serve; _serve()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def _serve() -> None:
    """Reads (function, numbers) from standard input and writes the results to standard output, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    answers: BinaryIO = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is printed must not mix with the answers
    while True:
        try:
            function, numbers = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            result: Any = [function(number) for number in numbers]
        except Exception as error:  # raised again in the parent
            result = error
        pickle.dump(result, answers)
        answers.flush()


def _usable_cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
