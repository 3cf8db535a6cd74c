"""Tasks whose right answers people judged: ranking with several positives, and correlation with graded ratings."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks.task import Outcome, Tables, Task, row_head
from rococo_jax.errors import InputError
from rococo_jax.metrics import judged
from rococo_jax.metrics.intervals import Counted
from rococo_jax.metrics.judged import Correlated, judge_rows

_NUMBERS_AT_ONCE = 2**22


@dataclasses.dataclass(frozen=True, eq=False)
class JudgedTask(Task):
    """Each query ranks a gallery that holds several positives of it.

    Attributes:
        variant: `image_to_text` or `text_to_image`.
        queries, gallery: rows; one side is images, the other texts.
        positives: of each query, places in the gallery.
        query_image, gallery_image: the image that each is, or was written of.
    """

    queries: Rows
    gallery: Rows
    positives: Sequence[Sequence[int]]
    query_image: Int[np.ndarray, " queries"]
    gallery_image: Int[np.ndarray, " gallery"]

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """Number of queries, and of similarities they need."""
        return len(self.queries), len(self.queries) * len(self.gallery)

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> "JudgedOutcome":
        """Ranks by products summed in float64 and rounded to float32.

        Raises InputError: a vector is NaN or infinite.
        """
        (queries, rows), (gallery, columns) = map(embeddings.select, (self.queries, self.gallery))
        items, counts = np.asarray(gallery, np.float64)[columns].T, []
        size = max(1, _NUMBERS_AT_ONCE // max(1, len(columns)))
        for start in range(0, len(rows), size):
            some = range(start, min(start + size, len(rows)))
            scores = (np.asarray(queries[rows[some]], np.float64) @ items).astype(np.float32).astype(np.float64)
            if not np.isfinite(scores).all():
                raise InputError(embeddings.source, "embeddings", "NaN or infinite values", "unit vectors")
            positive = np.zeros(scores.shape, bool)
            for row, query in enumerate(some):
                positive[row, list(self.positives[query])] = True
            counts.append(judge_rows(scores, positive, self.query_image[some, None] == self.gallery_image))
        return JudgedOutcome(self, np.concatenate(counts) if counts else np.empty((0, len(judged.METRICS))))

    def share(self, which: Int[np.ndarray, " some"]) -> "JudgedTask":
        """The task with some of its queries."""
        positives = [self.positives[row] for row in which.tolist()]
        sides = {"queries": self.queries[which], "query_image": self.query_image[which]}
        return dataclasses.replace(self, positives=positives, **sides)

    def joined(self, results: Sequence[np.ndarray]) -> "JudgedOutcome":
        """The outcome from the counts of the shares."""
        return JudgedOutcome(self, np.concatenate(results))

    def on_images(self, images: str, baseline: str, pooled: str | None) -> "JudgedTask":
        """The same with every original replaced, as `VARIANT/IMAGES`."""
        sides = {side: getattr(self, side).with_table(ORIGINALS, images) for side in ("queries", "gallery")}
        return dataclasses.replace(
            self, variant=f"{self.variant}/{images}", baseline=f"{self.variant}/{baseline}", **sides
        )


@dataclasses.dataclass(frozen=True, eq=False)
class JudgedOutcome(Outcome):
    """The task, and what counts of each query."""

    of: JudgedTask
    counts: Float[np.ndarray, "queries counted"]
    kind = "judged"

    result = property(lambda self: self.counts)

    @functools.cached_property
    def counted(self) -> Counted:
        """The counts by image."""
        names = tuple(metric.name for metric in judged.METRICS)
        return Counted(self.counts, names, self.of.query_image, judged.METRICS)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of queries, gallery items and judged pairs."""
        pairs = sum(map(len, self.of.positives))
        return {"queries": len(self.of.queries), "gallery": len(self.of.gallery), "positives": pairs}

    def rows(self, tables: Tables):
        """One row a query (`pyarrow.Table`)."""
        import pyarrow as pa

        columns = row_head(self, [tables.images[row] for row in self.of.query_image.tolist()])
        if self.of.queries.tables == (TEXTS,):
            columns["caption"] = pa.array([tables.texts[row] for row in self.of.queries.index.tolist()], pa.string())
        return pa.table(columns | {m.name: pa.array(c) for m, c in zip(judged.METRICS, self.counts.T, strict=True)})


@dataclasses.dataclass(frozen=True, eq=False)
class CorrelationTask(Task):
    """Similarity of pairs against people's ratings.

    Attributes:
        one, other: rows of both sides, pair by pair.
        rating: of each pair.
        query: number of the first side's item, by which the published sampling samples.
        image: the image of each pair, by which intervals resample.
    """

    one: Rows
    other: Rows
    rating: Float[np.ndarray, " pairs"]
    query: Int[np.ndarray, " pairs"]
    image: Int[np.ndarray, " pairs"]

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """Number of pairs, twice."""
        return len(self.rating), len(self.rating)

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> "CorrelationOutcome":
        """Cosines of the pairs, summed in float64. Raises InputError: a vector is NaN or infinite."""
        sides = [np.asarray(table[rows], np.float64) for table, rows in map(embeddings.select, (self.one, self.other))]
        similarity = np.einsum("ij,ij->i", *sides)
        if not np.isfinite(similarity).all():
            raise InputError(embeddings.source, "embeddings", "NaN or infinite values", "unit vectors")
        return CorrelationOutcome(self, similarity)

    def share(self, which: Int[np.ndarray, " some"]) -> "CorrelationTask":
        """The task with some of its pairs."""
        sides = ("one", "other", "rating", "query", "image")
        return dataclasses.replace(self, **{side: getattr(self, side)[which] for side in sides})

    def joined(self, results: Sequence[Any]) -> "CorrelationOutcome":
        """The outcome from the cosines of the shares."""
        return CorrelationOutcome(self, np.concatenate(results))


@dataclasses.dataclass(frozen=True, eq=False)
class CorrelationOutcome(Outcome):
    """The task, and the cosine of each pair."""

    of: CorrelationTask
    similarity: Float[np.ndarray, " pairs"]
    kind = "correlation"

    result = property(lambda self: self.similarity)

    @functools.cached_property
    def counted(self) -> Correlated:
        """Similarities beside ratings."""
        return Correlated(self.similarity, self.of.rating, self.of.query, self.of.image)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of pairs, and of items that they are sampled by."""
        return {"pairs": len(self.of.rating), "queries": len(np.unique(self.of.query))}

    def rows(self, tables: Tables):
        """One row a pair (`pyarrow.Table`)."""
        import pyarrow as pa

        columns = row_head(self, [tables.images[row] for row in self.of.image.tolist()])
        return pa.table(columns | {"similarity": pa.array(self.similarity), "rating": pa.array(self.of.rating)})
