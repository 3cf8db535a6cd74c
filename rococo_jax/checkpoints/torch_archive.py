"""Tensors from torch's zip archives (`torch.save`, TorchScript) without torch, and without running what is in them.

A file of either kind is a zip: `NAME/data.pkl` is a pickle of the object, in which every tensor is a call of one of
torch's rebuilding functions on a storage, and `NAME/data/KEY` holds the bytes of a storage. The pickle is read by an
unpickler that knows those functions, containers and dtypes and refuses every other name, so no code of the file is
ever found, let alone called. The modules of a TorchScript archive (`__torch__....`) become plain records of attributes.

Source of the format: `torch/serialization.py`, `torch/_utils.py` and TorchScript's serialisation notes.
"""

import collections
import contextlib
import io
import pickle
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.errors import InputError, object_of
from rococo_jax.storage import why_unreadable

_WANTED = "a zip archive of tensors as torch.save or torch.jit.save writes it"
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_SAVE_ANEW = "torch.save(torch.load(FILE), NEW_FILE) in torch makes one"
# Where training checkpoints keep the weights; the parts that are no weights, and averages of the weights.
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
_DTYPES = {
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}


class _Aside(dict):
    """An object beside the weights (a NumPy scalar, a path, a date), of which nothing is kept."""

    def __init__(self, *_: Any, **__: Any):
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass


class Module:
    """A module of a TorchScript archive: its attributes, none of its code."""

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update({key: value for key, value in state.items() if isinstance(key, str)})


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: np.dtype
    count: int


def _rebuild_tensor(storage: _Storage, offset: int, size: tuple, stride: tuple, *_: Any) -> "_Tensor":
    return _Tensor(storage, offset, tuple(size), tuple(stride))


