"""Logits of any model in a file, read in blocks: a table of images by classes may be larger than memory.

F.npz     `logits` (images, classes); beside it, where known, `classes` (names of columns) and `names` (of rows)
F.npy     the table alone
"""

import contextlib
import dataclasses
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.errors import InputError
from rococo_jax.storage import whole_file

_WANTED = "an .npz file with 'logits' (images, classes) of float16, float32 or float64, or such an .npy file"
_HEADER = 30  # bytes of a local header of a zip file before its names


@dataclasses.dataclass(frozen=True, eq=False)
class LogitsFile:
    """Where a table lies in a file.

    Attributes:
        source: the file, for errors.
        path: the file that is read; another one where the source is compressed.
        offset: of the first number, in bytes.
        shape: images, classes.
        layout: F for a table that is stored column by column, as NumPy does where columns were reordered.
        classes, names: of columns and rows, where the file says; classes may be whole numbers.
    """

    source: Path
    path: Path
    offset: int
    dtype: np.dtype
    shape: tuple[int, int]
    layout: Literal["C", "F"]
    classes: tuple[str | int, ...] | None = None
    names: tuple[str, ...] | None = None

    def block(self, order: Int[np.ndarray, " columns"], run: slice) -> Float[np.ndarray, "images columns"]:
        """Some rows in float64, columns in another order. Called from several threads.

        Raises InputError: a number is NaN or infinite.
        """
        # Mapped anew for each block: pages that stay mapped count as memory of this process.
        table = np.memmap(self.path, self.dtype, "r", self.offset, self.shape, self.layout)
        block = table[run].astype(np.float64)[:, order]
        if not np.isfinite(block).all():
            row = run.start + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
            raise InputError(self.source, f"logits of row {row}", "NaN or infinite values", "numbers")
        return block


def open_logits(path: str | Path, stack: contextlib.ExitStack) -> LogitsFile:
    """Finds the table in a file; a compressed one is unpacked into a temporary file that `stack` removes.

    Raises InputError: the file is missing, damaged, or holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(path, "file", "a folder" if path.is_dir() else "nothing there", _WANTED)
    with whole_file(path, _WANTED):
        if not zipfile.is_zipfile(path):
            return _table(path, path, 0)
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if "logits" not in members:
                raise InputError(path, "arrays", ", ".join(members) or "none", _WANTED)
            labels = {name: _words(path, archive, name) for name in ("classes", "names") if name in members}
            labels |= {"names": tuple(map(str, labels["names"]))} if "names" in labels else {}
            info = members["logits"]
            if info.compress_type == zipfile.ZIP_STORED:
                return _table(path, path, _begin(path, info), **labels)
            unpacked = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "logits.npy"
            with archive.open(info) as packed, unpacked.open("wb") as plain:
                shutil.copyfileobj(packed, plain, 2**20)
            return _table(path, unpacked, 0, **labels)


def _begin(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a stored member's bytes begin."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(_HEADER)
    name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    return info.header_offset + _HEADER + name + extra


def _words(path: Path, archive: zipfile.ZipFile, name: str) -> tuple[str | int, ...]:
    with archive.open(f"{name}.npy") as file:
        words = np.lib.format.read_array(file, allow_pickle=False)
    if words.ndim != 1:
        raise InputError(path, name, f"shape {words.shape}", "one dimension")
    return tuple(words.tolist() if words.dtype.kind in "iu" else map(str, words.tolist()))


def _table(source: Path, path: Path, begin: int, **labels: Any) -> LogitsFile:
    with path.open("rb") as file:
        file.seek(begin)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(file)
        offset = file.tell()
        file.seek(0, 2)
        size = file.tell()
    if dtype.newbyteorder("=") not in (np.float16, np.float32, np.float64):
        raise InputError(source, "numbers", dtype, _WANTED)
    if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
        raise InputError(source, "shape", shape, "rows of images, 2 columns of classes or more")
    if size < offset + shape[0] * shape[1] * dtype.itemsize:
        raise InputError(source, "contents", "fewer numbers than its head says", "a whole file")
    for axis, name in enumerate(("names", "classes")):
        if name in labels and len(labels[name]) != shape[axis]:
            raise InputError(source, name, f"{len(labels[name])} names", f"{shape[axis]}, as the logits have")
    return LogitsFile(source, path, offset, dtype, (int(shape[0]), int(shape[1])), "F" if by_columns else "C", **labels)
