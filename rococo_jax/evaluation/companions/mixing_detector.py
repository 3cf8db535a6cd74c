"""A detector of altered images that never reads a caption: what of a mixed gallery can be told without it.

    w = (S + r tr(S) / d I)^-1 (m_unaltered - m_altered)        score of image x: w . x

Fisher's linear discriminant of a model's frozen image embeddings, with the pooled covariance S of the two classes, its
mean variance tr(S) / d, and the fixed ridge r. Both classes are training images: as they are, and altered in the same
way. The detector prefers the image with the higher score.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.benchmarks.baselines import figure, prefers
from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.data.image_files import find_images
from rococo_jax.data.images import FileImages
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_images
from rococo_jax.encoders.protocol import FeatureEncoder
from rococo_jax.errors import InputError
from rococo_jax.evaluation.companions import Beside, Companion, Scored, TrainingCaptions
from rococo_jax.evaluation.models.model import Model, embed_benchmark

DETECTOR = "detector"
RIDGE = 0.1
# More change little: the discriminant has as many weights as an embedding is wide.
MOST_IMAGES = 1024


@dataclasses.dataclass
class MixingDetector(Companion):
    """Adds to the part `baselines` a detector of each alteration, of models whose encoder is at hand."""

    training: TrainingCaptions | None = None
    _images: FileImages | None = None

    def check(self, model: Model, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Find the images to fit on. Raises InputError as `training_images`."""
        given = self.training is not None and self.training.folder is not None and model.encoder is not None
        self._images = training_images(self.training.folder, self.training.image_names, benchmarks) if given else None

    def beside(self, scored: Scored) -> Beside:
        """The detector's preferences in every task that compares images."""
        if self._images is None:
            return Beside()
        tasks = detector_baselines(scored.model.encoder, scored.benchmark, self._images, scored.cache)
        return Beside(part={"baselines": {"tasks": tasks}})


make = MixingDetector


def training_images(folder: str, names: Sequence[str], benchmarks: Sequence[Benchmark]) -> FileImages:
    """The first `MOST_IMAGES` of the named images that are in a folder and in no benchmark.

    Raises InputError: fewer than two are.
    """
    in_benchmarks = {name for benchmark in benchmarks for name in benchmark.images}
    present, _ = find_images([name for name in dict.fromkeys(names) if name not in in_benchmarks], folder)
    first = tuple(present)[:MOST_IMAGES]
    if len(first) < 2:
        raise InputError(folder, "images", f"{len(first)} of the training captions", "at least two, in no benchmark")
    return FileImages(first, tuple(present[name] for name in first), "training images")


def fit_detector(
    unaltered: Float[np.ndarray, "images width"], altered: Float[np.ndarray, "images width"], ridge: float = RIDGE
) -> Float[np.ndarray, " width"]:
    """The weights of the discriminant; higher scores are unaltered."""
    classes = [np.asarray(each, np.float64) for each in (unaltered, altered)]
    centred = np.concatenate([each - each.mean(axis=0) for each in classes])
    covariance = centred.T @ centred / len(centred)
    width = len(covariance)
    covariance += ridge * np.trace(covariance) / width * np.eye(width)
    return np.linalg.lstsq(covariance, classes[0].mean(axis=0) - classes[1].mean(axis=0), rcond=None)[0]


def detector_baselines(
    encoder: FeatureEncoder, benchmark: Benchmark, images: FileImages, cache: EmbeddingCache
) -> dict[str, dict[str, dict[str, Any]]]:
    """`{TASK: {VARIANT: {"detector": {"preference", "interval", "pairs"}}}}` of every task that compares images."""
    compared = [(task, pairs) for task in benchmark.tasks if (pairs := task.compared_images()) is not None]
    if not compared:
        return {}
    embeddings = embed_benchmark(encoder, benchmark, cache)
    unaltered, weights = embed_images(encoder, images, cache), {}
    runs: dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray]]] = {}
    for task, (right, wrong, group) in compared:
        (altered_set,) = wrong.tables
        alteration = benchmark.image_sets[altered_set].applied_to(images)
        if alteration.name not in weights:
            weights[alteration.name] = fit_detector(unaltered, embed_images(encoder, alteration, cache))
        scores = [
            np.asarray(table[index], np.float64) @ weights[alteration.name]
            for table, index in map(embeddings.select, (right, wrong))
        ]
        for variant in filter(None, (task.variant, task.pooled)):
            runs.setdefault((task.name, variant), []).append((prefers(*scores), group))
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    for (name, variant), of_variant in runs.items():
        figures.setdefault(name, {})[variant] = {DETECTOR: figure(*map(list, zip(*of_variant, strict=True)))}
    return figures
