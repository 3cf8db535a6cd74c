"""Read torch's zip archives (`torch.save`, TorchScript) without torch, and without running any code in them.

An archive is a zip: `NAME/data.pkl` is a pickle of the object, in which every tensor is a call of one of torch's
rebuilding functions on a storage, and `NAME/data/KEY` holds the bytes of a storage. `torch_pickle` reads the pickle.
Only the bytes of a storage that a tensor covers are kept in memory.

Source of the format: `torch/serialization.py`, `torch/_utils.py` and TorchScript's serialisation notes.
"""

import collections
import contextlib
import io
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.checkpoints.torch_pickle import Module, StoredTensor, TensorUnpickler
from rococo_jax.errors import InputError, object_of
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


def open_torch_archive(path: Path) -> Tensors:
    """Open a torch archive; a context manager.

    Tensors have the dotted names of the module or state dict, which may lie in a training checkpoint (`state_dict`,
    `model`, ...).

    Raises InputError: the file is no such archive or truncated, has names outside the archive, or its pickle names
    anything that is not part of a tensor.
    """
    if not path.is_file():
        raise InputError(path, "file", "nothing there", _EXPECTED)
    with path.open("rb") as file:
        if file.read(len(_LEGACY)) == _LEGACY:
            raise InputError(path, "archive", "the format of torch before 1.6", f"{_EXPECTED}: {_SAVE_AGAIN}")
    with _refusing(path), contextlib.ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        root = _root(path, archive)
        value = TensorUnpickler(io.BytesIO(_read_pickle(archive, f"{root}data.pkl"))).load()
        state, origin = _state_dict(path, value)
        tensors = dict(_tensors(state))
        for tensor in tensors.values():
            tensor.check()
        if not tensors:
            keys = ", ".join(map(str, list(object_of(value))[:8]))
            problem = f"none (keys: {keys})" if keys else "none"
            raise InputError(path, "tensors", problem, "a state dict, or a module with parameters")
        big_endian = _is_big_endian(archive, f"{root}byteorder")
        users = collections.defaultdict(list)
        for tensor in tensors.values():
            users[tensor.storage.key].append(tensor)
        members = {key: archive.getinfo(f"{root}data/{key}") for key in users}
        for key, member in members.items():
            _check_storage(member, path.stat().st_size, users[key])
        close = stack.pop_all().close

    def read(name: str) -> np.ndarray:
        tensor = tensors[name]
        with _refusing(path):
            member = members[tensor.storage.key]
            if member.file_size < tensor.storage.count * tensor.dtype.itemsize:
                raise ValueError(f"the storage of {name} is truncated")
            data = _read_span(archive, member, tensor.span)
            values = np.frombuffer(data, tensor.dtype)
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


def _read_span(archive: zipfile.ZipFile, member: zipfile.ZipInfo, span: slice) -> bytes:
    """Return these bytes of a member, which is read to its end so that its checksum is compared."""
    with archive.open(member) as file:
        _skip(file, span.start)
        data = file.read(span.stop - span.start)
        _skip(file, member.file_size - span.stop)
        if len(data) < span.stop - span.start or file.read(1):
            raise ValueError(f"the storage {member.filename} has another length than its entry says")
    return data


def _skip(file: zipfile.ZipExtFile, count: int) -> None:
    while count > 0:
        count -= len(file.read(min(count, _CHUNK))) or count


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


def _tensors(value: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, StoredTensor]]:
    """Yield the tensors of a module or a dictionary, with their dotted names."""
    if depth > 64:
        raise ValueError("objects that are nested too deep")
    items = value.__dict__ if isinstance(value, Module) else value
    if not isinstance(items, dict):
        return
    for key, item in items.items():
        if isinstance(item, StoredTensor):
            yield f"{prefix}{key}", item
        else:
            yield from _tensors(item, f"{prefix}{key}.", depth + 1)
