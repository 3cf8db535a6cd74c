"""Several processes that join: commands, and lines of Python on one CPU device each."""

import atexit
import contextlib
import functools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import patch

from tests.support.paths import CHECKOUT
from tests.support.programs import QUICK, one_device

# What is compiled here runs a few times at most.
_FLAGS = " ".join(f"--{key}={str(value).lower()}" for key, value in QUICK.items())
_ENVIRONMENT = {"XLA_FLAGS": _FLAGS, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
_AS_USERS = "import jax\njax.config.update('jax_disable_most_optimizations', False)\n"
_IMPORTED = ["tests.support.memory", "rococo_jax.training.run", "rococo_jax.evaluation.callback"]
_IMPORTED += ["tests.support.tiny_runs"]


# A command and its environment.
Process = tuple[list[str], dict[str, str]]


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]


def processes_of(count: int, devices: int, *words: object, timeout: int = 40) -> list[Process]:
    """Return the processes, with virtual CPU devices each, that run a `rococo` command together."""
    command = [sys.executable, "-m", "rococo_jax", *map(str, words)]
    flags = f"{one_device()['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "ROCOCO_TIMEOUT": str(timeout)}
    environment |= {"ROCOCO_COORDINATOR": f"localhost:{free_port()}", "ROCOCO_PROCESSES": str(count)}
    return [(command, environment | {"ROCOCO_PROCESS": str(number)}) for number in range(count)]


class Hosts:
    """Processes that run side by side in the checkout, each in a process group of its own, and what they print."""

    def __init__(self, processes: list[Process], folder: Path):
        folder.mkdir()
        self.logs = [folder / f"{number}.log" for number in range(len(processes))]
        self.processes = []
        for (command, environment), log in zip(processes, self.logs, strict=True):
            with log.open("w") as file:
                self.processes.append(
                    subprocess.Popen(
                        command, env=environment, cwd=CHECKOUT, stdout=file, stderr=file, start_new_session=True
                    )
                )

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(len(self.processes)):
            self.lose(number)

    def wait_until(self, reached: Callable[[], bool]) -> None:
        limit = time.monotonic() + 1500
        while not reached():
            running = all(process.poll() is None for process in self.processes)
            assert running and time.monotonic() < limit, "".join(map(self.said, range(len(self.logs))))
            time.sleep(0.2)

    def lose(self, number: int) -> None:
        """Kill a process and its children, as when its host is lost."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[number].pid, signal.SIGKILL)

    def stop(self, number: int) -> None:
        """Send SIGTERM to one process."""
        self.processes[number].terminate()

    def end(self, seconds: float) -> list[int]:
        """Wait for all processes and return their exit codes."""
        return [process.wait(timeout=seconds) for process in self.processes]

    def said(self, number: int) -> str:
        return self.logs[number].read_text()


def run_lines(
    lines: str,
    processes: int,
    frozen: int | None = None,
    timeout: int = 20,
    before: str = "",
) -> list[tuple[int, str]]:
    """Runs lines in several processes that join; returns the exit code and standard error of each.

    Args:
        frozen: a process that will not end by itself.
        before: lines that run before joining.
    """
    program = "import os, signal, time\nfrom rococo_jax.errors import InputError\n"
    program += "from rococo_jax.processes import broadcast_from_process_0, gather, distributed_run, barrier\n"
    # Three times this long a process waits for the others' errors, and process 0 for those who ask for its own.
    program += f"from rococo_jax import process_group\nprocess_group._POLL_SECONDS = 0.2\n{before}"
    program += "me = int(os.environ['ROCOCO_PROCESS'])\nwith distributed_run():\n"
    program += textwrap.indent(lines, "    ")
    return _run_all(program, processes, timeout, frozen)


def run_command_together(
    words: Iterable[object], processes: int, timeout: int = 60, before: str = "", as_users: bool = False
) -> str:
    """Run a command in several processes that join, as `run_lines` does lines; return all that they say.

    Args:
        as_users: with programs as users compile them, which have their bits.
    """
    program = "import sys\nfrom rococo_jax.cli.main import main\nsys.stdout = sys.stderr\n"
    program = f"{_AS_USERS * as_users}{program}{before}sys.exit(main({[*map(str, words)]!r}))\n"
    ended = _run_all(program, processes, timeout, flags=one_device()["XLA_FLAGS"] if as_users else _FLAGS)
    messages = "".join(text for _, text in ended)
    assert not any(code for code, _ in ended), messages
    return messages


def _run_all(
    program: str, processes: int, timeout: int, frozen: int | None = None, flags: str = _FLAGS
) -> list[tuple[int, str]]:
    common = {**os.environ, **_ENVIRONMENT, "XLA_FLAGS": flags, "ROCOCO_COORDINATOR": f"localhost:{free_port()}"}
    common |= {"ROCOCO_PROCESSES": str(processes), "ROCOCO_TIMEOUT": str(timeout)}
    with tempfile.TemporaryDirectory() as folder:
        errors = [Path(folder, str(number)) for number in range(processes)]
        started = [
            _interpreters().Process(target=_run, args=(program, {**common, "ROCOCO_PROCESS": str(number)}, path))
            for number, path in enumerate(errors)
        ]
        for process in started:
            process.start()
        try:
            for number, process in enumerate(started):
                if number != frozen:
                    process.join(300)
        finally:
            for process in started:
                process.kill()
                process.join()
        return [(process.exitcode, path.read_text()) for process, path in zip(started, errors, strict=True)]


@functools.cache
def _interpreters() -> multiprocessing.context.ForkServerContext:
    """Return a fork server of interpreters that have imported the package and have not started JAX's devices."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    with patch.dict(os.environ, _ENVIRONMENT):
        forkserver.ensure_running()
    return context


def _run(program: str, environment: dict[str, str], errors: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with errors.open("w") as file:
        os.dup2(file.fileno(), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    try:
        exec(compile(program, "lines", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out
