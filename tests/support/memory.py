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


_files = itertools.count(1)


def give_back() -> None:
    """Free what nothing refers to, and return it to the system; what was frozen before the file at every tenth call.

    To walk through all modules takes half a second.
    """
    if next(_files) % 10 == 0:
        gc.unfreeze()
    gc.collect()
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)
