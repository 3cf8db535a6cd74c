"""Multiple-choice task whose questions have their own options: the chosen option and the model's confidence.

The metrics are those of classification (`metrics.classify`), with the K options of a question in place of the classes.
K differs between questions, so there is no mean per class, and guessing is right for the mean of 1 / K.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.benchmarks.tasks.classify import ClassOutcome
from rococo_jax.benchmarks.tasks.task import Example, Tables, Task, texts_by_row
from rococo_jax.metrics.class_statistics import Run, class_statistics, halves
from rococo_jax.metrics.classify import prediction_counts


@dataclasses.dataclass(frozen=True, eq=False)
class OptionTask(Task):
    """Questions about images, each with its own options; a tie for the first rank counts against the model.

    Attributes:
        ids: identifiers of the questions.
        questions: their texts.
        options: the options of each question, sorted, so that no result depends on the order in which they were given.
        label: the correct option of each question.
        image_names: row of the benchmark's `images` of each question.
        names: names that assign each question to one half, for temperatures; questions on one image have the same.
    """

    ids: Sequence[str]
    questions: Sequence[str]
    options: Sequence[tuple[str, ...]]
    label: Int[np.ndarray, " questions"]
    image_names: Int[np.ndarray, " questions"]
    names: Sequence[str]

    texture: ClassVar[None] = None

    @property
    def option_counts(self) -> Int[np.ndarray, " questions"]:
        """Number of options of each question."""
        return np.array([len(options) for options in self.options])

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """Number of questions, and of their options."""
        return len(self.ids), int(self.option_counts.sum())

    def score_logits(self, logits: Sequence[Float[np.ndarray, " _"]]) -> "OptionOutcome":
        """Compute probabilities from the logits of the options of each question, in the order of `options`."""
        counts, numbers = self.option_counts, np.concatenate(logits)
        starts = np.cumsum(counts) - counts

        def block(rows: Run) -> Float[np.ndarray, "questions options"]:
            # All questions of a block have the same number of options, so nothing is padded.
            return numbers[starts[rows][:, None] + np.arange(counts[rows][0])]

        return OptionOutcome(self, class_statistics(block, self.label, halves(self.names), counts, 1.0))


class OptionOutcome(ClassOutcome):
    """Outcome of a task whose questions have their own options, with one model's statistics for each question."""

    of: OptionTask

    kind = property(lambda self: "options")
    inseparable = property(lambda self: [])

    @property
    def counts(self) -> dict[str, np.ndarray]:
        """Correct answers and calibration of each question, and how often guessing is right."""
        return {**prediction_counts(self.statistics), "guessing": 1.0 / self.class_counts}

    @property
    def class_counts(self) -> Int[np.ndarray, " questions"]:
        """Number of options of each question."""
        return self.of.option_counts

    def class_names(self, numbers: Int[np.ndarray, " questions"]) -> Any:
        """Return the text of an option of each question, as a `pyarrow` column."""
        texts = [options[number] for options, number in zip(self.of.options, numbers.tolist(), strict=True)]
        return texts_by_row(texts, np.arange(len(texts)))

    @property
    def sizes(self) -> dict[str, int]:
        """Number of questions and images."""
        return {"items": len(self.of.ids), "images": len(np.unique(self.of.image_names))}

    @property
    def chance(self) -> dict[str, float]:
        """Top-1 accuracy of guessing, in percent."""
        return {"top1": 100.0 * float(np.mean(1.0 / self.class_counts))}

    def rows(self, tables: Tables) -> Any:
        """Return a row for each question, as a `pyarrow.Table`: its answer, the chosen option and its confidence."""
        import pyarrow as pa

        rows = super().rows(tables)
        for place, (name, texts) in enumerate((("item", self.of.ids), ("question", self.of.questions))):
            rows = rows.add_column(place, name, pa.array(texts, pa.string()))
        return rows

    def errors(self, tables: Tables, count: int) -> list[Example]:
        """Return none: the images are not available."""
        return []
