"""Image sets, and reading their images in parallel, in order and in bounded memory.

Images are read in threads, because Pillow releases the GIL while it decodes and resizes, and threads neither copy
pixels between processes nor fork a process that has started JAX.
"""

import abc
import collections
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

from PIL import Image

from rococo_jax.cores import usable_cores
from rococo_jax.data.content_hashes import FileHashes
from rococo_jax.data.image_files import ImageFile, hash_image
from rococo_jax.data.pictures import as_rgb, open_image
from rococo_jax.data.pixel_cache import PixelCache, PixelView
from rococo_jax.errors import naming_source

_AHEAD = 128
MOST_BYTES = 2**28
# Assumed until the first result is known: an image of 8 megapixels.
_FIRST_BYTES = 2**25
# Pillow stores several bands in 4 bytes.
_BYTES_PER_PIXEL = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
_ROWS_AT_ONCE = 8


def size_in_memory(item: Any) -> int:
    """Return the bytes that an image, an array, or a dictionary of them takes in memory."""
    if isinstance(item, Image.Image):
        return item.width * item.height * _BYTES_PER_PIXEL.get(item.mode, 4)
    if isinstance(item, Mapping):
        return sum(map(size_in_memory, item.values()))
    return getattr(item, "nbytes", None) or sys.getsizeof(item)


