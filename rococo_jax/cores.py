"""The number of usable cores, in a file of its own since the drawing processes of the demo import no JAX."""

import os


def usable_cores() -> int:
    """Return the number of cores that this process may use; in a container the machine may have more."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
