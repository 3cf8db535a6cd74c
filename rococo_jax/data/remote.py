"""Read files by path or URL. URLs (`gs://`, `s3://`, `https://`) are read with fsspec, and never written to.

The state of a file is its size and the times and versions that its storage records, to recognise an unchanged file.

Contents identify data. A state only avoids reading a file a second time, and it is used only if other contents cannot
have the same state:

- On a local file system, the state is the size, both times and the inode. Programs can set the modification time
  (`touch -r`, `rsync -t`), but not the time of the last change (ctime).
- Behind a URL, it is the size and the version that the service records: ETag, checksum, generation or date. If a
  service records none, or only a modification time, its files are read again.
- A file that was changed just before it was read may change again within the same tick of the clock. Its state counts
  only if the file had not changed for longer than a tick (`settle`), as in git's index.
"""

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.errors import InputError, first_line
from rococo_jax.locks import made_once
from rococo_jax.safe_paths import is_inner_name
from rococo_jax.storage import hash_file, hash_json, is_url, remove_folder

_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "az": "adlfs", "abfs": "adlfs", "http": "aiohttp",
             "https": "aiohttp"}  # fmt: skip
# Values that differ for each version of a file, by fsspec's names. A modification time (`mtime`) does not: programs
# that copy files set it.
_CONTENT_FACTS = ("ETag", "etag", "md5Hash", "crc32c", "generation", "VersionId", "Content-MD5", "Digest", "ino")
_DATES = ("updated", "LastModified", "last_modified", "created")
# The clocks of most file systems tick about every hundredth of a second; some record seconds, FAT every second one.
_TICK_SECONDS, _COARSE_TICK_SECONDS = 0.1, 2.0


def file_system(url: str) -> Any:
    """Return fsspec's file system of a URL. Raises InputError: there is none, or its package is not installed."""
    import fsspec

    scheme = url.partition("://")[0]
    try:
        return fsspec.filesystem(scheme)
    except ImportError:
        package = _PACKAGES.get(scheme, f"fsspec's package for {scheme}")
        expected = f"pip install {package}, or a local folder"
        raise InputError(f"{scheme}://", "storage", f"{package} is not installed", expected) from None
    except ValueError:
        raise InputError(url, "storage", f"{scheme}://", "a local path, gs://, s3:// or https://") from None


@contextlib.contextmanager
def _refusing(path: str, expected: str) -> Iterator[None]:
    """Raise InputError for a file that cannot be read, whatever storage services raise; `expected` describes it."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(path, "file", "nothing there", expected) from None
    except Exception as error:
        raise InputError(path, "file", first_line(error), f"{expected} that this user may read") from None


def url_facts(url: str, expected: str) -> tuple[int, tuple[str, ...], float]:
    """Return the size of a file, its version as the storage records it, and the time of its last change.

    The version is empty if the storage records none. The time is 0 if it is not a number; the version then contains a
    finer one, or does not depend on time.

    Raises InputError: the file does not exist or cannot be read; `expected` describes its contents for errors.
    """
    with _refusing(url, expected):
        info = file_system(url).info(url)
        size = int(info["size"])
    created_at = info.get("created")
    return size, _version(info), created_at if isinstance(created_at, float) else 0.0


def _version(info: Mapping[str, Any]) -> tuple[str, ...]:
    facts = {name: info[name] for name in (*_CONTENT_FACTS, *_DATES) if info.get(name)}
    return () if facts.keys() == {"ino"} else tuple(f"{name} {fact}" for name, fact in facts.items())


def forget_listings(url: str) -> None:
    """Forget earlier listings of the files behind a URL, so that they are requested again."""
    file_system(url).invalidate_cache()


def open_binary(path: str) -> Any:
    """Open a file for reading. Raises InputError: it cannot be opened."""
    with _refusing(path, "a file"):
        return file_system(path).open(path, "rb") if is_url(path) else Path(path).open("rb")


def matching_urls(pattern: str) -> list[str]:
    """Return the URLs that match a pattern with `*`, in order. Raises InputError: they cannot be listed."""
    files = file_system(pattern)
    with _refusing(pattern, "files of that name"):
        return sorted(map(files.unstrip_protocol, files.glob(pattern)))


def local_copy(url: str, cache: Path) -> Path:
    """Return the folder behind a URL, copied below `cache` once for each version of its files.

    If the storage records no versions, the folder is copied each time, and the copy is named by its contents.

    Raises InputError: the folder is missing or cannot be read.
    """
    files = file_system(url)
    name = url.rstrip("/").rpartition("/")[2]
    forget_listings(url)
    with _refusing(url, "a folder"):
        details = files.find(url, detail=True)
        if not details:
            raise FileNotFoundError(url)
        if outside := next((path for path in sorted(details) if not is_inner_name(path.lstrip("/"))), None):
            raise InputError(url, "name", repr(outside), "names of files below the folder")
        state = [[path, str(info.get("size")), *_version(info)] for path, info in sorted(details.items())]
        is_versioned = all(len(facts) > 2 for facts in state)

        def download(unfinished: Path) -> None:
            files.get(url.rstrip("/") + "/", str(unfinished) + "/", recursive=True)

        if is_versioned:
            return made_once(cache / hash_json(state)[:24] / name, download)
        copy = made_once(cache / f"unversioned-{uuid.uuid4().hex[:24]}" / name, download)
        return _move_by_contents(copy, cache)


def _move_by_contents(copy: Path, cache: Path) -> Path:
    """Move a copied folder to a place that is named by its contents."""
    paths = sorted(path for path in copy.rglob("*") if path.is_file())
    contents = [[path.relative_to(copy).as_posix(), hash_file(path)] for path in paths]
    place = made_once(cache / hash_json(contents)[:24] / copy.name, copy.replace)
    remove_folder(copy.parent)  # with the copy, if there was one already
    return place


class FileState(NamedTuple):
    """The state of a file.

    Attributes:
        size: in bytes.
        version: values that differ for each version of the file; empty if the storage has none.
        changed_at: time of the last change in seconds; 0 if the version does not depend on a clock.
    """

    size: int
    version: tuple[Any, ...] = ()
    changed_at: float = 0.0

    def settle(self) -> bool:
        """Wait until the tick of the clock in which the file was last changed has passed.

        Return whether any change from now on would change the state.
        """
        rest = self.changed_at + self._tick() - time.time()
        if 0 < rest <= self._tick():
            time.sleep(rest)
        return bool(self.version) and time.time() - self.changed_at > self._tick()

    def _tick(self) -> float:
        return _COARSE_TICK_SECONDS if self.changed_at == int(self.changed_at) else _TICK_SECONDS

    def to_json(self) -> list[Any]:
        """Return the facts as a JSON value."""
        return [self.size, *self.version]


def file_state(path: str, expected: str) -> FileState:
    """Return the state of a local file, or of the file behind a URL.

    Raises InputError: the file does not exist or cannot be read; `expected` describes its contents for errors.
    """
    if is_url(path):
        return FileState(*url_facts(path, expected))
    if Path(path).is_dir():
        raise InputError(path, "file", "a folder", expected)
    with _refusing(path, expected):
        return local_state(path)


def local_state(path: str | Path) -> FileState:
    """Return the state of a local file. Raises OSError: it does not exist."""
    about = Path(path).stat()
    version = (about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
    return FileState(about.st_size, version, about.st_ctime_ns / 1e9)
