"""Models of which only vectors or similarities are there, made elsewhere from the lists of `input_lists`.

Embeddings, a file or a folder of files: `.npz` with `image_names (n,)`, `image_embeddings (n, e)`, `captions (m,)`,
`text_embeddings (m, e)`, as `rococo embed` writes it (either side may be absent); `.parquet` with a column `image` or
`caption` and a column `embedding`. Similarities: a folder with `SET.npy` for each image set, rows in the order of
`images.jsonl`, columns in the order of `captions.jsonl`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings
from rococo_jax.benchmarks.tasks import Outcome, RankTask
from rococo_jax.errors import InputError
from rococo_jax.evaluation.input_lists import keys_of
from rococo_jax.evaluation.scoring import rank_by_similarities, read_array, to_unit_length
from rococo_jax.runtime import make_mesh
from rococo_jax.storage import hash_file, hash_json, load_arrays, read_table

PREFIX = "embeddings:"
_WANTED = "embeddings: .npz as of rococo embed, .parquet with image or caption and embedding, or a folder of these"
_SIDES = {"image": ("image_names", "image_embeddings"), "caption": ("captions", "text_embeddings")}
_LISTS = "one for each line of rococo export-inputs, asked with the same options"


class Stored:
    """What evaluation asks of any model; instead of encoders, a subclass has `embeddings_of` or `outcomes_of`."""

    kind = ""

    def __init__(self, path: Path, files: Sequence[Path], name: str | None):
        self.path, self.mesh = path, make_mesh(jax.local_devices())
        self.name = name or (path.resolve().name if path.is_dir() else path.stem)
        self.hashes = {file.name: hash_file(file) for file in files}

    def describe(self) -> dict[str, Any]:
        """Name, kind and the hash of each file."""
        return {"name": self.name, "class": self.kind, "files": self.hashes}

    def fingerprint(self) -> str:
        """A hash of the files."""
        return hash_json(self.hashes)

    def facts(self) -> dict[str, Any]:
        """Where the numbers are from."""
        return {"provenance": {"source": self.path.name, "kind": self.kind}}

    def require_matching(self) -> None:
        """Raises InputError: there is no model to rerank with."""
        raise InputError(self.name, "matching head", "none", "a model with one, such as BLIP's for retrieval")


class StoredEmbeddings(Stored):
    """Vectors by image key and caption.

    Args:
        path: a file or folder.
        name: what tables call it.
        allow_unknown: take no offence at vectors that no benchmark asks for.

    Raises:
        InputError: nothing is there, a file holds something else, a key has two different vectors, or one is no
            direction.
    """

    kind = "stored embeddings"

    def __init__(self, path: str | os.PathLike, name: str | None = None, allow_unknown: bool = False):
        path = Path(path)
        inside = path.iterdir() if path.is_dir() else [path]
        files = sorted(each for each in inside if each.suffix in (".npz", ".parquet") or each == path)
        if not files or not files[0].is_file():
            raise InputError(path, "embeddings", "nothing there", _WANTED)
        super().__init__(path, files, name)
        self.allow_unknown, self.notes = allow_unknown, []
        parts: dict[str, list[np.ndarray]] = {side: [] for side in _SIDES}
        self.rows: dict[str, dict[str, int]] = {side: {} for side in _SIDES}
        again: list[tuple[Path, str, str, int]] = []
        for file in files:
            for side, keys, vectors in _read(file):
                start = sum(map(len, parts[side]))
                parts[side].append(self._checked(side, file, keys, vectors, parts[side]))
                for row, key in enumerate(keys, start):
                    if self.rows[side].setdefault(key, row) != row:
                        again.append((file, side, key, row))
        self.vectors = {side: np.concatenate(of_side) for side, of_side in parts.items() if of_side}
        if missing := [side for side in _SIDES if side not in self.vectors]:
            raise InputError(path, "embeddings", f"none of {missing[0]}s", _WANTED)
        widths = {side: vectors.shape[1] for side, vectors in self.vectors.items()}
        if len(set(widths.values())) > 1:
            found = f"{widths['image']} of an image and {widths['caption']} of a caption"
            raise InputError(path, "width of the vectors", found, "one width for both")
        for file, side, key, row in again:
            # A caption of two images may come twice, with the vector that it has.
            vectors = self.vectors[side]
            if side == "image" or not np.array_equal(vectors[row], vectors[self.rows[side][key]]):
                raise InputError(file, side, f"{key!r} twice", f"each {side} once")

    def _checked(
        self, side: str, file: Path, keys: Sequence[str], vectors: np.ndarray, before: list[np.ndarray]
    ) -> Float[np.ndarray, "keys dim"]:
        """Unit vectors in float32."""
        if vectors.ndim != 2 or len(vectors) != len(keys):
            found = f"{len(keys)} keys and vectors of shape {vectors.shape}"
            raise InputError(file, f"{side}s", found, "one row for each key")
        if not np.issubdtype(vectors.dtype, np.floating):
            raise InputError(file, f"{side}s", f"vectors of {vectors.dtype}", "floating-point numbers")
        if before and before[0].shape[1] != vectors.shape[1]:
            raise InputError(file, f"{side}s", f"vectors of {vectors.shape[1]}", f"{before[0].shape[1]}, as before")
        return np.asarray(to_unit_length(vectors, file, self.notes), np.float32)

    def embeddings_of(self, benchmark: Benchmark) -> Embeddings:
        """The vectors of all rows of a benchmark's tables.

        Raises:
            InputError: some are missing.
        """
        tables = {name: self._select("image", keys_of(images), f"images of {name}", benchmark)
                  for name, images in benchmark.image_sets.items()}  # fmt: skip
        tables[TEXTS] = self._select("caption", benchmark.texts, "captions", benchmark)
        return Embeddings(tables, str(self.path))

    def _select(self, side: str, keys: Sequence[str], what: str, benchmark: Benchmark) -> np.ndarray:
        rows = self.rows[side]
        if missing := [key for key in keys if key not in rows]:
            found = f"no vector of {len(missing):,} of {len(keys):,}, such as {missing[0]!r}"
            raise InputError(self.path, f"{what} ({benchmark.name})", found, _LISTS)
        return self.vectors[side][[rows[key] for key in keys]]

    def refuse_unknown(self, benchmarks: Sequence[Benchmark]) -> None:
        """Raises InputError for vectors that none of the benchmarks asks for: most likely a slip in their keys."""
        if self.allow_unknown:
            return
        sets = [images for each in benchmarks for images in each.image_sets.values()]
        asked = {"image": {key for images in sets for key in keys_of(images)}}
        asked["caption"] = {text for each in benchmarks for text in each.texts}
        for side, known in asked.items():
            if unknown := [key for key in self.rows[side] if key not in known]:
                found = f"{len(unknown):,} of {len(self.rows[side]):,} that no benchmark has, such as {unknown[0]!r}"
                raise InputError(self.path, f"{side}s", found, f"{_LISTS}; or allow_unknown")


def _read(file: Path) -> Iterator[tuple[str, list[str], np.ndarray]]:
    """Side, keys and vectors of each side that a file has."""
    if file.suffix == ".parquet":
        yield _read_parquet(file)
        return
    if file.suffix != ".npz":
        raise InputError(file, "embeddings", f"a file {file.suffix or 'without a suffix'}", _WANTED)
    there = load_arrays(file, f"a .npz: {_WANTED}")
    if not isinstance(there, dict):
        raise InputError(file, "arrays", "one without a name", _WANTED)
    found = [(side, *names) for side, names in _SIDES.items() if any(name in there for name in names)]
    for side, names, vectors in found:
        if names not in there or vectors not in there:
            raise InputError(file, f"{side}s", f"{', '.join(there)}", f"{names} and {vectors}")
        yield side, [str(key) for key in there[names].tolist()], there[vectors]
    if not found:
        raise InputError(file, "arrays", ", ".join(there) or "none", _WANTED)


def _read_parquet(file: Path) -> tuple[str, list[str], np.ndarray]:
    table = read_table(file, _WANTED)
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


class StoredSimilarities(Stored):
    """Similarities of image sets with captions, for models that judge pairs.

    Raises:
        InputError: it is no folder of `.npy` files.
    """

    kind = "stored similarities"

    def __init__(self, path: str | os.PathLike, name: str | None = None):
        path = Path(path)
        files = sorted(path.glob("*.npy")) if path.is_dir() else []
        if not files:
            raise InputError(path, "similarities", "none", f"a folder with {ORIGINALS}.npy and one file for each set")
        super().__init__(path, files, name)
        self.files = {file.stem: file for file in files}

    def outcomes_of(self, benchmark: Benchmark) -> list[Outcome]:
        """The outcome of each of a benchmark's tasks.

        Raises:
            InputError: a set's file is missing or has another shape, a score is no number, or a task is no ranking.
        """
        matrices = {}
        for name, images in benchmark.image_sets.items():
            if name not in self.files:
                raise InputError(self.path / f"{name}.npy", "similarities", "nothing there", f"the images of {name}")
            matrices[name] = read_array(self.files[name])
            wanted = (len(images), len(benchmark.texts))
            if matrices[name].shape != wanted:
                found = matrices[name].shape
                raise InputError(self.files[name], "shape", found, f"{wanted}, images by captions of {benchmark.name}")
        others = [task.name for task in benchmark.tasks if not isinstance(task, RankTask)]
        if others:
            raise InputError(benchmark.name, "task", others[0], "rankings: choices need embeddings")
        return [_rank(task, matrices, str(self.path)) for task in benchmark.tasks]


def _rank(task: RankTask, matrices: Mapping[str, Float[np.ndarray, "images captions"]], source: str) -> Outcome:
    """One task, whose images may be of several sets."""
    used = [name for name in (task.queries if task.asks_for_texts else task.gallery).tables]
    if task.pairs is not None and not task.asks_for_texts:
        sides = (*task.pairs.right.tables, *task.pairs.wrong.tables)
        used = list(dict.fromkeys([*used, *sides]))
    stacked = Embeddings({name: matrices[name] for name in used})
    begin = dict(zip(used, np.cumsum([0, *(len(matrices[name]) for name in used)]).tolist(), strict=False))
    whole = matrices[used[0]] if len(used) == 1 else np.concatenate([stacked.tables[name] for name in used])

    def place(rows: Any) -> np.ndarray:
        return np.concatenate([begin.get(name, 0) + index for name, index in rows.parts])

    return rank_by_similarities([task], whole, source, place)[0]
