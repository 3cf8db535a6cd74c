"""Classify: which of a list of classes an image shows, and how sure the model is, from texts of each class."""

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
from rococo_jax.benchmarks.tasks.prompts import mean_scores, mean_vectors, pairs_with_prompts
from rococo_jax.benchmarks.tasks.task import Example, Outcome, PairsAsked, Side, Tables, Task
from rococo_jax.benchmarks.variants import CLEAN, Variant
from rococo_jax.errors import InputError
from rococo_jax.metrics.change import Sureness, change_counts
from rococo_jax.metrics.class_statistics import ClassStatistics, class_statistics, halves
from rococo_jax.metrics.classify import image_counts, reliability, shape_counts, shape_shares

# Groups of classes that a note names.
_NAMED = 5


@dataclasses.dataclass(frozen=True, eq=False)
class ClassifyTask(Task):
    """Images and their classes; a tie for the first place counts against the model.

    A class's vector is the mean of the unit vectors of its prompts, brought to length 1. Classes stand in the order of
    their names, so that no result depends on the order in which they were given.

    Attributes:
        variant: `clean`, or the templates or images it is asked with.
        classes: names, sorted.
        prompts: for each class its texts, rows of the table of texts.
        images: rows of an image set.
        image_names: the row of the benchmark's `images` that each is.
        names: what decides the half that each image is of, for temperatures.
        label: its class.
        texture: its class by texture, where that is another question than its shape; see `metrics.classify`.
        same_tokens: a number for each class; classes whose prompts are the same tokens have equal ones. None where the
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
        """Number of images, and of similarities they need."""
        return len(self.label), len(self.label) * self.prompts.size

    @functools.cached_property
    def half(self) -> Int[np.ndarray, " images"]:
        """The half that each image is of."""
        return halves(self.names)

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> "ClassOutcome":
        """Probabilities of the classes by the model's logit scale, or 100 where it has none.

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
        """Every image with every prompt of every class."""
        return pairs_with_prompts(numbers(self.images), self.prompts)

    def score_by_pairs(self, scores: PairScores) -> "ClassOutcome":
        """Probabilities of the classes, whose score is the mean over their prompts."""
        block = functools.partial(mean_scores, scores, scores.numbers(self.images), self.prompts)
        statistics = class_statistics(block, self.label, self.half, len(self.classes), scores.scale)
        return ClassOutcome(self, statistics, _equal_rows(self.prompts))

    def read_as(self, reading: Int[np.ndarray, " texts"]) -> "ClassifyTask":
        """The task with the classes that the tokenizer cannot tell apart."""
        return dataclasses.replace(self, same_tokens=_equal_rows(reading[self.prompts]))

    def on_images(self, images: Variant, baseline: str, pool: Pool | None) -> "ClassifyTask | None":
        """The clean task with every original replaced; None for other templates."""
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
    """Return a number for each row; equal rows have equal ones."""
    return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)


def _groups(numbers: Int[np.ndarray, " classes"]) -> list[tuple[int, ...]]:
    """Return the classes of each number that several have."""
    order = np.argsort(numbers, kind="stable")
    runs = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
    return sorted(tuple(run.tolist()) for run in runs if len(run) > 1)


def cosines(
    table: np.ndarray, rows: np.ndarray, vectors: np.ndarray, source: str, run: slice
) -> Float[np.ndarray, "images classes"]:
    """Cosines of a run of images with every class; float64 sums rounded to float32, which blocks do not change."""
    products = np.asarray(table[rows[run]], np.float64) @ vectors.T
    if not np.isfinite(products).all():
        raise InputError(source, "embeddings", "NaN or infinite values", "unit vectors")
    return products.astype(np.float32).astype(np.float64)


