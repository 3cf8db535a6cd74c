"""Models whose embeddings were computed elsewhere, for the images and captions that `input_lists` writes.

A file, or a folder of files, with keys: `.npz` with `image_names (n,)`, `image_embeddings (n, e)`, `captions (m,)`,
`text_embeddings (m, e)`, as `rococo embed` writes it (either side may be absent); `.parquet` with a column `image` or
`caption` and a column `embedding`.

`StoredSimilarities` is for models that score pairs elsewhere: a folder with `SET.npy` for each image set, rows in the
order of `images.jsonl`, columns in the order of `captions.jsonl` (`input_lists`); or one `.npy` file in the order of an
annotation file.
"""

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.pair_scores import MatrixScores
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.arrays import (
    LISTS,
    check_shape,
    file_order_notes,
    hash_arrays,
    read_array,
    select,
    to_unit_length,
)
from rococo_jax.evaluation.models.model import Loading, Model, score_tasks
from rococo_jax.evaluation.models.probabilities import check_similarities
from rococo_jax.runtime import make_mesh
from rococo_jax.storage import hash_file, hash_json, load_arrays, read_table
from rococo_jax.texts import file_suffix

PREFIX = "embeddings:"
_EXPECTED = "embeddings: .npz as of rococo embed, .parquet with image or caption and embedding, or a folder of these"
_SIDES = {"image": ("image_names", "image_embeddings"), "caption": ("captions", "text_embeddings")}
_KIND = "stored similarities"


