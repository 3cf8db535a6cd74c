"""Tasks as arrays of indices: what is asked of an embedding model, with nothing said about images, text or models."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.benchmarks.rococo.published_mixing import MixingPlan

IMAGE_TO_TEXT = "image_to_text"
TEXT_TO_IMAGE = "text_to_image"
UNCORRUPTED = "uncorrupted"


@dataclass(frozen=True, eq=False)
class RankTask:
    """For each query, who comes first in a gallery?

    `image_to_text`: queries are rows of the benchmark's images, the gallery is rows of its captions;
    `text_to_image`: the other way round. Rows may repeat, so that a string shared by two images is embedded once.
    The order of the gallery is the published one, because `paper` breaks ties by it.

    Attributes:
        name: `image_to_text` or `text_to_image`.
        variant: what was altered: `clean`, `same_concept`, `mix_0.9`, ...
        queries: the table row of each query.
        gallery: the table row of each gallery item.
        query_group: the image (a row of the table of images) that a query is, or belongs to.
        gallery_group: the same for gallery items; altered items have the group of the image they were made from.
        gallery_altered: True for altered captions and mixed images.
        seed: of the alteration, where the variant is run with several and reported as their mean.
        baseline: the variant that its drop is measured against.
        pooled: the variant in whose mean it is counted beside its own, such as all corruptions of one severity.
    """

    name: Literal["image_to_text", "text_to_image"]
    variant: str
    queries: Int[np.ndarray, "queries"]
    gallery: Int[np.ndarray, "gallery"]
    query_group: Int[np.ndarray, "queries"]
    gallery_group: Int[np.ndarray, "gallery"]
    gallery_altered: Bool[np.ndarray, "gallery"]
    seed: int | None = None
    baseline: str = "clean"
    pooled: str | None = None


@dataclass(frozen=True)
class CorruptedImages:
    """The benchmark's images after one corruption of ImageNet-C; `kind=None` is the same images without one.

    Attributes:
        kind: a name of `perturb.images.corruptions.CORRUPTIONS`, or None.
        severity: 1 to 5; 0 without a corruption.
        seed: of what is random.
    """

    kind: str | None
    severity: int
    seed: int = 0

    @property
    def variant(self) -> str:
        """The name under which results are reported: `fog_3`, `uncorrupted`."""
        return UNCORRUPTED if self.kind is None else f"{self.kind}_{self.severity}"


@dataclass(frozen=True, eq=False)
class RankBenchmark:
    """Tables of images and captions, each to be embedded once, and the tasks over them.

    Attributes:
        images: names, as the annotation gives them.
        captions: strings as they are to be embedded.
        tasks: all rank tasks, the clean one of each name before its altered variants.
        notes: what a reader of the results must know (captions that were left out, ...), one sentence each.
        derived: image sets made from `images`, one image for each; see `benchmarks.altered_images`.
    """

    images: tuple[str, ...]
    captions: tuple[str, ...]
    tasks: tuple[RankTask, ...]
    notes: tuple[str, ...] = ()
    derived: tuple["MixingPlan | CorruptedImages", ...] = ()
