"""A cache of prepared pixels on disk, shared by all galleries and models of a process.

A `PixelView` is one way to prepare an image: resized to a square for mixing, cropped for corruption, resized for a
model. Views are announced before any file is opened. When a file is decoded for one view, all announced views are
computed, so each file is decoded once as long as the cache has space. Altered images are computed once as well where
several models need the same view.

The pixels lie in unnamed temporary files below the cache folder. The system removes them when the process ends, however
it ends. They take at most a quarter of the disk's free space, and at most 16 GB.
"""

import contextlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from rococo_jax.errors import InputError
from rococo_jax.runtime import cache_folder

_MAX_BYTES, _MAX_SHARE_OF_FREE = 16 * 10**9, 0.25
_LOCKS = 256


class PixelView(NamedTuple):
    """A way to prepare the pixels of an image.

    Attributes:
        key: identifies the preparation; two views with the same key give the same pixels.
        shape: (height, width, 3) of the pixels of every image.
        make: turns a decoded image into pixels, uint8.
    """

    key: str
    shape: tuple[int, int, int]
    make: Callable[[Image.Image], UInt8[np.ndarray, "height width 3"]]

    def __call__(self, image: Image.Image) -> UInt8[np.ndarray, "height width 3"]:
        return self.make(image)


class DiskBudget:
    """The bytes of disk that cached pixels may take, shared by all caches of a process.

    Args:
        limit: in bytes; by default a part of the disk's free space, determined at the first reservation.
    """

    def __init__(self, limit: int | None = None):
        self._available, self._lock = limit, threading.Lock()

    def reserve(self, size: int, count: int) -> int:
        """Reserve space for up to `count` items of `size` bytes; return the number of items that fit."""
        with self._lock:
            if self._available is None:
                self._available = min(_MAX_BYTES, int(_MAX_SHARE_OF_FREE * _free_bytes()))
            reserved = min(count, self._available // size)
            self._available -= reserved * size
            return reserved

    def release(self, size: int) -> None:
        """Release bytes that were reserved."""
        with self._lock:
            self._available += size


DISK_BUDGET = DiskBudget()


class PixelCache:
    """Pixels of images by view and row, as many as fit into the disk budget. Safe to use from many threads.

    Args:
        names: of the images, for errors.
        open_row: returns the image of a row, or raises InputError.
    """

    def __init__(
        self, names: Sequence[object], open_row: Callable[[int], Image.Image], budget: DiskBudget = DISK_BUDGET
    ):
        self.names, self.open_row = names, open_row
        self._budget, self._files, self._announced = budget, {}, {}
        self._locks, self._files_lock = [threading.Lock() for _ in range(_LOCKS)], threading.Lock()

    def announce(self, view: PixelView) -> None:
        """Compute this view of every image that is opened from now on."""
        self._announced.setdefault(view.key, view)

    def is_announced(self, view: Callable) -> bool:
        """Return whether this is an announced view."""
        return isinstance(view, PixelView) and view.key in self._announced

    def get(self, row: int, view: PixelView) -> UInt8[np.ndarray, "height width 3"] | None:
        """Return the pixels of a row if they are cached."""
        return self._file_of(view).get(row)

    def put(self, row: int, view: PixelView, pixels: UInt8[np.ndarray, "height width 3"]) -> None:
        """Cache pixels that were computed elsewhere, if the budget allows it."""
        self._file_of(view).put(row, pixels)

    def pixels(self, row: int, view: PixelView) -> UInt8[np.ndarray, "height width 3"]:
        """Return a view of image `row`. Raises InputError, which names the image."""
        self.announce(view)
        with self._locks[row % _LOCKS]:
            cached = self.get(row, view)
            return self._open(row, view) if cached is None else cached

    def image(self, row: int) -> Image.Image:
        """Open image `row` and compute all announced views. Raises InputError, which names the image."""
        with self._locks[row % _LOCKS]:
            return self._open(row, None)

    def _open(self, row: int, requested: PixelView | None) -> np.ndarray | Image.Image:
        """Open an image, cache all announced views, and return the requested one, or the image itself."""
        image = self.open_row(row)
        result: np.ndarray | Image.Image = image
        for view in list(self._announced.values()):
            file = self._file_of(view)
            is_requested = requested is not None and view.key == requested.key
            if not (is_requested or file.can_store(row)):
                continue
            try:
                pixels = view.make(image)
            except InputError as error:
                if not is_requested:  # raised when this view is requested
                    continue
                raise InputError(self.names[row], error.field, error.found, error.wanted) from None
            file.put(row, pixels)
            if is_requested:
                result = pixels
        return result

    def _file_of(self, view: PixelView) -> "_PixelFile":
        with self._files_lock:
            if view.key not in self._files:
                self._files[view.key] = _PixelFile(len(self.names), view.shape, self._budget)
            return self._files[view.key]


class _PixelFile:
    """Pixels of one shape in an unnamed file, with a row for each image. Rows beyond the disk budget are not stored."""

    def __init__(self, count: int, shape: tuple[int, int, int], budget: DiskBudget):
        self.shape, self.size, self.budget = shape, int(np.prod(shape)), budget
        self.rows = budget.reserve(self.size, count)
        self.is_stored = np.zeros(self.rows, bool)
        if self.rows:
            try:
                self.file = tempfile.TemporaryFile(dir=_folder())  # noqa: SIM115
                self.file.truncate(self.rows * self.size)
                weakref.finalize(self, self.file.close)
                self.pixels = np.memmap(self.file, np.uint8, "r", shape=(self.rows, *shape))
            except OSError:  # the cache only saves time
                self._close()

    def can_store(self, row: int) -> bool:
        """Return whether there is space for this row and it is not stored yet."""
        return row < self.rows and not self.is_stored[row]

    def get(self, row: int) -> np.ndarray | None:
        return self.pixels[row] if row < self.rows and self.is_stored[row] else None

    def put(self, row: int, pixels: np.ndarray) -> None:
        if not self.can_store(row) or pixels.shape != self.shape:
            return
        rest, offset = memoryview(np.ascontiguousarray(pixels)).cast("B"), row * self.size
        try:
            while rest:  # not through the memory map, where a full disk would end the process
                count = os.pwrite(self.file.fileno(), rest, offset)
                rest, offset = rest[count:], offset + count
            self.is_stored[row] = True
        except OSError:
            self._close()

    def _close(self) -> None:
        self.budget.release(self.rows * self.size)
        self.rows = 0


def _folder() -> Path | None:
    """Return the cache folder if it can be created; None stands for the system's folder for temporary files."""
    with contextlib.suppress(OSError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        return cache_folder()
    return None


def _free_bytes() -> int:
    try:
        return shutil.disk_usage(_folder() or tempfile.gettempdir()).free
    except OSError:
        return 0
