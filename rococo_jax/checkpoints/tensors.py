"""Named tensors of a checkpoint, whatever file they come from; safetensors in and out."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes  # noqa: F401  NumPy learns the name "bfloat16" by this import
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


class Tensors:
    """Named tensors of a checkpoint, read one at a time; a context manager that closes what they come from.

    Args:
        path: the file or folder, for error lines.
        about: shape and type of each, a NumPy dtype or its name in safetensors.
        read: the values of one, of any dtype.
        close: called at the end.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, tuple[tuple[int, ...], np.dtype | str]],
        read: Callable[[str], np.ndarray],
        close: Callable[[], None] = lambda: None,
    ):
        self.path, self._about, self._read, self._close = path, dict(about), read, close

    def __enter__(self) -> "Tensors":
        return self

    def __exit__(self, *_) -> None:
        self._close()

    @property
    def names(self) -> list[str]:
        """All tensors there are."""
        return sorted(self._about)

    def shape(self, name: str) -> tuple[int, ...]:
        """Its shape, without reading it."""
        return self._about[name][0]

    def kind(self, name: str) -> str:
        """Its type as safetensors spells it: F32, BF16, I64..."""
        kind = self._about[name][1]
        kind = kind if isinstance(kind, str) else np.dtype(kind).name
        return _KINDS.get(kind, kind)

    def read(self, name: str) -> np.ndarray:
        """Its values as float32."""
        return self._read(name).astype(np.float32)


def open_safetensors(folder: Path, single: str | None = None) -> Tensors:
    """The tensors of a folder: of `model.safetensors`, or of the files that an index names.

    Args:
        folder: where the files are.
        single: another file to read instead.

    Raises:
        InputError: there are no safetensors files, or one is missing, cut short or otherwise unreadable.
    """
    files, about = {}, {}
    weight_map = None if single else _weight_map(folder)
    with contextlib.ExitStack() as stack:
        for name in sorted(set(weight_map.values()) if weight_map else {single or _SINGLE}):
            path = folder / name
            if not path.is_file():
                raise InputError(path, "file", "nothing there", "a safetensors file")
            try:
                file = stack.enter_context(safe_open(path, framework="np"))
            except SafetensorError as error:
                raise InputError(path, "safetensors file", error, "a whole safetensors file") from None
            found = set(file.keys())
            if weight_map and (absent := {n for n, f in weight_map.items() if f == name} - found):
                raise InputError(path, "tensors", f"no {sorted(absent)[:5]}", "all that the index names")
            files |= dict.fromkeys(found, file)
            slices = {tensor: file.get_slice(tensor) for tensor in found}
            about |= {tensor: (tuple(part.get_shape()), part.get_dtype()) for tensor, part in slices.items()}
        return Tensors(folder, about, lambda tensor: files[tensor].get_tensor(tensor), stack.pop_all().close)


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
