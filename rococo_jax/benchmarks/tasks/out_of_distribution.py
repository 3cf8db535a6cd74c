"""Tell images of a benchmark's classes from images of another folder, by how sure a model is of any class."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.benchmarks.pair_scores import ImageNumbers, PairScores
from rococo_jax.benchmarks.tables import DEFAULT_SCALE, Embeddings, Rows
from rococo_jax.benchmarks.tasks.classify import ClassifyTask, cosines
from rococo_jax.benchmarks.tasks.prompts import mean_scores, mean_vectors, pairs_with_prompts
from rococo_jax.benchmarks.tasks.task import Outcome, PairsAsked, Tables, Task, row_head
from rococo_jax.metrics.class_statistics import ClassStatistics, class_statistics
from rococo_jax.metrics.ood import Separated, scores_of


@dataclasses.dataclass(frozen=True, eq=False)
class OutOfDistributionTask(Task):
    """Images of classes, and images that show none of them.

    Attributes:
        variant: the name of the other images.
        within: the classes and their images.
        outside: the other images, rows of an image set of their own.
        names: of the other images.
    """

    within: ClassifyTask
    outside: Rows
    names: Sequence[str]

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """Number of images on both sides, and of similarities they need."""
        images = len(self.within.label) + len(self.outside)
        return images, images * self.within.prompts.size

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> "OutOfDistributionOutcome":
        """Scores of all images. Raises InputError: as `ClassifyTask.score`."""
        vectors, scale = mean_vectors(embeddings, self.within.prompts), embeddings.logit_scale or DEFAULT_SCALE
        return self._separated(
            lambda rows: functools.partial(cosines, *embeddings.select(rows), vectors, embeddings.source), scale
        )

    def pairs_asked(self, numbers: ImageNumbers) -> PairsAsked:
        """Every image of both sides with every prompt of every class."""
        return pairs_with_prompts(numbers(self.within.images + self.outside), self.within.prompts)

    def score_by_pairs(self, scores: PairScores) -> "OutOfDistributionOutcome":
        """Scores of all images."""
        prompts = self.within.prompts
        return self._separated(
            lambda rows: functools.partial(mean_scores, scores, scores.numbers(rows), prompts), scores.scale
        )

    def _separated(self, block_of: Callable[[Rows], Callable[[slice], np.ndarray]], scale: float):
        """The outcome from blocks of logits of each side, divided by `scale`."""
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

    def share(self, which: Int[np.ndarray, " some"]) -> "OutOfDistributionTask":
        """The task with some of its images, first those of the classes, then the others."""
        inside = len(self.within.label)
        others = which[which >= inside] - inside
        names = [self.names[row] for row in others.tolist()]
        within = self.within.share(which[which < inside])
        return dataclasses.replace(self, within=within, outside=self.outside[others], names=names)


@dataclasses.dataclass(frozen=True, eq=False)
class OutOfDistributionOutcome(Outcome):
    """The task and one model's statistics of both sides."""

    of: OutOfDistributionTask
    within: ClassStatistics
    outside: ClassStatistics
    kind = "out_of_distribution"

    @functools.cached_property
    def counted(self) -> Separated:
        """Scores of both sides."""
        return Separated(scores_of(self.within), scores_of(self.outside))

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images on each side."""
        return {"inside": len(self.within), "outside": len(self.outside)}

    def curves(self) -> dict[str, Any]:
        """The ROC curve of each score."""
        return {"roc": self.counted.roc()}

    def touched(self, images: Bool[np.ndarray, " names"]) -> Bool[np.ndarray, " rows"]:
        """The images that are among these rows of the benchmark's `images`; none of the other side."""
        return np.concatenate([images[self.of.within.image_names], np.zeros(len(self.outside), bool)])

    def only(self, rows: Bool[np.ndarray, " rows"], suffix: str) -> "OutOfDistributionOutcome":
        """The outcome over some of the images, as a variant with a suffix."""
        ins, outs = rows[: len(self.within)], rows[len(self.within) :]
        task = dataclasses.replace(self.of.share(np.flatnonzero(rows)), variant=f"{self.variant}/{suffix}")
        return OutOfDistributionOutcome(task, self.within[ins], self.outside[outs])

    def rows(self, tables: Tables):
        """One row an image (`pyarrow.Table`): its side and its scores."""
        import pyarrow as pa

        names = [tables.images[row] for row in self.of.within.image_names.tolist()]
        count = len(self.within) + len(self.outside)
        sides = scores_of(self.within), scores_of(self.outside)
        columns = row_head(self, [*names, *self.of.names])
        columns |= {"inside": pa.array(np.arange(count) < len(self.within))}
        return pa.table(columns | {name: pa.array(np.concatenate([s[name] for s in sides])) for name in sides[0]})
