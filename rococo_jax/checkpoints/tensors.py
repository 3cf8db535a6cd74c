"""Named tensors of any file, as the tables of names read them; safetensors in and out."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import ml_dtypes  # NumPy learns the name "bfloat16" by this import
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rococo_jax.errors import InputError
from rococo_jax.storage import read_json

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
WEIGHT_FILES = ("model*.safetensors", _INDEX)
# How safetensors spells types; others are spelt as NumPy does.
_KINDS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32"}


@runtime_checkable
class Tensors(Protocol):
    """What `read_parameters` needs of a checkpoint."""

    path: Path

    @property
    def names(self) -> list[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def kind(self, name: str) -> str: ...
    def read(self, name: str) -> np.ndarray: ...


class ArraySource:
    """Tensors that a function reads by name; a context manager that closes what they come from.

    Args:
        path: the file, for error lines.
        shapes: shape and dtype of each.
        read: its values, of any dtype.
        close: called at the end.
    """

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]],
        read: Callable[[str], np.ndarray],
        close: Callable[[], None] = lambda: None,
    ):
        self.path, self._shapes, self._read, self._close = path, dict(shapes), read, close

    def __enter__(self) -> "ArraySource":
        return self

    def __exit__(self, *_) -> None:
        self._close()

    @property
    def names(self) -> list[str]:
        """All tensors there are."""
        return sorted(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """Its shape, without reading it."""
        return self._shapes[name][0]

    def kind(self, name: str) -> str:
        """Its type as safetensors spells it."""
        dtype = self._shapes[name][1]
        dtype = "bfloat16" if dtype == ml_dtypes.bfloat16 else np.dtype(dtype).name
        return _KINDS.get(dtype, dtype)

    def read(self, name: str) -> np.ndarray:
        """Its values as float32."""
        return self._read(name).astype(np.float32)


class TensorSource:
    """Tensors by name, read one at a time; a context manager that keeps the files open.

    Args:
        folder: where the files are.
        single: the one file to read, where it is not `model.safetensors` or those that an index names.

    Raises:
        InputError: there are no safetensors files, or one is missing, cut short or otherwise unreadable.
    """

    def __init__(self, folder: Path, single: str | None = None):
        self.path = folder
        self._files: dict[str, safe_open] = {}
        self._stack = contextlib.ExitStack()
        weight_map = None if single else _weight_map(folder)
        for file in sorted(set(weight_map.values()) if weight_map else {single or _SINGLE}):
            opened = self._open(folder / file)
            names = set(opened.keys())
            if weight_map and (absent := {n for n, f in weight_map.items() if f == file} - names):
                raise InputError(folder / file, "tensors", f"no {sorted(absent)[:5]}", "all that the index names")
            self._files.update(dict.fromkeys(names, opened))

    def __enter__(self) -> "TensorSource":
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def _open(self, path: Path) -> safe_open:
        if not path.is_file():
            raise InputError(path, "file", "nothing there", "a safetensors file")
        try:
            return self._stack.enter_context(safe_open(path, framework="np"))
        except SafetensorError as error:
            raise InputError(path, "safetensors file", error, "a whole safetensors file") from None

    @property
    def names(self) -> list[str]:
        """All tensors there are."""
        return sorted(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Its shape, without reading it."""
        return tuple(self._files[name].get_slice(name).get_shape())

    def kind(self, name: str) -> str:
        """Its type as safetensors spells it: F32, BF16, I64..."""
        return self._files[name].get_slice(name).get_dtype()

    def read(self, name: str) -> np.ndarray:
        """Its values as float32."""
        return self._files[name].get_tensor(name).astype(np.float32)


def _weight_map(folder: Path) -> dict[str, str] | None:
    """Which file holds which tensor, or None for a single file."""
    if (folder / _SINGLE).is_file():
        return None
    if not (folder / _INDEX).is_file():
        pickles = [name for name in _PICKLES if (folder / name).exists()]
        raise InputError(folder, "weights", ", ".join(pickles) or "no weight files", f"{_SINGLE} or {_INDEX}")
    index = read_json(folder / _INDEX, "an index of safetensors files")
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise InputError(folder / _INDEX, "weight_map", type(weight_map).__name__, "file names by tensor")
    outside = sorted(file for file in set(weight_map.values()) if Path(file).name != file)
    if outside:
        raise InputError(folder / _INDEX, "weight_map", outside[0], "file names inside the folder")
    return weight_map


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors row by row; a transposed view would be stored in the order of its memory."""
    contiguous = {name: np.array(array, order="C") for name, array in tensors.items()}
    save_file(contiguous, path, metadata={"format": "pt"})
