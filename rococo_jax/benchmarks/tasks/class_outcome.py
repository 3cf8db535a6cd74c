"""Outcome of a classify task for one model's probabilities: counts, a row an image, curves, confident errors."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.benchmarks.tasks.task import Example, Outcome, Side, Tables, Task, suffixed
from rococo_jax.metrics.change import Sureness, count_changes
from rococo_jax.metrics.class_statistics import ClassStatistics
from rococo_jax.metrics.classify import count_classes, count_shapes, reliability, shape_shares
from rococo_jax.metrics.intervals import Counted


@dataclasses.dataclass(frozen=True, eq=False)
class ClassOutcome(Outcome):
    """A classify task (`tasks.classify.ClassifyTask`) and one model's statistics for each of its images."""

    of: Task
    statistics: ClassStatistics

    kind = property(lambda self: "classify" if self.of.texture is None else "shape")
    result = property(lambda self: self.statistics)

    @functools.cached_property
    def counted(self) -> Counted:
        """Right answers and calibration, image by image."""
        counted = count_classes(self.statistics, self.of.image_names, len(self.of.classes))
        return counted if self.of.texture is None else count_shapes(counted, self.statistics, self.of.texture)

    @property
    def sureness(self) -> Sureness:
        """The class predicted, whether it is right, and how sure the model is."""
        statistics = self.statistics
        uncertainty = statistics.entropy / np.log(len(self.of.classes))
        return Sureness(statistics.predicted, statistics.right, statistics.confidence, uncertainty)

    def change_from(self, baseline: "ClassOutcome") -> Counted:
        """Changes by corruption, image by image; see `metrics.change`."""
        return count_changes(baseline.sureness, self.sureness, self.of.image_names)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images, classes and templates."""
        classes, templates = self.of.prompts.shape
        return {"images": len(self.of.label), "classes": classes, "templates": templates}

    @property
    def chance(self) -> dict[str, float]:
        """Top-1 of a guess among the classes, in percent."""
        return {"top1": 100.0 / len(self.of.classes)}

    def curves(self) -> dict[str, Any]:
        """Data of charts: reliability, temperatures, shares of shape by class."""
        about = self.statistics
        curves = {"scale": about.scale, "temperatures": list(about.temperatures), "reliability": reliability(about)}
        if self.of.texture is not None:
            curves["shape_by_class"] = shape_shares(about, self.of.texture, self.of.classes)
        return curves

    def touched(self, images: Bool[np.ndarray, " names"]) -> Bool[np.ndarray, " images"]:
        """The images that are among these rows of the benchmark's `images`."""
        return images[self.of.image_names]

    def only(self, images: Bool[np.ndarray, " images"], suffix: str) -> "ClassOutcome":
        """The outcome over some of the images, as a variant with a suffix; temperatures stay those of all."""
        task = dataclasses.replace(self.of.share(np.flatnonzero(images)), **suffixed(self.of, suffix))
        return ClassOutcome(task, self.statistics[images])

    def chosen_from(self, others: Sequence["ClassOutcome"], fold: Int[np.ndarray, " names"]) -> "ClassOutcome":
        """Each image as the outcome has it that its fold names."""
        return ClassOutcome(
            self.of, ClassStatistics.chosen([each.statistics for each in others], fold[self.of.image_names])
        )

    def rows(self, tables: Tables):
        """One row an image (`pyarrow.Table`): its class, the one predicted, and how sure the model is of it."""
        import pyarrow as pa

        task, statistics = self.of, self.statistics
        names, classes = np.array(tables.images, object), np.array(task.classes, object)
        columns = {
            "task": pa.array([task.name] * len(statistics)),
            "variant": pa.array([task.variant] * len(statistics)),
            "image": pa.array(names[task.image_names], pa.string()),
            "label": pa.array(classes[statistics.label], pa.string()),
            "predicted": pa.array(classes[statistics.predicted], pa.string()),
            "chosen": pa.array(np.where(statistics.right, "right", "wrong")),
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
            (table,), (index,) = task.images[row : row + 1].tables, task.images[row : row + 1].index.tolist()
            image = Side(image=tables.images[int(task.image_names[row])], picture=(table, index))
            right, wrong = (
                Side(text=task.classes[int(each[row])]) for each in (statistics.label, statistics.predicted)
            )
            scores = float(np.exp(-statistics.nll[row])), float(statistics.confidence[row])
            chosen.append(
                Example(task.name, task.variant, task.seed, "error", 0, "wrong", image, right, wrong, *scores)
            )
        return chosen
