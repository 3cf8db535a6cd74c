"""Stored similarities as a model, for models that score pairs elsewhere.

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
from rococo_jax.evaluation.models.probabilities import check_similarities
from rococo_jax.storage import hash_file

_KIND = "stored similarities"


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
