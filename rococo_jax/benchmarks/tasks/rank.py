"""Rank: for each query, who comes first in a gallery?"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

import jax
import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks.task import Example, Side, Tables, suffixed
from rococo_jax.metrics.intervals import Counted
from rococo_jax.metrics.retrieval import Ties, count_retrieval, ranks, top_kinds
from rococo_jax.similarity import rank_statistics
from rococo_jax.similarity.statistics import KINDS, OTHER_ALTERED, OWN, OWN_ALTERED, RankStatistics

IMAGE_TO_TEXT, TEXT_TO_IMAGE = "image_to_text", "text_to_image"
CLEAN = "clean"


@dataclasses.dataclass(frozen=True, eq=False)
class RankTask:
    """Each query ranks its best right answer among all that is not a right answer.

    `image_to_text` asks with images among texts, `text_to_image` the other way round. Rows may repeat, so that a string
    shared by two images is embedded once. The order of the gallery is the published one: `published` breaks ties by it.

    Attributes:
        name: `image_to_text`, `text_to_image`, or a name of the benchmark's own.
        variant: what was altered: `clean`, `same_concept`, `mix_0.9`, ...
        queries, gallery: rows of the benchmark's tables.
        query_group: the image (a row of the originals) that a query is, or belongs to.
        gallery_group: the same for gallery items; altered items have the group of the image they were made from.
        gallery_altered: True for altered captions and mixed images.
        ties: `published`, the nearest defined equivalent of the published sort, or `pessimistic`.
        seed, baseline, pooled: see `Outcome`.
        gallery_origin: the place in the gallery of the item that an altered one was made from, -1 for the others.
        shows_errors: whether an altered item in the first place is an error worth showing.
    """

    name: str
    variant: str
    queries: Rows
    gallery: Rows
    query_group: Int[np.ndarray, " queries"]
    gallery_group: Int[np.ndarray, " gallery"]
    gallery_altered: Bool[np.ndarray, " gallery"]
    ties: Ties = "published"
    seed: int | None = None
    baseline: str = CLEAN
    pooled: str | None = None
    gallery_origin: Int[np.ndarray, " gallery"] | None = None
    shows_errors: bool = True

    @property
    def asks_for_texts(self) -> bool:
        """Whether the gallery is texts."""
        return self.gallery.tables == (TEXTS,)

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """How many queries there are, and how many similarities they need."""
        return len(self.queries), len(self.queries) * len(self.gallery)

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> "RankOutcome":
        """Ranks every query by dot products in float32 at highest precision.

        Raises:
            InputError: as `rank_statistics`.
        """
        (queries, query_rows), (gallery, gallery_rows) = map(embeddings.select, (self.queries, self.gallery))
        statistics = rank_statistics(
            queries,
            gallery,
            query_rows=query_rows,
            gallery_rows=gallery_rows,
            query_group=self.query_group,
            gallery_group=self.gallery_group,
            gallery_altered=self.gallery_altered,
            mesh=mesh,
            source=embeddings.source,
        )
        return RankOutcome(self, statistics)

    def split(self, count: int) -> list["RankTask"]:
        """The task with a share of the queries each."""
        places = np.array_split(np.arange(len(self.queries)), count)
        return [self.share(share) for share in places]

    def share(self, queries: Int[np.ndarray, " some"]) -> "RankTask":
        """The task with some of its queries."""
        return dataclasses.replace(self, queries=self.queries[queries], query_group=self.query_group[queries])

    def joined(self, results: Sequence[RankStatistics]) -> "RankOutcome":
        """The outcome of the whole task from the statistics of its shares."""
        return RankOutcome(self, RankStatistics.concatenate(results))

    def on_images(self, images: str, baseline: str, pooled: str | None) -> "RankTask | None":
        """The clean task with every original replaced; None for altered variants."""
        if self.variant != CLEAN:
            return None
        sides = {side: getattr(self, side).with_table(ORIGINALS, images) for side in ("queries", "gallery")}
        baseline = self.baseline if images == baseline else baseline
        return dataclasses.replace(self, variant=images, baseline=baseline, pooled=pooled, **sides)


@dataclasses.dataclass(frozen=True, eq=False)
class RankOutcome:
    """A rank task and one model's statistics for each of its queries."""

    of: RankTask
    statistics: RankStatistics
    kind: Literal["rank"] = "rank"

    task = property(lambda self: self.of.name)
    variant = property(lambda self: self.of.variant)
    seed = property(lambda self: self.of.seed)
    baseline = property(lambda self: self.of.baseline)
    pooled = property(lambda self: self.of.pooled)
    result = property(lambda self: self.statistics)

    @functools.cached_property
    def counted(self) -> Counted:
        """Recalls and who has the first place, query by query."""
        return count_retrieval(self.statistics, self.of.ties, self.of.query_group)

    @property
    def sizes(self) -> dict[str, int]:
        """How many queries, gallery items and images there are."""
        images = len(np.unique(self.of.query_group))
        return {"queries": len(self.of.queries), "gallery": len(self.of.gallery), "images": images}

    def touched(self, images: Bool[np.ndarray, " names"]) -> Bool[np.ndarray, " queries"]:
        """The queries that are, or belong to, one of these rows of the benchmark's `images`."""
        return images[self.of.query_group]

    def only(self, queries: Bool[np.ndarray, " queries"], suffix: str) -> "RankOutcome":
        """The outcome over some of the queries, as a variant with a suffix; the gallery is the same."""
        task = self.of.share(np.flatnonzero(queries))
        task = dataclasses.replace(task, **suffixed(self.of, suffix))
        names = [field.name for field in dataclasses.fields(RankStatistics)]
        return RankOutcome(task, RankStatistics(*(getattr(self.statistics, name)[queries] for name in names)))

    def chosen_from(self, others: Sequence["RankOutcome"], fold: Int[np.ndarray, " names"]) -> "RankOutcome":
        """Each query as the outcome has it that the fold of its image names."""
        which, every = fold[self.of.query_group], np.arange(len(self.of.queries))
        names = [field.name for field in dataclasses.fields(RankStatistics)]
        columns = ([getattr(each.statistics, name) for each in others] for name in names)
        return RankOutcome(self.of, RankStatistics(*(np.stack(column)[which, every] for column in columns)))

    def rows(self, tables: Tables):
        """One row a query (`pyarrow.Table`): its ranks, and what has the first place.

        `query` is its place in the task; `image` the image it is or belongs to; `caption` the query itself, or the best
        of its own originals where it is an image; `rank` follows the task's ties; `top1_text` is a caption, or an
        image's name in text-to-image.
        """
        import pyarrow as pa

        images, texts, task = np.array(tables.images, object), np.array(tables.texts, object), self.of
        count, kind = len(task.queries), top_kinds(self.statistics, task.ties)
        top = task.gallery.index[self.statistics.best_indices[np.arange(count), kind]]
        own = self.statistics.best_indices[:, OWN]
        columns = {
            "task": [task.name] * count,
            "variant": [task.variant] * count,
            "seed": [task.seed] * count,
            "query": np.arange(count),
            "image": images[task.query_group],
            "caption": texts[task.gallery.index[own] if task.asks_for_texts else task.queries.index],
            "rank": ranks(self.statistics, task.ties),
            "rank_optimistic": self.statistics.rank_optimistic,
            "rank_pessimistic": self.statistics.rank_pessimistic,
            "top1_kind": np.array(KINDS, object)[kind],
            "top1_text": (texts if task.asks_for_texts else images)[top],
            "top1_score": self.statistics.best_scores[np.arange(count), kind].astype(np.float64),
            "positive_score": self.statistics.positive_score.astype(np.float64),
        }
        text, whole, number = pa.string(), pa.int64(), pa.float64()
        types = {"task": text, "variant": text, "seed": whole, "query": whole, "image": text, "caption": text}
        types |= {"rank": whole, "rank_optimistic": whole, "rank_pessimistic": whole}
        types |= {"top1_kind": text, "top1_text": text, "top1_score": number, "positive_score": number}
        return pa.table(columns, schema=pa.schema(types.items()))

    def errors(self, tables: Tables, count: int) -> list[Example]:
        """The queries whose first place is an altered item, by its lead over the best right answer."""
        task, kind = self.of, top_kinds(self.statistics, self.of.ties)
        fooled = np.flatnonzero((kind == OWN_ALTERED) | (kind == OTHER_ALTERED)) if task.shows_errors else np.empty(0)
        fooled = fooled.astype(int)
        scores = self.statistics.best_scores
        lead = scores[fooled, kind[fooled]] - scores[fooled, OWN]
        chosen, shown = [], set()
        for query in fooled[np.argsort(-lead, kind="stable")].tolist():
            if len(chosen) < count and (image := int(task.query_group[query])) not in shown:
                shown.add(image)
                chosen.append(self._example(tables, query, int(kind[query])))
        return chosen

    def _example(self, tables: Tables, query: int, kind: int) -> Example:
        task, indices, scores = self.of, self.statistics.best_indices[query], self.statistics.best_scores[query]
        origin = -1 if task.gallery_origin is None else int(task.gallery_origin[indices[kind]])
        note = f"altered from: {tables.texts[task.gallery.index[origin]]}" if origin >= 0 else ""
        asked, right = _side(tables, task.queries, query), _side(tables, task.gallery, int(indices[OWN]))
        wrong = dataclasses.replace(_side(tables, task.gallery, int(indices[kind])), note=note)
        named = (task.name, task.variant, task.seed, "error", 0, KINDS[kind])
        return Example(*named, asked, right, wrong, float(scores[OWN]), float(scores[kind]))


def _side(tables: Tables, rows: Rows, place: int) -> Side:
    row = rows[place : place + 1]
    (table,), (index,) = row.tables, row.index.tolist()
    if table == TEXTS:
        return Side(text=tables.texts[index])
    return Side(image=tables.images[index], picture=(table, index))
