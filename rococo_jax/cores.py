"""How many cores this process may use; a file of its own because the drawing processes of the demo import no JAX."""

import os


def usable_cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
