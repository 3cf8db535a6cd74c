"""Retrieval task: rank a gallery for each query."""

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
from rococo_jax.benchmarks.tasks.task import Compared, Example, Outcome, PairsAsked, Tables, Task, of_different_images
from rococo_jax.benchmarks.variants import CLEAN, Variant
from rococo_jax.metrics.change import Confidence, change_counts
from rococo_jax.metrics.retrieval import HUBNESS, Ties, query_counts, ranks, shares_first_item, top_kinds
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import (
    DifferenceStatistics,
    difference_statistics_of_matrix,
    rank_statistics,
    rank_statistics_of_matrix,
)
from rococo_jax.similarity.softmax import softmax_sums
from rococo_jax.similarity.statistics import KINDS, OTHER_ALTERED, OWN_ALTERED, OWN_ORIGINAL, RankStatistics

IMAGE_TO_TEXT, TEXT_TO_IMAGE = "image_to_text", "text_to_image"


@dataclasses.dataclass(frozen=True, eq=False)
class RankTask(Task):
    """Rank of the best correct item of each query among all items that are not correct.

    `image_to_text` asks with images among texts, `text_to_image` the other way round. Rows may repeat, so that a string
    shared by two images is embedded once. The order of the gallery is the published one: `published` breaks ties by it.

    Attributes:
        name: `image_to_text`, `text_to_image`, or another name of the benchmark.
        variant: alteration: `clean`, `same_concept`, `mix_0.9`, ...
        queries, gallery: rows of the benchmark's tables.
        query_group: image of each query, as a row of the originals.
        gallery_group: image of each gallery item; for altered items, the image from which they were made.
        gallery_altered: True for altered captions and mixed images.
        ties: `published`, the nearest defined equivalent of the published sort, or `pessimistic`.
        gallery_origin: index in the gallery of the original of each altered item, -1 for originals.
        shows_errors: whether an altered item that ranks first is an error to show in reports.
        gallery_mixed_in: image that was mixed into each altered item, -1 for others.
        asked_about: pairs for grounding, if they are not the altered gallery items and their originals.
        with_probabilities: whether to compute probabilities over the gallery, for changes under corruption.
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
    with_probabilities: bool = False
    is_ranking: ClassVar[bool] = True

    @functools.cached_property
    def pairs(self) -> AlteredPairs | None:
        """Each original with its altered version; None if the gallery has none."""
        if self.asked_about is not None or self.gallery_origin is None:
            return self.asked_about
        altered = np.flatnonzero(self.gallery_origin >= 0)
        if not len(altered):
            return None
        right, wrong = self.gallery[self.gallery_origin[altered]], self.gallery[altered]
        mixed_in = None if self.gallery_mixed_in is None else self.gallery_mixed_in[altered]
        return AlteredPairs(self.queries, self.query_group, right, wrong, self.gallery_group[altered], mixed_in)

    def compared_texts(self) -> Compared | None:
        """Return original and altered texts and the image of each pair, for text-only baselines; None without pairs."""
        if self.pairs is None or not self.asks_for_texts:
            return None
        return self.pairs.right, self.pairs.wrong, self.pairs.group

    @property
    def asks_with_images(self) -> bool:
        """Whether the queries are images."""
        return self.asks_for_texts

    @property
    def asks_for_texts(self) -> bool:
        """Whether the gallery consists of texts."""
        return self.gallery.tables == (TEXTS,)

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """Number of queries, and of the similarities they need."""
        return len(self.queries), len(self.queries) * len(self.gallery)

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> "RankOutcome":
        """Rank the gallery for every query and compute grounding statistics, in float32 at highest precision.

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
        confidences = self._sureness(statistics, embeddings, mesh) if self.with_probabilities else None
        return RankOutcome(self, statistics, differences, confidences)

    def pairs_asked(self, numbers: ImageNumbers) -> PairsAsked:
        """Return every query with the whole gallery, and the queries of pairs with both of their items."""
        pairs = [self.pair(numbers, *np.indices((len(self.queries), len(self.gallery))).reshape(2, -1))]
        if self.pairs is not None:
            queries = numbers(self.pairs.queries)
            for side in map(numbers, (self.pairs.right, self.pairs.wrong)):
                both = np.repeat(queries, len(side)), np.tile(side, len(queries))
                pairs.append(both if self.asks_for_texts else both[::-1])
        return tuple(map(np.concatenate, zip(*pairs, strict=True)))

    def pair(self, numbers: ImageNumbers, queries: np.ndarray, items: np.ndarray) -> PairsAsked:
        """Return images and texts of some queries, each with a gallery item."""
        of_query, of_item = numbers(self.queries)[queries], numbers(self.gallery)[items]
        return (of_query, of_item) if self.asks_for_texts else (of_item, of_query)

    def score_by_pairs(self, scores: PairScores) -> "RankOutcome":
        """Rank the gallery for every query and compute grounding statistics, in the precision of the scores.

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
            second_group=pairs.also_shown_in,
        )
        return RankOutcome(self, statistics, differences)

    def _sureness(
        self, statistics: RankStatistics, embeddings: Embeddings, mesh: jax.sharding.Mesh | None
    ) -> Confidence:
        """Return confidences over the gallery; a tie for the first rank is wrong."""
        queries, gallery = (table[rows] for table, rows in map(embeddings.select, (self.queries, self.gallery)))
        scores, index = statistics.best_scores, statistics.best_indices
        scale, mesh = embeddings.logit_scale or DEFAULT_SCALE, mesh or make_mesh(jax.devices()[:1])
        total, weighted = softmax_sums(queries, gallery, scale, mesh).astype(np.float64).T
        wrong = (scores == scores.max(axis=1, keepdims=True)) & (np.arange(len(KINDS)) != OWN_ORIGINAL)
        answer = np.where(wrong.any(axis=1), np.where(wrong, index, -1).max(axis=1), index[:, OWN_ORIGINAL])
        entropy = np.maximum(np.log(total) - weighted / total, 0.0)
        return Confidence(answer, ~wrong.any(axis=1), 1.0 / total, entropy / np.log(max(len(gallery), 2)))

    def with_gallery(self, is_kept: Bool[np.ndarray, " gallery"]) -> "RankTask":
        """Return the task with part of its gallery, which must include the originals of its altered items."""
        origin, place = self.gallery_origin[is_kept], np.cumsum(is_kept) - 1
        sides = ("gallery", "gallery_group", "gallery_altered", "gallery_mixed_in")
        parts = {side: None if (rows := getattr(self, side)) is None else rows[is_kept] for side in sides}
        return dataclasses.replace(self, **parts, gallery_origin=np.where(origin >= 0, place[origin], -1))

    def drop_truncated_duplicates(self, reading: Int[np.ndarray, " texts"]) -> "tuple[RankTask | None, int, int]":
        """Return the task without altered captions whose tokens equal those of their originals."""
        if self.gallery_origin is None or not self.asks_for_texts:
            return self, 0, 0
        text = reading[self.gallery.index]
        twins, altered = self.gallery_altered & (text == text[self.gallery_origin]), int(self.gallery_altered.sum())
        if not (count := int(twins.sum())):
            return self, 0, altered
        return None if count == altered else self.with_gallery(~twins), count, altered

    def on_images(self, images: Variant, baseline: str, pool: Pool | None) -> "RankTask | None":
        """Return the clean task with every original replaced; None for altered variants."""
        if self.variant != CLEAN:
            return None
        sides = {side: getattr(self, side).with_table(ORIGINALS, images.name) for side in ("queries", "gallery")}
        about = None
        if images.name != baseline and not self.asks_for_texts:
            # The grounding pairs of captions are every image and its corrupted copy.
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
            with_probabilities=True,
            **sides,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class RankOutcome(Outcome):
    """Outcome of a retrieval task, with one model's statistics for each query.

    `has_candidate` tells which queries had a right answer among the candidates that were scored by pairs.
    """

    of: RankTask
    statistics: RankStatistics
    differences: DifferenceStatistics | None = None
    confidences: Confidence | None = None
    has_candidate: Bool[np.ndarray, " queries"] | None = None
    kind: Literal["rank"] = "rank"

    @functools.cached_property
    def counts(self) -> dict[str, np.ndarray]:
        """Recall counts, the kind of each query's first item and whether others share it.

        In two stages also whether a candidate is correct.
        """
        task, first = self.of, self.first_item
        item = 2 * task.gallery.index[first] + task.gallery_altered[first]
        shared = {HUBNESS.name: shares_first_item(item, task.query_group)}
        return query_counts(self.statistics, task.ties, self.has_candidate) | shared

    @property
    def first_item(self) -> Int[np.ndarray, " queries"]:
        """Place in the gallery of the item that ranks first for each query."""
        kind = top_kinds(self.statistics, self.of.ties)
        return self.statistics.best_indices[np.arange(len(kind)), kind]

    @property
    def unit(self) -> Int[np.ndarray, " queries"]:
        """Image of each query."""
        return self.of.query_group

    def rows_of_pairs(self) -> Int[np.ndarray, " entries"]:
        """Return the query of each pair and matching query."""
        return self.differences.query

    def change_counts(self, baseline: "RankOutcome") -> dict[str, np.ndarray]:
        """Return changes by corruption of each query (see `metrics.change`); empty if they were not measured."""
        if self.confidences is None or baseline.confidences is None:
            return {}
        return change_counts(baseline.confidences, self.confidences)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of queries, gallery items and images."""
        images = len(np.unique(self.of.query_group))
        pairs = {} if self.differences is None else {"pairs": self.differences.pairs}
        return {"queries": len(self.of.queries), "gallery": len(self.of.gallery), "images": images} | pairs

    @property
    def chance(self) -> dict[str, float]:
        """Expected R@1 of a random order, in percent: the mean share of correct items in the gallery."""
        right, counts = np.unique(self.of.gallery_group[~self.of.gallery_altered], return_counts=True)
        of_group = dict(zip(right.tolist(), counts.tolist(), strict=True))
        share = [of_group.get(group, 0) for group in self.of.query_group.tolist()]
        return {"r1": 100.0 * float(np.mean(share)) / len(self.of.gallery)}

    def touched(self, images: Bool[np.ndarray, " names"]) -> Bool[np.ndarray, " queries"]:
        """Return which queries belong to one of these rows of the benchmark's `images`."""
        return images[self.of.query_group]

    def rows(self, tables: Tables):
        """Return a row for each query, as a `pyarrow.Table`: its ranks, and the item that ranks first.

        `query` is its place in the task; `image` the image it is or belongs to; `caption` the query itself, or the best
        of its own originals where it is an image; `rank` follows the task's ties; `top1_text` is a caption, or an
        image's name in text-to-image.
        """
        import pyarrow as pa

        images, texts, task = np.array(tables.images, object), np.array(tables.texts, object), self.of
        count, kind = len(task.queries), top_kinds(self.statistics, task.ties)
        top = self.first_item
        best_original = self.statistics.best_indices[:, OWN_ORIGINAL]
        columns = {
            "query": np.arange(count),
            "image": images[task.query_group],
            "caption": texts[task.gallery.index[best_original] if task.asks_for_texts else task.queries.index],
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
        """Return queries for which an altered item ranks first, by its margin over the best correct item.

        The first of those with an own altered item comes before all others.
        """
        task, kind = self.of, top_kinds(self.statistics, self.of.ties)
        fooled = np.flatnonzero((kind == OWN_ALTERED) | (kind == OTHER_ALTERED)) if task.shows_errors else np.empty(0)
        fooled = fooled.astype(int)
        scores = self.statistics.best_scores
        lead = scores[fooled, kind[fooled]] - scores[fooled, OWN_ORIGINAL]
        order = fooled[np.argsort(-lead, kind="stable")]
        own_altered = order[kind[order] == OWN_ALTERED][:1]
        queries = of_different_images(np.concatenate([own_altered, order]), task.query_group, count)
        return [self._example(tables, query, int(kind[query])) for query in queries]

    def _example(self, tables: Tables, query: int, kind: int) -> Example:
        task, indices, scores = self.of, self.statistics.best_indices[query], self.statistics.best_scores[query]
        origin = (
            int(task.gallery_origin[indices[kind]]) if task.asks_for_texts and task.gallery_origin is not None else -1
        )
        note = f"altered from: {tables.texts[task.gallery.index[origin]]}" if origin >= 0 else ""
        query_side = side_of(tables, task.queries, task.query_group, query)
        right, wrong = (
            side_of(tables, task.gallery, task.gallery_group, int(indices[each])) for each in (OWN_ORIGINAL, kind)
        )
        wrong = dataclasses.replace(wrong, note=note)
        named = (task.name, self.variant, task.seed, "error", 0, KINDS[kind])
        return Example(*named, query_side, right, wrong, float(scores[OWN_ORIGINAL]), float(scores[kind]))