@dataclass(frozen=True)
class _Tensor:
    """A view of a storage; `read` gives its values."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        return self.storage.dtype

    def check(self) -> None:
        has_sizes = all(isinstance(n, int) and n >= 0 for n in (self.offset, *self.shape, *self.stride))
        if not isinstance(self.storage, _Storage) or not has_sizes or len(self.shape) != len(self.stride):
            raise ValueError("a tensor that is none")
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        if 0 not in self.shape and last >= self.storage.count:
            raise ValueError("a tensor that reaches beyond its storage")

    def of(self, storage: np.ndarray) -> np.ndarray:
        strides = tuple(step * storage.itemsize for step in self.stride)
        return np.lib.stride_tricks.as_strided(storage[self.offset :], self.shape, strides, writeable=False)


def _parameter(tensor: Any, *_: Any) -> Any:
    return tensor


# Every name that a pickle may ask for. The functions build what is above, or keep their argument.
_ALLOWED: dict[tuple[str, str], Callable | type | str] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch.jit._pickle", "build_intlist"): _parameter,
    ("torch.jit._pickle", "build_doublelist"): _parameter,
    ("torch.jit._pickle", "build_boollist"): _parameter,
    ("torch.jit._pickle", "build_tensorlist"): _parameter,
    ("torch.jit._pickle", "restore_type_tag"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    # What training scripts keep beside the weights.
    **{
        (module, name): _Aside
        for module, name in (
            ("argparse", "Namespace"),
            ("types", "SimpleNamespace"),
            ("_codecs", "encode"),
            ("easydict", "EasyDict"),
            *(
                (module, name)
                for module in ("numpy.core.multiarray", "numpy._core.multiarray")
                for name in ("scalar", "_reconstruct")
            ),
            *(("numpy", name) for name in ("dtype", "ndarray", "float64", "float32", "int64", "int32", "bool_")),
            *(("pathlib", name) for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")),
            *(("datetime", name) for name in ("datetime", "date", "timedelta")),
            ("collections", "defaultdict"),
            ("collections", "Counter"),
            *((module, name) for module in ("builtins", "__builtin__") for name in ("set", "frozenset", "complex")),
        )
    },
    ("torch", "Size"): tuple,
    ("torch", "device"): str,
    # Types stay names.
    **{("torch", name): name for name in (*_DTYPES, "float64", "float32", "float16", "bfloat16", "int64")},
}


class _Unpickler(pickle._Unpickler):
    """Finds the names above and no other, and sets the attributes of nothing but modules.

    The unpickler written in Python, because only there can the setting of attributes be taken over.
    """

    dispatch: ClassVar = dict(pickle._Unpickler.dispatch)

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Module):
            target.__setstate__(state)
        elif not isinstance(target, collections.OrderedDict | _Aside):  # a state dict's version numbers: not needed
            raise pickle.UnpicklingError(f"attributes for a {type(target).__name__}")

    dispatch[pickle.BUILD[0]] = _build

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        if module.startswith("__torch__"):
            return Module
        if module == "numpy.dtypes":
            return _Aside
        raise pickle.UnpicklingError(f"the name {module}.{name}, which is none of a tensor's")

    def persistent_load(self, identity: Any) -> _Storage:
        if not isinstance(identity, tuple) or len(identity) < 5 or identity[0] != "storage":
            raise pickle.UnpicklingError("something that is no storage")
        _, dtype, key, _, count = identity[:5]
        if dtype not in _DTYPES or not isinstance(key, str) or not isinstance(count, int) or count < 0:
            raise pickle.UnpicklingError(f"a storage of type {dtype}")
        return _Storage(key, _DTYPES[dtype], count)


def open_torch_archive(path: Path) -> Tensors:
    """The tensors of a torch archive, read one at a time; a context manager.

    They have the dotted names of the module or state dict, which may lie in a training checkpoint (`state_dict`,
    `model`, ...).

    Raises InputError: it is no such archive, is cut short, has names outside itself, or its pickle asks for anything
    that is not part of a tensor.
    """
    if not path.is_file():
        raise InputError(path, "file", "nothing there", _WANTED)
    with path.open("rb") as file:
        if file.read(len(_LEGACY)) == _LEGACY:
            raise InputError(path, "archive", "the form of torch before 1.6", f"{_WANTED}: {_SAVE_ANEW}")
    with _refusing(path), contextlib.ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        root = _root(path, archive)
        value = _Unpickler(io.BytesIO(archive.read(f"{root}data.pkl"))).load()
        state, origin = _state_dict(path, value)
        tensors = dict(_tensors(state))
        for tensor in tensors.values():
            tensor.check()
        if not tensors:
            keys = ", ".join(map(str, list(object_of(value))[:8]))
            found = f"none (keys: {keys})" if keys else "none"
            raise InputError(path, "tensors", found, "a state dict, or a module with parameters")
        close = stack.pop_all().close

    def read(name: str) -> np.ndarray:
        tensor = tensors[name]
        with _refusing(path):
            data = archive.read(f"{root}data/{tensor.storage.key}")
            if len(data) < tensor.storage.count * tensor.dtype.itemsize:
                raise ValueError(f"the storage of {name} is cut short")
            return tensor.of(np.frombuffer(data, tensor.dtype, tensor.storage.count))

    shapes = {name: (tensor.shape, tensor.dtype.name) for name, tensor in tensors.items()}
    return Tensors(path, shapes, read, close, origin)


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        wanted = "tensors and nothing else, since a pickle can run code: save model.state_dict() alone"
        raise InputError(path, "pickle", error, wanted) from None
    except Exception as error:  # a broken pickle raises whatever its opcodes run into
        raise InputError(path, "archive", why_unreadable(path, error), f"{_WANTED}, whole") from None


def _root(path: Path, archive: zipfile.ZipFile) -> str:
    """The one folder inside, with its slash."""
    names = archive.namelist()
    for name in names:
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if ".." in parts or name.startswith(("/", "\\")) or (parts and ":" in parts[0]):
            raise InputError(path, "archive", f"the name {name!r}", "names inside the archive")
    roots = [name.removesuffix("data.pkl") for name in names if PurePosixPath(name).name == "data.pkl"]
    if len(roots) != 1:
        raise InputError(path, "archive", f"{len(roots)} entries data.pkl", _WANTED)
    return roots[0]


def _state_dict(path: Path, value: Any) -> tuple[Any, str]:
    """The part of a training checkpoint that holds the weights, and where it lies; else the whole.

    Raises InputError where several parts may be the weights.
    """
    parts = {
        str(key): item
        for key, item in object_of(value).items()
        if isinstance(item, dict) and any(isinstance(each, _Tensor) for each in item.values())
    }
    averages = [key for key in parts if any(word in key.lower() for word in _AVERAGES)]
    named = [key for key in _STATE_KEYS if key in parts] or [key for key in parts if key not in averages] or averages
    if not named:
        return value, ""
    if len(named) > 1:
        wanted = "one part with the weights, as torch.save({'state_dict': model.state_dict()}, FILE) writes it"
        raise InputError(path, "weights", f"several parts: {', '.join(named)}", wanted)
    others = [key for key in averages if key not in named]
    beside = f", beside the averages {', '.join(others)}, which were left aside" if others else ""
    return parts[named[0]], f"{path.name}: {named[0]}{beside}"


def _tensors(value: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, _Tensor]]:
    if depth > 64:
        raise ValueError("an archive that is nested too deep")
    items = value.__dict__ if isinstance(value, Module) else value
    if not isinstance(items, dict):
        return
    for key, item in items.items():
        if isinstance(item, _Tensor):
            yield f"{prefix}{key}", item
        else:
            yield from _tensors(item, f"{prefix}{key}.", depth + 1)
