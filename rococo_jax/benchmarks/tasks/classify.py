"""Classification task: the class of each image and the model's confidence, from texts of each class."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from rococo_jax.benchmarks.pair_scores import ImageNumbers, PairScores
from rococo_jax.benchmarks.pooling import Pool
from rococo_jax.benchmarks.tables import DEFAULT_SCALE, ORIGINALS, Embeddings, Rows
from rococo_jax.benchmarks.tasks.pairs import side_of
from rococo_jax.benchmarks.tasks.task import (
    Example,
    Outcome,
    PairsAsked,
    Side,
    Tables,
    Task,
    mean_scores,
    mean_vectors,
    pairs_with_prompts,
    texts_by_row,
)
from rococo_jax.benchmarks.variants import CLEAN, Variant
from rococo_jax.errors import InputError
from rococo_jax.metrics.change import Confidence, change_counts
from rococo_jax.metrics.class_statistics import ClassStatistics, class_statistics, halves
from rococo_jax.metrics.classify import image_counts, reliability, shape_counts, shape_shares

# Number of groups of classes that a note names.
_NAMED = 5


@dataclasses.dataclass(frozen=True, eq=False)
class ClassifyTask(Task):
    """Images and their classes; a tie for the first rank counts against the model.

    A class's vector is the mean of the unit vectors of its prompts, brought to length 1. Classes stand in the order of
    their names, so that no result depends on the order in which they were given.

    Attributes:
        variant: `clean`, or the name of other templates or images.
        classes: names of the classes, sorted.
        prompts: texts of each class, as rows of the table of texts.
        images: rows of an image set.
        image_names: row of the benchmark's `images` of each image.
        names: names that assign each image to one half, for temperatures.
        label: class of each image.
        texture: class of each image by texture, if it differs from the class by shape; see `metrics.classify`.
        same_tokens: a number for each class, equal for classes whose prompts have the same tokens. None where the
            tokens are not known.
    """

    classes: tuple[str, ...]
    prompts: Int[np.ndarray, "classes templates"]
    images: Rows
    image_names: Int[np.ndarray, " images"]
    names: Sequence[str]
    label: Int[np.ndarray, " images"]
    texture: Int[np.ndarray, " images"] | None = None
    same_tokens: Int[np.ndarray, " classes"] | None = None

    has_classes: ClassVar[bool] = True

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """Number of images, and of the similarities they need."""
        return len(self.label), len(self.label) * self.prompts.size

    @functools.cached_property
    def half(self) -> Int[np.ndarray, " images"]:
        """Half of each image."""
        return halves(self.names)

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> "ClassOutcome":
        """Compute class probabilities with the model's logit scale, or 100 if it has none.

        Products are summed in float64 and rounded to float32, so that they do not depend on how images are blocked.

        Raises InputError: a vector is NaN or infinite.
        """
        vectors = mean_vectors(embeddings, self.prompts)
        table, rows = embeddings.select(self.images)
        scale = embeddings.logit_scale or DEFAULT_SCALE
        block = functools.partial(cosines, table, rows, vectors, embeddings.source)
        statistics = class_statistics(block, self.label, self.half, len(self.classes), scale)
        return ClassOutcome(self, statistics, _equal_rows(vectors.astype(np.float32)))

    def pairs_asked(self, numbers: ImageNumbers) -> PairsAsked:
        """Return every image with every prompt of every class."""
        return pairs_with_prompts(numbers(self.images), self.prompts)

    def score_by_pairs(self, scores: PairScores) -> "ClassOutcome":
        """Compute class probabilities; the score of a class is the mean over its prompts."""
        block = functools.partial(mean_scores, scores, scores.numbers(self.images), self.prompts)
        statistics = class_statistics(block, self.label, self.half, len(self.classes), scores.scale)
        return ClassOutcome(self, statistics, _equal_rows(self.prompts))

    def read_as(self, reading: Int[np.ndarray, " texts"]) -> "ClassifyTask":
        """Return the task with numbers of classes whose prompts have the same tokens."""
        return dataclasses.replace(self, same_tokens=_equal_rows(reading[self.prompts]))

    def on_images(self, images: Variant, baseline: str, pool: Pool | None) -> "ClassifyTask | None":
        """Return the clean task with every original replaced; None for other templates."""
        if self.variant != CLEAN:
            return None
        return dataclasses.replace(
            self,
            variant="",
            corruption=images.corruption,
            severity=images.severity,
            images=self.images.with_table(ORIGINALS, images.name),
            baseline=baseline,
            pools=() if pool is None else (pool,),
        )


def _equal_rows(table: np.ndarray) -> Int[np.ndarray, " rows"]:
    """Return a number for each row, the same for equal rows."""
    return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)


def _groups(numbers: Int[np.ndarray, " classes"]) -> list[tuple[int, ...]]:
    """Return the classes of each number that several classes have."""
    order = np.argsort(numbers, kind="stable")
    runs = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
    return sorted(tuple(run.tolist()) for run in runs if len(run) > 1)


def cosines(
    table: np.ndarray, rows: np.ndarray, vectors: np.ndarray, source: str, run: slice
) -> Float[np.ndarray, "images classes"]:
    """Return cosines of a block of images with every class, as float64 sums rounded to float32, for any block size."""
    products = np.asarray(table[rows[run]], np.float64) @ vectors.T
    if not np.isfinite(products).all():
        raise InputError(source, "embeddings", "NaN or infinite values", "unit vectors")
    return products.astype(np.float32).astype(np.float64)


@dataclasses.dataclass(frozen=True, eq=False)
class ClassOutcome(Outcome):
    """Outcome of a classification task (`tasks.classify.ClassifyTask`), with one model's statistics for each image.

    `same_vector` numbers the classes by their vectors, or by their prompts where there are none; classes that the model
    cannot tell apart have equal numbers. None where neither is known.
    """

    of: Task
    statistics: ClassStatistics
    same_vector: Int[np.ndarray, " classes"] | None = None

    kind = property(lambda self: "classify" if self.of.texture is None else "shape")

    @functools.cached_property
    def counts(self) -> dict[str, np.ndarray]:
        """Correct predictions and calibration of each image."""
        columns = image_counts(self.statistics, len(self.of.classes))
        return columns if self.of.texture is None else columns | shape_counts(self.statistics, self.of.texture)

    @property
    def unit(self) -> Int[np.ndarray, " images"]:
        """Number of each image."""
        return self.of.image_names

    @property
    def class_counts(self) -> Int[np.ndarray, "*images"]:
        """Number of classes, of each image if they differ."""
        return np.array(len(self.of.classes))

    def class_names(self, numbers: Int[np.ndarray, " images"]) -> Any:
        """Return the name of a class of each image, as a `pyarrow` column."""
        return texts_by_row(self.of.classes, numbers)

    @property
    def confidences(self) -> Confidence:
        """Predicted class, whether it is correct, and the model's confidence."""
        statistics = self.statistics
        uncertainty = statistics.entropy / np.log(self.class_counts)
        return Confidence(statistics.predicted, statistics.right, statistics.confidence, uncertainty)

    def change_counts(self, baseline: "ClassOutcome") -> dict[str, np.ndarray]:
        """Return changes by corruption of each image; see `metrics.change`."""
        return change_counts(baseline.confidences, self.confidences)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images, classes and templates."""
        classes, templates = self.of.prompts.shape
        return {"images": len(self.of.label), "classes": classes, "templates": templates}

    @functools.cached_property
    def inseparable(self) -> list[tuple[int, ...]]:
        """Return groups of classes that the model encodes identically."""
        if self.of.same_tokens is not None:
            return _groups(self.of.same_tokens)
        groups = [] if self.same_vector is None else _groups(self.same_vector)
        # A model with the same embedding for all texts has a different problem.
        are_distinct = len(np.unique(self.of.prompts, axis=0)) > 1
        return [group for group in groups if not are_distinct or len(group) < len(self.of.classes)]

    @property
    def chance_reason(self) -> str | None:
        """Sentence on images of classes that are one text for the model, if some of them tie."""
        among = np.isin(self.statistics.label, [one for group in self.inseparable for one in group])
        tied = int((self.statistics.tied & among).sum())
        return f"{tied} of {len(among)} images are of classes that are one text, and tie" if tied else None

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence on classes that the model cannot distinguish, if there are any."""
        if not self.inseparable:
            return ()
        names = [" and ".join(repr(self.of.classes[one]) for one in group) for group in self.inseparable]
        listed = "; ".join(names[:_NAMED]) + (f"; ... ({len(names)} such groups)" if len(names) > _NAMED else "")
        reader = "this model" if self.of.same_tokens is None else "this model's tokenizer"
        effect = "images of such classes tie, which counts as an error"
        return (f"{self.task}: {listed} are one text for {reader}: {effect}",)

    @property
    def chance(self) -> dict[str, float]:
        """Top-1 accuracy of guessing, in percent."""
        return {"top1": 100.0 / len(self.of.classes)}

    def curves(self, columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the data of charts: reliability, temperatures, shares of shape by class."""
        about = self.statistics
        curves = {"scale": about.scale, "temperatures": list(about.temperatures), "reliability": reliability(columns)}
        if self.of.texture is not None:
            curves["shape_by_class"] = shape_shares(columns, self.of.classes)
        return curves

    def touched(self, images: Bool[np.ndarray, " names"]) -> Bool[np.ndarray, " images"]:
        """Return which images are among these rows of the benchmark's `images`."""
        return images[self.of.image_names]

    def rows(self, tables: Tables):
        """Return a row for each image, as a `pyarrow.Table`: its class, the predicted class and its confidence."""
        import pyarrow as pa

        task, statistics = self.of, self.statistics
        choice = np.where(statistics.right, 0, np.where(statistics.tied, 1, 2))
        columns = {
            "image": texts_by_row(tables.images, task.image_names),
            "label": self.class_names(statistics.label),
            "predicted": self.class_names(statistics.predicted),
            "chosen": texts_by_row(("right", "tie", "wrong"), choice),
            "rank": pa.array(statistics.rank, pa.int64()),
        }
        if task.texture is not None:
            columns["texture"] = texts_by_row(task.classes, task.texture)
        for name in ("confidence", "nll", "brier", "entropy", "scaled_confidence", "scaled_nll"):
            columns[name] = pa.array(getattr(statistics, name), pa.float64())
        return pa.table(columns)

    def errors(self, tables: Tables, count: int) -> list[Example]:
        """Return the errors with the highest confidence."""
        task, statistics = self.of, self.statistics
        examples = []
        for row in np.argsort(-np.where(statistics.right, -1.0, statistics.confidence), kind="stable")[:count].tolist():
            if statistics.right[row]:
                break
            image = side_of(tables, task.images, task.image_names, row)
            right, wrong = (
                Side(text=task.classes[int(each[row])]) for each in (statistics.label, statistics.predicted)
            )
            scores = float(np.exp(-statistics.nll[row])), float(statistics.confidence[row])
            examples.append(
                Example(task.name, self.variant, task.seed, "error", 0, "wrong", image, right, wrong, *scores)
            )
        return examples
