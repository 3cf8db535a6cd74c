"""Arrays written by other programs, checked, and the benchmark of an annotation file in whose order they are."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.rococo.annotations import Annotation, annotation_from_json
from rococo_jax.benchmarks.rococo.benchmark import note_on_shared_captions, tasks_of_file
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.data.captions import CaptionedImage, captions_from_json
from rococo_jax.errors import InputError
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.storage import hash_bytes, hash_file, read_json

# Vectors with a length this close to 1 are used unchanged: float32 rounding of a unit vector is 1,000 times smaller.
_UNIT_TOLERANCE = 1e-4
_ROWS_AT_ONCE = 4096
LISTS = "one for each line of rococo export-inputs, run with the same options"


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
    published = sum(len(item.captions) in (10, 11) for item in items)
    if path.stem in VARIANTS or published * 2 > len(items):
        return annotation_from_json(value, path)
    return items


def read_array(path: str | os.PathLike) -> np.ndarray:
    """Memory-map a two-dimensional `.npy` file of floating-point numbers. Nothing is ever unpickled.

    Raises InputError: it is missing, not a complete `.npy` file, or contains something else.
    """
    path, expected = Path(path), "a .npy file of float16, float32 or float64"
    if not path.is_file():
        raise InputError(path, "file", "a folder" if path.is_dir() else "nothing there", expected)
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
