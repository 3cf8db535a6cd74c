"""Items on images that a model was trained on.

A number on a training image is no result. Where a model's training images are known, every variant that has some is
reported twice: over all items, and as `VARIANT/unseen` over the others (`evaluation.counts.with_unseen`). So are the
parts that are pooled with such a variant, because the pooled variant would otherwise be one of fewer parts. If training
images are known only in part, as for a model that was started from a published checkpoint, a note says so.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.benchmarks.variants import UNSEEN
from rococo_jax.errors import InputError
from rococo_jax.evaluation.input_lists import image_files
from rococo_jax.evaluation.models.model import Model

_IN_PART = (
    "the model was also trained on images that are not known, such as those of the checkpoint that it was started "
    "from: items that are not marked as seen may lie on them"
)


class SeenItems(NamedTuple):
    """Items of a model's outcomes on images that it was trained on.

    Attributes:
        rows: whether each row of each outcome is on such an image; empty if training images are not known.
        counts: numbers of items and of such items, by task: the part `training_images` of the results.
        task_notes: notes for readers of the results, by task.
        notes: notes on all tasks.
    """

    rows: Sequence[Bool[np.ndarray, " _"] | None] = ()
    counts: Mapping[str, Mapping[str, int]] = {}
    task_notes: Mapping[str, Sequence[str]] = {}
    notes: Sequence[str] = ()


def refuse_training_images(model: Model, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
    """Refuse benchmarks with images that the model was trained on, if the settings require it.

    Raises InputError: there are some, or the training images are not known.
    """
    if not settings.require_clean:
        return
    for benchmark in benchmarks:
        if image_files(benchmark) is None:
            continue
        is_seen = _seen_images(model, benchmark)
        if is_seen is None:
            problem = "not known"
        elif is_seen.any():
            problem = f"{is_seen.sum():,} of the {len(is_seen):,} images of {benchmark.name}"
        else:  # if the list is known only in part, results contain a note
            continue
        raise InputError(model.name, "training images", problem, "none of a benchmark's, or no require_clean")


def seen_items(model: Model, benchmark: Benchmark, outcomes: Sequence[Outcome]) -> SeenItems:
    """Mark the rows of outcomes on images that the model was trained on."""
    is_seen = _seen_images(model, benchmark)
    if is_seen is None:
        return SeenItems()
    rows = [outcome.touched(is_seen) for outcome in outcomes]
    counts: dict[str, dict[str, int]] = {}
    for outcome, is_row_seen in zip(outcomes, rows, strict=True):
        if is_row_seen is not None:
            count = counts.setdefault(outcome.task, {"items": 0, "seen": 0})
            count["items"] += len(is_row_seen)
            count["seen"] += int(is_row_seen.sum())
    task_notes = {
        task: [
            f"{task}: {count['seen']:,} of {count['items']:,} items lie on images that the model was trained on, and "
            f"their numbers are no result; variants that end in /{UNSEEN} exclude them"
        ]
        for task, count in counts.items()
        if count["seen"]
    }
    assert model.training_images is not None
    return SeenItems(rows, counts, task_notes, () if model.training_images.complete else (_IN_PART,))


def _seen_images(model: Model, benchmark: Benchmark) -> Bool[np.ndarray, " names"] | None:
    """Return which of the benchmark's images the model was trained on; None if that is not known."""
    files = image_files(benchmark)
    if files is None or model.training_images is None:
        return None
    return model.training_images.contains(*files)
