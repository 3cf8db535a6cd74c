"""Files by path or by URL, read whole or in part. URLs (`gs://`, `s3://`, `https://`) go through fsspec.

Nothing is written to a URL.
"""

from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError, first_line
from rococo_jax.safe_paths import is_inner_name
from rococo_jax.storage import atomic_directory, hash_json, is_url

_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "az": "adlfs", "abfs": "adlfs", "http": "aiohttp",
             "https": "aiohttp"}  # fmt: skip
# What tells versions of a file apart, by the names that file systems have for it.
_STATE = ("size", "ETag", "etag", "md5Hash", "updated", "LastModified", "mtime", "created")


def file_system(url: str) -> Any:
    """fsspec's file system of a URL. Raises InputError where there is none, or its package is not installed."""
    import fsspec

    scheme = url.partition("://")[0]
    try:
        return fsspec.filesystem(scheme)
    except ImportError:
        package = _PACKAGES.get(scheme, f"fsspec's package for {scheme}")
        wanted = f"pip install {package}, or a local folder"
        raise InputError(f"{scheme}://", "storage", f"{package} is not installed", wanted) from None
    except ValueError:
        raise InputError(url, "storage", f"{scheme}://", "a local path, gs://, s3:// or https://") from None


def _refused(path: str, error: Exception, wanted: str) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(path, "file", "nothing there", wanted)
    return InputError(path, "file", first_line(error) or type(error).__name__, f"{wanted}, and the right to read it")


def file_size(path: str, wanted: str) -> int:
    """Bytes of a file. Raises InputError where there is none, or it cannot be read."""
    try:
        if is_url(path):
            return int(file_system(path).size(path))
        if Path(path).is_dir():
            raise InputError(path, "file", "a folder", wanted)
        return Path(path).stat().st_size
    except InputError:
        raise
    except Exception as error:  # what storage services raise differs from one to the next
        raise _refused(path, error, wanted) from None


def open_binary(path: str) -> Any:
    """A file to read. Raises InputError where it cannot be."""
    try:
        return file_system(path).open(path, "rb") if is_url(path) else Path(path).open("rb")
    except InputError:
        raise
    except Exception as error:
        raise _refused(path, error, "a file") from None


def matching_urls(pattern: str) -> list[str]:
    """The URLs that a pattern with `*` stands for, in order. Raises InputError where they cannot be listed."""
    files = file_system(pattern)
    try:
        return sorted(map(files.unstrip_protocol, files.glob(pattern)))
    except Exception as error:
        raise _refused(pattern, error, "files of that name") from None


def local_copy(url: str, cache: Path) -> Path:
    """The folder behind a URL, copied below `cache` once for each state that it is in (names, sizes, versions).

    Raises InputError where there is nothing, or it cannot be read.
    """
    files, copy = file_system(url), cache
    try:
        found = files.find(url, detail=True)
        if not found:
            raise FileNotFoundError(url)
        if outside := next((name for name in sorted(found) if not is_inner_name(name.lstrip("/"))), None):
            raise InputError(url, "name", repr(outside), "names of files below the folder")
        state = [[name, *(str(about.get(key)) for key in _STATE)] for name, about in sorted(found.items())]
        copy = cache / hash_json(state)[:24] / url.rstrip("/").rpartition("/")[2]
        if not copy.exists():
            with atomic_directory(copy) as folder:
                files.get(url.rstrip("/") + "/", str(folder) + "/", recursive=True)
        return copy
    except InputError:
        if copy != cache and copy.exists():  # another process was faster
            return copy
        raise
    except Exception as error:
        raise _refused(url, error, "a folder") from None
