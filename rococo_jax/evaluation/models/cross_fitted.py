"""A cross-fitted model: two encoders, each fitted on the images of the other fold.

Every item is scored by the fold that has not seen its image, so all items count.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.data.training_images import fold_of, read_folds
from rococo_jax.encoders import Encoder, load_encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from rococo_jax.evaluation.input_lists import image_files
from rococo_jax.evaluation.models.model import Loading, Model, embed_benchmark, opens_sources, score_tasks

CROSS_FITTED_NOTE = (
    "cross-fitted: every item is scored by the half of the model that was not fitted on its image; a gallery to rank "
    "holds images that it was fitted on"
)


@dataclasses.dataclass(eq=False)
class CrossFitted(Model):
    """Encoders of which each was fitted on the images of the other fold.

    Attributes:
        folds: fold k scores the images whose fold is k, which it has not seen.
    """

    folds: tuple[Encoder, ...]
    name: str
    notes: Sequence[str] = (CROSS_FITTED_NOTE,)

    @property
    def training_images(self) -> "_SeenByFolds":
        """None of the images that a fold scores."""
        return _SeenByFolds(self)

    def describe(self) -> dict[str, Any]:
        """Descriptions of the folds' encoders."""
        return {"folds": [{**each.describe(), "name": ""} for each in self.folds]}

    def facts(self) -> dict[str, Any]:
        """Provenance, size and warnings of the first fold."""
        return self.folds[0].facts()

    def check(self, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Raises InputError: settings ask for reranking; a pair has no one matching head."""
        if settings.rerank:
            raise InputError(self.name, "rerank", "a cross-fitted model", "one model with a matching head")

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """The outcome of each of a benchmark's tasks, every item from the fold that has not seen its image."""
        embeddings = [embed_benchmark(fold, benchmark, cache) for fold in self.folds]
        by_fold = [
            score_tasks(benchmark.tasks, each, fold.mesh) for fold, each in zip(self.folds, embeddings, strict=True)
        ]
        files = image_files(benchmark)
        fold = np.zeros(len(benchmark.images), int) if files is None else fold_of(*files)
        return [each[0].chosen_from(each, fold) for each in zip(*by_fold, strict=True)]


@dataclasses.dataclass(frozen=True)
class _SeenByFolds:
    """Training images of the folds, as those of one model."""

    model: CrossFitted

    def seen(self, names: Sequence[str], hashes: Sequence[str]) -> Bool[np.ndarray, " images"]:
        """No image. Raises InputError: a fold was trained on images that it is to score."""
        fold = fold_of(names, hashes)
        for number, each in enumerate(self.model.folds):
            known = each.training_images
            both = np.zeros(0, bool) if known is None else known.seen(names, hashes) & (fold == number)
            if both.any():
                found = f"{both.sum()} images of fold {number} among those that it was fitted on"
                raise InputError(self.model.name, "folds", found, "folds fitted on each other's images")
        return np.zeros(len(names), bool)


@opens_sources
def open_cross_fitted(source: Any, loading: Loading) -> CrossFitted | None:
    """Open the folder of a cross-fitted model."""
    folds = read_folds(source) if isinstance(source, str | Path) else None
    if folds is None:
        return None
    encoders = tuple(load_encoder(str(fold), mesh=loading.mesh, compute=loading.compute) for fold in folds)
    return CrossFitted(encoders, Path(source).resolve().name)
