"""Models of which only similarities are there, for models that judge pairs.

A folder with `SET.npy` for each image set, rows in the order of `images.jsonl`, columns in the order of
`captions.jsonl` (`input_lists`); or one `.npy` file in the order of an annotation file.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, Rows
from rococo_jax.benchmarks.tasks import Outcome, RankTask
from rococo_jax.benchmarks.tasks.pairs import AlteredPairs
from rococo_jax.benchmarks.tasks.rank import RankOutcome
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.arrays import check_shape, file_order_notes, read_array
from rococo_jax.evaluation.models.model import Model
from rococo_jax.similarity import DifferenceStatistics, difference_statistics_of_matrix, rank_statistics_of_matrix
from rococo_jax.storage import hash_file

Matrices = Mapping[str, Float[np.ndarray, "images captions"]]


class StoredSimilarities(Model):
    """Similarities of image sets with captions, one file a set.

    Args:
        path: the folder.
        name: what tables call it; that of the folder by default.

    Raises:
        InputError: it is no folder of `.npy` files.
    """

    def __init__(self, path: str | os.PathLike, name: str | None = None):
        self.path = Path(path)
        files = sorted(self.path.glob("*.npy")) if self.path.is_dir() else []
        if not files:
            raise InputError(path, "similarities", "none", f"a folder with {ORIGINALS}.npy and one file for each set")
        self.name = name or self.path.resolve().name
        self.files = {file.stem: file for file in files}
        self.hashes = {file.name: hash_file(file) for file in files}

    def describe(self) -> dict[str, Any]:
        """Kind and the hash of each file."""
        return {"class": "stored similarities", "files": self.hashes}

    def facts(self) -> dict[str, Any]:
        """Where the similarities are from."""
        return {"provenance": {"source": self.path.name, "kind": "stored similarities"}}

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """The outcome of each of a benchmark's tasks.

        Raises InputError: a set's file is missing or has another shape, a score is no number, or a task is no ranking.
        """
        matrices = {}
        for name, images in benchmark.image_sets.items():
            if name not in self.files:
                raise InputError(self.path / f"{name}.npy", "similarities", "nothing there", f"the images of {name}")
            matrices[name] = read_array(self.files[name])
            expected = (len(images), len(benchmark.texts))
            if matrices[name].shape != expected:
                shape = matrices[name].shape
                wanted = f"{expected}, images by captions of {benchmark.name}"
                raise InputError(self.files[name], "shape", shape, wanted)
        others = [task.name for task in benchmark.tasks if not task.is_ranking]
        if others:
            raise InputError(benchmark.name, "task", others[0], "rankings: choices need embeddings")
        return [_rank(task, matrices, str(self.path)) for task in benchmark.tasks]


class SimilarityMatrix(Model):
    """Similarities of an annotation's images and captions, memory-mapped and compared in the precision they have.

    Args:
        path: the `.npy` file, one row an image, one column a caption; higher is more similar.
        name: what tables call it; the file's stem by default.
    """

    def __init__(self, path: str | os.PathLike, name: str | None = None):
        self.path, self.name = path, name or Path(path).stem

    def describe(self) -> dict[str, Any]:
        """The hash of the file."""
        return {"similarities": hash_file(self.path)}

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """The outcome of each task.

        Raises InputError: the file holds something else or has another shape, or a score is no number.
        """
        matrix = read_array(self.path)
        check_shape(matrix, self.path, (len(benchmark.images), len(benchmark.texts)), "images, captions")
        self.notes = file_order_notes(settings)
        return [_rank(task, {ORIGINALS: matrix}, str(self.path)) for task in benchmark.tasks]


def _rank(task: RankTask, matrices: Matrices, source: str) -> RankOutcome:
    """The outcome of one task, whose images may be of several sets.

    Raises InputError: as `rank_statistics_of_matrix`.
    """
    used = [*(task.queries if task.asks_for_texts else task.gallery).tables]
    if task.pairs is not None and not task.asks_for_texts:
        used = list(dict.fromkeys([*used, *task.pairs.right.tables, *task.pairs.wrong.tables]))
    begin = dict(zip(used, np.cumsum([0, *(len(matrices[name]) for name in used)]).tolist(), strict=False))
    joined = matrices[used[0]] if len(used) == 1 else np.concatenate([matrices[name] for name in used])
    return rank_by_similarities(task, joined, source, begin)


def rank_by_similarities(
    task: RankTask,
    similarities: Float[np.ndarray, "images captions"],
    source: str = "similarities",
    begin: Mapping[str, int] | None = None,
) -> RankOutcome:
    """The outcome of a task from a matrix with one row an image and one column a caption.

    Args:
        begin: the first row of each image set, where there are several.

    Raises:
        InputError: as `rank_statistics_of_matrix`.
    """
    begin = begin or {}

    def places(rows: Rows) -> np.ndarray:
        return np.concatenate([begin.get(name, 0) + index for name, index in rows.parts])

    def differences(pairs: AlteredPairs) -> DifferenceStatistics:
        return difference_statistics_of_matrix(
            scores,
            query_rows=places(pairs.queries),
            right_columns=places(pairs.right),
            wrong_columns=places(pairs.wrong),
            query_group=pairs.query_group,
            pair_group=pairs.group,
            also_shown_in=pairs.also_shown_in,
        )

    scores = similarities if task.asks_for_texts else similarities.T
    statistics = rank_statistics_of_matrix(
        scores,
        query_rows=places(task.queries),
        gallery_columns=places(task.gallery),
        query_group=task.query_group,
        gallery_group=task.gallery_group,
        gallery_altered=task.gallery_altered,
        source=source,
    )
    return RankOutcome(task, statistics, None if task.pairs is None else differences(task.pairs))
