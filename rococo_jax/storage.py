"""Reading and writing files: atomic writes by rename, JSON, tables, hashes.

A writer that fails, is killed, or fills the disk leaves nothing under the final name. Its temporary file is removed;
that of a killed process by a later one, which knows its writer from the name:

    .NAME.SPACE-PROCESS-RANDOM.part    SPACE is the boot and the PID namespace in which PROCESS is a number. Elsewhere
                                       than on Linux these two are left out.
"""

import contextlib
import csv
import functools
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.errors import DiskFull, InputError, first_line, naming_output
from rococo_jax.texts import parse_json, read_text

_URL, _WRITTEN_URL = re.compile(r"[a-z][a-z0-9+.-]+://"), re.compile(r"(?!hf:)[a-z][a-z0-9+.-]+:/")


def is_url(path: str | os.PathLike) -> bool:
    """Return whether a path is a URL, such as `gs://bucket/name`."""
    return _URL.match(str(path)) is not None


def refuse_url(path: str | os.PathLike, field: str) -> None:
    """Raise InputError for a URL, also as a `Path`: outputs need locks and renames, which buckets do not have."""
    if _WRITTEN_URL.match(str(path)):
        expected = "a folder of this machine, or of a file system that is mounted on it (NFS, Filestore, gcsfuse, ...)"
        raise InputError(path, field, "a URL", expected)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` if the block succeeds, and remove it otherwise.

    Raises InputError: `path` is a URL.
    """
    refuse_url(path, "output")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(path)
    try:
        with naming_output(path):
            yield temporary
            _flush_to_disk(temporary)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `path`, as `atomic_write`. Raises as `refuse_existing_folder`."""
    path = Path(path)
    refuse_existing_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_old(temporary_files(path))
    temporary = _temporary_path(path)
    temporary.mkdir()
    try:
        with naming_output(path):
            yield temporary
            if path.exists():
                path.rmdir()
            temporary.replace(path)
    except BaseException:
        remove_failed_write(temporary)
        raise


_TEMPORARY = re.compile(r"\.(.+)\.(?:([0-9a-f]{8})-([0-9]+)-)?[0-9a-f]{8}\.part")
_OLD_SECONDS = 24 * 60 * 60


def _temporary_path(path: Path) -> Path:
    space = _process_space()
    writer = f"{space}-{os.getpid()}-" if space else ""
    return path.with_name(f".{path.name}.{writer}{uuid.uuid4().hex[:8]}.part")


@functools.cache
def _process_space() -> str:
    """Return eight hex digits of the boot and the PID namespace; nothing where they are unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hash_json([boot, Path("/proc/self/ns/pid").stat().st_ino])[:8]
    except OSError:
        return ""


def _is_of_dead_writer(path: Path) -> bool:
    """Return whether a path is a temporary one of a process of this machine that has ended."""
    match = _TEMPORARY.fullmatch(path.name)
    if not match or not match[2] or match[2] != _process_space():
        return False
    try:
        os.kill(int(match[3]), 0)  # only checks
    except ProcessLookupError:
        return True
    except PermissionError:  # a running process of another user
        pass
    return False


def target_name(temporary: Path) -> str | None:
    """Return the name that a temporary file or folder of this module will get; None for the path of anything else.

    >>> target_name(Path("runs/.a.json.0123abcd.part")), target_name(Path("runs/a.part"))
    ('a.json', None)
    """
    match = _TEMPORARY.fullmatch(temporary.name)
    return match[1] if match else None


def temporary_files(path: Path) -> list[Path]:
    """Return the temporary files and folders of writers of a path, running or killed."""
    return [each for each in path.parent.glob(".*.part") if target_name(each) == path.name]


def remove_old(paths: Iterable[Path]) -> None:
    """Remove files and folders of writers of this machine that ended, and those in which nothing changed for a day."""
    for path in paths:
        with contextlib.suppress(OSError):  # removed by another process, or not ours to remove
            if _is_of_dead_writer(path) or _is_old(path):
                remove_path(path)


def _is_old(path: Path) -> bool:
    return time.time() - max(each.lstat().st_mtime for each in (path, *path.rglob("*"))) > _OLD_SECONDS


def remove_path(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder, if there is one, as far as possible."""
    shutil.rmtree(path, ignore_errors=True)


# Under load, the last writes of Orbax's threads came up to 0.04 s after the error that ended a save.
_SECONDS_UNTIL_THREADS_END = 0.5
_SECONDS_TO_REMOVE = 10.0


def remove_failed_write(path: Path) -> None:
    """Remove the folder of a write that failed, until it stays away.

    Some libraries raise the first error of their threads while the others still write; those make the folder again.
    """
    begin = last_seen = time.monotonic()
    while (now := time.monotonic()) - last_seen < _SECONDS_UNTIL_THREADS_END and now - begin < _SECONDS_TO_REMOVE:
        if path.exists():
            remove_folder(path)
            last_seen = now
        time.sleep(0.02)


def refuse_existing_folder(path: str | os.PathLike) -> None:
    """Raise InputError if `path` is a URL, or exists and is not an empty folder. Call it before long work."""
    refuse_url(path, "output")
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(path, "output folder", "something already there", "a new or empty folder")


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # git-lfs, docs/spec.md


def check_free_space(path: str | os.PathLike, size: int) -> None:
    """Raise DiskFull if the disk of `path` has fewer than `size` bytes free."""
    folder = Path(path).absolute().parent
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < size:
        raise DiskFull(path, "disk", f"{free:,} bytes free (no space left on device)", f"{size:,} bytes")


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> Path:
    """Write a text file by rename; return its path."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")
    return path


def write_csv_rows(path: Path, rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV file by rename."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", errors="replace", newline="") as file:
        csv.writer(file).writerows(rows)


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write a value as UTF-8 JSON (indented, keys in their order, no NaN), by rename."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def write_json_lines(path: str | os.PathLike, values: Iterable[Any]) -> None:
    """Write each value as a line of UTF-8 JSON (no NaN), by rename."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n" for value in values)


def read_json(path: str | os.PathLike, expected: str) -> Any:
    """Read a JSON file. `expected` describes the content for errors ("a captions file").

    Raises InputError as `texts.read_text` and `texts.parse_json`.
    """
    return parse_json(read_text(path, expected), path, expected)


def read_json_object(path: str | os.PathLike, expected: str) -> dict[str, Any]:
    """Read a JSON file as `read_json`; raise InputError also if the value is not an object."""
    value = read_json(path, expected)
    if not isinstance(value, dict):
        raise InputError(path, "JSON", f"a {type(value).__name__}", f"an object: {expected}")
    return value


def load_arrays(path: str | os.PathLike, expected: str) -> Any:
    """Return the array of a `.npy` file, or those of a `.npz` file by name; each is loaded when it is looked up.

    Raises InputError: the file is missing, damaged or something else, or a header claims more than the file contains.
    `expected` describes the content for errors.
    """
    from rococo_jax.npz import open_arrays

    # NumPy evaluates headers as Python, and does not catch their errors or those of zipfile.
    return open_arrays(Path(path), lambda: whole_file(path, expected))


def read_table(
    path: str | os.PathLike,
    expected: str,
    columns: Sequence[str] | None = None,
    dictionary_columns: Sequence[str] = (),
    filters: Sequence[tuple[str, str, Any]] | None = None,
) -> Any:
    """Read a Parquet file, or some of its columns and rows, as a `pyarrow.Table`.

    Args:
        dictionary_columns: columns of texts that are read dictionary-coded.
        filters: conditions on rows, as PyArrow takes them.

    Raises InputError as `load_arrays`, and if a column is missing.
    """
    import pyarrow.parquet

    with whole_file(path, expected):
        table = pyarrow.parquet.read_table(
            path,
            columns=columns,
            read_dictionary=list(dictionary_columns),
            filters=None if filters is None else list(filters),
            page_checksum_verification=True,
        )
        # Decode all texts and names here, so that invalid UTF-8 is an error now and not later.
        table.validate(full=True)
        _names_of(table.schema)
    return table


def _names_of(fields: Iterable[Any]) -> list[str]:
    """Return the names of Arrow fields and of the fields inside of them."""
    names: list[str] = []
    for field in fields:
        names += [field.name, *_names_of(field.type.field(number) for number in range(field.type.num_fields))]
    return names


@contextlib.contextmanager
def whole_file(path: str | os.PathLike, expected: str) -> Iterator[None]:
    """Raise InputError for any error of a library that reads a damaged file. The block should only call the library.

    Args:
        expected: describes the content for errors ("a table of pairs").
    """
    try:
        yield
    except FileNotFoundError:
        raise InputError(path, "file", "nothing there", expected) from None
    except Exception as error:
        if isinstance(error, InputError) or (isinstance(error, OSError) and error.filename is not None):
            raise  # a folder, or no permission; the check for OSError excludes SyntaxErrors, which have a file name too
        from rococo_jax.npz import NO_OBJECTS

        problem = why_unreadable(path, error)
        if "pickle" in problem or "Python objects" in problem:
            raise InputError(path, "contents", "Python objects", f"{expected}, of {NO_OBJECTS}") from None
        raise InputError(path, "contents", f"something else ({problem})"[:200], f"{expected}, undamaged") from None


def why_unreadable(path: str | os.PathLike, error: Exception) -> str:
    """Say why a library cannot read a file: its error, or that it is a pointer of Git LFS or a web page instead."""
    with Path(path).open("rb") as file:
        start = file.read(512)
    if start.startswith(_LFS_POINTER):
        return "a pointer of Git LFS instead of the file; run `git lfs pull`"
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html", b"<?xml", b"<head")):
        return "a web page instead of the file: open it in a browser to read why the download was refused"
    return first_line(error) or type(error).__name__


def hash_bytes(*parts: bytes) -> str:
    """Return the SHA-256 of length-prefixed parts, as 64 hex digits: different lists have different hashes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def hash_json(value: Any) -> str:
    """Return the SHA-256 of a JSON value, which does not depend on the order of keys."""
    return hash_bytes(json.dumps(value, sort_keys=True, ensure_ascii=False).encode())


def hash_file(path: str | os.PathLike) -> str:
    """Return the SHA-256 of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
