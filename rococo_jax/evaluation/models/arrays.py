"""Arrays written by other programs, checked, and the benchmark of an annotation file in whose order they are.

Logits of any model are read in blocks, so that the table may be larger than memory:

    F.npz     `logits` (images, classes), and if known `classes` (names of columns) and `names` (names of rows)
    F.npy     the table alone
"""

import contextlib
import dataclasses
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.rococo.annotations import Annotation, annotation_from_json, has_published_lengths
from rococo_jax.benchmarks.rococo.benchmark import note_on_shared_captions, tasks_of_file
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.data.captions import CaptionedImage, captions_from_json
from rococo_jax.errors import InputError, require_file
from rococo_jax.npz import open_arrays
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.progress import say
from rococo_jax.storage import check_free_space, hash_bytes, hash_file, hash_json, read_json, whole_file

# Vectors with a length this close to 1 are used unchanged: float32 rounding of a unit vector is 1,000 times smaller.
_UNIT_TOLERANCE = 1e-4
_ROWS_AT_ONCE = 4096
LISTS = "one for each line of rococo export-inputs, run with the same options"
# The distance of the logit of a class that is not predicted.
NEVER = 1e30
_EXPECTED = "an .npz file with 'logits' (images, classes) of float16, float32 or float64, or such an .npy file"


def annotation_benchmark(path: str | os.PathLike, protocol: str) -> Benchmark:
    """Return the benchmark of one annotation file: images and captions in file order, originals before altered ones.

    Raises InputError: as `read_score_annotation`.
    """
    file = tasks_of_file(read_score_annotation(path), protocol)
    conditions = {"annotation": hash_file(path)}
    notes = (*file.notes, *note_on_shared_captions(file))
    return Benchmark("rococo", file.images, file.texts, {}, file.tasks, notes, conditions=conditions)


def file_order_notes(settings: Settings) -> list[str]:
    """Return notes on results from similarities in the order of an annotation file."""
    if settings.protocol != "strict":
        return []
    return ["strict: the model read the captions as in the file, so only alterations without effect could be excluded"]


def read_score_annotation(path: str | os.PathLike) -> Annotation | list[CaptionedImage]:
    """Read an annotation in the published form or in ours, or plain captions in the Karpathy form.

    The published form is recognised by its name, or by most of its lists having 10 or 11 captions.

    Raises InputError: it cannot be read, or a list has a length that its form does not allow.
    """
    path = Path(path)
    value = read_json(path, "an annotation or captions file")
    if not isinstance(value, list) or any(isinstance(item, Mapping) and "originals" in item for item in value):
        return annotation_from_json(value, path)
    items = captions_from_json(value, path)
    if path.stem in VARIANTS or has_published_lengths(items):
        return annotation_from_json(value, path)
    return items


def read_array(path: str | os.PathLike) -> np.ndarray:
    """Memory-map a two-dimensional `.npy` file of floating-point numbers. Nothing is ever unpickled.

    Raises InputError: it is missing, not a complete `.npy` file, or contains something else.
    """
    path, expected = Path(path), "a .npy file of float16, float32 or float64"
    require_file(path, expected)
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # NumPy evaluates the header as Python, and lets its errors through
        if "object" in str(error).lower():
            expected = f"{expected}: save numpy.array(values.tolist())"
            raise InputError(path, "contents", "Python objects", expected) from None
        raise InputError(path, "contents", f"something else ({error})"[:200], f"{expected}, complete") from None
    if array.dtype.newbyteorder("=") not in (np.float16, np.float32, np.float64):
        raise InputError(path, "numbers", array.dtype, expected)
    if array.ndim != 2:
        raise InputError(path, "shape", array.shape, "two dimensions")
    return array


def check_shape(
    array: np.ndarray, path: str | os.PathLike, expected: tuple[int, int | None], axes: str, of: str = "the annotation"
) -> None:
    """Raise InputError if the array has another shape; None stands for any length."""
    if any(length not in (size, None) for size, length in zip(array.shape, expected, strict=True)):
        lengths = ", ".join("any" if length is None else str(length) for length in expected)
        raise InputError(path, "shape", array.shape, f"({lengths}) for ({axes}) of {of}")


def to_unit_length(rows: np.ndarray, path: str | os.PathLike, notes: list[str]) -> np.ndarray:
    """Return the rows with length 1 in float32, or unchanged if they have that length.

    Raises InputError: a row consists of zeros or is not finite.
    """
    blocks = [slice(start, start + _ROWS_AT_ONCE) for start in range(0, len(rows), _ROWS_AT_ONCE)]
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.concatenate([np.linalg.norm(rows[block].astype(np.float64), axis=1) for block in blocks])
    if not np.isfinite(norms).all():
        raise InputError(path, f"row {np.flatnonzero(~np.isfinite(norms))[0]}", "NaN or infinite values", "numbers")
    if not norms.all():
        raise InputError(path, f"row {np.flatnonzero(norms == 0)[0]}", "a vector of zeros", "a vector with a direction")
    if np.abs(norms - 1).max() <= _UNIT_TOLERANCE:
        return rows if rows.dtype.isnative else rows.astype(rows.dtype.newbyteorder("="))
    notes.append(
        f"{Path(path).name}: embeddings of length {norms.min():.4g} to {norms.max():.4g} were brought to length 1"
    )
    unit = np.empty(rows.shape, np.float32)
    for block in blocks:
        unit[block] = rows[block].astype(np.float64) / norms[block, None]
    return unit


def hash_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of arrays with their names, regardless of their order and file.

    Values are compared as float32, as all scores are computed.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name], "<f4")
        parts = name.encode(errors="surrogatepass"), repr(values.shape).encode(), values.tobytes()
        digest.update(bytes.fromhex(hash_bytes(*parts)))
    return digest.hexdigest()


def select(by_key: Mapping[str, Any], keys: Sequence[str], path: str | os.PathLike, field: str, noun: str) -> list[Any]:
    """Return the entries of some keys. Raises InputError: some are missing; `noun` says what an entry is."""
    if missing := [key for key in keys if key not in by_key]:
        problem = f"no {noun} of {len(missing):,} of {len(keys):,}, such as {missing[0]!r}"
        raise InputError(path, field, problem, LISTS)
    return [by_key[key] for key in keys]


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
    require_file(path, _EXPECTED)
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
