"""Classify: which of a list of classes an image shows, and how sure the model is, from texts of each class."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Float, Int

from rococo_jax.benchmarks.tables import DEFAULT_SCALE, ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks.class_outcome import ClassOutcome
from rococo_jax.benchmarks.tasks.task import Task
from rococo_jax.errors import InputError
from rococo_jax.metrics.class_statistics import ClassStatistics, class_statistics, halves

CLEAN = "clean"


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
    """

    classes: tuple[str, ...]
    prompts: Int[np.ndarray, "classes templates"]
    images: Rows
    image_names: Int[np.ndarray, " images"]
    names: Sequence[str]
    label: Int[np.ndarray, " images"]
    texture: Int[np.ndarray, " images"] | None = None

    has_classes: ClassVar[bool] = True
    # Temperatures need all images at once, and scoring is cheap.
    is_whole: ClassVar[bool] = True

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """Number of images, and of similarities they need."""
        return len(self.label), len(self.label) * len(self.classes)

    @functools.cached_property
    def half(self) -> Int[np.ndarray, " images"]:
        """The half that each image is of."""
        return halves(self.names)

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> ClassOutcome:
        """Probabilities of the classes by the model's logit scale, or 100 where it has none.

        Products are summed in float64 and rounded to float32, so that they do not depend on how images are blocked.

        Raises:
            InputError: a vector is NaN or infinite.
        """
        vectors = class_vectors(embeddings, self.prompts)
        table, rows = embeddings.select(self.images)
        scale = embeddings.logit_scale or DEFAULT_SCALE
        block = functools.partial(cosines, table, rows, vectors, embeddings.source)
        statistics = class_statistics(block, self.label, self.half, len(self.classes), scale)
        return ClassOutcome(self, statistics)

    def share(self, which: Int[np.ndarray, " some"]) -> "ClassifyTask":
        """The task with some of its images."""
        sides = {side: getattr(self, side)[which] for side in ("images", "image_names", "label")}
        texture = None if self.texture is None else self.texture[which]
        return dataclasses.replace(self, names=[self.names[row] for row in which.tolist()], texture=texture, **sides)

    def joined(self, results: Sequence[ClassStatistics]) -> ClassOutcome:
        """The outcome from the one share that is not empty."""
        (statistics,) = results
        return ClassOutcome(self, statistics)

    def on_images(self, images: str, baseline: str, pooled: str | None) -> "ClassifyTask | None":
        """The clean task with every original replaced; None for other templates."""
        if self.variant != CLEAN:
            return None
        changed = self.images.with_table(ORIGINALS, images)
        return dataclasses.replace(self, variant=images, images=changed, baseline=baseline, pooled=pooled)


def class_vectors(
    embeddings: Embeddings, prompts: Int[np.ndarray, "classes templates"]
) -> Float[np.ndarray, "classes width"]:
    """The mean of the unit vectors of each class's prompts, brought to length 1, in float64.

    Raises:
        InputError: the prompts of a class cancel out.
    """
    texts = embeddings.tables[TEXTS]
    vectors = np.stack([np.asarray(texts[rows], np.float64).mean(axis=0) for rows in prompts])
    norms = np.linalg.norm(vectors, axis=1)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise InputError(embeddings.source, "class vectors", "NaN, infinite values or a length of 0", "unit vectors")
    return vectors / norms[:, None]


def cosines(
    table: np.ndarray, rows: np.ndarray, vectors: np.ndarray, source: str, run: slice
) -> Float[np.ndarray, "images classes"]:
    """Of a run of images with every class; float64 sums rounded to float32, which blocks do not change."""
    products = np.asarray(table[rows[run]], np.float64) @ vectors.T
    if not np.isfinite(products).all():
        raise InputError(source, "embeddings", "NaN or infinite values", "unit vectors")
    return products.astype(np.float32).astype(np.float64)
