"""Run several processes with virtual CPU devices on this machine, to try what a pod will do.

    python launch/local.py --processes 4 --devices 2 -- train --config configs/scenes_tiny.py --config.steps=50
    python launch/local.py --processes 2 -- evaluate MODEL --images DIR --annotations DIR --out DIR

`train`, `sweep`, `evaluate` and `influence` share their work between processes; any other command does all of it in
each. The processes get the environment of `rococo_jax.processes` (ROCOCO_COORDINATOR, _PROCESSES, _PROCESS, _TIMEOUT).
SIGTERM and SIGINT go to all of them: training saves and ends, and the same command continues. When a process fails, the
others have `--timeout` seconds to stop; the exit code is that of the first that failed.
"""

import argparse
import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from command import RESULT, as_shell, log, positive, read_run_command, run_main, split_at_dashes

DEVICES_FLAG = "--xla_force_host_platform_device_count"
_output_lock = threading.Lock()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="launch/local.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [options] -- train --config FILE [--workdir DIR] [--config.key=value ...]\n"
        "       %(prog)s [options] -- evaluate|influence ...",
    )
    parser.add_argument("--processes", type=positive, default=2, metavar="N", help="how many (default 2)")
    parser.add_argument("--devices", type=positive, default=1, metavar="M", help="CPU devices of each (default 1)")
    parser.add_argument("--timeout", type=positive, default=300, metavar="SECONDS",
                        help="to wait for the other processes, and to stop after a failure (default 300)")  # fmt: skip
    parser.add_argument("--port", type=positive, help="of process 0 (default: a free one)")
    parser.add_argument("--dry-run", action="store_true", help="only print the commands with their environments")
    own_words, forwarded = split_at_dashes(arguments)
    parsed = parser.parse_args(own_words)
    parsed.words = forwarded_words(forwarded)
    return parsed


def forwarded_words(words: Sequence[str]) -> list[str]:
    """Return the words after `rococo`: `train` and `sweep` are checked and get a working folder."""
    if words and words[0] not in RESULT:
        return list(words)
    command = read_run_command(words)
    return command.words(command.workdir or f"runs/{command.name}")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]


def environment_of(number: int, processes: int, devices: int, port: int, timeout: int) -> dict[str, str]:
    """Return the environment variables of process `number`, in addition to those of this shell."""
    # XLA takes the last of repeated flags; drop the user's, so that the printed command is easy to read.
    other_flags = re.sub(rf"{DEVICES_FLAG}=\d+", "", os.environ.get("XLA_FLAGS", "")).split()
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join([*other_flags, f"{DEVICES_FLAG}={devices}"]),
        "ROCOCO_COORDINATOR": f"localhost:{port}",
        "ROCOCO_PROCESSES": str(processes),
        "ROCOCO_PROCESS": str(number),
        "ROCOCO_TIMEOUT": str(timeout),
    }


def how_it_ended(code: int) -> str:
    """Describe a return code of `subprocess`."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def supervise(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]], timeout: float) -> int:
    """Run the commands side by side until all have ended.

    Output lines get the number of their process; signals go to all processes. When one fails, the others have `timeout`
    seconds to notice and stop; then they are killed.

    Args:
        commands: one for each process.
        environments: the whole environment of each process.
        timeout: seconds, after a failure or a forwarded signal.

    Returns:
        0, or the exit code of the first that failed (128 + number of the signal that ended it).
    """
    events: queue.SimpleQueue = queue.SimpleQueue()
    handled = (signal.SIGTERM, signal.SIGINT)
    previous_handlers = {
        number: signal.signal(number, lambda received, frame: events.put(signal.Signals(received)))
        for number in handled
    }
    processes, threads = [], []
    try:
        for number, (command, environment) in enumerate(zip(commands, environments, strict=True)):
            process = _start(command, environment)
            processes.append(process)
            threads.append(_thread(_copy_lines, number, process.stdout, sys.stdout.buffer))
            threads.append(_thread(_copy_lines, number, process.stderr, sys.stderr.buffer))
            threads.append(_thread(_wait, number, process, events))
        return _wait_for_all(processes, events, timeout)
    finally:
        for process in processes:
            _kill_group(process)
        for thread in threads:
            # A child that left the process group may keep an output open.
            thread.join(timeout=5)
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen:
    # In a session of its own, so that Ctrl-C reaches the process once, through this program.
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, start_new_session=True)


def _thread(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _wait_for_all(processes: Sequence[subprocess.Popen], events: queue.SimpleQueue, timeout: float) -> int:
    running, first_failure, deadline, forwarded = set(range(len(processes))), 0, None, False
    while running:
        try:
            event = events.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            log(f"killing {_names(running)}, still there after {timeout:g} s")
            _kill(processes, running)
            deadline = None
            continue
        if isinstance(event, signal.Signals):
            if forwarded:
                log(f"{event.name} again: killing {_names(running)}")
                _kill(processes, running)
                continue
            log(f"{event.name}: passed on to {_names(running)}")
            forwarded, deadline = True, deadline or time.monotonic() + timeout
            for number in running:
                with contextlib.suppress(ProcessLookupError):
                    processes[number].send_signal(event)
            continue
        number, code = event
        running.discard(number)
        if code and not first_failure:
            first_failure = code if code > 0 else 128 - code
            rest = f"; {timeout:g} s for {_names(running)} to stop" if running else ""
            log(f"process {number} {how_it_ended(code)}{rest}")
            deadline = deadline or time.monotonic() + timeout
    return first_failure


def _names(numbers: set[int]) -> str:
    return f"process{'es' * (len(numbers) > 1)} {', '.join(map(str, sorted(numbers)))}"


def _wait(number: int, process: subprocess.Popen, events: queue.SimpleQueue) -> None:
    # Data workers may outlive a killed process and keep its output open: kill its process group, before the process is
    # reaped and the number of the group may be used again.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    events.put((number, process.wait()))


def _kill(processes: Sequence[subprocess.Popen], numbers: set[int]) -> None:
    for number in numbers:
        _kill_group(processes[number])


def _kill_group(process: subprocess.Popen) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _copy_lines(number: int, source: BinaryIO, target: BinaryIO) -> None:
    for line in source:
        with _output_lock:
            target.write(b"[%d] %s\n" % (number, line.rstrip(b"\r\n")))
            target.flush()


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    port = options.port or free_port()
    command = [sys.executable, "-m", "rococo_jax", *options.words]
    environments = [
        environment_of(number, options.processes, options.devices, port, options.timeout)
        for number in range(options.processes)
    ]
    if options.dry_run:
        for environment in environments:
            print(as_shell(command, environment))
        return 0
    log(f"{options.processes} processes of {options.devices} devices: {as_shell(['rococo', *options.words])}")
    complete = [{**os.environ, **environment} for environment in environments]
    return supervise([command] * options.processes, complete, options.timeout)


if __name__ == "__main__":
    run_main(main)
