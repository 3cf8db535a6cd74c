"""Sets of images, read in parallel, in order and in bounded memory.

Reading uses threads, because Pillow releases the GIL while it decodes and resizes, and threads neither copy pixels
between processes nor fork a process that has started JAX.
"""

import abc
import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

from PIL import Image

from rococo_jax.cores import usable_cores
from rococo_jax.data.image_files import ImageFile, hash_image
from rococo_jax.data.pictures import as_rgb, open_image
from rococo_jax.data.pixel_cache import PixelCache, PixelView
from rococo_jax.errors import InputError

_AHEAD = 128


class Task(NamedTuple):
    """Work on `images` images, to be done in a thread: what `make` gives for each."""

    images: int
    make: Callable[[], list[Any]]


def run_tasks(tasks: Iterable[Task], *, ahead: int | None = None, workers: int | None = None) -> Iterator[Any]:
    """What the tasks make, image by image in their order, made in threads.

    Args:
        ahead: how many images may be ready or in work before they are asked for, which bounds the memory; by default
            128, or two tasks for each thread where that is more.
        workers: threads; by default the number of CPU cores that this process may use.

    Raises what the first task, in their order, raised.
    """
    waiting: collections.deque[tuple[int, Future]] = collections.deque()
    remaining, under_way = iter(tasks), 0
    workers = workers or usable_cores()
    most, at_least = (_AHEAD, 2 * workers) if ahead is None else (ahead, 0)
    with ThreadPoolExecutor(workers, thread_name_prefix="images") as pool:
        try:
            while True:
                while (under_way < most or len(waiting) < at_least) and (task := next(remaining, None)) is not None:
                    waiting.append((task.images, pool.submit(task.make)))
                    under_way += task.images
                if not waiting:
                    return
                for image in waiting.popleft()[1].result():
                    under_way -= 1
                    yield image
        finally:
            for _, future in waiting:
                future.cancel()


ORIGINALS = "originals"
IMAGES_PER_RUN = 512

Prepare = Callable[[Image.Image], Any]


@runtime_checkable
class ImageSet(Protocol):
    """A table of images: originals, mixed, corrupted and cropped ones alike; one image a row. Tasks use its `name`."""

    name: str

    def __len__(self) -> int:
        """How many images there are."""

    def content(self, row: int) -> bytes:
        """All that decides the image's pixels, for the key of the embedding cache."""

    def runs(self, size: int) -> list[list[int]]:
        """Every row once, in runs of about `size`, in the order in which they are read with the least work."""

    def read(self, rows: Sequence[int], prepare: Callable[[Image.Image], Any] | None = None) -> Iterator[Any]:
        """The images of these rows as PIL images, or what `prepare` makes of each, in the order asked.

        Raises InputError, which names the file, where one cannot be read.
        """

    def thumbnail(self, row: int) -> Image.Image:
        """The image as a model meets it, for a report."""

    def note(self, row: int) -> str:
        """One phrase that a reader needs beside the image, such as what was mixed in; often empty."""


class FileBackedImageSet(abc.ABC):
    """Base of the image sets that are made of image files, the `originals`."""

    name: str
    originals: "FileImages"

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abc.abstractmethod
    def tasks(self, rows: Sequence[int], prepare: Prepare) -> Iterator[Task]:
        """The work on these rows, for threads."""

    def read(self, rows: Sequence[int], prepare: Prepare | None = None) -> Iterator[Any]:
        """Works on the rows in threads, in order; see `ImageSet.read`."""
        return run_tasks(self.tasks(rows, prepare or as_rgb))

    def runs(self, size: int = IMAGES_PER_RUN) -> list[list[int]]:
        """The rows in order."""
        return chunks(range(len(self)), size)

    @cached_property
    def pixel_cache(self) -> PixelCache:
        """What is made of the images and kept for several models."""
        return PixelCache(self.originals.paths, self.thumbnail)

    def thumbnail(self, row: int) -> Image.Image:
        """The image itself."""
        return next(self.read([row]))

    def note(self, row: int) -> str:
        """No note: a file is shown as it is."""
        del row
        return ""

    def input_keys(self) -> list[str]:
        """What lists of inputs call each row."""
        return [f"{self.name}/{name}" for name in self.originals.names]


@dataclasses.dataclass(frozen=True, eq=False)
class FileImages(FileBackedImageSet):
    """Image files, in folders or inside tables, under the `names` that captions and results call them.

    Sets that are made of them read `views`, so that each file is decoded once.
    """

    names: tuple[str, ...]
    paths: tuple[ImageFile, ...]
    name: str = ORIGINALS

    def __len__(self) -> int:
        return len(self.names)

    @property
    def originals(self) -> "FileImages":
        """The files that the set is made of: itself."""
        return self

    @cached_property
    def hashes(self) -> tuple[str, ...]:
        """SHA-256 of every file."""
        with ThreadPoolExecutor(usable_cores(), thread_name_prefix="hashes") as pool:
            return tuple(pool.map(hash_image, self.paths))

    @cached_property
    def pixel_cache(self) -> PixelCache:
        """What is made of the files and kept."""
        return PixelCache(self.paths, lambda row: open_image(self.paths[row]))

    def encoded(self, row: int) -> bytes:
        """The bytes of the file."""
        return self.paths[row].read_bytes()

    def content(self, row: int) -> bytes:
        """The hash of the file."""
        return bytes.fromhex(self.hashes[row])

    def tasks(self, rows: Sequence[int], prepare: Prepare) -> Iterator[Task]:
        """A task for each row."""
        return (Task(1, partial(self._prepared, row, prepare)) for row in rows)

    def _prepared(self, row: int, prepare: Prepare) -> list[Any]:
        if isinstance(prepare, PixelView):
            return [self.pixel_cache.pixels(row, prepare)]
        try:
            return [prepare(self.pixel_cache.image(row))]
        except InputError as error:
            raise InputError(self.paths[row], error.field, error.found, error.wanted) from None

    def input_keys(self) -> list[str]:
        """The names."""
        return list(self.names) if self.name == ORIGINALS else super().input_keys()


def source_files(images: ImageSet) -> FileImages | None:
    """The files that a set is made of; None where there are none."""
    return getattr(images, "originals", None)


def read_images(requests: Iterable[tuple[ImageSet, Sequence[int]]], prepare: Prepare) -> Iterator[Any]:
    """Rows of several sets, one after the other, through one pool of threads.

    A set that has `tasks(rows, prepare)` shares the pool; of another all asked for at once are one task.
    """

    def tasks() -> Iterator[Task]:
        for images, rows in requests:
            if hasattr(images, "tasks"):
                yield from images.tasks(rows, prepare)
            else:
                yield Task(len(rows), lambda images=images, rows=rows: list(images.read(rows, prepare)))

    return run_tasks(tasks())


def chunks(items: Sequence, size: int) -> list[list]:
    """Runs of `size` items; the last may be shorter."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