def batches_by_size(items: Iterable[Any], most: int, most_bytes: int | None = None) -> Iterator[list[Any]]:
    """Yield the items in lists of at most `most` items, and of at most `most_bytes` (256 MB) if that is several."""
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    batch: list[Any] = []
    size = 0
    for item in items:
        item_size = size_in_memory(item)
        if batch and (len(batch) == most or size + item_size > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item_size
    if batch:
        yield batch


class Task(NamedTuple):
    """Work for a thread: `make` returns a result for each of `images` images."""

    images: int
    make: Callable[[], list[Any]]


class _Memory:
    """Bound of the memory of tasks and their results.

    A task begins if its results are requested next, or if there is space for results as large as the last ones, beside
    those that wait and those of running tasks.
    """

    def __init__(self, most_bytes: int):
        self._most_bytes, self._waiting, self._running, self._next = most_bytes, 0, 0, 0
        self._expected_bytes, self._is_closed, self._changed = _FIRST_BYTES, False, threading.Condition()

    def run(self, number: int, task: Task) -> list[Any]:
        """Run a task when there is space for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._may_begin(number))
            if self._is_closed:
                return []
            self._running += 1
        results: list[Any] = []
        try:
            results = task.make()
        finally:
            size = sum(map(size_in_memory, results))
            with self._changed:
                self._running -= 1
                self._waiting += size
                self._expected_bytes = size or self._expected_bytes
                self._changed.notify_all()
        return results

    def _may_begin(self, number: int) -> bool:
        space = self._most_bytes - self._waiting - self._running * self._expected_bytes
        return self._is_closed or number <= self._next or self._expected_bytes <= space

    def request(self, number: int) -> None:
        """Let a task begin in any case, because its results are requested next."""
        with self._changed:
            self._next = number
            self._changed.notify_all()

    def release(self, result: Any) -> None:
        """Release the memory of a result that is passed on."""
        with self._changed:
            self._waiting -= size_in_memory(result)
            self._changed.notify_all()

    def close(self) -> None:
        """Let no further task begin."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def run_tasks(tasks: Iterable[Task], *, ahead: int | None = None, most_bytes: int = MOST_BYTES) -> Iterator[Any]:
    """Run the tasks in threads, one per usable CPU core, and yield the results image by image, in order.

    Args:
        ahead: how many images may be in work or ready before they are requested; by default 128, or two tasks for each
            thread if that is more.
        most_bytes: how many bytes these may take, estimated from the last results; one task runs in any case.

    Raises the exception of the first task, in their order, that fails.
    """
    waiting: collections.deque[tuple[int, Future]] = collections.deque()
    remaining, images_ahead, threads = enumerate(tasks), 0, usable_cores()
    max_images, min_tasks = (_AHEAD, 2 * threads) if ahead is None else (ahead, 0)
    memory = _Memory(most_bytes)
    with ThreadPoolExecutor(threads, thread_name_prefix="images") as pool:
        try:
            while True:
                while images_ahead < max_images or len(waiting) < min_tasks:
                    number, task = next(remaining, (0, None))
                    if task is None:
                        break
                    waiting.append((number, pool.submit(memory.run, number, task)))
                    images_ahead += task.images
                if not waiting:
                    return
                number, future = waiting.popleft()
                memory.request(number)
                results = future.result()[::-1]
                del future  # it refers to all results, which are passed on one by one
                while results:
                    images_ahead -= 1
                    memory.release(results[-1])
                    yield results.pop()
        finally:
            memory.close()
            for _, future in waiting:
                future.cancel()


ORIGINALS = "originals"
IMAGES_PER_RUN = 512

Prepare = Callable[[Image.Image], Any]


@runtime_checkable
class ImageSet(Protocol):
    """A table with one image per row: originals, or mixed, corrupted or cropped images. Tasks refer to its `name`."""

    name: str

    def __len__(self) -> int:
        """Return the number of images."""

    def content(self, row: int) -> bytes:
        """Return everything that determines the image's pixels, for the key of the embedding cache."""

    def runs(self, size: int) -> list[list[int]]:
        """Return every row once, in runs of about `size`, in the order in which they are cheapest to read."""

    def read(self, rows: Sequence[int], prepare: Callable[[Image.Image], Any] | None = None) -> Iterator[Any]:
        """Yield the images of these rows in this order, as PIL images or as the results of `prepare`.

        Raises InputError: an image cannot be read; the error names its file.
        """

    def thumbnail(self, row: int) -> Image.Image:
        """Return the image as a model sees it, for a report."""

    def note(self, row: int) -> str:
        """Return a short caption for the image in a report, such as what was mixed in; often empty."""


class FileBackedImageSet(abc.ABC):
    """Base of image sets that are computed from image files, the `originals`."""

    name: str
    originals: "FileImages"

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abc.abstractmethod
    def tasks(self, rows: Sequence[int], prepare: Prepare) -> Iterator[Task]:
        """Yield the work on these rows, for threads."""

    def read(self, rows: Sequence[int], prepare: Prepare | None = None) -> Iterator[Any]:
        """Read the rows in threads; see `ImageSet.read`."""
        return run_tasks(self.tasks(rows, prepare or as_rgb))

    def runs(self, size: int = IMAGES_PER_RUN) -> list[list[int]]:
        """Return the rows in order."""
        return chunks(range(len(self)), size)

    @cached_property
    def pixel_cache(self) -> PixelCache:
        """The pixels of these images that are cached for several models."""
        return PixelCache(self.originals.paths, self.thumbnail)

    def thumbnail(self, row: int) -> Image.Image:
        """Return the image itself."""
        return next(self.read([row]))

    def note(self, row: int) -> str:
        """Return no note: a file is shown as it is."""
        del row
        return ""

    def input_keys(self) -> list[str]:
        """Return the name of each row in lists of inputs."""
        return [f"{self.name}/{name}" for name in self.originals.names]


@dataclasses.dataclass(frozen=True, eq=False)
class FileImages(FileBackedImageSet):
    """Image files in folders or inside tables, with the names that captions and results use for them.

    Image sets that are computed from them read their `pixel_cache`, so that each file is decoded once.
    """

    names: tuple[str, ...]
    paths: tuple[ImageFile, ...]
    name: str = ORIGINALS

    def __len__(self) -> int:
        return len(self.names)

    @property
    def originals(self) -> "FileImages":
        """The files that the set is computed from: itself."""
        return self

    @cached_property
    def hashes(self) -> tuple[str, ...]:
        """The SHA-256 of every file; files that have not changed since an earlier run are not read again."""
        hashes = zip(FileHashes(self.paths).read(), self.paths, strict=True)
        # A missing file is named by the error of reading it.
        return tuple(known or hash_image(path) for known, path in hashes)

    @cached_property
    def pixel_cache(self) -> PixelCache:
        """The cached pixels of the files."""
        return PixelCache(self.paths, lambda row: open_image(self.paths[row]))

    def encoded(self, row: int) -> bytes:
        """Return the bytes of the file."""
        return self.paths[row].read_bytes()

    def content(self, row: int) -> bytes:
        """Return the hash of the file."""
        return bytes.fromhex(self.hashes[row])

    def tasks(self, rows: Sequence[int], prepare: Prepare) -> Iterator[Task]:
        """Yield a task for each row."""
        return (Task(1, partial(self._prepared, row, prepare)) for row in rows)

    def _prepared(self, row: int, prepare: Prepare) -> list[Any]:
        if isinstance(prepare, PixelView):
            return [self.pixel_cache.pixels(row, prepare)]
        with naming_source(self.paths[row]):
            return [prepare(self.pixel_cache.image(row))]

    def input_keys(self) -> list[str]:
        """Return the names of the images."""
        return list(self.names) if self.name == ORIGINALS else super().input_keys()


def source_files(images: ImageSet) -> FileImages | None:
    """Return the files that a set is computed from, or None if it is not computed from files."""
    return getattr(images, "originals", None)


def read_images(requests: Iterable[tuple[ImageSet, Sequence[int]]], prepare: Prepare) -> Iterator[Any]:
    """Read rows of several sets, one set after the other, in one pool of threads.

    The rows of a set with a method `tasks(rows, prepare)` are read in parallel; those of another set a few at once.
    """

    def tasks() -> Iterator[Task]:
        for images, rows in requests:
            if hasattr(images, "tasks"):
                yield from images.tasks(rows, prepare)
            else:
                for some in chunks(rows, _ROWS_AT_ONCE):
                    yield Task(len(some), lambda images=images, some=some: list(images.read(some, prepare)))

    return run_tasks(tasks())


def chunks(items: Sequence, size: int) -> list[list]:
    """Split items into runs of `size`; the last one may be shorter."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
