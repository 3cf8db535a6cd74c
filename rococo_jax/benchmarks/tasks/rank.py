"""Rank: for each query, who comes first in a gallery?"""

import dataclasses
import functools
from typing import ClassVar, Literal

import jax
import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.benchmarks.pair_scores import ImageNumbers, PairScores
from rococo_jax.benchmarks.pooling import Pool
from rococo_jax.benchmarks.tables import DEFAULT_SCALE, ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks.pairs import AlteredPairs, names_of, side_of
from rococo_jax.benchmarks.tasks.task import Compared, Example, Outcome, PairsAsked, Tables, Task
from rococo_jax.benchmarks.variants import CLEAN, Variant
from rococo_jax.metrics.change import Sureness, change_counts
from rococo_jax.metrics.retrieval import Ties, query_counts, ranks, top_kinds
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import (
    DifferenceStatistics,
    difference_statistics_of_matrix,
    rank_statistics,
    rank_statistics_of_matrix,
)
from rococo_jax.similarity.softmax import softmax_sums
from rococo_jax.similarity.statistics import KINDS, OTHER_ALTERED, OWN, OWN_ALTERED, RankStatistics

IMAGE_TO_TEXT, TEXT_TO_IMAGE = "image_to_text", "text_to_image"


@dataclasses.dataclass(frozen=True, eq=False)
class RankTask(Task):
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
        gallery_origin: the place in the gallery of the item that an altered one was made from, -1 for the others.
        shows_errors: whether an altered item in the first place is an error worth showing.
        gallery_mixed_in: the image that was mixed into an altered item, -1 for the others.
        asked_about: pairs to ask about, where they are not those of altered gallery items and what they were made from.
        measures_sureness: whether probabilities over the gallery are looked at, to tell what corruption changes.
    """

    queries: Rows
    gallery: Rows
    query_group: Int[np.ndarray, " queries"]
    gallery_group: Int[np.ndarray, " gallery"]
    gallery_altered: Bool[np.ndarray, " gallery"]
    ties: Ties = "published"
    baseline: str = dataclasses.field(default=CLEAN, kw_only=True)
    gallery_origin: Int[np.ndarray, " gallery"] | None = None
    shows_errors: bool = True
    gallery_mixed_in: Int[np.ndarray, " gallery"] | None = None
    asked_about: AlteredPairs | None = None
    measures_sureness: bool = False
    is_ranking: ClassVar[bool] = True

    @functools.cached_property
    def pairs(self) -> AlteredPairs | None:
        """Originals and their altered copies; None where the gallery has none."""
        if self.asked_about is not None or self.gallery_origin is None:
            return self.asked_about
        altered = np.flatnonzero(self.gallery_origin >= 0)
        if not len(altered):
            return None
        right, wrong = self.gallery[self.gallery_origin[altered]], self.gallery[altered]
        mixed_in = None if self.gallery_mixed_in is None else self.gallery_mixed_in[altered]
        return AlteredPairs(self.queries, self.query_group, right, wrong, self.gallery_group[altered], mixed_in)

    def compared_texts(self) -> Compared | None:
        """Original and altered texts and the image of each pair, for baselines without images; None without any."""
        if self.pairs is None or not self.asks_for_texts:
            return None
        return self.pairs.right, self.pairs.wrong, self.pairs.group

    @property
    def asks_with_images(self) -> bool:
        """Whether the queries are images."""
        return self.asks_for_texts

    @property
    def asks_for_texts(self) -> bool:
        """Whether the gallery is texts."""
        return self.gallery.tables == (TEXTS,)

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """Number of queries, and of similarities they need."""
        return len(self.queries), len(self.queries) * len(self.gallery)

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> "RankOutcome":
        """Ranks every query, and counts pairs, by dot products in float32 at highest precision.

        Raises InputError: as `rank_statistics`.
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
        differences = None if self.pairs is None else self.pairs.score(embeddings, mesh)
        sureness = self._sureness(statistics, embeddings, mesh) if self.measures_sureness else None
        return RankOutcome(self, statistics, differences, sureness)

    def pairs_asked(self, numbers: ImageNumbers) -> PairsAsked:
        """Every query with the whole gallery, and the pairs' queries with both sides."""
        asked = [self.pair(numbers, *np.indices((len(self.queries), len(self.gallery))).reshape(2, -1))]
        if self.pairs is not None:
            queries = numbers(self.pairs.queries)
            for side in map(numbers, (self.pairs.right, self.pairs.wrong)):
                both = np.repeat(queries, len(side)), np.tile(side, len(queries))
                asked.append(both if self.asks_for_texts else both[::-1])
        return tuple(map(np.concatenate, zip(*asked, strict=True)))

    def pair(self, numbers: ImageNumbers, queries: np.ndarray, items: np.ndarray) -> PairsAsked:
        """Images and texts of some queries, each with a gallery item."""
        of_query, of_item = numbers(self.queries)[queries], numbers(self.gallery)[items]
        return (of_query, of_item) if self.asks_for_texts else (of_item, of_query)

    def score_by_pairs(self, scores: PairScores) -> "RankOutcome":
        """Ranks every query among the whole gallery, and counts pairs, in the scores' precision.

        Raises InputError: as `rank_statistics_of_matrix`.
        """
        sides = [self.queries] if self.asks_for_texts else [self.gallery]
        if self.pairs is not None and not self.asks_for_texts:
            sides += [self.pairs.right, self.pairs.wrong]
        matrix, numbers = scores.matrix(list(dict.fromkeys(name for side in sides for name in side.tables)))
        matrix = matrix if self.asks_for_texts else matrix.T
        statistics = rank_statistics_of_matrix(
            matrix,
            query_rows=numbers(self.queries),
            gallery_columns=numbers(self.gallery),
            query_group=self.query_group,
            gallery_group=self.gallery_group,
            gallery_altered=self.gallery_altered,
            source=scores.source,
        )
        if (pairs := self.pairs) is None:
            return RankOutcome(self, statistics)
        differences = difference_statistics_of_matrix(
            matrix,
            query_rows=numbers(pairs.queries),
            right_columns=numbers(pairs.right),
            wrong_columns=numbers(pairs.wrong),
            query_group=pairs.query_group,
            pair_group=pairs.group,
            also_shown_in=pairs.also_shown_in,
        )
        return RankOutcome(self, statistics, differences)

    def _sureness(self, statistics: RankStatistics, embeddings: Embeddings, mesh: jax.sharding.Mesh | None) -> Sureness:
        """Probabilities over the gallery; a tie for the first place is wrong."""
        queries, gallery = (table[rows] for table, rows in map(embeddings.select, (self.queries, self.gallery)))
        scores, index = statistics.best_scores, statistics.best_indices
        scale, mesh = embeddings.logit_scale or DEFAULT_SCALE, mesh or make_mesh(jax.devices()[:1])
        total, weighted = softmax_sums(queries, gallery, scale, mesh).astype(np.float64).T
        wrong = (scores == scores.max(axis=1, keepdims=True)) & (np.arange(len(KINDS)) != OWN)
        answer = np.where(wrong.any(axis=1), np.where(wrong, index, -1).max(axis=1), index[:, OWN])
        entropy = np.maximum(np.log(total) - weighted / total, 0.0)
        return Sureness(answer, ~wrong.any(axis=1), 1.0 / total, entropy / np.log(max(len(gallery), 2)))

    def with_gallery(self, is_kept: Bool[np.ndarray, " gallery"]) -> "RankTask":
        """The task with part of its gallery; originals of the altered items in it must be in it, too."""
        origin, place = self.gallery_origin[is_kept], np.cumsum(is_kept) - 1
        sides = ("gallery", "gallery_group", "gallery_altered", "gallery_mixed_in")
        parts = {side: None if (whole := getattr(self, side)) is None else whole[is_kept] for side in sides}
        return dataclasses.replace(self, **parts, gallery_origin=np.where(origin >= 0, place[origin], -1))

    def without_twins(self, reading: Int[np.ndarray, " texts"]) -> "tuple[RankTask | None, int, int]":
        """The task without altered captions that read as what they were made from."""
        if self.gallery_origin is None or not self.asks_for_texts:
            return self, 0, 0
        text = reading[self.gallery.index]
        twins, altered = self.gallery_altered & (text == text[self.gallery_origin]), int(self.gallery_altered.sum())
        if not (count := int(twins.sum())):
            return self, 0, altered
        return None if count == altered else self.with_gallery(~twins), count, altered

    def on_images(self, images: Variant, baseline: str, pool: Pool | None) -> "RankTask | None":
        """The clean task with every original replaced; None for altered variants."""
        if self.variant != CLEAN:
            return None
        sides = {side: getattr(self, side).with_table(ORIGINALS, images.name) for side in ("queries", "gallery")}
        about = None
        if images.name != baseline and not self.asks_for_texts:
            # Captions are asked about every image and its changed copy.
            right, wrong = self.gallery.with_table(ORIGINALS, baseline), sides["gallery"]
            about = AlteredPairs(self.queries, self.query_group, right, wrong, self.gallery_group)
        return dataclasses.replace(
            self,
            variant="",
            corruption=images.corruption,
            severity=images.severity,
            baseline=self.baseline if images.name == baseline else baseline,
            pools=() if pool is None else (pool,),
            asked_about=about,
            measures_sureness=True,
            **sides,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class RankOutcome(Outcome):
    """A rank task and one model's statistics for each of its queries.

    `has_candidate` tells which queries had a right answer among the candidates that were scored by pairs.
    """

    of: RankTask
    statistics: RankStatistics
    differences: DifferenceStatistics | None = None
    sureness: Sureness | None = None
    has_candidate: Bool[np.ndarray, " queries"] | None = None
    kind: Literal["rank"] = "rank"

    @functools.cached_property
    def counts(self) -> dict[str, np.ndarray]:
        """Recalls and who has the first place, query by query, and in two stages who had a right candidate."""
        return query_counts(self.statistics, self.of.ties, self.has_candidate)

    @property
    def unit(self) -> Int[np.ndarray, " queries"]:
        """The image that each query is, or belongs to."""
        return self.of.query_group

    def rows_of_pairs(self) -> Int[np.ndarray, " entries"]:
        """The query of each pair and own query."""
        return self.differences.query

    def change_counts(self, baseline: "RankOutcome") -> dict[str, np.ndarray]:
        """Changes by corruption, query by query; see `metrics.change`. Empty where they were not measured."""
        if self.sureness is None or baseline.sureness is None:
            return {}
        return change_counts(baseline.sureness, self.sureness)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of queries, gallery items and images."""
        images = len(np.unique(self.of.query_group))
        pairs = {} if self.differences is None else {"pairs": self.differences.pairs}
        return {"queries": len(self.of.queries), "gallery": len(self.of.gallery), "images": images} | pairs

    @property
    def chance(self) -> dict[str, float]:
        """R@1 in percent, in expectation, of a random order: the mean share of right answers in the gallery."""
        right, counts = np.unique(self.of.gallery_group[~self.of.gallery_altered], return_counts=True)
        of_group = dict(zip(right.tolist(), counts.tolist(), strict=True))
        share = [of_group.get(group, 0) for group in self.of.query_group.tolist()]
        return {"r1": 100.0 * float(np.mean(share)) / len(self.of.gallery)}

    def touched(self, images: Bool[np.ndarray, " names"]) -> Bool[np.ndarray, " queries"]:
        """The queries that are, or belong to, one of these rows of the benchmark's `images`."""
        return images[self.of.query_group]

    def rows(self, tables: Tables):
        """One row a query (`pyarrow.Table`): its ranks, and what has the first place.

        `query` is its place in the task; `image` the image it is or belongs to; `caption` the query itself, or the best
        of its own originals where it is an image; `rank` follows the task's ties; `top1_text` is a caption, or an
        image's name in text-to-image.
        """
        import pyarrow as pa

        images, texts, task = np.array(tables.images, object), np.array(tables.texts, object), self.of
        count, kind = len(task.queries), top_kinds(self.statistics, task.ties)
        top = self.statistics.best_indices[np.arange(count), kind]
        own = self.statistics.best_indices[:, OWN]
        columns = {
            "query": np.arange(count),
            "image": images[task.query_group],
            "caption": texts[task.gallery.index[own] if task.asks_for_texts else task.queries.index],
            "rank": ranks(self.statistics, task.ties),
            "rank_optimistic": self.statistics.rank_optimistic,
            "rank_pessimistic": self.statistics.rank_pessimistic,
            "top1_kind": np.array(KINDS, object)[kind],
            "top1_text": names_of(tables, task.gallery[top], task.gallery_group[top]),
            "top1_score": self.statistics.best_scores[np.arange(count), kind].astype(np.float64),
            "positive_score": self.statistics.positive_score.astype(np.float64),
        }
        text, integer, number = pa.string(), pa.int64(), pa.float64()
        types = {"query": integer, "image": text, "caption": text}
        types |= {"rank": integer, "rank_optimistic": integer, "rank_pessimistic": integer}
        types |= {"top1_kind": text, "top1_text": text, "top1_score": number, "positive_score": number}
        return pa.table(columns, schema=pa.schema(types.items()))

    def errors(self, tables: Tables, count: int) -> list[Example]:
        """The queries whose first place is an altered item, by its lead over the best right answer; before them the
        first of those whose own altered item came first.
        """
        task, kind = self.of, top_kinds(self.statistics, self.of.ties)
        fooled = np.flatnonzero((kind == OWN_ALTERED) | (kind == OTHER_ALTERED)) if task.shows_errors else np.empty(0)
        fooled = fooled.astype(int)
        scores = self.statistics.best_scores
        lead = scores[fooled, kind[fooled]] - scores[fooled, OWN]
        chosen, shown = [], set()
        order = fooled[np.argsort(-lead, kind="stable")]
        own = order[kind[order] == OWN_ALTERED][:1]
        for query in np.concatenate([own, order[order != own] if len(own) else order]).tolist():
            if len(chosen) < count and (image := int(task.query_group[query])) not in shown:
                shown.add(image)
                chosen.append(self._example(tables, query, int(kind[query])))
        return chosen

    def _example(self, tables: Tables, query: int, kind: int) -> Example:
        task, indices, scores = self.of, self.statistics.best_indices[query], self.statistics.best_scores[query]
        origin = (
            int(task.gallery_origin[indices[kind]]) if task.asks_for_texts and task.gallery_origin is not None else -1
        )
        note = f"altered from: {tables.texts[task.gallery.index[origin]]}" if origin >= 0 else ""
        query_side = side_of(tables, task.queries, task.query_group, query)
        right, wrong = (side_of(tables, task.gallery, task.gallery_group, int(indices[each])) for each in (OWN, kind))
        wrong = dataclasses.replace(wrong, note=note)
        named = (task.name, self.variant, task.seed, "error", 0, KINDS[kind])
        return Example(*named, query_side, right, wrong, float(scores[OWN]), float(scores[kind]))
