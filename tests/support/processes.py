"""Lines of Python in several processes that join, on one CPU device each."""

import os
import socket
import subprocess
import sys
import textwrap

from tests.support.paths import CHECKOUT


def run_lines(
    lines: str, processes: int, frozen: int | None = None, timeout: int = 20, before: str = ""
) -> list[tuple[int, str]]:
    """Runs lines in several processes that join; returns the exit code and standard error of each.

    Args:
        frozen: a process that will not end by itself.
        before: lines that run before joining.
    """
    program = "import os, signal, time\nfrom rococo_jax.errors import InputError\n"
    program += "from rococo_jax.processes import broadcast_from_process_0, gather, distributed_run, barrier\n" + before
    program += "me = int(os.environ['ROCOCO_PROCESS'])\nwith distributed_run():\n" + textwrap.indent(lines, "    ")
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port = listening.getsockname()[1]
    common = {"ROCOCO_COORDINATOR": f"localhost:{port}", "ROCOCO_PROCESSES": str(processes)}
    # What is compiled here runs a few times at most.
    common |= {"ROCOCO_TIMEOUT": str(timeout), "XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    started = []
    for number in range(processes):
        environment = {**os.environ, **common, "ROCOCO_PROCESS": str(number)}
        command = [sys.executable, "-c", program]
        started.append(subprocess.Popen(command, env=environment, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True))
    try:
        said = {number: started[number].communicate(timeout=300)[1] for number in range(processes) if number != frozen}
    finally:
        for process in started:
            process.kill()
    return [(started[number].wait(), said.get(number, "")) for number in range(processes)]
