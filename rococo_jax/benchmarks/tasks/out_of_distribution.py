"""Out-of-distribution task: separate images of a benchmark's classes from other images by the model's confidence."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.benchmarks.pair_scores import ImageNumbers, PairScores
from rococo_jax.benchmarks.tables import DEFAULT_SCALE, Embeddings, Rows
from rococo_jax.benchmarks.tasks.classify import ClassifyTask, cosines
from rococo_jax.benchmarks.tasks.task import (
    Outcome,
    PairsAsked,
    Tables,
    Task,
    mean_scores,
    mean_vectors,
    pairs_with_prompts,
)
from rococo_jax.metrics.class_statistics import ClassStatistics, class_statistics
from rococo_jax.metrics.ood import count_sides, scores_of


@dataclasses.dataclass(frozen=True, eq=False)
class OutOfDistributionTask(Task):
    """Images of classes, and images that show none of them.

    Attributes:
        variant: name of the out-of-distribution images.
        within: the classes and their images.
        outside: the out-of-distribution images, as rows of a separate image set.
        names: names of the out-of-distribution images.
    """

    within: ClassifyTask
    outside: Rows
    names: Sequence[str]

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """Number of images of both sets, and of the similarities they need."""
        images = len(self.within.label) + len(self.outside)
        return images, images * self.within.prompts.size

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> "OutOfDistributionOutcome":
        """Compute the scores of all images. Raises InputError: as `ClassifyTask.score`."""
        vectors, scale = mean_vectors(embeddings, self.within.prompts), embeddings.logit_scale or DEFAULT_SCALE
        return self._separated(
            lambda rows: functools.partial(cosines, *embeddings.select(rows), vectors, embeddings.source), scale
        )

    def pairs_asked(self, numbers: ImageNumbers) -> PairsAsked:
        """Return every image of both sets with every prompt of every class."""
        return pairs_with_prompts(numbers(self.within.images + self.outside), self.within.prompts)

    def score_by_pairs(self, scores: PairScores) -> "OutOfDistributionOutcome":
        """Compute the scores of all images."""
        prompts = self.within.prompts
        return self._separated(
            lambda rows: functools.partial(mean_scores, scores, scores.numbers(rows), prompts), scores.scale
        )

    def _separated(self, block_of: Callable[[Rows], Callable[[slice], np.ndarray]], scale: float):
        """Return the outcome from blocks of logits of each set, divided by `scale`."""
        statistics = [
            class_statistics(
                block_of(rows),
                np.full(len(rows), -1),
                np.zeros(len(rows), np.int8),
                len(self.within.classes),
                scale,
                (1.0, 1.0),
            )
            for rows in (self.within.images, self.outside)
        ]
        return OutOfDistributionOutcome(self, *statistics)


@dataclasses.dataclass(frozen=True, eq=False)
class OutOfDistributionOutcome(Outcome):
    """Outcome of the task, with one model's statistics of both sets."""

    of: OutOfDistributionTask
    within: ClassStatistics
    outside: ClassStatistics
    kind = "out_of_distribution"

    @functools.cached_property
    def counts(self) -> dict[str, np.ndarray]:
        """All scores of both sets of images, those of the classes first."""
        sides = scores_of(self.within), scores_of(self.outside)
        inside = np.arange(len(self.within) + len(self.outside)) < len(self.within)
        return {"inside": inside} | {name: np.concatenate([side[name] for side in sides]) for name in sides[0]}

    @property
    def unit(self) -> Int[np.ndarray, " images"]:
        """Number of each image of the classes; -1 for the other images, which are resampled individually."""
        return np.concatenate([self.of.within.image_names, np.full(len(self.outside), -1)])

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images of each set."""
        return {"inside": len(self.within), "outside": len(self.outside)}

    def curves(self, columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the ROC curve of each score."""
        return {"roc": count_sides(columns).roc()}

    @property
    def chance(self) -> dict[str, float]:
        """The AUROC of scores that are random, in percent."""
        return {name: 50.0 for name in self.counted.metrics if name.startswith("auroc")}

    def touched(self, images: Bool[np.ndarray, " names"]) -> Bool[np.ndarray, " rows"]:
        """Return which images are among these rows of the benchmark's `images`; other images never are."""
        return np.concatenate([images[self.of.within.image_names], np.zeros(len(self.outside), bool)])

    def rows(self, tables: Tables):
        """Return a row for each image, as a `pyarrow.Table`."""
        import pyarrow as pa

        names = [tables.images[row] for row in self.of.within.image_names.tolist()]
        return pa.table({"image": pa.array([*names, *self.of.names], pa.string())})
