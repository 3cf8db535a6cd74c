"""Reduce the memory of a worker; imported before JAX and torch."""

import contextlib
import ctypes
import gc
import math
import resource
import sys
from pathlib import Path

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8

_libc = ctypes.CDLL(None)

# glibc keeps an arena for each of the many threads of JAX and torch, and what is freed in one serves no other. Blocks
# of a megabyte go back to the system as soon as they are free.
with contextlib.suppress(AttributeError):  # another C library
    _libc.mallopt(_M_ARENA_MAX, 2)
    _libc.mallopt(_M_MMAP_THRESHOLD, 2**20)

# A compiler for GPUs that torch imports where it is installed.
sys.modules.setdefault("triton", None)

# Tracing makes and drops a million small objects. To look for circles among them at every 700th takes 5 to 10 % of it.
gc.set_threshold(50_000, 20, 10)


def resident_gb() -> float:
    """Return the memory of this process in GB; infinity where the system has no `/proc`."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**30
    return math.inf


def begin_test() -> None:
    """Leave objects that exist already out of garbage collections, one of which follows every training and evaluation.

    Cycles that recent tests have dropped are freed first.
    """
    gc.collect(1)
    gc.freeze()


def give_back() -> None:
    """Free what nothing refers to, and return it to the system; takes up to a second."""
    gc.unfreeze()
    gc.collect()
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)
