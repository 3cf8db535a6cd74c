"""Reusable memory for chunks of batches: shared memory written by worker processes, and memory for complete batches.

A worker process writes its rows into a shared buffer, which is reused when the training process has copied the rows:

    worker             array, handle = buffers.take((256, 224, 224, 3)); array[row] = ...; a queue transports `handle`
    training process   with reader.rows(handle) as array: batch[start:end] = array

Without reuse, as in Grain, the system clears new memory for every chunk, maps it in both processes and frees it page by
page, which took 170 of the 990 microseconds of a small image. The last byte of a buffer marks it as in use. A worker
removes its buffers when it ends; if it is killed, Python's resource tracker does. Batches lie in `Buffers` for the same
reason: copying an image of 224 pixels takes 11 microseconds, and 13 to 35 into new memory.
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

# The chunks of a run differ by a row; buffers are rounded up so that each has space for any of them.
_GRANULARITY = 2**21


@dataclasses.dataclass(frozen=True)
class SharedRows:
    """A handle of rows in a shared buffer, which a worker sends to the training process."""

    buffer: str
    shape: tuple[int, ...]


class SharedBuffers:
    """The shared buffers of a worker process."""

    def __init__(self):
        self._buffers: list[shared_memory.SharedMemory] = []
        util.Finalize(self, _remove, (self._buffers,), exitpriority=10)

    def take(self, shape: tuple[int, ...]) -> tuple[UInt8[np.ndarray, "..."], SharedRows]:
        """Return rows to write, and their handle; the buffer is in use until the training process has copied them."""
        size = math.prod(shape)
        free = (buffer for buffer in self._buffers if not buffer.buf[-1] and buffer.size > size)
        buffer = next(free, None)
        if buffer is None:
            buffer = shared_memory.SharedMemory(create=True, size=-(-(size + 1) // _GRANULARITY) * _GRANULARITY)
            self._buffers.append(buffer)
        buffer.buf[-1] = 1
        return _array(buffer, shape), SharedRows(buffer.name, shape)

    def __len__(self) -> int:
        return len(self._buffers)


class SharedBufferReader:
    """The shared buffers of all workers, mapped by the training process."""

    def __init__(self):
        self._buffers: dict[str, shared_memory.SharedMemory] = {}

    @contextlib.contextmanager
    def rows(self, handle: SharedRows) -> Iterator[UInt8[np.ndarray, "..."]]:
        """Yield the rows of a handle; after the block, their buffer can be reused."""
        buffer = self._buffers.get(handle.buffer)
        if buffer is None:
            buffer = self._buffers[handle.buffer] = shared_memory.SharedMemory(handle.buffer)
        yield _array(buffer, handle.shape)
        buffer.buf[-1] = 0

    def close(self) -> None:
        """Unmap the buffers; their workers remove them."""
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers.clear()


# JAX uses the memory of an array with this alignment on CPUs, without a copy.
_ALIGNMENT = 64


class Buffers:
    """Memory for arrays, reused once an array and all views of it are deleted.

    Memory that is still read is therefore never overwritten: JAX keeps the view that it copies to a device until the
    transfer has ended, and on CPUs, where a device array may use the same memory, until that array is deleted.
    """

    def __init__(self):
        self._free: defaultdict[int, list[np.ndarray]] = defaultdict(list)

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> Shaped[np.ndarray, "..."]:
        """Return an uninitialised array."""
        dtype = np.dtype(dtype)
        count = math.prod(shape)
        size = count * dtype.itemsize
        free = self._free[size]
        memory = free.pop() if free else np.empty(size + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        # Without the memoryview, views of this array would keep `memory` itself alive and not this array.
        array = np.frombuffer(memoryview(memory)[start : start + size], dtype)
        weakref.finalize(array, free.append, memory).atexit = False
        return array.reshape(shape)


def _array(buffer: shared_memory.SharedMemory, shape: tuple[int, ...]) -> UInt8[np.ndarray, "..."]:
    return np.frombuffer(buffer.buf, np.uint8, math.prod(shape)).reshape(shape)


def _remove(buffers: list[shared_memory.SharedMemory]) -> None:
    for buffer in buffers:
        buffer.unlink()


# The buffers of this process if it is a worker.
_buffers: SharedBuffers | None = None


def use_shared_buffers() -> None:
    """Let `allocate_rows` use shared buffers from now on, because this is a worker process."""
    global _buffers
    _buffers = SharedBuffers()


def allocate_rows(shape: tuple[int, ...]) -> tuple[UInt8[np.ndarray, "rows height width 3"], np.ndarray | SharedRows]:
    """Return rows to write, and the object that represents them in a chunk: a handle, or the rows themselves."""
    if _buffers is not None:
        return _buffers.take(shape)
    rows = np.empty(shape, np.uint8)
    return rows, rows
