"""Read torch's zip archives (`torch.save`, TorchScript) without torch, and without running any code in them.

An archive is a zip: `NAME/data.pkl` is a pickle of the object, in which every tensor is a call of one of torch's
rebuilding functions on a storage, and `NAME/data/KEY` holds the bytes of a storage. `torch_pickle` reads the pickle.
Only the bytes of a storage that a tensor covers are kept in memory. The checksum of a storage is compared when its
first tensor is read; further tensors of the same storage (views of a flat buffer) are read at their place.

Source of the format: `torch/serialization.py`, `torch/_utils.py` and TorchScript's serialisation notes.
"""

import collections
import contextlib
import io
import os
import pickle
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.checkpoints.torch_pickle import Module, StoredTensor, TensorUnpickler
from rococo_jax.errors import InputError, object_of, require_file
from rococo_jax.npz import check_member
from rococo_jax.storage import why_unreadable

_EXPECTED = "a zip archive of tensors as torch.save or torch.jit.save writes it"
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_SAVE_AGAIN = "torch.save(torch.load(FILE), NEW_FILE) in torch writes one"
# Keys of training checkpoints for the weights; and words in the keys of averages of the weights.
_STATE_KEYS = (
    "state_dict",
    "model_state_dict",
    "model",
    "model_state",
    "module",
    "net",
    "network",
    "weights",
    "params",
)
_AVERAGES = ("ema", "average", "swa", "shadow")
_LARGEST_PACKED_PICKLE = 1 << 26
# Weights can hardly be compressed.
_LARGEST_RATIO, _ALWAYS_UNPACKED = 100, 1 << 26
_CHUNK = 1 << 20
# Names of modules that contain each other grow exponentially in a pickle that shares them.
_MOST_NAMES = 10**6
# The lengths of name and extra field in the local header of a zip, which is followed by both.
_LOCAL_HEADER = struct.Struct("<26xHH")


def open_torch_archive(path: Path) -> Tensors:
    """Open a torch archive; a context manager.

    Tensors have the dotted names of the module or state dict, which may lie in a training checkpoint (`state_dict`,
    `model`, ...).

    Raises InputError: the file is no such archive or truncated, has names outside the archive, or its pickle names
    anything that is not part of a tensor.
    """
    require_file(path, _EXPECTED)
    with path.open("rb") as file:
        if file.read(len(_LEGACY)) == _LEGACY:
            raise InputError(path, "archive", "the format of torch before 1.6", f"{_EXPECTED}: {_SAVE_AGAIN}")
    with _refusing(path), contextlib.ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        root = _root(path, archive)
        value = TensorUnpickler(io.BytesIO(_read_pickle(archive, f"{root}data.pkl"))).load()
        state, origin = _state_dict(path, value)
        tensors = _tensors(state)
        for tensor in tensors.values():
            tensor.check()
        if not tensors:
            keys = ", ".join(map(str, list(object_of(value))[:8]))
            problem = f"none (keys: {keys})" if keys else "none"
            raise InputError(path, "tensors", problem, "a state dict, or a module with parameters")
        big_endian = _is_big_endian(archive, f"{root}byteorder")
        tensors_of_storage = collections.defaultdict(list)
        for tensor in tensors.values():
            tensors_of_storage[tensor.storage.key].append(tensor)
        members = {key: archive.getinfo(f"{root}data/{key}") for key in tensors_of_storage}
        for key, member in members.items():
            _check_storage(member, path.stat().st_size, tensors_of_storage[key])
        storages = _StorageReader(path, archive, stack)
        close = stack.pop_all().close

    def read(name: str) -> np.ndarray:
        tensor = tensors[name]
        with _refusing(path):
            member = members[tensor.storage.key]
            if member.file_size < tensor.storage.count * tensor.dtype.itemsize:
                raise ValueError(f"the storage of {name} is truncated")
            values = np.frombuffer(storages.read(member, tensor.span), tensor.dtype)
            if big_endian:  # as integers, since bfloat16 has no byte order in NumPy
                values = values.view(f"u{tensor.dtype.itemsize}").byteswap().view(tensor.dtype)
            return tensor.view(values)

    shapes = {name: (tensor.shape, tensor.dtype.name) for name, tensor in tensors.items()}
    return Tensors(path, shapes, read, close, origin)


def _read_pickle(archive: zipfile.ZipFile, name: str) -> bytes:
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED and member.file_size > _LARGEST_PACKED_PICKLE:
        raise ValueError(f"{name}, a compressed pickle of {member.file_size:,} bytes, which torch never writes")
    return archive.read(member)


def _is_big_endian(archive: zipfile.ZipFile, name: str) -> bool:
    """Return whether the storages are big-endian; archives before torch 2.1 do not record it and are little-endian."""
    if name not in archive.namelist():
        return False
    order = archive.read(name).decode(errors="replace") if archive.getinfo(name).file_size < 16 else "too long"
    if order not in ("little", "big"):
        raise ValueError(f"the byte order {order!r}, neither little nor big")
    return order == "big"


