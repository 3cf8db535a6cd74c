"""Items on images that a model was trained on, and models that were fitted on one half of the images each.

A figure on a training image is no result. Where a model tells its training images, every variant that meets some is
reported twice: over all, and as `VARIANT/unseen` over the others. A cross-fitted model has two folds, each fitted on
the images of the other fold; every item is scored by the one that has not seen its image, and all items count.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.benchmarks.tasks.task import OfImages
from rococo_jax.data.training_images import fold_of, read_folds
from rococo_jax.encoders import Encoder, LoadOptions, load_encoder
from rococo_jax.encoders.compute import Compute
from rococo_jax.errors import InputError
from rococo_jax.evaluation.stored import PREFIX, StoredEmbeddings
from rococo_jax.storage import hash_json

UNSEEN = "unseen"
CROSS_FITTED_NOTE = (
    "cross-fitted: every item is scored by the half of the model that was not fitted on its image; a gallery to rank "
    "holds images that it was fitted on"
)


@dataclasses.dataclass(eq=False)
class CrossFitted:
    """Encoders of which each was fitted on the images of the other fold.

    Attributes:
        folds: fold k scores the images whose fold is k, which it has not seen.
        name: of the whole.
    """

    folds: tuple[Encoder, ...]
    name: str

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        return self.folds[0].mesh

    def describe(self) -> dict[str, Any]:
        """All that decides an embedding, as JSON."""
        return {"name": self.name, "folds": [{**each.describe(), "name": ""} for each in self.folds]}

    def fingerprint(self) -> str:
        """A hash of it."""
        return hash_json(self.describe()["folds"])

    def facts(self) -> dict[str, Any]:
        """Those of the first fold."""
        return self.folds[0].facts()

    def require_matching(self) -> None:
        """Refuses: a pair has no one matching head."""
        raise InputError(self.name, "rerank", "a cross-fitted model", "one model with a matching head")


def load_any(
    source: Any, *, mesh: Mesh | None = None, compute: Compute | None = None, options: LoadOptions | None = None
) -> Any:
    """What `load_encoder` takes, the folder of a cross-fitted model, or `embeddings:PATH` (`stored`).

    Raises:
        InputError: as `load_encoder`.
    """
    if isinstance(source, str) and source.startswith(PREFIX):
        return StoredEmbeddings(source.removeprefix(PREFIX))
    folds = read_folds(source) if isinstance(source, str | Path) else None
    if folds is None:
        return load_encoder(source, mesh=mesh, compute=compute, options=options)
    loaded = tuple(load_encoder(str(fold), mesh=mesh, compute=compute) for fold in folds)
    return CrossFitted(loaded, Path(source).resolve().name)


def files_of(benchmark: Benchmark) -> tuple[Sequence[str], Sequence[str]] | None:
    """Name and hash of each of the benchmark's images; None where it has no files."""
    for images in benchmark.image_sets.values():
        files = getattr(images, "originals", images)
        if tuple(getattr(files, "names", ())) == benchmark.images:
            return files.names, files.hashes
    return None


def seen_images(encoder: Any, benchmark: Benchmark, refuse: bool = False) -> Bool[np.ndarray, " names"] | None:
    """Which of the benchmark's images the model was trained on; None where that is not known.

    Raises:
        InputError: there are some, or it is not known, and `refuse` is set; or a fold of a cross-fitted model was
            trained on images that it is to score.
    """
    files = files_of(benchmark)
    if files is None:
        return None
    if not isinstance(encoder, CrossFitted):
        known = getattr(encoder, "training_images", None)
        seen = None if known is None else known.seen(*files)
        if refuse and (seen is None or seen.any()):
            found = "not known" if seen is None else f"{seen.sum():,} of the {len(seen):,} images of {benchmark.name}"
            raise InputError(encoder.name, "training images", found, "none of a benchmark's, or no require_clean")
        return seen
    fold = fold_of(*files)
    for number, each in enumerate(encoder.folds):
        known = each.training_images
        both = np.zeros(0, bool) if known is None else known.seen(*files) & (fold == number)
        if both.any():
            found = f"{both.sum()} images of fold {number} among those that it was fitted on"
            raise InputError(encoder.name, "folds", found, "folds fitted on each other's images")
    return np.zeros(len(benchmark.images), bool)


def unseen_outcomes(
    outcomes: Sequence[Outcome], seen: Bool[np.ndarray, " names"]
) -> tuple[list[Outcome], dict[str, dict[str, int]]]:
    """The outcomes over what the model has not seen, of the variants that it has seen some of, and counts by task."""
    made, counts = [], {}
    for outcome in outcomes:
        if isinstance(outcome, OfImages):
            touched = outcome.touched(seen)
            count = counts.setdefault(outcome.task, {"items": 0, "seen": 0})
            count["items"] += len(touched)
            count["seen"] += int(touched.sum())
            if touched.any() and not touched.all():
                made.append(outcome.only(~touched, UNSEEN))
    return made, counts


def mark_rows(outcome: Outcome, table: Any, seen: Bool[np.ndarray, " names"]) -> Any:
    """The outcome's rows with a column `seen`: whether the model was trained on an image of the query or item."""
    import pyarrow as pa

    return table.append_column("seen", pa.array(outcome.touched(seen))) if isinstance(outcome, OfImages) else table


def seen_notes(counts: dict[str, dict[str, int]]) -> list[str]:
    """What a reader must know, one sentence a task."""
    return [
        f"{task}: {count['seen']:,} of {count['items']:,} items lie on images that the model was trained on, and their "
        f"figures are no result; variants that end in /{UNSEEN} leave them out"
        for task, count in counts.items()
        if count["seen"]
    ]


def choose_by_fold(of_folds: Sequence[Sequence[Outcome]], benchmark: Benchmark) -> list[Outcome]:
    """Every item from the outcome of the fold that has not seen its image."""
    files = files_of(benchmark)
    fold = np.zeros(len(benchmark.images), int) if files is None else fold_of(*files)
    return [each[0].chosen_from(each, fold) for each in zip(*of_folds, strict=True)]
