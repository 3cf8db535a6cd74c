"""Memory for chunks of batches that is used again: of worker processes, shared with the training process, and of it.

A worker process writes its rows into memory that is used again once they are copied out (`SharedBuffers`):

    worker             array, sent = slots.take((256, 224, 224, 3)); array[row] = ...; `sent` goes through a queue
    training process   with opened.rows(sent) as array: batch[start:end] = array

New memory for every chunk, as Grain makes it, is cleared by the system, mapped by both processes and given back page by
page: 170 of the 990 microseconds that a small image took. The last byte of a slot says whether it waits to be copied. A
worker removes its slots when it ends; where it is killed, Python's resource tracker does. Batches lie in `Buffers` for
the same reason: a copy of 224 pixels takes 11 microseconds, into fresh memory 13 to 35.
"""

import contextlib
import dataclasses
import math
import weakref
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing import shared_memory, util

import numpy as np
from jaxtyping import Shaped, UInt8
from numpy.typing import DTypeLike

# Chunks of a run differ by a row; slots are rounded up, so that each can hold any of them.
_ROUNDED_TO = 2**21


@dataclasses.dataclass(frozen=True)
class SharedRows:
    """Rows of bytes in a slot: what travels from a worker to the training process."""

    slot: str
    shape: tuple[int, ...]


class SharedBuffers:
    """The slots of a worker process."""

    def __init__(self):
        self._slots: list[shared_memory.SharedMemory] = []
        util.Finalize(self, _remove, (self._slots,), exitpriority=10)

    def take(self, shape: tuple[int, ...]) -> tuple[UInt8[np.ndarray, "..."], SharedRows]:
        """Rows to write, and what to send. Their slot is taken until the training process has copied them."""
        size = math.prod(shape)
        free = (slot for slot in self._slots if not slot.buf[-1] and slot.size > size)
        slot = next(free, None)
        if slot is None:
            slot = shared_memory.SharedMemory(create=True, size=-(-(size + 1) // _ROUNDED_TO) * _ROUNDED_TO)
            self._slots.append(slot)
        slot.buf[-1] = 1
        return _array(slot, shape), SharedRows(slot.name, shape)

    def __len__(self) -> int:
        return len(self._slots)


class SharedBufferReader:
    """The slots of all workers, as the training process maps them."""

    def __init__(self):
        self._slots: dict[str, shared_memory.SharedMemory] = {}

    @contextlib.contextmanager
    def rows(self, sent: SharedRows) -> Iterator[UInt8[np.ndarray, "..."]]:
        """The rows, valid inside of the block; after it their slot is free."""
        slot = self._slots.get(sent.slot)
        if slot is None:
            slot = self._slots[sent.slot] = shared_memory.SharedMemory(sent.slot)
        yield _array(slot, sent.shape)
        slot.buf[-1] = 0

    def close(self) -> None:
        """Unmaps them; their workers remove them."""
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()


# Of an array whose memory JAX uses as it is on CPUs.
_ALIGNED_TO = 64


class Buffers:
    """Memory for arrays, used again once an array and all views of it are gone.

    So nothing that is still read is written over: JAX holds the view that it copies to a device until the transfer has
    ended, and on CPUs, where an array on the device may lie in that same memory, until that array is gone.
    """

    def __init__(self):
        self._free: defaultdict[int, list[np.ndarray]] = defaultdict(list)

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> Shaped[np.ndarray, "..."]:
        """An array of a shape, with anything in it."""
        dtype = np.dtype(dtype)
        count = math.prod(shape)
        size = count * dtype.itemsize
        free = self._free[size]
        memory = free.pop() if free else np.empty(size + _ALIGNED_TO, np.uint8)
        start = -memory.ctypes.data % _ALIGNED_TO
        # Through a memoryview, since NumPy's views of views would refer to `memory` itself and not to this array.
        array = np.frombuffer(memoryview(memory)[start : start + size], dtype)
        weakref.finalize(array, free.append, memory).atexit = False
        return array.reshape(shape)


def _array(slot: shared_memory.SharedMemory, shape: tuple[int, ...]) -> UInt8[np.ndarray, "..."]:
    return np.frombuffer(slot.buf, np.uint8, math.prod(shape)).reshape(shape)


def _remove(slots: list[shared_memory.SharedMemory]) -> None:
    for slot in slots:
        slot.unlink()


# Of a worker process.
_slots: SharedBuffers | None = None


def use_shared_buffers() -> None:
    """Has the views of samples written into slots from here on: this is a worker process."""
    global _slots
    _slots = SharedBuffers()


def allocate_rows(shape: tuple[int, ...]) -> tuple[UInt8[np.ndarray, "rows height width 3"], np.ndarray | SharedRows]:
    """Rows to write, and what stands for them in a chunk."""
    if _slots is not None:
        return _slots.take(shape)
    made = np.empty(shape, np.uint8)
    return made, made
