"""Read the tensors in a pickle of torch without torch, and without running any code in it.

The unpickler knows torch's rebuilding functions, containers and dtypes and refuses every other name, so that no code
is looked up, let alone called. The modules of a TorchScript archive (`__torch__....`) become plain records of
attributes.
"""

import collections
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

# Expanded tensors repeat the values of their storage; those of real checkpoints are small buffers.
_LARGEST_REPEATED = 1 << 24
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


_SCALARS = (str, bytes, int, float, type(None))


class _Ignored(dict):
    """An object that is no weight (a NumPy scalar, a path, a date); its content is dropped."""

    def __init__(self, *_: Any, **__: Any):
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass


class Module:
    """A module of a TorchScript archive: its attributes without its code."""

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update({key: value for key, value in state.items() if isinstance(key, str)})


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: np.dtype
    count: int


def _rebuild_tensor(storage: _Storage, offset: int, size: tuple, stride: tuple, *_: Any) -> "StoredTensor":
    return StoredTensor(storage, offset, tuple(size), tuple(stride))


@dataclass(frozen=True)
class StoredTensor:
    """A view of a storage: offset, shape and strides, in values."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        return self.storage.dtype

    @property
    def span(self) -> slice:
        """The bytes of the storage from the tensor's first to its last value."""
        if 0 in self.shape:
            return slice(0, 0)
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        return slice(self.offset * self.dtype.itemsize, (last + 1) * self.dtype.itemsize)

    def check(self) -> None:
        """Raise ValueError if the view is malformed, exceeds its storage, or repeats it too often."""
        has_sizes = all(isinstance(n, int) and n >= 0 for n in (self.offset, *self.shape, *self.stride))
        if not isinstance(self.storage, _Storage) or not has_sizes or len(self.shape) != len(self.stride):
            raise ValueError("a malformed tensor record")
        if self.span.stop > self.storage.count * self.dtype.itemsize:
            raise ValueError("a tensor that exceeds its storage")
        values = math.prod(self.shape)
        if values > max(self.storage.count, _LARGEST_REPEATED):
            raise ValueError(f"a tensor of {values:,} values that repeats a storage of {self.storage.count:,}")

    def view(self, values: np.ndarray) -> np.ndarray:
        """Return the tensor, given the values of its span."""
        strides = tuple(step * values.itemsize for step in self.stride)
        return np.lib.stride_tricks.as_strided(values, self.shape, strides, writeable=False)


def _parameter(tensor: Any, *_: Any) -> Any:
    return tensor


def _check_key(key: Any) -> Any:
    """Return the key of a dictionary. Raises UnpicklingError: it is neither a scalar nor a tuple of scalars.

    Python hashes and prints nested tuples as trees, so a short pickle of shared ones would take for ever.
    """
    if not all(isinstance(each, _SCALARS) for each in (key if isinstance(key, tuple) else [key])):
        raise pickle.UnpicklingError(f"a dictionary with a key that is a {type(key).__name__}")
    return key


def _ordered_dict(items: Any = ()) -> collections.OrderedDict:
    return collections.OrderedDict((_check_key(key), value) for key, value in items)


# Every name that a pickle may contain. The functions build the classes above, or return their argument.
_ALLOWED: dict[tuple[str, str], Callable | type | str] = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch.jit._pickle", "build_intlist"): _parameter,
    ("torch.jit._pickle", "build_doublelist"): _parameter,
    ("torch.jit._pickle", "build_boollist"): _parameter,
    ("torch.jit._pickle", "build_tensorlist"): _parameter,
    ("torch.jit._pickle", "restore_type_tag"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    # Objects that training scripts store beside the weights.
    **{
        (module, name): _Ignored
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
    ("torch", "device"): _Ignored,
    # Types stay names.
    **{("torch", name): name for name in (*_DTYPES, "float64", "float32", "float16", "bfloat16", "int64")},
}


class TensorUnpickler(pickle._Unpickler):
    """Unpickler that looks up the names above alone, and sets attributes of modules alone.

    It derives from the unpickler in Python, because only there the setting of attributes can be overridden.
    """

    dispatch: ClassVar = dict(pickle._Unpickler.dispatch)

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Module):
            target.__setstate__(state)
        elif not isinstance(target, collections.OrderedDict | _Ignored):  # version numbers of a state dict, not used
            raise pickle.UnpicklingError(f"attributes for a {type(target).__name__}")

    dispatch[pickle.BUILD[0]] = _build

    def _set_items(self) -> None:
        items = self.pop_mark()
        self.stack[-1].update(_ordered_dict(zip(items[::2], items[1::2], strict=True)))

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1][_check_key(key)] = value

    def _make_dict(self) -> None:
        items = self.pop_mark()
        self.append(dict(_ordered_dict(zip(items[::2], items[1::2], strict=True))))

    def _ignore_items(self) -> None:
        self.pop_mark()

    def _make_set(self) -> None:
        self.append(_Ignored())

    def _make_frozenset(self) -> None:
        self.pop_mark()
        self.append(_Ignored())

    dispatch |= {pickle.SETITEMS[0]: _set_items, pickle.SETITEM[0]: _set_item, pickle.DICT[0]: _make_dict}
    # Sets have no weights, and would hash their items.
    dispatch |= {pickle.EMPTY_SET[0]: _make_set, pickle.ADDITEMS[0]: _ignore_items}
    dispatch[pickle.FROZENSET[0]] = _make_frozenset
    # It allocates as many bytes as the pickle claims before it reads them, and no state dict has one.
    del dispatch[pickle.BYTEARRAY8[0]]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        if module.startswith("__torch__"):
            return Module
        if module == "numpy.dtypes":
            return _Ignored
        raise pickle.UnpicklingError(f"the name {module}.{name}, which no tensor needs")

    def persistent_load(self, identity: Any) -> _Storage:
        if not isinstance(identity, tuple) or len(identity) < 5 or identity[0] != "storage":
            raise pickle.UnpicklingError("a reference that is not a storage")
        _, dtype, key, _, count = identity[:5]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise pickle.UnpicklingError(
                f"a storage of type {dtype if isinstance(dtype, str) else type(dtype).__name__}"
            )
        if not isinstance(key, str) or not isinstance(count, int) or count < 0:
            raise pickle.UnpicklingError(f"a storage of type {dtype} without a key or a size")
        return _Storage(key, _DTYPES[dtype], count)
