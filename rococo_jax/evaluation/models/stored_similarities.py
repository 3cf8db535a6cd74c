"""Models of which only similarities are there, for models that judge pairs.

A folder with `SET.npy` for each image set, rows in the order of `images.jsonl`, columns in the order of
`captions.jsonl` (`input_lists`); or one `.npy` file in the order of an annotation file.
"""

import os
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.pair_scores import MatrixScores
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.arrays import check_shape, file_order_notes, read_array
from rococo_jax.evaluation.models.model import Model
from rococo_jax.storage import hash_file


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

        Raises InputError: a set's file is missing or has another shape, a score is no number, or an item has no image.
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
        scores = MatrixScores(matrices, str(self.path))
        return [task.score_by_pairs(scores) for task in benchmark.tasks]


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
        scores = MatrixScores({ORIGINALS: matrix}, str(self.path))
        return [task.score_by_pairs(scores) for task in benchmark.tasks]
