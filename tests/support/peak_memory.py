"""The peak memory of a piece of Python in a process of its own."""

import subprocess
import sys

from tests.support.paths import CHECKOUT

# Not `ru_maxrss`, which a process takes over from the one that started it.
_REPORT = """
from pathlib import Path as _Path
print(next(line.split()[1] for line in _Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""


def peak_memory_of(code: str, *arguments: object) -> int:
    """Return the largest resident size in bytes of `code`, which finds the arguments in `sys.argv`."""
    command = [sys.executable, "-c", code + _REPORT, *map(str, arguments)]
    result = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return int(result.stdout.split()[-1]) * 1024
