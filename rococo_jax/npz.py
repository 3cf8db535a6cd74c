"""Read `.npy` and `.npz` files header by header: names, shapes and types are known before any array is loaded.

A header that claims more values than its file can hold is refused, so that memory is bounded by the arrays that are
read. Nothing is ever unpickled. Errors are ValueErrors or those of `zipfile` and NumPy; `storage.load_arrays` and its
callers turn them into one line.
"""

import contextlib
import math
import zipfile
from collections.abc import Callable, ItemsView, Iterator, ValuesView
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rococo_jax.errors import InputError

# What to store instead of an array of Python objects.
NO_OBJECTS = "numbers or texts: save numpy.array(values.tolist())"
# No deflated stream grows by more than this factor (zlib, "Maximum Compression Factor").
_LARGEST_DEFLATE_RATIO = 1032
_SUFFIX = ".npy"
_NOT_LOADED: Any = object()


class ObjectArrayError(ValueError):
    """An array of Python objects, which only pickle could read."""


class Header(NamedTuple):
    """Shape and type of a stored array."""

    shape: tuple[int, ...]
    dtype: np.dtype


def read_header(file: Any, size: int) -> Header:
    """Return the header at the beginning of a `.npy` file of `size` bytes, and leave the file position after it.

    Raises ValueError if it is not an array of numbers or texts, or its values are not exactly the rest of the file.
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of the .npy format")
    # Version 3 differs from 2 in the encoding of field names alone.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ObjectArrayError("Python objects, which only pickle reads")
    if not all(isinstance(length, int) and length >= 0 for length in shape):
        raise ValueError(f"an array of shape {shape}")
    claimed, stored = math.prod(shape) * dtype.itemsize, size - file.tell()
    if claimed != stored:
        raise ValueError(f"an array whose header claims {claimed:,} bytes, and the file has {stored:,}")
    return Header(shape, dtype)


class NpzArrays(dict[str, np.ndarray]):
    """The arrays of a `.npz` file by name, each loaded when it is first looked up.

    Args:
        guard: returns a context in which the file is read; it may replace errors.

    Raises ValueError on opening if a member is not an array or claims more than the file can hold, and InputError if it
    is an array of Python objects.
    """

    def __init__(self, path: Path, guard: Callable[[], AbstractContextManager] = contextlib.nullcontext):
        super().__init__()
        self._path, self._guard = path, guard
        self.headers: dict[str, Header] = {}
        self._members: dict[str, str] = {}
        with guard(), zipfile.ZipFile(path) as archive:
            file_size = path.stat().st_size
            for member in archive.infolist():
                if member.is_dir():
                    continue
                check_member(member, file_size)
                name = member.filename.removesuffix(_SUFFIX)
                try:
                    with archive.open(member) as file:
                        self.headers[name] = read_header(file, member.file_size)
                except ObjectArrayError:
                    raise InputError(path, f"array {name!r}", "Python objects", NO_OBJECTS) from None
                self._members[name] = member.filename
                super().__setitem__(name, _NOT_LOADED)

    def __getitem__(self, name: str) -> np.ndarray:
        array = super().__getitem__(name)
        if array is not _NOT_LOADED:
            return array
        with self._guard(), zipfile.ZipFile(self._path) as archive, archive.open(self._members[name]) as file:
            # The archive's check sum is compared at the end of the member, which is the end of the array.
            array = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):
                raise ValueError(f"{name!r} is longer than its header says")
        super().__setitem__(name, array)
        return array

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # without a method of its own, dict(arrays) would copy what is not loaded yet

    def items(self) -> ItemsView[str, np.ndarray]:
        return ItemsView(self)

    def values(self) -> ValuesView[np.ndarray]:
        return ValuesView(self)

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]


def check_member(member: zipfile.ZipInfo, file_size: int) -> None:
    """Raise ValueError if a member of an archive of `file_size` bytes claims more than it can hold."""
    ratios = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: _LARGEST_DEFLATE_RATIO}
    if member.compress_type not in ratios:
        raise ValueError(f"the member {member.filename!r}, which is neither stored nor deflated")
    if member.compress_size > file_size or member.file_size > member.compress_size * ratios[member.compress_type]:
        raise ValueError(f"the member {member.filename!r} claims {member.file_size:,} bytes, more than the file holds")


def open_arrays(path: Path, guard: Callable[[], AbstractContextManager] = contextlib.nullcontext) -> Any:
    """Return the array of a `.npy` file, or the `NpzArrays` of a `.npz` file."""
    with guard():
        packed = zipfile.is_zipfile(path)
    if packed:
        return NpzArrays(path, guard)
    with guard(), path.open("rb") as file:
        read_header(file, path.stat().st_size)
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
