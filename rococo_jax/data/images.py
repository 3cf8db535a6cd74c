"""Opens and checks image files; loads many of them in parallel, in order and in bounded memory.

Images are decoded at full size: JPEG's decoding at a fraction of the size (`Image.draft`) gives other pixels. Loading
uses threads, because Pillow releases the GIL while it decodes and resizes, and threads neither copy pixels between
processes nor fork a process that has started JAX.
"""

import collections
import io
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from PIL import Image, UnidentifiedImageError

from rococo_jax.errors import InputError

T = TypeVar("T")

_WANTED = "a whole image file that Pillow can read"


def open_image(path: str | os.PathLike) -> Image.Image:
    """An image, decoded at full size, in its stored mode and without its EXIF orientation applied.

    Raises:
        InputError: the file is missing, empty, cut short, too large to decode safely, or not an image.
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
    """The result of `prepare` on one decoded image file.

    Raises:
        InputError: as `open_image` and `prepare`; it names the file.
    """
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
        paths: the files.
        prepare: called with each decoded image, in a thread.
        ahead: how many images may be ready or in work before they are asked for, which bounds the memory.
        workers: threads; by default the number of CPU cores that this process may use.

    Raises:
        InputError: the first file, in the order of `paths`, that cannot be used.
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