class StoredEmbeddings(Model):
    """Embeddings by image key and caption.

    Args:
        path: a file or folder.
        name: name in tables; that of the file or folder by default.
        allow_unknown: ignore vectors that no benchmark uses.

    Raises:
        InputError: the path does not exist, a file contains something else, a key has two different vectors, or one
            has no direction.
    """

    def __init__(self, path: str | os.PathLike, name: str | None = None, allow_unknown: bool = False):
        path = Path(path)
        inside = path.iterdir() if path.is_dir() else [path]
        files = sorted(each for each in inside if file_suffix(each) in (".npz", ".parquet") or each == path)
        if not files or not files[0].is_file():
            arrays = sorted(path.rglob("*.npy")) if path.is_dir() else []
            problem = f"{arrays[0].relative_to(path)}, an array without names" if arrays else "nothing there"
            raise InputError(path, "embeddings", problem, _EXPECTED)
        self.path, self.name = path, name or (path.resolve().name if path.is_dir() else path.stem)
        self.allow_unknown, self.notes = allow_unknown, []
        parts: dict[str, list[np.ndarray]] = {side: [] for side in _SIDES}
        self.rows: dict[str, dict[str, int]] = {side: {} for side in _SIDES}
        repeated: list[tuple[Path, str, str, int]] = []
        # Side, keys and first row of what each file adds.
        self._pieces: list[tuple[str, list[str], int]] = []
        for file in files:
            for side, keys, vectors in _read(file):
                start = sum(map(len, parts[side]))
                parts[side].append(self._checked(side, file, keys, vectors, parts[side]))
                self._pieces.append((side, list(keys), start))
                for row, key in enumerate(keys, start):
                    if self.rows[side].setdefault(key, row) != row:
                        repeated.append((file, side, key, row))
        self.vectors = {side: np.concatenate(arrays) for side, arrays in parts.items() if arrays}
        if missing := [side for side in _SIDES if side not in self.vectors]:
            raise InputError(path, "embeddings", f"none of {missing[0]}s", _EXPECTED)
        widths = {side: vectors.shape[1] for side, vectors in self.vectors.items()}
        if len(set(widths.values())) > 1:
            problem = f"{widths['image']} of an image and {widths['caption']} of a caption"
            raise InputError(path, "width of the vectors", problem, "one width for both")
        for file, side, key, row in repeated:
            # A caption of two images may come twice, with the vector that it has.
            vectors = self.vectors[side]
            if side == "image" or not np.array_equal(vectors[row], vectors[self.rows[side][key]]):
                raise InputError(file, side, f"{key!r} twice", f"each {side} once")

    def describe(self) -> dict[str, Any]:
        """Return kind and a hash of the keys and unit vectors of each side of each file, regardless of its name.

        Further files add entries, so that results can be extended.
        """
        return {"class": "stored embeddings", "files": self._hashes}

    @functools.cached_property
    def _hashes(self) -> dict[str, str]:
        contents = []
        for side, keys, start in self._pieces:
            rows = self.vectors[side][start : start + len(keys)]
            contents.append(hash_json([side, hash_arrays(dict(zip(keys, rows, strict=True)))]))
        return {content[:16]: content for content in sorted(contents)}

    def facts(self) -> dict[str, Any]:
        """Return the source of the embeddings."""
        return {"provenance": {"source": self.path.name, "kind": "stored embeddings"}}

    def check(self, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Raise InputError as `Model.check`, or for vectors that no benchmark uses, whose keys are probably wrong."""
        super().check(benchmarks, settings)
        if self.allow_unknown:
            return
        sets = [images for each in benchmarks for images in each.image_sets.values()]
        keys_of_benchmarks = {
            "image": {key for images in sets for key in images.input_keys()},
            "caption": {text for each in benchmarks for text in each.texts},
        }
        for side, keys in keys_of_benchmarks.items():
            if unknown := [key for key in self.rows[side] if key not in keys]:
                problem = f"{len(unknown):,} of {len(self.rows[side]):,} that no benchmark has, such as {unknown[0]!r}"
                raise InputError(self.path, f"{side}s", problem, LISTS)

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """Return the outcome of each of a benchmark's tasks. Raises InputError: vectors are missing."""
        return score_tasks(benchmark.tasks, self.embeddings_of(benchmark), make_mesh(jax.local_devices()))

    def _checked(
        self, side: str, file: Path, keys: Sequence[str], vectors: np.ndarray, before: list[np.ndarray]
    ) -> Float[np.ndarray, "keys dim"]:
        """Return unit vectors in float32."""
        if vectors.ndim != 2 or len(vectors) != len(keys):
            problem = f"{len(keys)} keys and vectors of shape {vectors.shape}"
            raise InputError(file, f"{side}s", problem, "one row for each key")
        if not np.issubdtype(vectors.dtype, np.floating):
            raise InputError(file, f"{side}s", f"vectors of {vectors.dtype}", "floating-point numbers")
        if before and before[0].shape[1] != vectors.shape[1]:
            raise InputError(file, f"{side}s", f"vectors of {vectors.shape[1]}", f"{before[0].shape[1]}, as before")
        return np.asarray(to_unit_length(vectors, file, self.notes), np.float32)

    def embeddings_of(self, benchmark: Benchmark) -> Embeddings:
        """Return the vectors of all rows of a benchmark's tables. Raises InputError: some are missing."""
        tables = {}
        for name, images in benchmark.image_sets.items():
            tables[name] = self._select("image", images.input_keys(), f"images of {name}", benchmark)
        tables[TEXTS] = self._select("caption", benchmark.texts, "captions", benchmark)
        return Embeddings(tables, str(self.path))

    def _select(self, side: str, keys: Sequence[str], table: str, benchmark: Benchmark) -> np.ndarray:
        rows = select(self.rows[side], keys, self.path, f"{table} ({benchmark.name})", "vector")
        return self.vectors[side][rows]


def _read(file: Path) -> Iterator[tuple[str, list[str], np.ndarray]]:
    """Yield side, keys and vectors of each side that a file has."""
    if file_suffix(file) == ".parquet":
        yield _read_parquet(file)
        return
    if file_suffix(file) != ".npz":
        raise InputError(file, "embeddings", f"a file {file.suffix or 'without a suffix'}", _EXPECTED)
    arrays = load_arrays(file, f"a .npz: {_EXPECTED}")
    if not isinstance(arrays, dict):
        raise InputError(file, "arrays", "one without a name", _EXPECTED)
    sides = [(side, *names) for side, names in _SIDES.items() if any(name in arrays for name in names)]
    for side, names, vectors in sides:
        if names not in arrays or vectors not in arrays:
            raise InputError(file, f"{side}s", f"{', '.join(arrays)}", f"{names} and {vectors}")
        yield side, [str(key) for key in arrays[names].tolist()], arrays[vectors]
    if not sides:
        raise InputError(file, "arrays", ", ".join(arrays) or "none", _EXPECTED)


def _read_parquet(file: Path) -> tuple[str, list[str], np.ndarray]:
    table = read_table(file, _EXPECTED)
    sides = [side for side in _SIDES if side in table.column_names]
    if len(sides) != 1 or "embedding" not in table.column_names:
        raise InputError(file, "columns", ", ".join(table.column_names), "image or caption, and embedding")
    try:
        with np.errstate(over="ignore"):  # infinite then, and refused as such
            vectors = np.array(table["embedding"].to_pylist(), np.float32)
    except (ValueError, TypeError):
        raise InputError(
            file, "embedding", "lists of different lengths, or no numbers", "lists of one length"
        ) from None
    return sides[0], [str(key) for key in table[sides[0]].to_pylist()], vectors


def open_embeddings(source: Any, loading: Loading) -> StoredEmbeddings | None:
    """Open `embeddings:PATH`; several models may share its vectors' files, so further keys are allowed.

    Raises InputError: an image size is requested.
    """
    if not (isinstance(source, str) and source.startswith(PREFIX)):
        return None
    if loading.options.image_size is not None:
        wanted = "none: embeddings are of the size that they were computed at"
        raise InputError(source, "image_size", loading.options.image_size, wanted)
    return StoredEmbeddings(source.removeprefix(PREFIX), allow_unknown=True)


class StoredSimilarities(Model):
    """Similarities of image sets with captions, higher is more similar, compared in the precision they have.

    Args:
        path: the folder, or with `is_file` the file.
        name: name in tables; that of the folder or the file's stem by default.

    Raises:
        InputError: it is not a folder of `.npy` files.
    """

    def __init__(self, path: str | os.PathLike, name: str | None = None, is_file: bool = False):
        self.path, self.is_file = Path(path), is_file
        inside = sorted(self.path.glob("*.npy")) if self.path.is_dir() else []
        if not inside and not is_file:
            raise InputError(path, "similarities", "none", f"a folder with {ORIGINALS}.npy and one file for each set")
        self.name = name or (self.path.stem if is_file else self.path.resolve().name)
        self.files = {ORIGINALS: self.path} if is_file else {file.stem: file for file in inside}

    def describe(self) -> dict[str, Any]:
        """Return the hash of each file."""
        hashes = {each.name: hash_file(each) for each in self.files.values()}
        return {"similarities": hashes[self.path.name]} if self.is_file else {"class": _KIND, "files": hashes}

    def facts(self) -> dict[str, Any]:
        """Return the source of the similarities."""
        return {} if self.is_file else {"provenance": {"source": self.path.name, "kind": _KIND}}

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """Return the outcome of each of a benchmark's tasks.

        Raises InputError: a set's file is missing, contains something else or probabilities, or has another shape; a
        score is not a number; or an item has no image.
        """
        sizes = {ORIGINALS: len(benchmark.images)} if self.is_file else {}
        sizes |= {name: len(images) for name, images in benchmark.image_sets.items()}
        matrices, texts, notes = {}, len(benchmark.texts), []
        for name, count in sizes.items():
            if name not in self.files:
                raise InputError(self.path / f"{name}.npy", "similarities", "nothing there", f"the images of {name}")
            matrices[name] = read_array(self.files[name])
            of = "the annotation" if self.is_file else benchmark.name
            check_shape(matrices[name], self.files[name], (count, texts), "images, captions", of)
            notes += check_similarities(matrices[name], self.files[name])
        self.notes = [*(file_order_notes(settings) if self.is_file else ()), *notes]
        scores = MatrixScores(matrices, str(self.path))
        return [task.score_by_pairs(scores) for task in benchmark.tasks]
