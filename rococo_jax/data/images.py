"""Opens and checks image files; loads many of them in parallel, in order and in bounded memory.

Images are decoded at full size: JPEG's decoding at a fraction of the size (`Image.draft`) gives other pixels. Loading
uses threads, because Pillow releases the GIL while it decodes and resizes, and threads neither copy pixels between
processes nor fork a process that has started JAX.
"""

import collections
import dataclasses
import io
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from PIL import Image, UnidentifiedImageError

from rococo_jax.errors import InputError
from rococo_jax.storage import hash_file

T = TypeVar("T")

_WANTED = "a whole image file that Pillow can read"


def open_image(path: str | os.PathLike) -> Image.Image:
    """An image, decoded at full size, in its stored mode and without its EXIF orientation applied.

    Raises InputError where the file is missing, empty, cut short, too large to decode safely, or not an image.
    """
    path = Path(path)
    try:
        return _decode(path, path)
    except FileNotFoundError:
        raise InputError(path, "image", "nothing there", _WANTED) from None
    except IsADirectoryError:
        raise InputError(path, "image", "a folder", _WANTED) from None


def decode_image(data: bytes, source: object) -> Image.Image:
    """Like `open_image`, for the bytes of an image file; `source` names it in errors."""
    return _decode(io.BytesIO(data), source)


def _decode(file: Path | io.BytesIO, source: object) -> Image.Image:
    try:
        with Image.open(file) as image:
            image.load()
        return image
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except UnidentifiedImageError:
        size = file.stat().st_size if isinstance(file, Path) else len(file.getbuffer())
        found = "an empty file" if size == 0 else "a file that is not an image"
        raise InputError(source, "image", found, _WANTED) from None
    except Image.DecompressionBombError as error:
        raise InputError(source, "image", str(error), _WANTED) from None
    except (Exception, MemoryError) as error:
        # What Pillow's decoders raise on damaged files differs from plugin to plugin: OSError, SyntaxError, KeyError,
        # NotImplementedError, struct.error, ...
        raise InputError(source, "image", f"a damaged file ({error})", _WANTED) from None


def load_image(path: str | os.PathLike, prepare: Callable[[Image.Image], T]) -> T:
    """The result of `prepare` on one decoded image file. Raises InputError, which names the file."""
    image = open_image(path)
    try:
        return prepare(image)
    except InputError as error:
        raise InputError(path, error.field, error.found, error.wanted) from None


def map_images(
    paths: Sequence[str | os.PathLike],
    prepare: Callable[[Image.Image], T],
    *,
    ahead: int = 128,
    workers: int | None = None,
) -> Iterator[T]:
    """The results of `prepare` on image files, in the order of `paths`; files are opened and prepared in threads.

    Args:
        prepare: called with each decoded image, in a thread.
        ahead: how many images may be ready or in work before they are asked for, which bounds the memory.
        workers: threads; by default the number of CPU cores that this process may use.

    Raises InputError for the first file, in the order of `paths`, that cannot be used.
    """
    waiting: collections.deque[Future] = collections.deque()
    remaining = iter(paths)
    with ThreadPoolExecutor(workers or _usable_cores(), thread_name_prefix="images") as pool:

        def submit(count: int) -> None:
            waiting.extend(pool.submit(load_image, path, prepare) for path in itertools.islice(remaining, count))

        try:
            submit(ahead)
            while waiting:
                yield waiting.popleft().result()
                submit(1)
        finally:
            for future in waiting:
                future.cancel()


def _usable_cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


@dataclasses.dataclass(frozen=True, eq=False)
class FileImages:
    """Image files, as they are, under the `names` that captions and results call them."""

    names: tuple[str, ...]
    paths: tuple[Path, ...]
    name: str = ORIGINALS

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def hashes(self) -> tuple[str, ...]:
        """SHA-256 of every file."""
        return tuple(map(hash_file, self.paths))

    def content(self, row: int) -> bytes:
        """The hash of the file."""
        return bytes.fromhex(self.hashes[row])

    def runs(self, size: int = IMAGES_PER_RUN) -> list[list[int]]:
        """The rows in order."""
        return chunks(range(len(self)), size)

    def read(self, rows: Sequence[int], prepare: Prepare | None = None) -> Iterator[Any]:
        """Opens and prepares files in threads, in order; see `ImageSet.read`."""
        return map_images([self.paths[row] for row in rows], prepare or as_rgb)

    def thumbnail(self, row: int) -> Image.Image:
        """The image itself."""
        return next(self.read([row]))

    def note(self, row: int) -> str:
        """Nothing."""
        del row
        return ""


def as_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB."""
    return image.convert("RGB")


def chunks(items: Sequence, size: int) -> list[list]:
    """Runs of `size` items; the last may be shorter."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
