"""How a worker takes less memory: imported before JAX and torch."""

import contextlib
import ctypes
import gc
import itertools
import sys

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

_files = itertools.count(1)


def end_file() -> None:
    """`give_back`, at the end of every thirtieth file of what was there before the file, too, which takes a second."""
    if next(_files) % 30 == 0:
        gc.unfreeze()
    give_back()


def give_back() -> None:
    """Free what nothing refers to, and return it to the system."""
    gc.collect()
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)
