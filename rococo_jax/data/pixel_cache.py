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

_MOST_BYTES, _MOST_OF_FREE = 16 * 10**9, 0.25
_LOCKS = 256


class PixelView(NamedTuple):
    """One way of making pixels of an image.

    Attributes:
        key: what decides the pixels beside the file.
        shape: (height, width, 3) of all of them.
        make: the pixels of a decoded image, uint8.
    """

    key: str
    shape: tuple[int, int, int]
    make: Callable[[Image.Image], UInt8[np.ndarray, "height width 3"]]

    def __call__(self, image: Image.Image) -> UInt8[np.ndarray, "height width 3"]:
        return self.make(image)


class DiskBudget:
    """Bytes of disk that kept pixels may take, shared by all tables of a process; known when first asked for."""

    def __init__(self, most: int | None = None):
        self._left, self._lock = most, threading.Lock()

    def take(self, size: int, count: int) -> int:
        """How many of `count` items of `size` bytes have room; it is taken."""
        with self._lock:
            if self._left is None:
                self._left = min(_MOST_BYTES, int(_MOST_OF_FREE * _free_bytes()))
            taken = min(count, self._left // size)
            self._left -= taken * size
            return taken

    def give_back(self, size: int) -> None:
        """Bytes that are free again."""
        with self._lock:
            self._left += size


DISK_BUDGET = DiskBudget()


class PixelCache:
    """Pixels of images by view and row, as many as fit into the disk budget. Safe to use from many threads.

    `names` are the images' in errors; `opened` gives an image by its row, or raises InputError.
    """

    def __init__(self, names: Sequence[object], opened: Callable[[int], Image.Image], room: DiskBudget = DISK_BUDGET):
        self.names, self.opened = names, opened
        self._room, self._tables, self._announced = room, {}, {}
        self._locks, self._tables_lock = [threading.Lock() for _ in range(_LOCKS)], threading.Lock()

    def announce(self, view: PixelView) -> None:
        """Has this view made of every image that is opened from here on."""
        self._announced.setdefault(view.key, view)

    def is_announced(self, view: Callable) -> bool:
        """Whether it is a view that is made of every image."""
        return isinstance(view, PixelView) and view.key in self._announced

    def get(self, row: int, view: PixelView) -> UInt8[np.ndarray, "height width 3"] | None:
        """A view that is kept."""
        return self._table(view).get(row)

    def put(self, row: int, view: PixelView, pixels: UInt8[np.ndarray, "height width 3"]) -> None:
        """Keeps a view that was made elsewhere, where there is room."""
        self._table(view).put(row, pixels)

    def pixels(self, row: int, view: PixelView) -> UInt8[np.ndarray, "height width 3"]:
        """A view of image `row`. Raises InputError, which names it."""
        self.announce(view)
        with self._locks[row % _LOCKS]:
            kept = self.get(row, view)
            return self._open(row, view) if kept is None else kept

    def image(self, row: int) -> Image.Image:
        """Image `row`; makes all views. Raises InputError, which names it."""
        with self._locks[row % _LOCKS]:
            return self._open(row, None)

    def _open(self, row: int, wanted: PixelView | None) -> np.ndarray | Image.Image:
        image = self.opened(row)
        made = None
        for view in list(self._announced.values()):
            table = self._table(view)
            is_wanted = wanted is not None and view.key == wanted.key
            if is_wanted or table.wants(row):
                try:
                    pixels = view.make(image)
                except InputError as error:
                    if not is_wanted:  # raised where the view is asked for
                        continue
                    raise InputError(self.names[row], error.field, error.found, error.wanted) from None
                table.put(row, pixels)
                made = pixels if is_wanted else made
        return image if wanted is None else made

    def _table(self, view: PixelView) -> "_Table":
        with self._tables_lock:
            if view.key not in self._tables:
                self._tables[view.key] = _Table(len(self.names), view.shape, self._room)
            return self._tables[view.key]


class _Table:
    """Pixels of one shape, a row a file, in a file without a name. Rows beyond the room are not kept."""

    def __init__(self, count: int, shape: tuple[int, int, int], room: DiskBudget):
        self.shape, self.size, self.room = shape, int(np.prod(shape)), room
        self.rows = room.take(self.size, count)
        self.kept = np.zeros(self.rows, bool)
        if self.rows:
            try:
                self.file = tempfile.TemporaryFile(dir=_folder())  # noqa: SIM115
                self.file.truncate(self.rows * self.size)
                weakref.finalize(self, self.file.close)
                self.pixels = np.memmap(self.file, np.uint8, "r", shape=(self.rows, *shape))
            except OSError:  # kept pixels save time alone
                self._close()

    def wants(self, row: int) -> bool:
        """Whether this row could be kept and is not."""
        return row < self.rows and not self.kept[row]

    def get(self, row: int) -> np.ndarray | None:
        return self.pixels[row] if row < self.rows and self.kept[row] else None

    def put(self, row: int, pixels: np.ndarray) -> None:
        if not self.wants(row) or pixels.shape != self.shape:
            return
        rest, place = memoryview(np.ascontiguousarray(pixels)).cast("B"), row * self.size
        try:
            while rest:  # not through the map: a full disk would end the process
                written = os.pwrite(self.file.fileno(), rest, place)
                rest, place = rest[written:], place + written
            self.kept[row] = True
        except OSError:
            self._close()

    def _close(self) -> None:
        self.room.give_back(self.rows * self.size)
        self.rows = 0


def _folder() -> Path | None:
    """Where kept pixels go: the cache folder, or the system's place for temporary files."""
    with contextlib.suppress(OSError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        return cache_folder()
    return None


def _free_bytes() -> int:
    try:
        return shutil.disk_usage(_folder() or tempfile.gettempdir()).free
    except OSError:
        return 0