@dataclasses.dataclass(frozen=True, eq=False)
class ClassOutcome(Outcome):
    """A classify task (`tasks.classify.ClassifyTask`) and one model's statistics for each of its images.

    `same_vector` numbers the classes by their vectors, or by their prompts where there are none; classes that the model
    cannot tell apart have equal numbers. None where neither is known.
    """

    of: Task
    statistics: ClassStatistics
    same_vector: Int[np.ndarray, " classes"] | None = None

    kind = property(lambda self: "classify" if self.of.texture is None else "shape")

    @functools.cached_property
    def counts(self) -> dict[str, np.ndarray]:
        """Right answers and calibration, image by image."""
        columns = image_counts(self.statistics, len(self.of.classes))
        return columns if self.of.texture is None else columns | shape_counts(self.statistics, self.of.texture)

    @property
    def unit(self) -> Int[np.ndarray, " images"]:
        """The number of each image."""
        return self.of.image_names

    @property
    def sureness(self) -> Sureness:
        """The class predicted, whether it is right, and how sure the model is."""
        statistics = self.statistics
        uncertainty = statistics.entropy / np.log(len(self.of.classes))
        return Sureness(statistics.predicted, statistics.right, statistics.confidence, uncertainty)

    def change_counts(self, baseline: "ClassOutcome") -> dict[str, np.ndarray]:
        """Changes by corruption, image by image; see `metrics.change`."""
        return change_counts(baseline.sureness, self.sureness)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images, classes and templates."""
        classes, templates = self.of.prompts.shape
        return {"images": len(self.of.label), "classes": classes, "templates": templates}

    @functools.cached_property
    def inseparable(self) -> list[tuple[int, ...]]:
        """Groups of classes that are one text for the model."""
        if self.of.same_tokens is not None:
            return _groups(self.of.same_tokens)
        groups = [] if self.same_vector is None else _groups(self.same_vector)
        # A model that gives all texts one vector has another fault.
        are_distinct = len(np.unique(self.of.prompts, axis=0)) > 1
        return [group for group in groups if not are_distinct or len(group) < len(self.of.classes)]

    @property
    def why_chance(self) -> str | None:
        """Images whose class the model cannot tell from another, where there are some that tie."""
        among = np.isin(self.statistics.label, [one for group in self.inseparable for one in group])
        tied = int((self.statistics.tied & among).sum())
        return f"{tied} of {len(among)} images are of classes that are one text, and tie" if tied else None

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence on classes that the model cannot tell apart."""
        if not self.inseparable:
            return ()
        names = [" and ".join(repr(self.of.classes[one]) for one in group) for group in self.inseparable]
        listed = "; ".join(names[:_NAMED]) + (f"; ... ({len(names)} such groups)" if len(names) > _NAMED else "")
        reader = "this model" if self.of.same_tokens is None else "this model's tokenizer"
        effect = "images of such classes tie, which counts as an error"
        return (f"{self.task}: {listed} are one text for {reader}: {effect}",)

    @property
    def chance(self) -> dict[str, float]:
        """Top-1 of a guess among the classes, in percent."""
        return {"top1": 100.0 / len(self.of.classes)}

    def curves(self, columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Data of charts: reliability, temperatures, shares of shape by class."""
        about = self.statistics
        curves = {"scale": about.scale, "temperatures": list(about.temperatures), "reliability": reliability(columns)}
        if self.of.texture is not None:
            curves["shape_by_class"] = shape_shares(columns, self.of.classes)
        return curves

    def touched(self, images: Bool[np.ndarray, " names"]) -> Bool[np.ndarray, " images"]:
        """The images that are among these rows of the benchmark's `images`."""
        return images[self.of.image_names]

    def rows(self, tables: Tables):
        """One row an image (`pyarrow.Table`): its class, the one predicted, and how sure the model is of it."""
        import pyarrow as pa

        task, statistics = self.of, self.statistics
        names, classes = np.array(tables.images, object), np.array(task.classes, object)
        columns = {
            "image": pa.array(names[task.image_names], pa.string()),
            "label": pa.array(classes[statistics.label], pa.string()),
            "predicted": pa.array(classes[statistics.predicted], pa.string()),
            "chosen": pa.array(np.where(statistics.right, "right", np.where(statistics.tied, "tie", "wrong"))),
            "rank": pa.array(statistics.rank, pa.int64()),
        }
        if task.texture is not None:
            columns["texture"] = pa.array(classes[task.texture], pa.string())
        for name in ("confidence", "nll", "brier", "entropy", "scaled_confidence", "scaled_nll"):
            columns[name] = pa.array(getattr(statistics, name), pa.float64())
        return pa.table(columns)

    def errors(self, tables: Tables, count: int) -> list[Example]:
        """The images of which the model is most sure of a wrong class."""
        task, statistics = self.of, self.statistics
        chosen = []
        for row in np.argsort(-np.where(statistics.right, -1.0, statistics.confidence), kind="stable")[:count].tolist():
            if statistics.right[row]:
                break
            image = side_of(tables, task.images, task.image_names, row)
            right, wrong = (
                Side(text=task.classes[int(each[row])]) for each in (statistics.label, statistics.predicted)
            )
            scores = float(np.exp(-statistics.nll[row])), float(statistics.confidence[row])
            chosen.append(
                Example(task.name, self.variant, task.seed, "error", 0, "wrong", image, right, wrong, *scores)
            )
        return chosen
