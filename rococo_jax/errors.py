"""`InputError`, which bad input raises; which system errors count as bad input; and how both are reported.

Also checks of JSON values, which readers of files use.
"""

import contextlib
import difflib
import errno
import importlib
import math
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

_LONGEST_LINE = 2000
# Most names that an error lists.
_FEW = 8
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Errors of TensorStore (ValueErrors) and safetensors contain the system's error number in their text.
# Its last path without backslashes: other properties, whose order differs by process, have quotes behind backslashes.
_OF_TENSORSTORE = re.compile(r"(?<!\\)\"(?P<path>[^\"\\]+)\"(?:[^\"\\]|\\.)*\[os_error_code='(?P<number>\d+)'")
_OF_SAFETENSORS = re.compile(r"\(os error (?P<number>\d+)\)")
_UNUSABLE_PATH = {
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
    errno.EPERM,
    errno.EROFS,
}


class InputError(Exception):
    """Input that cannot be used. The command line prints it as one line and exits with 2.

    Args:
        source: the file, folder, option or model that is wrong, as the user named it.
        field: the part of it ("caption list of 'val2014/x.jpg'", "ratio", "tensor 'visual.proj'").
        found: what was there.
        wanted: what would have been accepted.
    """

    def __init__(self, source: object, field: str, found: object, wanted: object):
        self.source, self.field, self.found, self.wanted = str(source), field, str(found), str(wanted)
        super().__init__(f"{self.source}: {self.field}: found {self.found}; wanted {self.wanted}")

    def __reduce__(self):
        # The default would pickle the message alone and call `__init__` with it on loading.
        return type(self), (self.source, self.field, self.found, self.wanted)


class DiskFull(InputError):
    """The disk is too full for an output."""


def unknown_name(source: object, field: str, name: str, known: Iterable[str], command: str = "") -> InputError:
    """Return the error for an unknown name, which suggests the nearest known one, and lists all if they are few.

    Args:
        source, field: arguments of `InputError`.
        known: the names that exist.
        command: command that lists the names if they are many, such as `rococo benchmarks`; empty if there is none.
    """
    plain = {_plain(each): each for each in known}
    near = difflib.get_close_matches(_plain(name), plain, 1, cutoff=0.5)
    names = list(plain.values())
    many = f"one of the {len(names)} that `{command}` lists" if command else f"one of {len(names)}"
    wanted = f"one of {', '.join(names)}" if len(names) <= _FEW else many
    hint = f" (did you mean {plain[near[0]]}?)" if near else ""
    return InputError(source, field, repr(name), wanted + hint)


def require_folder(path: str | os.PathLike, field: str, wanted: str) -> None:
    """Raise InputError if a path is no folder; the arguments are those of `InputError`."""
    if not Path(path).is_dir():
        raise InputError(path, field, "a file" if Path(path).exists() else "nothing there", wanted)


def require_file(path: str | os.PathLike, wanted: str) -> None:
    """Raise InputError if a path is no file; `wanted` describes its contents."""
    if not Path(path).is_file():
        raise InputError(path, "file", "a folder" if Path(path).is_dir() else "nothing there", wanted)


def require_one_of(source: object, field: str, value: object, names: Collection[str]) -> None:
    """Raise InputError if a value is none of these names; the other arguments are those of `InputError`."""
    if value not in tuple(names):  # the value may be unhashable
        raise InputError(source, field, repr(value), f"one of {', '.join(names)}")


def missing_library(source: object, field: str, library: str, extra: str) -> InputError:
    """Return the error for a library that is not installed, with the command that installs it.

    The command names the requirements of one of this package's extras, never the package itself, which is on no index.

    Args:
        source, field: arguments of `InputError`.
        library: name of the module that cannot be imported.
        extra: the extra in `setup.cfg` that requires it.
    """
    import importlib.metadata  # takes as long to import as everything else here

    try:
        requirements = importlib.metadata.requires("rococo-jax") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        requirements = []
    of_extra = [text.partition(";")[0].strip() for text in requirements if f'extra == "{extra}"' in text]
    return InputError(source, field, f"no {library} installed", f"pip install {shlex.join(of_extra or [library])}")


def import_library(source: object, library: str, extra: str) -> Any:
    """Return a library that one of this package's extras requires. Raises InputError: it is not installed."""
    try:
        return importlib.import_module(library)
    except ImportError:
        raise missing_library(source, "library", library, extra) from None


def _plain(name: str) -> str:
    """Return a name in lower case, with spaces, dashes and slashes as underscores, for comparison."""
    return "_".join(name.lower().replace("-", " ").replace("_", " ").replace("/", " ").split())


def is_whole(value: Any) -> bool:
    """Return whether a JSON value is a whole number; true and false are not numbers."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a finite number; true and false are not numbers."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def is_list_of(kind: type, value: Any) -> bool:
    """Return whether a JSON value is a list of values of one type."""
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def object_of(value: Any) -> dict[str, Any]:
    """Return `value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def first_line(error: BaseException) -> str:
    """Return the first line of an error of another library, or the name of its class if it has no text."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def is_disk_full(error: BaseException) -> bool:
    """Return whether the disk is full or read-only, so that nothing else can be written either."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    return full or isinstance(error, DiskFull)


@contextlib.contextmanager
def naming_output(path: os.PathLike) -> Iterator[None]:
    """Add the output to the error of a full disk, which names no file if writing fails rather than opening."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE and error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def naming_source(source: object) -> Iterator[None]:
    """Name the source of an InputError that the block raises, such as the file of an image."""
    try:
        yield
    except InputError as error:
        raise InputError(source, error.field, error.found, error.wanted) from None


def as_input_error(error: BaseException) -> InputError | None:
    """Return an `InputError` for an error that the user can fix (bad input, full disk, unusable path), else None."""
    if isinstance(error, InputError):
        return error
    error = _system_error(error)
    if not isinstance(error, OSError) or error.errno not in _NO_SPACE | _UNUSABLE_PATH:
        return None
    # `os.replace` names the temporary file first, and then the path that the user gave.
    path = error.filename2 or error.filename or "disk"
    if error.errno in _NO_SPACE:
        return DiskFull(path, "file system", error.strerror, "room for the output")
    return InputError(path, "file system", error.strerror, "a path that can be used")


def _system_error(error: BaseException) -> BaseException:
    """Return the OSError that the text of a library's error describes, or the error itself."""
    pattern = {"ValueError": _OF_TENSORSTORE, "SafetensorError": _OF_SAFETENSORS}.get(type(error).__name__)
    if pattern is None or (match := pattern.search(str(error))) is None:
        return error
    number = int(match["number"])
    return OSError(number, os.strerror(number), match.groupdict().get("path"))


def report_in_one_line(error: BaseException) -> int | None:
    """Print bad input or an interruption as one line on standard error, and return the exit code, 2 or 130.

    Return None for any other error, and print nothing.
    """
    if isinstance(error, KeyboardInterrupt):
        print("rococo: interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    refused = as_input_error(error)
    if refused is None:
        return None
    line = " ".join(str(refused).split())
    print("rococo: " + (line if len(line) <= _LONGEST_LINE else f"{line[:1000]} ... {line[-500:]}"), file=sys.stderr)
    return 2