def _check_storage(member: zipfile.ZipInfo, archive_size: int, tensors: list[StoredTensor]) -> None:
    """Raise ValueError if a storage is larger than the file allows, or compressed and larger than its tensors need.

    torch does not compress storages. A compressed one can be a thousand times the size of its file.
    """
    check_member(member, archive_size)
    is_compressed = member.compress_type != zipfile.ZIP_STORED
    if is_compressed and member.file_size > max(_LARGEST_RATIO * member.compress_size, _ALWAYS_UNPACKED):
        ratio = member.file_size // member.compress_size
        raise ValueError(
            f"the compressed storage {member.filename} of {ratio} times its size in the file, which weights never have"
        )
    used_bytes = max(tensor.span.stop for tensor in tensors)
    if is_compressed and member.file_size > used_bytes:
        sizes = f"{member.file_size:,} bytes for {used_bytes:,} of tensors"
        raise ValueError(f"the compressed storage {member.filename} of {sizes}")


class _StorageReader:
    """Read storages of an archive, each of which is verified by its checksum when it is first read.

    Args:
        stack: closes the files.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile, stack: contextlib.ExitStack):
        self._archive, self._stack, self._file = archive, stack, stack.enter_context(path.open("rb"))
        # Of verified storages: a file with the uncompressed bytes, and where they begin.
        self._places: dict[str, tuple[Any, int]] = {}

    def read(self, member: zipfile.ZipInfo, span: slice) -> bytes:
        """Return these bytes of a storage. Raises ValueError or zipfile's errors: it is damaged."""
        if member.filename not in self._places:
            if member.compress_type == zipfile.ZIP_STORED:
                data = self._read_through(member, span, io.BytesIO()).getvalue()
                self._places[member.filename] = self._file, self._start(member)
                return data
            copy = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (the stack closes it)
            self._read_through(member, slice(0, member.file_size), copy).flush()
            self._places[member.filename] = copy, 0
        file, start = self._places[member.filename]
        data = os.pread(file.fileno(), span.stop - span.start, start + span.start)
        if len(data) < span.stop - span.start:
            raise ValueError(f"the storage {member.filename} is truncated")
        return data

    def _read_through(self, member: zipfile.ZipInfo, span: slice, target: Any) -> Any:
        """Write these bytes of a member to a file, and read it to its end, so that its checksum is compared."""
        position = 0
        with self._archive.open(member) as file:
            while chunk := file.read(_CHUNK):
                target.write(chunk[max(0, span.start - position) : max(0, span.stop - position)])
                position += len(chunk)
        if position != member.file_size or position < span.stop:
            raise ValueError(f"the storage {member.filename} has another length than its entry says")
        return target

    def _start(self, member: zipfile.ZipInfo) -> int:
        """Return where the bytes of a member begin in the archive."""
        header = os.pread(self._file.fileno(), _LOCAL_HEADER.size, member.header_offset)
        return member.header_offset + _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack(header))


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        expected = "tensors and nothing else, since a pickle can run code: save model.state_dict() alone"
        raise InputError(path, "pickle", error, expected) from None
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(path, "archive", why_unreadable(path, error), f"{_EXPECTED}, undamaged") from None


def _root(path: Path, archive: zipfile.ZipFile) -> str:
    """Return the only folder of the archive, with its slash."""
    names = archive.namelist()
    for name in names:
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if ".." in parts or name.startswith(("/", "\\")) or (parts and ":" in parts[0]):
            raise InputError(path, "archive", f"the name {name!r}", "names inside the archive")
    roots = [name.removesuffix("data.pkl") for name in names if PurePosixPath(name).name == "data.pkl"]
    if len(roots) != 1:
        raise InputError(path, "archive", f"{len(roots)} entries data.pkl", _EXPECTED)
    return roots[0]


def _state_dict(path: Path, value: Any) -> tuple[Any, str]:
    """Return the weights in a training checkpoint, and where they lie; else the whole object.

    Raises InputError if several parts may be the weights.
    """
    parts = {
        str(key): item
        for key, item in object_of(value).items()
        if isinstance(item, dict) and any(isinstance(each, StoredTensor) for each in item.values())
    }
    averages = [key for key in parts if any(word in key.lower() for word in _AVERAGES)]
    candidates = [key for key in _STATE_KEYS if key in parts]
    candidates = candidates or [key for key in parts if key not in averages] or averages
    if not candidates:
        return value, ""
    if len(candidates) > 1:
        expected = "one part with the weights, as torch.save({'state_dict': model.state_dict()}, FILE) writes it"
        raise InputError(path, "weights", f"several parts: {', '.join(candidates)}", expected)
    state_key = candidates[0]
    ignored = [key for key in averages if key != state_key]
    remark = f", without the averages {', '.join(ignored)}" if ignored else ""
    return parts[state_key], f"{path.name}: {state_key}{remark}"


def _tensors(value: Any) -> dict[str, StoredTensor]:
    """Return the tensors of a module or a dictionary by their dotted names."""
    # By identity: a container that occurs under many names is walked once.
    by_container: dict[int, dict[str, StoredTensor]] = {}
    count = 0

    def walk(value: Any, depth: int) -> dict[str, StoredTensor]:
        nonlocal count
        items = value.__dict__ if isinstance(value, Module) else value
        if not isinstance(items, dict):
            return {}
        if depth > 64:
            raise ValueError("objects that are nested too deep")
        if id(value) not in by_container:
            tensors = {}
            for key, item in items.items():
                if isinstance(item, StoredTensor):
                    tensors[str(key)] = item
                else:
                    tensors |= {f"{key}.{name}": tensor for name, tensor in walk(item, depth + 1).items()}
                if count + len(tensors) > _MOST_NAMES:
                    raise ValueError(f"modules that contain each other, with more than {_MOST_NAMES:,} names")
            count += len(tensors)
            by_container[id(value)] = tensors
        return by_container[id(value)]

    return walk(value, 0)
