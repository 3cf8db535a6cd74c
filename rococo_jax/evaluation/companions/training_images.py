"""Items on images that a model was trained on.

A number on a training image is no result. Where a model's training images are known, every variant that has some is
reported twice: over all, and as `VARIANT/unseen` over the others (`evaluation.counts.with_unseen`). So are the parts
that are pooled with such a one, or the pooled variant would be one of fewer parts. Where training images are known in
part, as of a model that was started from a published checkpoint, a note says so.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.variants import UNSEEN
from rococo_jax.errors import InputError
from rococo_jax.evaluation.companions import Beside, Companion, Scored, TrainingCaptions
from rococo_jax.evaluation.input_lists import image_files
from rococo_jax.evaluation.models.model import Model

_IN_PART = (
    "the model was also trained on images that are not known, such as those of the checkpoint that it was started "
    "from: items that are not marked as seen may lie on them"
)


class TrainingImages(Companion):
    """Adds the part `training_images`, variants without them, and the column `seen`."""

    def check(self, model: Model, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Find the training images of all benchmarks.

        Raises InputError: there are some, or it is not known, and the settings refuse that.
        """
        for benchmark in benchmarks:
            if not settings.require_clean or image_files(benchmark) is None:
                continue
            if (reason := _why_not_clean(model, benchmark)) is not None:
                raise InputError(model.name, "training images", reason, "none of a benchmark's, or no require_clean")

    def beside(self, scored: Scored) -> Beside:
        """Mark the rows on images that the model was trained on."""
        seen = _seen(scored.model, scored.benchmark)
        if seen is None:
            return Beside()
        counts: dict[str, dict[str, int]] = {}
        touched_of = [outcome.touched(seen) for outcome in scored.outcomes]
        for outcome, touched in zip(scored.outcomes, touched_of, strict=True):
            if touched is not None:
                count = counts.setdefault(outcome.task, {"items": 0, "seen": 0})
                count["items"] += len(touched)
                count["seen"] += int(touched.sum())
        notes = [
            f"{task}: {count['seen']:,} of {count['items']:,} items lie on images that the model was trained on, and "
            f"their figures are no result; variants that end in /{UNSEEN} leave them out"
            for task, count in counts.items()
            if count["seen"]
        ]
        if not scored.model.training_images.complete:
            notes.append(_IN_PART)
        return Beside(touched_of, (), notes, {"training_images": counts} if counts else {})


def make(training: TrainingCaptions | None) -> TrainingImages:
    """The companion."""
    return TrainingImages()


def _why_not_clean(model: Model, benchmark: Benchmark) -> str | None:
    """Return why a model's results on a benchmark are not clean; None where no known training image is one of it.

    Of a list that is known in part, results carry a note.
    """
    seen = _seen(model, benchmark)
    if seen is None:
        return "not known"
    if seen.any():
        return f"{seen.sum():,} of the {len(seen):,} images of {benchmark.name}"
    return None


def _seen(model: Model, benchmark: Benchmark) -> Bool[np.ndarray, " names"] | None:
    """The benchmark's images that the model was trained on; None where that is not known."""
    files = image_files(benchmark)
    return None if files is None or model.training_images is None else model.training_images.contains(*files)
