"""Stored logits of any model, read in blocks, so that the table may be larger than memory.

F.npz     `logits` (images, classes), and if known `classes` (names of columns) and `names` (names of rows)
F.npy     the table alone
"""

import contextlib
import dataclasses
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.errors import InputError
from rococo_jax.npz import open_arrays
from rococo_jax.progress import say
from rococo_jax.storage import check_free_space, hash_file, hash_json, whole_file

# The distance of the logit of a class that is not predicted.
NEVER = 1e30
_EXPECTED = "an .npz file with 'logits' (images, classes) of float16, float32 or float64, or such an .npy file"


@dataclasses.dataclass(frozen=True, eq=False)
class LogitsFile:
    """Location of a table in a file.

    Attributes:
        source: the file, for errors.
        path: the `.npy` file that is read; another one where the source is an archive.
        shape: images, classes.
        classes, names: names of the columns and of the rows, if the file has them.
    """

    source: Path
    path: Path
    shape: tuple[int, int]
    classes: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None

    def hash(self) -> str:
        """Return the SHA-256 of the table and of the names of its rows."""
        return hash_json([hash_file(self.path), self.names])

    def table(self) -> Float[np.ndarray, "images columns"]:
        """Map the table into memory."""
        return np.lib.format.open_memmap(self.path, mode="r")

    def block(self, order: Int[np.ndarray, " columns"], run: slice) -> Float[np.ndarray, "images columns"]:
        """Return some rows in float64, with columns in another order. Several threads may call it.

        A logit of -inf stands for a class that is not predicted. It is returned as a number so far below the others
        that its probability is 0 at every temperature.

        Raises InputError: a number is NaN or +inf, or a row has none but -inf.
        """
        # Mapped anew for each block: pages that stay mapped count as memory of this process.
        block = self.table()[run].astype(np.float64)[:, order]
        top = block.max(axis=1)  # NaN if one of the numbers is
        if not np.isfinite(top).all():
            row = run.start + int(np.flatnonzero(~np.isfinite(top))[0])
            expected = "numbers, or -inf for classes that are not predicted"
            raise InputError(self.source, f"logits of row {row}", "NaN or infinite values", expected)
        return np.maximum(block, (top - NEVER)[:, None])


def open_logits(path: str | Path, stack: contextlib.ExitStack) -> LogitsFile:
    """Find the table in a file; a table in an archive is unpacked into a temporary file that `stack` removes.

    Raises InputError: the file is missing, damaged, or holds something else.
    """
    path = table_path = Path(path)
    if not path.is_file():
        raise InputError(path, "file", "a folder" if path.is_dir() else "nothing there", _EXPECTED)
    words = {}
    with whole_file(path, _EXPECTED):
        if zipfile.is_zipfile(path):
            arrays = open_arrays(path)
            if "logits" not in arrays:
                raise InputError(path, "arrays", ", ".join(arrays) or "none", _EXPECTED)
            if ignored := sorted({*arrays} - {"logits", "names", "classes"}):
                say(f"{path.name}: arrays that are not read: {', '.join(ignored)}; names of rows are in 'names'")
            words = {name: arrays[name] for name in ("names", "classes") if name in arrays}
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            with zipfile.ZipFile(path) as archive:
                check_free_space(folder / "logits.npy", archive.getinfo("logits.npy").file_size)
                table_path = Path(archive.extract("logits.npy", folder))
        table = np.lib.format.open_memmap(table_path, mode="r")
    if table.dtype.newbyteorder("=") not in (np.float16, np.float32, np.float64):
        raise InputError(path, "numbers", table.dtype, _EXPECTED)
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] < 2:
        raise InputError(path, "shape", table.shape, "rows of images, 2 columns of classes or more")
    for name, each in words.items():
        count = table.shape[1 if name == "classes" else 0]
        if each.shape != (count,):
            raise InputError(path, name, f"shape {each.shape}", f"{count} names in one row, as the logits have")
    texts = {name: tuple(map(str, each.tolist())) for name, each in words.items()}
    return LogitsFile(path, table_path, table.shape, **texts)
